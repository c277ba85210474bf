"""Random programs (loops, branches, lists, arrays, overlapping views, products, helpers).

What the native tape gives is what Tensors and differences give.
"""

import itertools

import numpy as np
import pytest
from hypothesis import Phase, given, seed, settings
from hypothesis import strategies as st
from numba import njit

import tapegrad as tg

INPUTS, STEP = 3, 1e-6
UNARY = ["np.sin({})", "np.tanh({})", "np.exp(-{0} * {0})", "np.sqrt({0} * {0} + 1.0)", "np.arctan({})",
         "-{}", "helper({}, {})", "{} ** 2", "abs({})", "min({}, 0.8) * 1.0",
         "np.log1p({0} * {0})"]  # fmt: skip
BINARY = ["{} + {}", "{} - {}", "{} * {} * 0.5", "{0} / ({1} * {1} + 1.0)", "helper({}, {})",
          "max({}, {}) * 1.0", "np.hypot({}, {} + 2.0)", "np.arctan2({}, {} + 3.0)",
          "swapped({}, {})[0]"]  # fmt: skip

KINDS = ["assign", "update", "item", "cell", "cell", "index", "sum", "array", "window", "if", "for", "while"]
CELLS = ["cells[0]", "cells[j]", "cells[j - 1]", "tail[0]", "tail[1]"]  # of an array, and of a view of it
VECTORS = ["x", "cells", "cells[::-1]", "cells * v0"]
ARRAYS = ["np.sin({})", "{} * {}", "{} * 0.3 - {}", "np.exp(-{0} * {0})", "np.maximum({}, {})",
          "np.where({0} > {1}, {0}, {1} * 0.5)", "np.outer({}, {}) @ {} * 0.1",
          "np.cumsum({}) * 0.3"]  # fmt: skip
SUMS = ["np.sum({} * {})", "np.dot({}, {})", "({} @ np.tanh({}))", "np.max({})"]
WINDOWS = [("cells[1:]", "cells[:-1]"), ("cells[:-1]", "cells[1:]"), ("cells", "cells[::-1]"),
           ("tail", "cells[:2]"), ("cells[:2]", "tail"), ("cells[::2]", "tail")]  # fmt: skip


VECTORS_THREE = st.tuples(*[st.sampled_from(VECTORS)] * 3)


@st.composite
def expressions(draw, names):
    """Text of an expression over variables."""
    pick = st.sampled_from(names)
    a, b = draw(pick), draw(pick)
    if draw(st.booleans()):
        text = draw(st.sampled_from(UNARY)).format(a, b)
    else:
        text = draw(st.sampled_from(BINARY)).format(a, b)
    if draw(st.booleans()):
        text = f"{draw(pick)} * 0.3 + {text}"
    return text


@st.composite
def blocks(draw, names, depth):
    """Lines of a block; assigns to `names` only, so that all paths define the same."""
    lines = []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(KINDS))
        target = draw(st.sampled_from([n for n in names if n[0] == "v"]))
        text = draw(expressions(names))
        if kind == "assign" or (kind in ("if", "for", "while") and depth == 0):
            lines.append(f"{target} = {text}")
        elif kind == "update":
            lines.append(f"{target} {draw(st.sampled_from(['+=', '-=']))} {text}")
        elif kind == "item":
            k = draw(st.integers(0, 2))
            lines.append(f"items[{k}] = {text}")
        elif kind == "cell":
            cell, how = draw(st.sampled_from(CELLS)), draw(st.sampled_from(["=", "+=", "*="]))
            lines.append(f"{cell} {how} {text}")
        elif kind == "sum":
            lines.append(f"{target} = {draw(st.sampled_from(SUMS)).format(*draw(VECTORS_THREE))} + {text}")
        elif kind == "array":
            how = draw(st.sampled_from(["cells[:] =", "cells +=", "cells *="]))
            lines.append(f"{how} {draw(st.sampled_from(ARRAYS)).format(*draw(VECTORS_THREE))}")
        elif kind == "window":
            whole, part = draw(st.sampled_from(WINDOWS))
            lines.append(f"{whole} {draw(st.sampled_from(['=', '+=', '*=', '-=']))} {part}")
        elif kind == "index":
            lines.append("j = (j + 1) % 3")
        else:
            inner = ["    " + line for line in draw(blocks(names, depth - 1))]
            if kind == "if":
                edge = draw(st.floats(-1, 1).map(lambda f: round(f, 4) + 0.00003))
                lines += [f"if {draw(st.sampled_from(names))} > {edge}:", *inner]
                if draw(st.booleans()):
                    lines += ["else:", *("    " + line for line in draw(blocks(names, depth - 1)))]
            elif kind == "for":
                lines += [f"for k{depth} in range({draw(st.integers(1, 4))}):", *inner]
            else:
                lines += [f"n{depth} = 0", f"while abs({target}) < 2.0 and n{depth} < 4:", *inner]
                lines += [f"    {target} = {target} * 1.25 + 0.1", f"    n{depth} += 1"]
    return lines


@st.composite
def programs(draw):
    """Text of a module with the function `program(x)`."""
    names = [f"x[{k}]" for k in range(INPUTS)] + ["v0", "v1", "items[0]", "items[1]", "items[2]", *CELLS]
    body = ["v0 = x[0] * 1.0", "v1 = x[1] + x[2]", "items = [x[0] * 1.0, x[1] * 2.0, x[2] * 3.0]"]
    body += ["j = 0", "cells = x * 0.7", "tail = cells[1:]"]
    body += draw(blocks(names, 2)) + draw(blocks(names, 1))
    body.append("return v0 + v1 * items[0] + items[1] - items[2] * 0.5 + cells[0] - cells[1] * cells[2]")
    helper = draw(expressions(["a", "b"]).filter(lambda text: "helper" not in text and "swapped" not in text))
    return "\n".join(
        ["def helper(a, b):", "    if a > b:", "        return a * b", f"    return {helper}",
         "def swapped(a, b):", "    return b * 1.5, a", "def program(x):", *("    " + line for line in body)]
    )  # fmt: skip


def made(text, compiled):
    """The program as Python has it, or compiled with its helpers."""
    space = {"np": np}
    exec(text, space)
    if compiled:
        for name in ("helper", "swapped"):
            space[name] = njit(space[name])
        return tg.njit(space["program"])
    return space["program"]


def check(text, x):
    plain, native = made(text, False), made(text, True)
    value = float(plain(x))
    eye = np.eye(INPUTS)
    sides = [[float(plain(x + s * STEP * e)) for s in (2, 1, -1, -2)] for e in eye]
    expected = np.array([(b - c) / (2 * STEP) for _, b, c, _ in sides])
    wider = np.array([(a - d) / (4 * STEP) for a, _, _, d in sides])
    smooth = np.allclose(expected, wider, rtol=1e-4, atol=1e-4)  # else an edge is near
    results = []
    for function in (native, plain):
        t = tg.tensor(x, requires_grad=True)
        y = function(t)
        assert y.item() == pytest.approx(value, rel=1e-12, abs=1e-12)
        results.append(tg.grad(y, t)[0].numpy())
    scale = max(1.0, abs(results[1]).max())
    np.testing.assert_allclose(results[0], results[1], rtol=1e-10, atol=1e-10 * scale)
    if smooth:
        np.testing.assert_allclose(results[0], expected, rtol=2e-5, atol=2e-5 * scale)
    return smooth


POINT = np.array([0.37, -0.61, 0.83])


@pytest.mark.quick
@settings(max_examples=2, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
@given(programs())
def test_random_programs(text):
    check(text, POINT)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(10))
def test_many_random_programs(number):
    """Thirty of each seed; of ten of them second derivatives too."""
    turn, smooth = itertools.count(), []

    @seed(number)
    @settings(max_examples=30, deadline=None, database=None, phases=[Phase.generate])
    @given(programs())
    def run(text):
        smooth.append(check(text, POINT))
        if next(turn) % 3 == 0:
            check_second(text)

    run()
    assert sum(smooth) > 20  # those for which there are differences


def second(function, x, u):
    t = tg.tensor(x, requires_grad=True)
    (g,) = tg.grad(function(t), t, create_graph=True)
    return tg.grad((g * u).sum(), t)[0].numpy()


@settings(max_examples=3, deadline=None, derandomize=True, database=None, phases=[Phase.generate])
@given(programs())
def test_second_derivatives_of_random_programs(text):
    check_second(text)


def check_second(text):
    u = np.array([1.0, -0.5, 0.25])
    found, expected = (second(made(text, compiled), POINT, u) for compiled in (True, False))
    scale = max(1.0, abs(expected).max())
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * scale)
