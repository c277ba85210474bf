"""In-place operations in compiled code whose operands share memory with their target: as NumPy has them."""

import numba
import numpy as np
import pytest

import tapegrad as tg

X = np.random.default_rng(3).uniform(0.2, 1.5, 6)
SLICES = [("w[1:]", "w[:-1]"), ("w[:-1]", "w[1:]"), ("w[::2]", "w[:3]"), ("w[1::2]", "w[2:5]"),
          ("w", "w[::-1]"), ("w[3:]", "w[3:]"), ("w[:3]", "w[3:]")]  # fmt: skip
ROWS = [("m[1]", "m[0]"), ("m", "m[0]"), ("m", "m[:, ::-1]"), ("m[:, 1:]", "m[:, :2]"), ("m", "m[:, 1:2]"),
        ("m.T[:2, :2]", "m[:2, :2]"), ("m[::-1]", "m"), ("m[0, ::-1]", "m.T[:, 0]")]  # fmt: skip
FANCY = [
    ("w[np.array([1, 2, 3])]", "w[0:3]"),
    ("w[np.array([3, 1, 2])]", "w[1:4]"),
    ("w[w > 0.9]", "w[w > 0.9][::-1]"),
]


def program(lines):
    space = {"np": np}
    text = "\n".join("    " + line for line in lines)
    exec(f"def f(x):\n    w = x * 2\n    m = w.reshape((2, 3))\n{text}\n"
         "    return np.sum(w * w) + np.sum(w * x) + m[1, 0]", space)  # fmt: skip
    return space["f"]


WHOLE = [("w[...]", "w[::-1]"), ("m[...]", "m[0]"), ("m[..., 1]", "m[..., 0]"), ("m[0, ...]", "m[1]")]


def chain(pairs, operators):
    return [f"{target} {operators[k % len(operators)]} {value}" for k, (target, value) in enumerate(pairs)]


def several_writes(x):
    w = x * 2
    v = w[1:4]
    v[0] = v[1] * v[2]
    v *= w[:3]
    w[2:5] -= v
    return np.sum(v * v) + np.sum(w * x)


def agree(function):
    """Value of NumPy, of the value form, of the recorded form; gradient of Tensors and recorded."""
    compiled = tg.njit(function)
    expected = function(X.copy())
    np.testing.assert_allclose(compiled(X.copy()), expected, rtol=1e-13)
    found = []
    for f in (function, compiled):
        x = tg.tensor(X, requires_grad=True)
        y = f(x)
        np.testing.assert_allclose(y.item(), expected, rtol=1e-13)
        found.append(tg.grad(y, x)[0])
    np.testing.assert_allclose(found[1], found[0], rtol=1e-11)


def test_the_whole_by_an_ellipsis():
    """Numba types ``y[...]``, and lacks code for it."""
    agree(program(chain(WHOLE, ["+=", "*=", "-="])))
    plain = numba.njit(lambda x: x[...].sum())
    assert plain(X) == pytest.approx(X.sum(), rel=1e-15)

    @tg.njit
    def written(x):
        y = np.zeros(())
        y[...] = x[0]
        y[...] *= x[1]
        return y[()]

    assert tg.func.value_and_grad(written)(X)[0] == pytest.approx(X[0] * X[1], rel=1e-15)
    np.testing.assert_allclose(tg.func.grad(written)(X)[:2], [X[1], X[0]], rtol=1e-15)


def test_values_are_those_of_numpy():
    assert abs(tg.njit(several_writes)(X) - 142.39385005797507) < 1e-12
    assert abs(numba.njit(several_writes)(X) - 136.2385) < 1e-4  # else nothing is seen here


def test_arrays_and_tensors_agree_compiled_and_not():
    agree(several_writes)
    lines = ["w[1:] *= w[:-1]", "m += m[:, ::-1]", "w[:-1] -= w[1:]", "w[1:] = w[:-1]"]
    lines += ["m[0, ::-1] += m.T[:, 0]"]  # a vector that Numba has as one of Fortran's layout
    agree(program(lines))


@pytest.mark.slow
@pytest.mark.parametrize("pairs", [SLICES, ROWS, FANCY], ids=["slices", "rows", "fancy"])
@pytest.mark.parametrize("operators", [["+=", "*="], ["-=", "+="], ["*=", "-="], ["/=", "+="]])
def test_every_operator_and_target(pairs, operators):
    for at in range(0, len(pairs), 3):
        agree(program(chain(pairs[at : at + 3], operators)))


@pytest.mark.parametrize("line", [
    *(f"{target} {op} {value}" for target, value in (*SLICES, *ROWS, *FANCY) for op in ("+=", "*=")),
], ids=str)  # fmt: skip
@pytest.mark.slow
def test_values(line):
    function = program([line])
    np.testing.assert_array_equal(tg.njit(function)(X.copy()), function(X.copy()))


@pytest.mark.quick
def test_operands_written_to_by_ufuncs():
    def f(w):
        np.multiply(w[1:], w[:-1], w[1:])
        np.negative(w[:-1], w[1:])
        return w

    np.testing.assert_array_equal(tg.njit(f)(X.copy()), f(X.copy()))


@numba.njit
def helper(w):
    w[1:] *= w[:-1]


def test_what_numba_compiled_is_called_as_numpy_has_it():
    def f(w):
        helper(w)
        return w

    assert not np.array_equal(numba.njit(f)(X.copy()), f_in_numpy(X.copy()))  # else nothing is seen here
    np.testing.assert_array_equal(tg.njit(f)(X.copy()), f_in_numpy(X.copy()))


def f_in_numpy(w):
    helper.py_func(w)
    return w


@pytest.mark.quick
def test_no_copy_where_nothing_is_shared_or_all():
    from numba.core.runtime import rtsys

    _nrt = pytest.importorskip("numba.core.runtime._nrt_python")

    def f(v, w):
        v *= w
        v += v

    _nrt.memsys_enable_stats()
    v, w, compiled = np.ones(5), np.ones(5), tg.njit(f)
    compiled(v, w)
    before = rtsys.get_allocation_stats()
    for _ in range(10):
        compiled(v, w)
    after = rtsys.get_allocation_stats()
    assert (
        (after.alloc - before.alloc) == (after.free - before.free) == after.mi_alloc - before.mi_alloc == 20
    )


@pytest.mark.parametrize("lines", [
    ["u = np.hypot(x, 3.0)", "u[:] = u * 2.0", "return np.sum(u * u)"],
    ["u = x + 3.0", "w = np.abs(x)", "v = w[1:]", "v[:] = u[:-1] * u[1:]", "return np.sum(w ** 2 * u)"],
])  # fmt: skip
def test_the_square_of_an_absolute_value_that_was_written_to_since(lines):
    space = {"np": np}
    exec("def program(x):\n    " + "\n    ".join(lines), space)
    plain, x, v = space["program"], np.array([1.0, 2.0, -0.5]), np.array([1.0, 10.0, 0.3])
    native, t = tg.njit(plain), tg.tensor(x, requires_grad=True)
    (g,) = tg.grad(plain(t), t, create_graph=True)
    np.testing.assert_allclose(tg.func.jvp(native)(x, v), (plain(x), g.detach().numpy() @ v), rtol=1e-13)
    expected = tg.grad(np.sum(g * v), t)[0].numpy()
    np.testing.assert_allclose(tg.func.hvp(native)(x, v), expected, rtol=1e-12)


@tg.njit
def ends(r):
    return r[0] * r[-1]


@tg.njit
def doubled(r):
    r *= 2.0
    return 0.0


def read_elsewhere(x):
    r = np.abs(x)
    s = ends(r)
    for i in range(x.size):
        s += r[i] * x[0]
    both = (r * r, r)
    return np.sum(both[0]) + s + np.max(r) * x[0] + np.sum(np.concatenate((r, r[1:]))) * x[1]


def written_in_a_call(x):
    r = np.abs(x)
    return doubled(r) + np.sum(r * r)


def written_at_the_end(x):
    r = np.hypot(x, x + 0.0)
    r[1:] = 3.0 * r[1:]
    return np.sum(r * r)


@pytest.mark.parametrize(("program", "at_zero"), [
    (read_elsewhere, [2.0, 2.0, 2.0]), (written_in_a_call, [0.0, 0.0, 0.0]),
    (written_at_the_end, [4.0, 0.0, 0.0]),
])  # fmt: skip
def test_the_square_of_an_absolute_value_is_smooth_where_it_was_not_written_to(program, at_zero):
    """Also where other code reads it; away from 0 all are as Tensors have them."""
    of_second, v = tg.func.hvp(tg.njit(program)), np.array([1.0, -2.0, 0.5])
    np.testing.assert_allclose(of_second(np.zeros(3), v), at_zero * v, rtol=1e-13)
    x = tg.tensor([0.3, 1.5, -0.7], requires_grad=True)
    (g,) = tg.grad(program(x), x, create_graph=True)
    np.testing.assert_allclose(of_second(x.detach().numpy(), v), tg.grad(g, x, v)[0].numpy(), rtol=1e-12)
