"""Values and derivatives where the code changes ways: at each limit of `sizes`, one below and one above."""

import ast
import functools
import math
import warnings
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse
from scipy.sparse.linalg import spsolve

import tapegrad as tg
from tapegrad.compilation.kinds import Kind
from tapegrad.compilation.plans.repeats import MOST_ELEMENTS
from tapegrad.errors import AnomalyError, GraphFreedError, ShapeError
from tapegrad.kernels import abi
from tapegrad.kernels.replay.layout import AT_ONCE
from tapegrad.ops import kinks, lapack
from tapegrad.ops.triangles import AT_ONCE as MULTIPLICATIONS
from tapegrad.ops.triangles import (
    BLOCK,
    inverse_of_factors,
    solve_factors,
    solve_triangle,
    through_cholesky,
    through_eigh,
    through_qr,
)
from tapegrad.scipy import optimize
from tapegrad.scipy.optimize import evaluations
from tapegrad.tape import tape as tapes

from . import sizes
from .compilation.test_rolled_arrays import limited, point
from .sizes import DTYPES, LAYOUTS, LIMITS, counts, crossings, values

PACKAGE = Path(tg.__file__).parent

# ---------------------------------------------------------------- no limit is missing

# Constants in comparisons that no size is compared with, by module.
NO_SIZE = {
    "autograd/anomaly_mode.py": {"OFFSET"},
    "bench.py": {"SECONDS"},
    "numpy_api/protocol.py": {"NONE", "KEYWORDS"},
    "kernels/cache.py": {"LIMIT_BYTES", "LONG_SOURCE"},  # of files
    "diagnostics": {...},  # how much a picture shows
    "kernels/vecmath": {...},  # ranges of numbers, which tests/kernels/test_vecmath.py crosses
    "native/tapes/blocks.py": {"NUMBERS"},  # 2**31 statements: some 20 GiB, refused as running out of numbers
    "progress.py": {"INTERVAL", "LONG"},  # seconds
    "batch.py": {"TASKS"},  # chunks, on both sides of which tests/test_batch.py looks
    # ways, operations and bytes of programs, which tests/compilation/test_compile.py crosses
    # MOST_EVENTS, MOST_BYTES, and bytes of arrays of which none is kept, by compilation/test_memory.py
    "compilation/events/learner.py": {"TRACE_LEAST", "TRACE_MOST", "TRACE_BYTES", "SUMMED"},
    "compilation/programs/copies.py": {"SUMMED"},  # bytes, which test_copies.py crosses, as matching.py does
    "compilation/replay/comparing.py": {"SUMMED"},  # and test_replay.py
    "compilation/paths/learning.py": {"MOST_PATHS", "HUGE"},  # by test_memory.py
    "compilation/function.py": {
        "MOST_KINDS",
        "MOST_ONCE",
    },  # kinds of arguments, by compilation/test_kinds.py
    "compilation/kinds.py": {"HUGE"},  # by compilation/test_memory.py
    "compilation/rows/computing.py": {"MOST_BESIDE"},  # by compilation/test_memory.py
    # by compilation/test_memory.py
    "compilation/memory/pages.py": {"HUGE", "LARGE", "MOST_STEPS", "PAGESIZE", "CHUNK"},
    "compilation/rows/releases.py": {"LARGE", "MOST_STEPS", "MUCH", "SOME_STEPS"},
    # kinds; an op of five operands is computed first; tests/compilation/test_fused.py has more places to look
    "compilation/paths/matching.py": {"QUICK"},
    "compilation/paths/path.py": {"NO_OP", "MOST_PLANS", "SOME_WORDS"},
    "compilation/paths/comparison.py": {"LIVE"},
    "compilation/events/events.py": {"LIVE"},
    "compilation/events/equality.py": {"LIVE"},
    "compilation/programs/program.py": {"PACKED", "LIVE"},
    "compilation/programs/row_forms.py": {"PAGESIZE"},  # by compilation/test_memory.py
    "compilation/programs/elementwise.py": {"OUT"},
    "compilation/programs/in_place.py": {"LIVE", "LEAST", "FEWER"},  # bytes, by compilation/test_in_place.py
    # by compilation/test_memory.py
    "compilation/events/traces.py": {"LIVE", "MOST_NUMBERS", "OPERANDS_LISTED"},
    "compilation/memory/values.py": {"PACKED", "SHEET", "LINE"},  # by compilation/test_memory.py
    "compilation/paths/recorded.py": {"LIVE"},
    # blocks, jobs, steps, calls and kernels, which test_fused.py and test_background.py cross
    "compilation/background.py": {"MOST_JOBS", "MOST_HELD", "PIECE", "ALONE", "BUSY", "BUSILY"},
    "compilation/rows/fusing.py": {"UNROLLED", "CHUNK"},
    "compilation/plans/plan.py": {"BLOCK"},
    "compilation/plans/scheduling.py": {"BLOCK", "MOST_PARTS", "MOST_TASKS"},
    "compilation/rows/stretching.py": {"BLOCK", "MOST_BLOCKS"},
    # bytes, columns, elements and sizes of parts, which tests/compilation/test_tiling.py crosses
    "compilation/plans/tiling.py": {"STACKED", "FEW", "FEWEST", "CHECKED", "MOST_STEPS"},
    # elements of rows, by tests/compilation/test_compile.py
    "compilation/programs/reverse.py": {"FEW", "OUT"},
    # calls, objects and lines of an error, which tests/compilation/test_replay.py crosses
    "compilation/replay/replaying.py": {"MOST_IN_VAIN", "MOST_LEARNED", "MOST_NAMED"},
    "compilation/replay/state.py": {"MOST_ENTRIES"},
    "compilation/paths/lanes.py": {"LIVE"},
    "compilation/rows/loops.py": {"BUFFERED"},
    "compilation/rows/rows.py": {"PROGRAM_BLOCK", "BUFFERED"},
    "compilation/rows/table.py": {"PROGRAM_BLOCK", "LONG"},  # the last is crossed by test_lanes.py
    "compilation/plans/planning.py": {"WARM", "MOST_STEPS"},
    # rows and turns, which tests/compilation/test_rolled.py crosses
    # SOME_ACCESSES by compilation/test_rolled_windows.py
    "compilation/plans/repeats.py": {"FEWEST_TURNS", "LONGEST_TURN", "MOST_PIECES", "SIZES", "SOME_ACCESSES"},
    "compilation/plans/rolling.py": {
        "FEWEST_ROWS",
        "MOST_ROWS",
        "MOST_ENDS",
        "MOST_LEFT",
        "MOST_TOLD",
        "OUTSIDE",
        "THERE",
    },
    "compilation/pace.py": {"BEFORE", "TRIALS"},  # calls, which tests/compilation/test_pace.py crosses
    "kernels/assembly.py": {"MOST_KERNELS"},
    "core/saved_values.py": {"OUT"},
    "ops/special": {...},  # ranges of numbers, on both sides of which tests/ops/test_special.py looks
    "ops/series.py": {"OUT"},
    "ops/programs.py": {"MAX_OPERANDS"},  # of a rule's op and of a step: elementwise ones have three at most
    "autograd/recorded_rules.py": {"MAX_OPERANDS"},
    "tape/tape.py": {"SERIAL_BITS"},
    "tape/pruning.py": {"IN_A_LIST"},
    "kernels/replay/series.py": {"NODES", "OPERAND_BITS"},  # of programs
    "func/recorded_series.py": {"STRIDE", "OPERAND_BITS"},
    "scipy/optimize/minima.py": {"GRADIENT", "PRODUCTS", "MATRICES", "GRADIENTS", "CUSTOM", "STEP"},
    "scipy/optimize/roots.py": {"STEP"},  # a distance, crossed by its tests
    "scipy/optimize/constrained.py": {"GRADIENT", "NEAR", "OFF", "SLACK"},  # distances, crossed by its tests
    "scipy/stats/distributions/extremes.py": {"NEAR"},  # of arguments, where series are taken
    "scipy/integrate/quadrature.py": {"PANELS"},  # of an integral, as many as its function asks for
    "scipy/optimize/evaluations.py": {"SPARSE"},  # a part; tests/scipy/test_optimize.py
}
STATE_WORDS = {  # places in the words of a sweep and of compiled recording, codes of dtypes, opcodes
    name for name in vars(__import__("tapegrad.kernels.replay.layout", fromlist=["layout"])) if name.isupper()
} - {limit.name for limit in LIMITS if limit.module == "kernels.replay.layout"}
NUMBERS = {  # numbers of 8 and more in comparisons, and why they are no sizes of a user's arrays
    ("core/indices.py", 29): "an offset that fits a digit of Python's integers",
    ("func/linear_systems.py", 16): "a factor of rounding",
    ("kernels/abi.py", 63): "bits of a machine word",
    ("kernels/lowering.py", 24): "lines of a function of the library's own",
    ("kernels/replay/gradients.py", 255): "a mask",
    ("kernels/replay/memory.py", 128): "bytes of the first class of buffers, whose classes `counts` crosses",
    ("kernels/replay/memory.py", 24): "bytes of a buffer's head",
    ("kernels/replay/operands.py", 0xFFFFFFFF): "a mask",
    ("kernels/replay/programs.py", 8): "sums side by side in NumPy's of a row",
    ("kernels/replay/reading.py", 255): "a mask",
    ("kernels/replay/recorded_rules.py", 255): "a mask",
    ("kernels/replay/rerecording.py", 255): "a mask",
    ("kernels/replay/links.py", 255): "a mask",
    ("kernels/replay/recording.py", 126): "arguments of __array_ufunc__: NumPy passes at most 64 operands",
    ("kernels/replay/series.py", 64.0): "factors of a power",
    ("kernels/replay/sweep.py", 255): "a mask",
    ("kernels/replay/watching.py", 40): "frames of a note, of which there are at most DEPTH",
    ("native/emission/algebra.py", 100.0): "exponents whose powers NumPy multiplies out",
    ("scipy/integrate/quadrature.py", 10): "a factor of tolerances",
    ("scipy/integrate/quadrature.py", 50): "a factor of rounding",
    ("scipy/integrate/quadrature.py", 1000): "a factor of rounding",
    ("scipy/special.py", 8): "bytes of double precision",
    ("native/library/factors.py", 1e100): "a range of numbers",
    ("native/emission/gammas.py", 15.0): "a range of numbers",
    ("native/emission/gammas.py", 1000000.0): "a range of numbers",
    ("native/library/norms.py", 1e300): "a range of numbers",
    ("ops/elementwise.py", 20): "a range of numbers",
    ("ops/ufuncs.py", 8.0): "a range of numbers",
}
ORDERED = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)


def compared(tree):
    """Names in capitals and numbers of 8 and more on either side of <, <=, > and >=."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(isinstance(op, ORDERED) for op in node.ops):
            for side in (node.left, *node.comparators):
                for part in ast.walk(side):
                    name = part.id if isinstance(part, ast.Name) else getattr(part, "attr", None)
                    if name is not None and name.isupper() and len(name) > 1:
                        yield name, part.lineno
                    number = isinstance(part, ast.Constant) and type(part.value) in (int, float)
                    if number and abs(part.value) >= 8:
                        yield part.value, part.lineno


def capitals(node):
    """Names in capitals that a statement assigns to."""
    return {part.id for target in node.targets for part in ast.walk(target)
            if isinstance(part, ast.Name) and part.id.isupper()}  # fmt: skip


def unnamed_limits(package):
    """Where a size may be compared with what `LIMITS` does not name."""
    known = {limit.name for limit in LIMITS}
    found = []
    for path in sorted(package.rglob("*.py")):
        place = path.relative_to(package).as_posix()
        allowed = set().union(*(names for key, names in NO_SIZE.items() if place.startswith(key)))
        if ... in allowed:
            continue
        tree = ast.parse(path.read_text())
        module = place.removesuffix(".py").replace("/", ".")
        own = {name for node in tree.body if isinstance(node, ast.Assign) for name in capitals(node)}
        here = {limit.name for limit in LIMITS if limit.module == module}
        words = STATE_WORDS if place.startswith(("kernels/", "engine/", "autograd/")) else set()
        for what, line in compared(tree):
            if isinstance(what, str):
                missing = what not in allowed | words | (here if what in own else known)
            else:
                missing = (place, what) not in NUMBERS
            if missing:
                found.append(f"{place}:{line}: {what}")
    return found


def test_every_limit_is_named():
    assert not unnamed_limits(PACKAGE)
    assert all(isinstance(limit.value, int) and limit.value > 1 for limit in LIMITS)


@pytest.mark.parametrize("text", ["if n > 3000:\n    pass", "MOST = 5\nx = n <= MOST"])
def test_a_limit_without_a_name_is_found(tmp_path, text):
    (tmp_path / "new.py").write_text(text)
    assert len(unnamed_limits(tmp_path)) == 1


# ---------------------------------------------------------------- arrays


def _left(x):
    """The part of a running sum that an element is in."""
    return 1 - np.arange(x.size, dtype=np.longdouble) / x.size


def own(f, slope, curvature):
    """A program of one operand, elementwise and holomorphic, with its derivatives."""
    return f, slope, curvature


PROGRAMS = {
    "x sin x": own(
        lambda x: x * np.sin(x),
        lambda x: np.sin(x) + x * np.cos(x),
        lambda x: 2 * np.cos(x) - x * np.sin(x),
    ),
    "(x + 1)(x + 2)": own(lambda x: (x + 1) * (x + 2), lambda x: 2 * x + 3, lambda x: 2 + 0 * x),
    "ratio": own(lambda x: x / (x * x + 3.0), lambda x: (3 - x * x) / (x * x + 3) ** 2,
                 lambda x: 2 * x * (x * x - 9) / (x * x + 3) ** 3),
    "power": own(lambda x: np.exp(x) ** 2.5, lambda x: 2.5 * np.exp(2.5 * x),
                 lambda x: 6.25 * np.exp(2.5 * x)),
    "square of a result": own(  # by the method, by a twin in Python, and by the method again
        lambda x: (w := np.multiply(x * x, x, casting="same_kind")) * w,
        lambda x: 6 * x**5, lambda x: 30 * x**4,
    ),
    "array beside": own(
        lambda x: (x * np.full(x.shape, 2, x.dtype)) * x + np.full(x.shape, 1, x.dtype),
        lambda x: 4 * x, lambda x: 4 + 0 * x,
    ),
    "tensor beside": own(lambda x: tg.tensor(np.full(x.shape, 2, x.dtype)) * x * x, lambda x: 4 * x,
                         lambda x: 4 + 0 * x),
    "written": own(lambda x: _written(x), lambda x: 6 * x * x, lambda x: 12 * x),
    "views": own(lambda x: (x * 1)[::-1][::-1] * x.reshape(1, -1)[0], lambda x: 2 * x, lambda x: 2 + 0 * x),
    "joined": own(lambda x: np.concatenate([x[:1], x[1:]]) * np.stack([x, x])[1], lambda x: 2 * x,
                  lambda x: 2 + 0 * x),
    "rolled": own(lambda x: np.roll(np.roll(x, 2), -2) * x[np.arange(x.size)], lambda x: 2 * x,
                  lambda x: 2 + 0 * x),
    "sums": own(lambda x: np.cumsum(x * x) / x.size, lambda x: 2 * x * _left(x), lambda x: 2 * _left(x)),
    "log and root": own(lambda x: np.log(x) * np.sqrt(x),
                        lambda x: (np.log(x) + 2) / (2 * np.sqrt(x)), lambda x: -np.log(x) / (4 * x**1.5)),
}  # fmt: skip


def _written(x):
    y = x * x
    y[...] = y * x
    y[1:] *= 2
    y[:1] += y[:1]
    return y


def check(name, dtype, n, layout, second=True):
    """Gradient and second derivative of one program, where the tape knows the leaf and where it does not."""
    f, slope, curvature = PROGRAMS[name]
    array = values(n, dtype)
    x = sizes.laid_out(array, layout)
    assert x.size * x.itemsize == n * np.dtype(dtype).itemsize
    wide = array.astype(np.result_type(dtype, np.float64))
    eps = np.finfo(dtype).eps
    scale = 60 * eps * (n if name == "sums" else 1)
    for _ in range(2):
        (found,) = tg.grad(np.real(np.sum(f(x))), x)
        assert found.dtype == array.dtype
        compare(found, np.conj(slope(wide)), scale)
    if second:
        (first,) = tg.grad(np.real(np.sum(f(x))), x, create_graph=True)
        (found,) = tg.grad(np.real(np.sum(first)), x)
        compare(found, np.conj(curvature(wide)), 4 * scale)


def compare(found, wanted, scale):
    found = found.detach().numpy()
    error = np.abs(found - wanted)
    bad = ~(error <= scale * (np.abs(wanted) + 1))
    assert not bad.any(), f"element {np.argmax(bad)}: {found[bad][:3]} for {wanted[bad][:3]}"


@pytest.mark.parametrize("dtype", ["complex64", "complex128", "clongdouble"])
def test_a_real_result_is_small_where_its_operand_is_large(dtype):
    """Its bytes are half the operand's, and the operand's value is not kept unless a derivative asks."""
    for n in counts(dtype, 1 << 15):
        array = values(n, dtype)
        x = tg.tensor(array, requires_grad=True)
        for square in (lambda x: x * x, lambda x: np.multiply(x, x, casting="same_kind")):
            for _ in range(2):
                w = square(x)
                (found,) = tg.grad(np.sum(np.abs(w) * np.abs(w)), x)  # |x|**4
                compare(found, 4 * np.abs(array) ** 2 * array, 60 * np.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_signals(dtype):
    """Half a spectrum has about as many bytes as the signal, in half the elements."""
    for n in counts(dtype, 1 << 14)[3:]:
        x = leaf(values(n, dtype))
        spectrum = np.fft.rfft(x.detach().numpy().astype(float))
        whole = np.zeros(n, complex)
        whole[: len(spectrum)] = spectrum
        for power in (lambda z: z * np.conj(z), lambda z: np.abs(z) ** 2):
            (found,) = tg.grad(np.sum(np.real(power(np.fft.rfft(x)))), x)
            wanted = 2 * n * np.fft.ifft(whole).real
            assert np.max(np.abs(found.detach().numpy() - wanted)) <= 60 * np.finfo(dtype).eps * n * n**0.5


QUICK = [  # of each program every other dtype, and layouts in turn
    (name, dtype, [LAYOUTS[(p + d + q) % len(LAYOUTS)] for q in range(len(LAYOUTS))])
    for p, name in enumerate(PROGRAMS)
    for d, dtype in enumerate(DTYPES)
    if (p + d) % 2 == 0
]


@pytest.mark.parametrize(("name", "dtype", "layouts"), QUICK, ids=lambda x: x if isinstance(x, str) else "")
def test_programs(name, dtype, layouts):
    for q, n in enumerate(counts(dtype, 1 << 15)):
        check(name, dtype, n, layouts[q % len(layouts)], second=q % 3 == 0)


@pytest.mark.slow
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_of_all_sizes(name, dtype, layout):
    for n in counts(dtype, 1 << 25):
        check(name, dtype, n, layout, second=n < 1 << 20)


# ---------------------------------------------------------------- limits of other things than arrays

CROSSED = {}  # by limit: a function of a size that raises where a result is wrong


def crosses(module, name, **more):
    """Decorate the function that checks a program of so many of what a limit counts."""

    def register(function):
        CROSSED[module, name] = function, more
        return function

    return register


def leaf(x):
    return tg.tensor(x, requires_grad=True)


def gradient_is(f, x, wanted, scale=1e-13):
    for _ in range(2):
        (found,) = tg.grad(f(x), x)
        compare(found, np.asarray(wanted), scale)


@crosses("kernels.replay.layout", "THREADED")
def products(n):
    """Of three shapes with so many products."""
    rows = next(k for k in range(int(n**0.5), 0, -1) if n % k == 0)
    for shape in ((1, n, 1), (rows, 1, n // rows), (rows, n // rows, 1)):
        for dtype in DTYPES:
            a = values(shape[0] * shape[1], dtype).reshape(shape[:2])
            b = values(shape[1] * shape[2], dtype, 0.1, 0.9).reshape(shape[1:])
            scale = 100 * n**0.5 * np.finfo(dtype).eps
            for order in ("C", "F"):
                x, y = leaf(np.array(a, order=order)), leaf(np.array(b, order=order))
                by_x, by_y = tg.grad(np.real(np.sum(x @ y)), [x, y])
                compare(by_x, np.conj(np.ones((shape[0], shape[2])) @ b.T), scale)
                compare(by_y, np.conj(a.T @ np.ones((shape[0], shape[2]))), scale)


@crosses("kernels.replay.layout", "NARROW")
def elements_of_long_sums(n):
    rows = next(k for k in range(int(n**0.5), 0, -1) if n % k == 0)
    long_sums(rows, n // rows, 5 * AT_ONCE // (2 * n))


@crosses("kernels.replay.layout", "AT_ONCE")
def products_of_long_sums(n):
    for depth in (n // 1000, n // 1000 + 1):
        long_sums(20, 50, depth)


def long_sums(rows, columns, depth):
    """Cotangents of a small factor and a long one, stored and added to, that lie in rows or in columns."""
    for dtype in ("f", "d", "F", "D"):
        a = values(depth * rows, dtype).reshape(depth, rows)
        b, ct = (values(n * columns, dtype, 0.1, 0.9).reshape(n, columns) for n in (rows, depth))
        for order in ("C", "F"):
            x, y = leaf(np.array(a, order=order)), leaf(np.array(b, order=order))
            for out, times in ((x @ y, 1), (x @ y + x @ y, 2)):
                by_x, by_y = tg.grad(out, [x, y], tg.tensor(ct))
                compare(by_x, times * (ct @ np.conj(b.T)), 100 * columns**0.5 * np.finfo(dtype).eps)
                compare(by_y, times * (np.conj(a.T) @ ct), 100 * depth**0.5 * np.finfo(dtype).eps)


@crosses("ops.decompositions", "BLOCK", full=True)
def triangles(n):
    """First derivatives, on arrays, are those that are recorded, which are computed by eliminations."""
    for dtype in ("f", "d", "F", "D"):
        a = values(n * n, dtype, -1, 1).reshape(n, n)
        for f in (np.linalg.cholesky, lambda a: np.linalg.qr(a)[0], lambda a: np.linalg.qr(a)[1]):
            x = leaf(a @ np.conj(a.T) / n + 2 * np.eye(n, dtype=dtype))
            seed = values(n * n, dtype).reshape(n, n)
            (found,) = tg.grad(f(x), x, tg.tensor(seed))
            (wanted,) = tg.grad(f(x), x, tg.tensor(seed), create_graph=True)
            scale = 1000 * np.finfo(dtype).eps * np.abs(wanted.detach().numpy()).max()
            np.testing.assert_allclose(found.numpy(), wanted.detach().numpy(), rtol=0, atol=scale)


@crosses("numpy_api.products", "TERMS")
def terms(n):
    """Of three operands at once, and in pairs."""
    for dtype in ("f", "d", "F", "D"):
        arrays = [values(size, dtype) for size in (n, n, 1)]
        scale = 10 * n**0.5 * np.finfo(dtype).eps
        leaves, others = [leaf(x) for x in arrays], [leaf(x) for x in arrays]
        found, wanted = np.einsum("j,j,k->k", *leaves), np.sum(others[0] * others[1]) * others[2]
        compare(found, wanted.detach().numpy(), scale)
        gradients = tg.grad(np.sum(np.real(found)), leaves), tg.grad(np.sum(np.real(wanted)), others)
        for by_found, by_wanted in zip(*gradients, strict=True):
            compare(by_found, by_wanted.numpy(), scale)


@crosses("ops.scans", "FEW")
def lanes(n):
    """A scan of several lanes is that of each."""
    for dtype in DTYPES:
        array = values(5 * n, dtype).reshape(5, n)
        x = leaf(array)
        (first,) = tg.grad(np.real(np.sum(np.cumprod(x, axis=0))), x, create_graph=True)
        (second,) = tg.grad(np.real(np.sum(first)), x)
        one = leaf(array[:, n // 2])
        (by_one,) = tg.grad(np.real(np.sum(np.cumprod(one))), one, create_graph=True)
        (again,) = tg.grad(np.real(np.sum(by_one)), one)
        for several, single in ((first, by_one), (second, again)):
            compare(several[:, n // 2], single.detach().numpy(), 100 * np.finfo(dtype).eps)


@crosses("ops.loops", "BESIDE")
def running_sums(n):
    """So many side by side, along the last axis and before as many elements."""
    for dtype in DTYPES:
        array = values(300 * n, dtype)
        for shape, axis in (((n, 300), 1), ((300, n), 0), ((3, 100, n), 1), ((n, 150, 2), 1)):
            x, cotangent = leaf(array.reshape(shape)), array[::-1].reshape(shape)
            y = np.cumsum(x, axis)
            np.testing.assert_array_equal(y.detach().numpy(), np.cumsum(array.reshape(shape), axis))
            (g,) = tg.grad(y, x, tg.tensor(cotangent))
            wanted = np.flip(np.cumsum(np.flip(cotangent, axis), axis), axis)
            compare(g, wanted, 1e3 * np.finfo(dtype).eps)


@crosses("ops.loops", "NEAR")
def bessel_function(n):
    for dtype in ("float32", "float64"):
        x = np.linspace(-n, n, 50, dtype=dtype)
        np.testing.assert_array_equal(np.i0(tg.tensor(x)).numpy(), np.i0(x))


@crosses("ops.kinks", "TERMS")
def factors(n):
    """The square of a modulus behind products: at 0 its second derivative is exact, or torch's 0.

    The cotangent is made of twice as many results and two more.
    """
    x = leaf(np.array([0.0, 3.0]))
    y = abs(x)
    for _ in range(n // 2 - 1):
        y = y * 1.01
    (first,) = tg.grad(np.sum(y**2), x, create_graph=True)
    (second,) = tg.grad(np.sum(first), x)
    wanted = 2 * 1.01 ** (2 * (n // 2 - 1))
    np.testing.assert_allclose(second.tolist(), [wanted * (n < kinks.TERMS), wanted])


@crosses("ops.primitive", "MASK_BITS")
def axes(n):
    x = leaf(np.linspace(0.5, 1.5, 6).reshape((2, *(1,) * (n - 2), 3)))
    gradient_is(lambda x: np.sum(x * x), x, 2 * x.detach().numpy())
    gradient_is(lambda x: np.sum(np.sum(x * x, axis=n - 1) ** 2), x,
                4 * x.detach().numpy() * np.sum(x.detach().numpy() ** 2, axis=-1, keepdims=True))  # fmt: skip
    values = x.detach().numpy()
    length = np.sqrt(np.sum(values**2, axis=-1, keepdims=True))
    gradient_is(lambda x: np.sum(np.linalg.norm(x, axis=n - 1)), x, values / length)
    share = np.exp(values) / np.sum(np.exp(values), axis=-1, keepdims=True)
    gradient_is(lambda x: np.sum(tg.logsumexp(x, axis=n - 1)), x, share)


@crosses("numpy_api.shapes", "MANY", full=True)
def operands(n):
    x = leaf(np.array([0.5, 2.0]))
    gradient_is(lambda x: np.sum(np.stack([x * x] * n)), x, n * np.array([1.0, 4.0]))
    gradient_is(lambda x: np.sum(np.concatenate([x] * n)), x, np.full(2, n))


@crosses("compilation.memory.arena", "SMALLEST")
def moved_by_a_plan(n):
    def f(x):
        for _ in range(5):
            x = np.concatenate([x[3:] * 0.5, x[:3]]) + np.maximum(x, x[0]) * 0.25
        return np.sum(x * x)

    compiled, x = tg.compile(f, wait=True), np.random.default_rng(0).normal(size=(7, n // 8))
    for row in x:
        (value, gradient), (wanted, expected) = compiled.value_and_grad(row), tg.func.value_and_grad(f)(row)
        assert value == wanted
        np.testing.assert_allclose(gradient, expected, rtol=1e-12, atol=1e-13)


@crosses("compilation.plans.repeats", "MOST_ELEMENTS")
def turns_of_arrays(n):
    """Of a loop over so many elements, which is one in a program or is not."""
    x, c = point(n), tg.compile(limited, wait=True)
    for k in range(5):
        value, gradient = c.value_and_grad(x + 1e-9 * k)
    assert ("rolled" in str(c.explain())) is (n <= MOST_ELEMENTS and abi.native())
    known = tg.func.value_and_grad(limited)(x + 4e-9)
    assert value == known[0]
    np.testing.assert_allclose(gradient, known[1], 1e-11)


@crosses("compilation.rows.rows", "OFTEN")
def products_of_a_cotangent(n):
    random = np.random.default_rng(0)
    a, b, weights = random.normal(size=(9, n)), random.normal(size=(n, n)), random.normal(size=(9, n))
    weights[::2] *= 1e-310

    def f(a):
        return np.sum(weights * (a @ b))

    compiled = tg.compile(f, wait=True)
    for _ in range(7):
        value, gradient = compiled.value_and_grad(a)
    assert value == f(a)
    terms = np.abs(weights) @ np.abs(b.T)
    assert np.all(np.abs(gradient - weights @ b.T) <= 1e-15 * terms + 1e-322)


@crosses("compilation.kinds", "MOST_REASONS")
def reasons_for_leaving(n):
    kind = Kind([np.ones(2)], wait=False)
    for k in range(2 * n):
        kind.note_leaving(f"reason {k % n}")
    left = kind.explain().left
    assert sum(left.values()) == 2 * n
    assert len(left) == min(n, 9)
    assert left.get("other reasons", 0) == 2 * max(0, n - 8)


@crosses("compilation.events.learner", "MOST_WRITTEN")
def bytes_that_a_write_gives(n):
    def f(x):
        y = x * 2.0
        y[0] = x[1]
        return np.sum(y * x)

    compiled, x = tg.compile(f, wait=True), np.linspace(-1.0, 1.0, -(-n // 8))
    for _ in range(4):
        value, gradient = compiled.value_and_grad(x)
        expected = 4.0 * x
        expected[:2] = x[1], 4.0 * x[1] + x[0]
        assert value == f(tg.tensor(x)).item()
        np.testing.assert_allclose(gradient, expected, rtol=1e-13)
    assert ("too many to keep" in compiled.explain()) == (x.nbytes > 1 << 24 and abi.native())


@crosses("core.dispatch", "NESTED")
def lists(n):
    x = leaf(np.float64(2.0))
    nested = x * x
    for _ in range(n):
        nested = [nested]
    if n > 64:
        with pytest.raises(ShapeError, match="64 deep"):
            tg.array(nested)
    else:
        (found,) = tg.grad(np.sum(tg.array(nested)), x)
        assert found.item() == 4.0


@crosses("tape.tape", "MAX_RECORDS")
@crosses("engine.plan", "SMALL")
@crosses("kernels.state", "FEW")
def records(n):
    """A chain, then a tree of as many, swept from one root and from two; and what was freed says so."""
    for value in (np.float64(0.5), np.array([0.5, 0.25])):
        x = leaf(value)
        y = x
        for _ in range(n):
            y = y * 1.001
        (found,) = tg.grad(np.sum(y), x, retain_graph=True)
        np.testing.assert_allclose(found.detach().numpy(), np.full(np.shape(value), 1.001**n), rtol=1e-11)
        (found,) = tg.grad([np.sum(y), np.sum(y * y)], x)
        wanted = 1.001**n + 2 * 1.001 ** (2 * n) * value
        np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-11)
        with pytest.raises(GraphFreedError):
            tg.grad(np.sum(y * y), x)


@crosses("tape.tape", "FEW")
def handles(n):
    """So many results of a tape stay, then go one by one."""
    x = leaf(np.array([0.5, 2.0]))
    kept = [np.sin(x) * k for k in range(n)]
    for _ in range(3):
        tapes.close(tapes.current())
    while kept:
        k = len(kept) - 1
        (found,) = tg.grad(np.sum(kept.pop()), x, retain_graph=True)
        np.testing.assert_allclose(found.detach().numpy(), k * np.cos([0.5, 2.0]), rtol=1e-14)
        if k % 16 == 0:
            tapes.close(tapes.current())


@crosses("tape.tape", "SEVERAL")
@crosses("tape.tape", "MANY")
def released(n):
    """A chain over so many tapes, which go at once."""
    x = y = leaf(np.array([0.5, 2.0]))
    for _ in range(n):
        y = y * 1.01
        tapes.close(tapes.current())
    (found,) = tg.grad(np.sum(y), x)
    np.testing.assert_allclose(found.detach().numpy(), 1.01**n, rtol=1e-12)
    del y
    gradient_is(lambda x: np.sum(x * x), x, 2 * x.detach().numpy())


@crosses("kernels.replay.layout", "QUICK_INPUTS")
def inputs(n):
    many = [leaf(np.array([0.5 + k, 2.0])) for k in range(n)]
    total = many[0] * 1.0
    for x in many[1:]:
        total = total * 0.5 + x * x
    for found, k in zip(tg.grad(np.sum(total), many, retain_graph=True), range(n), strict=True):
        factor = 0.5 ** (n - 1 - k)
        wanted = 2 * many[k].detach().numpy() * factor if k else np.full(2, factor)
        np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-14)
    total.sum().backward()
    assert all(x.grad is not None for x in many)
    for k, found in enumerate(tg.grad([x * (k + 2.0) for k, x in enumerate(many)], many, [np.ones(2)] * n)):
        assert found.tolist() == [k + 2.0] * 2


@crosses("kernels.replay.layout", "RESTARTED")
def records_left_behind(n):
    """Records that nothing refers to, then a graph of another leaf."""
    x, w = leaf(np.array([0.5, 0.25])), leaf(np.array([1.5, 2.0]))
    tg.grad(np.sum(x * x), x, create_graph=True)
    tapes.close(tapes.current())
    y = x * 1.0
    while len(y._tape.log) // 4 < n:
        y = y * 1.001
    del y
    (g,) = tg.grad(np.sum(w * w * x), w, create_graph=True)
    assert tg.grad(np.sum(g * g), x)[0].tolist() == (8 * w * w * x).tolist()


@crosses("kernels.replay.layout", "RECORDED_FOR_EACH")
def part_of_a_tape_that_is_swept(n):
    """A short graph at the end of a tape, so many times as long, that is nearly full."""
    for begin in (tapes.MAX_RECORDS - tapes.MAX_RECORDS // (n + 1), tapes.MAX_RECORDS - 100):
        tapes.close(tapes.current())
        x, y = leaf(np.array([0.5, 0.25])), leaf(np.array([0.5, 0.25])) * 1.0
        while len(y._tape.log) // 4 < begin:
            y = y * 1.001
        z = x * x
        while len(z._tape.log) // 4 < tapes.MAX_RECORDS - 10:
            z = z * 1.001
        (g,) = tg.grad(z * z, x, np.ones(2), create_graph=True)
        (h,) = tg.grad(g, x, np.ones(2))
        value = x.detach().numpy()
        np.testing.assert_allclose(h.tolist(), g.tolist() / value * 3, rtol=1e-10)


@crosses("kernels.replay.layout", "MOST_PROGRAMS", full=True)
def shapes_of_rules(n):
    """Sums of arrays of so many shapes, each with a program; then the first again."""
    tapes.close(tapes.current())
    for k in (*range(n), 0):
        for _ in range(2):  # the second time it becomes a program
            x = leaf(np.full((1 + k % 50, 1 + k // 50), 0.5))
            (g,) = tg.grad(np.sum(x * x), x, create_graph=True)
            assert g.shape == x.shape and np.all(g.detach().numpy() == 1.0)


@crosses("autograd.traced_rules", "MOST_TRACED")
def elements_of_a_traced_rule(n):
    """A length of so many numbers, three times: its derivative and that of it."""
    x = np.linspace(0.5, 1.5, n)
    for _ in range(3):
        leaf_ = leaf(x)
        (g,) = tg.grad(np.linalg.norm(leaf_), leaf_, create_graph=True)
        size = np.sqrt(np.sum(x * x))
        np.testing.assert_allclose(g.detach().numpy(), x / size)
        (h,) = tg.grad(np.sum(g), leaf_)
        np.testing.assert_allclose(h.numpy(), 1 / size - x * np.sum(x) / size**3)


@crosses("kernels.replay.layout", "KEY_WORDS")
def operands_of_rules(n):
    """Joined arrays that take so many words, beside two for who wants a part and three for the axis."""
    arrays = [np.arange(1.0, 3.0)] * ((n - 7) // 2) + [np.float64(3.0)] * ((n - 7) % 2)
    for _ in range(4):  # the rule is met, becomes a program, is followed twice
        leaves = [tg.tensor(a, requires_grad=True) for a in arrays]
        joined = np.concatenate([np.atleast_1d(x) for x in leaves])
        first = tg.grad(np.sum(joined**3), leaves, create_graph=True)
        second = tg.grad(first, leaves, [np.ones(a.shape) for a in arrays])
        for a, g, h in zip(arrays, first, second, strict=True):
            np.testing.assert_allclose(g.detach().numpy(), 3 * a**2)
            np.testing.assert_allclose(h, 6 * a)


@crosses("kernels.replay.layout", "MOST_RECORDED")
def records_swept_and_recorded(n):
    """A chain whose derivative, two records a step, ends about there."""
    x = leaf(np.array([0.5, 0.25]))
    tg.grad(np.sum(x * x), x, create_graph=True)
    for length in (tapes.MAX_RECORDS // 4, n // 4, n // 3):
        tapes.close(tapes.current())
        y = x * 1.0
        for _ in range(length):
            y = y * 1.001
        z = y * y
        (g,) = tg.grad(z, x, np.ones(2), create_graph=True)
        (h,) = tg.grad(g, x, np.ones(2))
        factor = 1.001 ** (2 * length)
        np.testing.assert_allclose(g.tolist(), 2 * factor * x.detach().numpy(), rtol=1e-10)
        np.testing.assert_allclose(h.tolist(), [2 * factor] * 2, rtol=1e-10)


@crosses("ops.triangles", "BLOCK")
def rows_eliminated(n):
    for rows in (n, n + BLOCK, 4 * n):
        triangular_systems_are_solved(rows, 3)
        inverses_and_cotangents_are_those_of_numpy(rows)


def inverses_and_cotangents_are_those_of_numpy(n):
    random = np.random.default_rng(n)
    for char in "fdFD":
        a = (random.uniform(-1, 1, (n, n)) / n + 2 * np.eye(n))[random.permutation(n)].astype(char)
        low = (np.tril(random.uniform(-1, 1, (n, n))) / n + np.eye(n)).astype(char)
        if char in "FD":
            a, low = a * np.exp(0.3j).astype(char), low - 0.3j * np.tril(low, -1)
        close = {"rtol": 0, "atol": 100 * n * np.finfo(char).eps}
        lapacks = lapack._getrf(lapack.functions(char), a, a.dtype)
        np.testing.assert_allclose(inverse_of_factors(*lapacks), np.linalg.inv(a).T, **close)
        ct, back = random.uniform(-1, 1, (n, n)).astype(char), np.linalg.inv(low.astype("D"))
        inner = np.tril(np.conj(low.T) @ ct) * (1 - np.eye(n) / 2)
        wanted = np.conj(back.T) @ inner @ back
        wanted = (wanted + np.conj(wanted.T)) / 2
        np.testing.assert_allclose(through_cholesky(low, ct, False), wanted, **close)


@crosses("ops.triangles", "AT_ONCE")
def products_of_the_rule_of_qr(n):
    for rows, k in ((n // 2500, 50), (n // 2500 + 1, 50)):
        product_of_the_rule_of_qr(rows, k)


@crosses("ops.triangles", "FEWEST")
def rows_of_products_of_the_rule_of_qr(n):
    columns = math.isqrt(MULTIPLICATIONS // n)
    product_of_the_rule_of_qr(columns + 3, columns)
    product_of_the_rule_of_qr(columns + 3, columns + 1)


@crosses("ops.triangles", "ROWS")
def rows_of_triangles_of_products(n):
    random = np.random.default_rng(n)
    for rows in (n, 2 * n):
        product_of_the_rule_of_qr(rows + 3, rows)
        for char in "dD":
            v, ct = (random.normal(size=(rows, rows)).astype(char) for _ in range(2))
            v, w = np.linalg.qr(v * (1 + 1j if char == "D" else 1))[0], np.arange(1.0, rows + 1)
            np.testing.assert_allclose(through_eigh(w, v, w, 0), (v * w) @ np.conj(v.T), rtol=0, atol=1e-9)
            inner = np.conj(v.T) @ ct / (w - w[:, None] + np.diag(w * np.inf))
            wanted = v @ (inner + np.conj(inner.T)) @ np.conj(v.T) / 2
            np.testing.assert_allclose(through_eigh(w, v, ct, 1), wanted, rtol=0, atol=1e-9)


def product_of_the_rule_of_qr(rows, k):
    random = np.random.default_rng(rows)
    q, r = np.linalg.qr(random.normal(size=(rows, k)))
    by_q, by_r = random.normal(size=(rows, k)), random.normal(size=(k, k))
    upper = np.triu(q.T @ by_q - by_r @ r.T)
    wanted = by_q - q @ (upper + np.triu(upper, 1).T)
    np.testing.assert_allclose(through_qr(q, r, by_q, by_r) @ r.T, wanted, rtol=0, atol=1e-8)


@crosses("ops.triangles", "COLUMNS", full=True)
def right_sides(n):
    triangular_systems_are_solved(BLOCK + 5, n)


def triangular_systems_are_solved(rows, columns):
    """By a triangle, and by LU factors of a matrix and of its transpose, of every layout."""
    random = np.random.default_rng(rows)
    for char in "fdFD":
        a, b = (random.uniform(-1, 1, (rows, n)) for n in (rows, columns))
        a, b = (a / rows + 2 * np.eye(rows)).astype(char), b.astype(char)
        if char in "FD":
            a, b = a * np.exp(0.3j).astype(char), b * (1 - 2j)
        a = a[random.permutation(rows)]
        close = {"rtol": 0, "atol": 100 * np.finfo(char).eps}
        factors, pivots = lapack._getrf(lapack.functions(char), a, a.dtype)
        for matrix, transposed in ((a, False), (a.T, True)):
            x = b.copy()
            solve_factors(factors, pivots, x, transposed)
            np.testing.assert_allclose(matrix @ x, b, **close)
        for order in "CF":
            r = np.array(np.triu(factors), order=order)
            for right in (b, np.asfortranarray(b), b[::-1]):
                np.testing.assert_allclose(r @ solve_triangle(r, right), right, **close)
                np.testing.assert_allclose(np.conj(r.T) @ solve_triangle(r, right, True), right, **close)


@crosses("ops.lapack", "SMALL")
def rows_of_factors(n):
    a = np.eye(n) * 3 + np.random.default_rng(n).uniform(-1, 1, (n, n)) / n
    b = np.linspace(0.5, 1.5, n)
    for dtype in ("float64", "float32", "complex128"):
        m = a.astype(dtype)
        inverse, scale = np.linalg.inv(m), 1e-4 if dtype == "float32" else 1e-12
        ones, right = np.ones(n, dtype), b.astype(dtype)
        wanted = -np.outer(np.linalg.solve(m.T, ones), np.linalg.solve(m, right)).conj()
        gradient_is(lambda m, r=right: np.real(np.sum(np.linalg.solve(m, r))), leaf(m), wanted, scale)
        gradient_is(lambda m, r=right: np.real(np.sum(np.linalg.lstsq(m, r)[0])), leaf(m), wanted, scale)
        gradient_is(lambda m: np.real(np.linalg.slogdet(m)[1]), leaf(m), inverse.T.conj(), scale)
        gradient_is(lambda m: np.real(np.log(np.linalg.det(m))), leaf(m), inverse.T.conj(), scale)


@crosses("ops.lapack", "LARGEST")
def logarithm(n):
    """Determinants up to the largest numbers, and down to the least."""
    for sign in (-1, 1):
        d = np.full(40, np.exp(sign * n / 40))
        wanted = np.linalg.det(np.diag(d))
        gradient_is(lambda m: np.linalg.det(m) / wanted, leaf(np.diag(d)), np.diag(1 / d), 1e-11)


@crosses("kernels.replay.layout", "EXACT")
def integers(n):
    """Numbers of Python beside small arrays, in both dtypes, rounded as NumPy does."""
    for dtype in ("d", "f"):
        values = np.array([0.5, 1.0, 3.0], dtype)
        x = tg.tensor(values, requires_grad=True)
        gradient_is(lambda x: np.sum(x * n), x, np.full(3, n).astype(dtype), 0)
        y = x * 1
        pairs = (y + n, values + n), (n - y, n - values), (y * -n, values * -n), (n / y, n / values)
        for found, wanted in pairs:
            np.testing.assert_array_equal(found.detach().numpy(), wanted)


@crosses("kernels.replay.layout", "MAXDIM")
def dimensions(n):
    if n > 64:
        with pytest.raises(ValueError, match="64"):
            np.zeros((1,) * n)
        return
    x = leaf(np.linspace(0.5, 1.5, 6).reshape((2, *(1,) * (n - 2), 3)))
    gradient_is(lambda x: np.sum(np.sin(x) * x.T.T), x, np.sin(x.detach()) + x.detach() * np.cos(x.detach()))
    gradient_is(lambda x: np.sum(x[::-1] * x), x, 2 * x.detach().numpy()[::-1])


@crosses("kernels.replay.layout", "DEPTH")
def frames(n):
    """The line of a number that is not finite, from so many calls deep."""

    def deep(x, left):
        return np.log(x) if left == 0 else deep(x, left - 1)

    x = leaf(np.array([0.0, 1.0]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that anomaly mode is on, and of the number
        with tg.autograd.detect_anomaly(), pytest.raises(AnomalyError, match="in deep"):
            np.sum(deep(x, n) * 0.0).backward()


@crosses("kernels.state", "KEEP_BYTES", slow=True)
@crosses("tape.pool", "STOCK_BYTES", slow=True)
def memory(nbytes):
    """Arrays that together have so many bytes."""
    for parts in (1, 5):
        n = max(1, nbytes // 8 // parts)
        xs = [leaf(np.linspace(0.5, 1.5, n + k)) for k in range(parts)]
        for _ in range(2):
            found = tg.grad([np.sum(x * x * x) for x in xs], xs)
            for x, g in zip(xs, found, strict=True):
                compare(g, 3 * x.detach().numpy() ** 2, 1e-15)


@crosses("tape.pool", "LATEST")
def buffers(n):
    """So many large results in use at a time, of which one is dropped in each round."""
    x = leaf(np.linspace(0.5, 1.5, 10_000))
    kept = [np.sin(x) * k for k in range(n)]
    for q in range(3 * n):
        kept[q % n] = kept[q % n] + x
    for k, y in enumerate(kept):
        compare(tg.grad(np.sum(y), x, retain_graph=True)[0], k * np.cos(x.detach().numpy()) + 3, 1e-14)


@crosses("tape.pool", "MAX_SHADOWS", slow=True)
def shapes(n):
    x = leaf(np.linspace(0.5, 1.5, 600 + n))
    kept = [(x[: 600 + k] * 1.5) * 2.0 for k in range(n)]
    for y in kept[:2] + kept[-2:]:
        (found,) = tg.grad(np.sum(y * y), x, retain_graph=True)
        wanted = np.where(np.arange(x.size) < y.size, 18 * x.detach().numpy(), 0)
        compare(found, wanted, 1e-14)


@crosses("core.histories", "FEW")
def room(entries):
    """A write where a tape has so many entries left."""
    tapes.close(tapes.current())
    x = leaf(np.array([0.5, 2.0, 1.0]))
    y = x * 1.0
    while len(tapes.local.tape.log) < tapes.local.tape.limit - entries:
        y = y * 1.0
    y[1:] *= y[:2]
    y[0] = y[2] * x[0]
    (found,) = tg.grad(np.sum(y), x)
    np.testing.assert_allclose(found.detach().numpy(), [4.0, 2.0, 3.0])  # of x0 x1 x2 + x0 x1 + x1 x2


@crosses("autograd.steps", "RECORDS")
def steps(entries):
    """A loop with checkpoints whose steps make so many entries of a log."""
    count = entries // 4

    def step(y):
        for _ in range(count // 10):
            y = y * 1.001
        return y

    x = leaf(np.array([0.5, 2.0]))
    for many in (9, 10, 11, 12):
        y = tg.autograd.checkpoint_loop(step, x, many, slots=3)
        (found,) = tg.grad(np.sum(y * y), x)
        wanted = 2 * x.detach().numpy() * 1.001 ** (2 * many * (count // 10))
        np.testing.assert_allclose(found.detach().numpy(), wanted)


@crosses("autograd.apply", "PARTS")
def parts(n):
    """A Function whose ctx keeps so many Tensors, results and operands of it."""

    class Several(tg.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.kept = [x * 1.0 for _ in range(n)]
            return x * float(n)

        @staticmethod
        def backward(ctx, g):
            return g * float(len(ctx.kept)) + 0 * sum(ctx.kept)

    x = leaf(np.array([0.5, 2.0]))
    gradient_is(lambda x: np.sum(Several.apply(x * 1.0)), x, np.full(2, n))


@crosses("autograd.call", "NESTED")
def nested(n):
    """A Function whose ctx keeps its result and its operand in so many lists."""

    class Deep(tg.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            out = x * 3.0
            ctx.kept = [x, out]
            for _ in range(n - 1):
                ctx.kept = [ctx.kept]
            return out

        @staticmethod
        def backward(ctx, g):
            kept = ctx.kept
            for _ in range(n - 1):
                (kept,) = kept
            return g * kept[1] / kept[0]

    x = leaf(np.array([0.5, 2.0]))
    gradient_is(lambda x: np.sum(Deep.apply(x * 1.0)), x, np.full(2, 3.0))


COMPILED = """
def {name}(x):
    {body}
"""


def compiled(name, body):
    """A function of tg.njit from its text."""
    scope = {"np": np}
    exec(COMPILED.format(name=name, body=body), scope)
    return tg.njit(scope[name])


@crosses("native.numbers.scalar", "MAX_LEAVES", slow=True)
def leaves(n):
    f = compiled("leaves", "return " + " + ".join(f"x[{k}] * x[{k}]" for k in range(n)))
    gradient_is(lambda x: f(x), leaf(np.linspace(0.5, 1.5, n)), 2 * np.linspace(0.5, 1.5, n))


@crosses("native.tapes.record", "MOST", slow=True)
def statements(nbytes):
    """Straight code around so many bytes of a record: a statement has 8, 12, 16 or 20."""
    for size in (8, 12, 16, 20):
        n = nbytes // size
        lines = ["y = x[0]"] + [f"y = y * x[{k % 3}]" for k in range(n)] + ["return y"]
        f = compiled("statements", "\n    ".join(lines))
        x = np.array([1.001, 0.999, 1.0005])
        times = np.array([1 + sum(k % 3 == q for k in range(n)) * 1.0 - (q > 0) for q in range(3)])
        gradient_is(lambda x, f=f: f(x), leaf(x), times * np.prod(x**times) / x, 1e-10)


@crosses("native.tapes.record", "DEPTH", slow=True)
def partials(n):
    """Products of so many factors in one statement, and of more; then the second derivatives."""
    at, along = np.array([1.7, 3.0, 0.4]), np.array([0.3, -1.1, 0.8])
    for count in (n, n + 1, n + 2):
        text = " * ".join(f"(x[{k % 3}] + {k}.0)" for k in range(count))
        f, plain = compiled("partials", f"return {text}"), eval(f"lambda x: {text}")
        x = leaf(at)
        gradient_is(lambda x, f=f: f(x), leaf(at), tg.grad(plain(x), x)[0].numpy(), 1e-14)
        np.testing.assert_allclose(tg.func.hvp(f)(at, along), tg.func.hvp(plain)(at, along), rtol=1e-13)


@crosses("native.emission.algebra", "UNROLLED", slow=True)
def exponents(n):
    for k in (n, -n):
        f = compiled("power", f"return x**{k} + x ** ({k}.0)")
        gradient_is(lambda x, f=f: f(x), leaf(1.01), 2 * k * 1.01 ** (k - 1), 1e-12)


@crosses("native.tapes.tape", "STEP", slow=True)
@crosses("native.tapes.tape", "CHUNK", slow=True)
def native_bytes(nbytes):
    """A loop that records around so many bytes: a turn has some 12 to 32."""

    @tg.njit
    def loop(x, n):
        y = x * 1.0
        for k in range(n):
            y = y * 1.0 + x * k * 1e-9
        return y

    for size in (12, 16, 20, 24, 28, 32):
        n = nbytes // size
        gradient_is(lambda x, n=n: loop(x, n), leaf(0.7), 1 + 1e-9 * n * (n - 1) / 2, 1e-9)


@crosses("native.derivatives.jacobian", "SEEDS", slow=True)
def results(n):
    f = compiled("results", f"return x[:{n}] * x[:{n}] * x[0]")
    x = np.linspace(0.5, 1.5, n)
    wanted = np.diag(2 * x * x[0])
    wanted[:, 0] += x * x
    np.testing.assert_allclose(tg.func.jacobian(f)(x), wanted, rtol=1e-14)


@crosses("native.derivatives.derivative", "LANES", slow=True)
def columns(n):
    f = compiled("columns", "return np.sum(x * x * x) + x[0] * x[-1]")
    for size in (n, 2 * n):
        x = np.linspace(0.5, 1.5, size)
        wanted = np.diag(6 * x)
        wanted[0, -1] += 1
        wanted[-1, 0] += 1
        np.testing.assert_allclose(tg.func.hessian(f)(x), wanted, rtol=1e-14)


@crosses("func.matrices", "FEW")
def directions(n):
    """Matrices of so many columns, in memory for all of them and for few."""
    x = np.linspace(0.5, 1.5, n)
    wanted = np.diag(6 * x) + 2
    for size in (None, 7):
        hessian = tg.func.hessian(lambda x: np.sum(x) ** 2 + np.sum(x**3), chunk_size=size)
        np.testing.assert_allclose(hessian(x), wanted, rtol=1e-13)
        for jacobian in (tg.func.jacfwd, tg.func.jacrev):
            found = jacobian(lambda x: 2 * np.sum(x) + 3 * x * x, chunk_size=size)(x)
            np.testing.assert_allclose(found, wanted, rtol=1e-13)


@crosses("kernels.replay.layout", "FEW_ROWS")
def rows_that_are_summed(n):
    """Cotangents of what is broadcast along rows of a short axis, also behind another axis."""
    for dtype in (np.float32, np.float64, np.complex64, np.complex128):
        for shape in ((n, 5), (3, n, 31)):
            x = leaf(np.ones((*shape[:-2], 1, shape[-1]), dtype))
            seed = values(x.size * n, dtype).reshape(shape)
            (found,) = tg.grad(x + np.ones(shape, dtype), x, seed)
            compare(found, seed.sum(-2, keepdims=True), 10 * np.finfo(dtype).eps)


@crosses("kernels.replay.layout", "TILE")
def rows_of_transposed(n):
    """Cotangents of transposed matrices and stacks, stored and added, in steps that caches are small for."""
    for dtype in (np.float32, np.float64, np.complex128):
        for m in (2 * n, 500, 512):
            transposed = {(n, m): (1, 0), (m, n): (1, 0), (2, n, m): (0, 2, 1), (n, 2, m): (2, 0, 1)}
            for shape, axes in transposed.items():
                x = leaf(np.ones(shape, dtype))
                y = x.transpose(axes)
                seed = np.random.default_rng(n).normal(size=y.shape).astype(dtype)
                wanted = seed.transpose(np.argsort(axes))
                for root, times in ((y, 1), (y + y, 2)):
                    (found,) = tg.grad(root, x, seed, retain_graph=True)
                    np.testing.assert_array_equal(found.numpy(), times * wanted)


@crosses("func.tangents", "LARGE_ARGUMENTS")
def tangents_of_arguments(n):
    """Tangents of an argument of so many elements, by sweeps and in forward mode."""
    for dtype in (np.float32, np.float64):
        x = np.linspace(0.0, 1.0, n, dtype=dtype)
        value, tangent = tg.func.jvp(lambda x: np.sin(x) * x)(x, x)
        assert value.dtype == tangent.dtype == dtype
        np.testing.assert_allclose(tangent, np.cos(x) * x * x + np.sin(x) * x, rtol=1e-6, atol=1e-7)


@crosses("func.tangents", "LARGE_TAPE")
def tangents_of_results(n):
    """Tangents of a number, of results that take so many bytes together."""
    y = np.ones(n // 32)
    for total in (n // 4, n // 2, n, 2 * n):  # the argument is recorded, too
        count = total // y.nbytes
        value, tangent = tg.func.jvp(lambda x: np.sum(sum(x * y for _ in range(count))))(3.0, 1.0)
        assert tangent * 3 == value


@crosses("func.colouring", "FEW")
def coloured(n):
    """A matrix of so many columns, half of which one row has."""
    plan = tg.func.sparse_jacobian(lambda x: np.append(x[1:] * x[:-1], np.sum(x[: n // 2] ** 2)))
    x = np.linspace(0.5, 1.5, n)
    wanted = np.zeros((n, n))
    wanted[:-1] = np.eye(n - 1, n, 1) * np.append(x[:1], x[:-1]) + np.eye(n - 1, n) * np.append(x[1:], 0)
    wanted[-1, : n // 2] = 2 * x[: n // 2]
    np.testing.assert_allclose(plan(x).toarray(), wanted, rtol=1e-14)


@crosses("func.sparse", "BATCHED")
def colours(n):
    """A Hessian of so many colours, of few rows and of so many that few lanes are swept together."""
    for rows in (n, 6000):
        x = np.linspace(0.5, 1.5, rows)
        found = tg.func.sparse_hessian(lambda x: np.sum(x[:n]) ** 2 + np.sum(x**3))(x)
        wanted = 6 * x
        wanted[:n] += 2
        np.testing.assert_allclose(found.diagonal(), wanted, rtol=1e-14)
        assert found[0, n - 1] == 2 and found.nnz == rows + n * (n - 1)


@crosses("scipy.linalg.matrix_equations", "DIRECT")
def discrete_lyapunov_equations(n):
    linalg = pytest.importorskip("tapegrad.scipy.linalg")
    a = np.random.default_rng(n).normal(size=(n, n)) / n
    q, one = tg.tensor(a @ a.T + np.eye(n), requires_grad=True), np.eye(n)
    x = linalg.solve_discrete_lyapunov(a, q)
    known = np.linalg.solve(np.eye(n * n) - np.kron(a, a), q.detach().numpy().ravel())
    np.testing.assert_allclose(x.detach().numpy().ravel(), known, rtol=1e-12, atol=1e-13)
    adjoint = np.linalg.solve(np.eye(n * n) - np.kron(a, a).T, one.ravel())
    np.testing.assert_allclose(tg.grad(x, q, one)[0].numpy().ravel(), adjoint, rtol=1e-12, atol=1e-13)


@crosses("func.recorded_series", "KEPT")
def coefficients(n):
    """The memory of a walk: the series of three records and of the nodes of programs."""
    count = n // (101 * 6)
    x = np.linspace(0.5, 1.5, count)
    found = tg.func.taylor(lambda x: np.exp(x) * 2.0, 5)(x, np.ones(count))
    np.testing.assert_allclose(found[5], np.exp(x) / 60, rtol=1e-14)


@crosses("scipy.optimize.evaluations", "MANY")
def unknowns(n):
    """A Jacobian that is sparse from there on."""
    found = optimize.least_squares(lambda x: 3 * x - np.roll(x, 1) - 2.0, np.zeros(n))
    np.testing.assert_allclose(found.x, 1, rtol=1e-6)
    assert sparse.issparse(found.jac) == (n >= evaluations.MANY)


@crosses("scipy.optimize.adapters", "LARGE")
def minimum(n):
    """Without the matrix of second derivatives from there on."""
    a = tg.tensor(np.linspace(1, 2, n), requires_grad=True)
    found = optimize.minimize(coupled, np.ones(n), args=(a,), method="Newton-CG", options={"xtol": 1e-10})
    (g,) = tg.grad(np.sum(found.x), a)
    x = found.x.detach().numpy()
    beside = -np.ones(n - 1)
    diagonal = 12 * x**2 + 1 + np.r_[0, np.ones(n - 2), 0]
    matrix = sparse.diags_array([diagonal, beside, beside], offsets=[0, 1, -1], format="csc")
    np.testing.assert_allclose(g, spsolve(matrix, np.ones(n)), rtol=1e-8)


def coupled(x, a):
    return np.sum(x**4 - a * x) + np.sum((x[1:] - x[:-1]) ** 2) / 2


once = functools.cache(tg.njit)  # compiled for all sizes


def inverse(a):
    return np.linalg.inv(a)[0, 1]


def product(a, b):
    return (a @ b)[0, 0]


@crosses("native.library.linear", "SUBSTITUTED", full=True)
def inverses_in_compiled_code(n):
    a = np.random.default_rng(n).normal(size=(n, n)) + n * np.eye(n)
    x = np.linalg.inv(a)
    np.testing.assert_allclose(tg.func.grad(once(inverse))(a), -np.outer(x[0], x[:, 1]), atol=1e-13)


def logarithm_of_determinant(a):
    return np.linalg.slogdet(a)[1]


@crosses("native.library.linear", "ELIMINATED", full=True)
def determinants_in_compiled_code(n):
    a = np.random.default_rng(n).normal(size=(n, n)) + n * np.eye(n)
    found = tg.func.grad(once(logarithm_of_determinant))(a)
    np.testing.assert_allclose(found, np.linalg.inv(a).T, atol=1e-13)


def orthogonal(a):
    q, r = np.linalg.qr(a)
    return q[0, 1] + r[0, 1]


@crosses("native.library.linear", "FACTORED", full=True)
def factors_in_compiled_code(n):
    if n > 1:
        a = np.random.default_rng(n).normal(size=(n, n)) + n * np.eye(n)
        x = tg.tensor(a, requires_grad=True)
        (found,) = tg.grad(orthogonal(x), [x])
        np.testing.assert_allclose(tg.func.grad(once(orthogonal))(a), found.numpy(), atol=1e-12)


@crosses("native.library.linear", "LOOPED", full=True)
def products_in_compiled_code(n):
    a, b = np.random.default_rng(n).normal(size=(2, n))
    of_a, of_b = tg.func.grad(once(product), (0, 1))(a[None], b[:, None])
    np.testing.assert_array_equal(of_a[0], b)
    np.testing.assert_array_equal(of_b[:, 0], a)


def product_with_vector(a, b):
    return (a @ b)[0] + (b @ a.T)[0]


def square_products_with_vector(a, b):
    """Of arguments, of what is computed, of a matrix that is none of the arguments by which it is."""
    c = a[:, ::-1] * b
    return np.sum(a @ b * (b @ a)) + np.sum((c @ (a @ b)) * (b @ c.T))


def products_with_square_matrix(a, c):
    """Of arguments, of what is computed, with fewer rows, and where columns are as many and rows are not."""
    rows = c @ a
    return np.sum(rows @ (a * a[::-1]) * c) + np.sum((rows.T @ c) @ a) + np.sum(a @ c.T)


@crosses("native.library.linear", "FEW", full=True)
def square_products_in_compiled_code(n):
    a, b = np.random.default_rng(n).normal(size=(n, n)), np.linspace(0.5, 1.5, n)
    for by in (0, (0, 1)):  # by the other one below, in second order
        found = tg.func.grad(once(square_products_with_vector), by)(a, b)
        expected = tg.func.grad(square_products_with_vector, by)(a, b)
        for one, other in zip(*(x if type(x) is tuple else (x,) for x in (found, expected)), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-13)
    product = tg.func.hvp(once(square_products_with_vector), 1)(a, b, b[::-1].copy())
    np.testing.assert_allclose(
        product, tg.func.hvp(square_products_with_vector, 1)(a, b, b[::-1].copy()), rtol=1e-11, atol=1e-12
    )
    c, compiled = np.vander(b, n)[:2] + 0.1, once(products_with_square_matrix)
    found, expected = (
        [*tg.func.grad(f, (0, 1))(a, c), tg.func.hvp(f)(a, c, a.T.copy())]
        for f in (compiled, products_with_square_matrix)
    )
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-11, atol=1e-12)


@crosses("native.library.products", "BY_LOOPS", full=True)
def products_with_vectors_in_compiled_code(n):
    a, b = np.random.default_rng(n).normal(size=(2, n))
    of_a, of_b = tg.func.grad(once(product_with_vector), (0, 1))(a[None], b)
    np.testing.assert_array_equal(of_a[0], 2 * b)
    np.testing.assert_array_equal(of_b, 2 * a)


@crosses("native.derivatives.pushing", "FEW", full=True)
def forward_jacobians_in_compiled_code(n):
    rate = tg.func.jacfwd(tg.njit(lambda x: x * x * x))
    series = tg.func.taylor(tg.njit(lambda x: np.sum(rate(x)[0])), n - 1)  # of numbers with n components
    x, v = np.linspace(0.5, 1.5, 5), np.linspace(-1.0, 1.0, 5)
    expected = np.array([3 * x[0] ** 2, 6 * x[0] * v[0], 3 * v[0] ** 2, *[0.0] * (n - 3)])
    np.testing.assert_allclose(series(x, v), expected, rtol=1e-14, atol=1e-15)


@crosses("native.arrays.lowering", "CARRIED", full=True)
def records_that_go_on_where_code_branches(n):
    lines = ["def f(x):", "    a = x[0] * x[1]", *["    a = a * x[2]"] * (n - 1)]
    lines += ["    if x[0] > 2.0:", "        return 3.0 * x[1]", "    return a * a"]
    space = {}
    exec("\n".join(lines), space)
    gradient = tg.func.grad(tg.njit(space["f"]))
    np.testing.assert_array_equal(gradient(np.array([2.5, 1.5, 0.9])), [0.0, 3.0, 0.0])
    x = np.array([1.5, 1.5, 0.9])
    a = x[0] * x[1] * x[2] ** (n - 1)
    np.testing.assert_allclose(gradient(x), 2 * a * a * np.array([1.0, 1.0, n - 1.0]) / x, rtol=1e-13)


def cases(slow):
    found = []
    for limit in sizes.OTHERS:
        function, more = CROSSED[limit.module, limit.name]
        if more.get("slow", False) == slow:
            marks = [pytest.mark.full] if more.get("full", False) else []
            found += [pytest.param(function, n, id=f"{limit.of}-{n}", marks=marks) for n in crossings(limit)]
    return found


@pytest.mark.parametrize(("function", "n"), cases(slow=False))
def test_others(function, n):
    function(n)


@pytest.mark.slow
@pytest.mark.parametrize(("function", "n"), cases(slow=True))
def test_others_of_all_sizes(function, n):
    function(n)
