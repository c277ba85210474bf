"""Operands that span several blocks of the kernels and reach the vector forms of the forward values."""

import functools
import itertools

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.ops import REGISTRY
from tapegrad.ops.primitive import Elementwise
from tests.tiers import every

from .. import sizes
from . import checks
from .layouts import DTYPES, FORTRAN, NEGATIVE, PLAIN, STRIDED, Case, leaf, spread
from .samples import REAL_ONLY, SAMPLES

SOME = (PLAIN, STRIDED, NEGATIVE, FORTRAN)
SIZE = 2600  # more than two blocks, and more than the bytes from which vector kernels compute the value
CANCELLING = {"logaddexp", "logaddexp2"}  # whose two terms cancel where the result is near 0
DIAGONAL = sorted(
    name for name, op in REGISTRY.items() if isinstance(op, Elementwise) and name not in ("broadcast_to",)
)


def enlarged(name, dtype, layout) -> Case:
    """The first sample of an op with operands of many elements, none of them repeated."""
    random = np.random.default_rng(len(name))
    op = REGISTRY[name]
    (case, *_) = SAMPLES[name](op, PLAIN, dtype, random)
    shape = (SIZE,) if layout == PLAIN else (26, SIZE // 26)
    operands = []
    for k in range(op.arity):
        if name == "where" and k == 0:
            array = np.arange(SIZE) % 3 == 0
        elif name == "clip":
            low, high = [(-2.0, 2.0), (-1.2, -0.6), (0.6, 1.2)][k]
            array = np.round(random.uniform(low, high, SIZE), 2) + 0.0025 * k
        elif name in ("maximum", "minimum"):
            array = np.round(random.uniform(-2, 2, SIZE), 1) + 0.05 * k
        else:
            array = spread(random, SIZE, op.domain.of(k))
        operands.append(leaf(array.astype(bool if array.dtype == bool else dtype).reshape(shape), layout))
    return Case(tuple(operands), case.call, case.reference, case.smooth)


@pytest.mark.parametrize(("name", "dtype", "layout"), every(itertools.product(DIAGONAL, DTYPES, SOME), 3))
def test_elementwise(name, dtype, layout):
    case = enlarged(name, dtype, layout)
    out = checks.recorded(case, name)
    wanted = np.asarray(case.reference(*case.values))
    checks.same_kind(checks.plain(out), wanted, "value")
    # 4 ulp: vector kernels have at most 2, and so has NumPy
    scale = np.maximum(np.abs(wanted), 1.0) if name in CANCELLING else np.abs(wanted)
    checks.within(checks.plain(out), wanted, 4 * np.spacing(scale.astype(wanted.real.dtype)), "value")
    random = np.random.default_rng(3)
    ct = checks.direction(random, out.shape, out.dtype)
    inputs = [case.operands[k] for k in case.moves]
    sweep = checks.compiled(out, inputs, ct)
    rule = [checks.plain(g) for g in checks.by_rule(out, inputs, tg.tensor(ct))]
    for k, found, ruled in zip(case.moves, sweep, rule, strict=True):
        wide = checks.widened(case)
        wide[k] = wide[k] + 1j * checks.TINY  # the Jacobian is diagonal: one step along all elements
        wanted = ct * np.asarray(case.smooth(*wide)).imag / checks.TINY
        checks.same_kind(found, case.operands[k], "cotangent")
        bound = checks.FIRST * checks.eps_of(out, found) * np.abs(wanted)
        checks.within(found, wanted, bound, f"cotangent of operand {k}")
        bound = checks.ULPS * np.spacing(np.abs(ruled))
        checks.within(found, ruled, bound, f"operand {k}: kernel against rule")


# ---------------------------------------------------------------- sizes at which the code changes ways

REPEATED = sorted({*DIAGONAL} - {"astype"})  # of which an element of the result is one of operands' elements


@functools.cache
def of_size(name, dtype, n):
    """Value, gradients and second derivatives of a sample whose elements are repeated up to so many."""
    wide = "complex128" if np.dtype(dtype).kind == "c" else "float64"
    (case, *_) = SAMPLES[name](REGISTRY[name], PLAIN, wide, np.random.default_rng(5))
    operands = []
    for k, x in enumerate(case.values):
        array = np.resize(x, n)
        array = array if array.dtype == bool else array.astype(dtype)
        operands.append(tg.tensor(array, requires_grad=k in case.moves))
    case.call(*operands)  # the leaves are new to the tape
    out = case.call(*operands)
    ct = tg.tensor(np.resize(checks.direction(np.random.default_rng(3), (6,), out.dtype), n))
    inputs = [operands[k] for k in case.moves]
    firsts = tg.grad(out, inputs, ct, retain_graph=True)
    found = [out, *firsts, *tg.grad(np.sum(np.real(out * ct)), inputs, create_graph=True)]
    total = sum(np.sum(np.real(g * g)) for g in found[1 + len(inputs) :])
    if total.requires_grad:
        found += tg.grad(total, inputs, materialize_grads=True)
    return [checks.plain(x) for x in found]


def check_size(name, dtype, n):
    """Elements have the values and derivatives that they have among few."""
    eps = np.finfo(dtype).eps
    for few, many in zip(of_size(name, dtype, 6), of_size.__wrapped__(name, dtype, n), strict=True):
        wanted = np.resize(few, n)
        assert many.dtype == wanted.dtype
        scale = np.abs(wanted) + np.max(np.abs(few))
        assert np.all(np.abs(many - wanted) <= 16 * eps * scale), f"{n} elements of {name}"


def exists(name, dtype):
    return np.dtype(dtype).kind != "c" or name not in REAL_ONLY


CELLS = [(name, dtype) for name in REPEATED for dtype in sizes.DTYPES if exists(name, dtype)]


@pytest.mark.parametrize(("name", "dtype"), every(CELLS, 5))  # the dtypes, of which there are six, by turns
def test_sizes(name, dtype):
    for n in sizes.counts(dtype, 1 << 13)[-12:]:
        check_size(name, dtype, n)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "dtype"), CELLS)
def test_all_sizes(name, dtype):
    for n in sizes.counts(dtype, 1 << 21):
        check_size(name, dtype, n)


# Functions with positive operands and derivatives: sums of n terms without cancellation, in whatever order,
# differ by less than 2 n eps.
POSITIVE = {
    "sum": (lambda x: np.sum(x, axis=0), [(700, 3)], 700), "sum all": (np.sum, [(SIZE,)], SIZE),
    "mean": (lambda x: np.mean(x, axis=1), [(3, 1300)], 1300),
    "cumsum": (lambda x: np.cumsum(x, axis=0), [(1300, 2)], 1300),
    "logsumexp": (lambda x: tg.logsumexp(x, axis=1), [(2, 1300)], 1300),
    "max": (lambda x: np.max(x, axis=0), [(1300, 2)], 4),
    "min": (lambda x: np.min(x, axis=(0, 2)), [(30, 2, 40)], 4),
    "prod": (lambda x: np.prod(x, axis=0), [(70, 20)], 70),
    "matmul": (np.matmul, [(60, 50), (50, 40)], 60), "batched": (np.matmul, [(3, 20, 30), (30, 20)], 60),
    "take": (lambda x: x[np.arange(2000) % 7], [(7, 2)], 300),
    "broadcast": (lambda x, y: x * y, [(1300, 1), (1, 3)], 1300),
    "row": (lambda x, y: x * y, [(600, 4), (4,)], 600),
    "column": (lambda x, y: x * y, [(4, 600), (4, 1)], 600),
    "scalar": (lambda x, y: x / y, [(SIZE,), ()], SIZE),
    "transpose": (lambda x, y: np.transpose(x, (2, 0, 1)) * y, [(20, 30, 40), (40, 20, 30)], 4),
    "concatenate": (lambda x, y: np.concatenate([x, y, x], 1), [(20, 30), (20, 70)], 4),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "dtype", "layout"), every(itertools.product(sorted(POSITIVE), DTYPES, SOME), 3)
)
def test_arrays(name, dtype, layout, random):
    function, shapes, terms = POSITIVE[name]
    operands = [leaf(random.uniform(0.9, 1.1, s).astype(dtype), layout) for s in shapes]
    out = function(*operands)
    ct = random.uniform(0.5, 1.5, out.shape).astype(dtype)
    sweep, rule = (
        [checks.plain(g).astype(float) for g in way(out, operands, given)]
        for way, given in ((checks.compiled, ct), (checks.by_rule, tg.tensor(ct)))
    )
    sides, steps = [], [random.uniform(-1, 1, s) for s in shapes]
    for sign in (1, -1):
        moved = [x.detach().numpy() + sign * 1e-6 * u for x, u in zip(operands, steps, strict=True)]
        with tg.no_grad():
            sides.append(checks.plain(function(*map(tg.tensor, moved))))
    slope = np.sum((sides[0] - sides[1]) * ct) / 2e-6
    eps = np.finfo(dtype).eps
    for found, ruled in zip(sweep, rule, strict=True):
        checks.within(found, ruled, (2 * terms * eps) * np.abs(ruled), "kernel against rule")
    along = sum(np.sum(g * u) for g, u in zip(sweep, steps, strict=True))
    scale = sum(np.sum(np.abs(g * u)) for g, u in zip(sweep, steps, strict=True))
    assert abs(along - slope) <= (2 * terms * eps + 1e-7) * scale
