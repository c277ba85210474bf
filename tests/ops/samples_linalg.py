"""Samples of linear algebra and Fourier transforms, and what extends them to complex operands.

Holomorphic extensions know no conjugation: factors are defined by equations with transposes. Where these
are not solved by elimination, Newton's method refines what NumPy finds for the real part.
"""

import functools
from typing import Any

import numpy as np

import tapegrad as tg

from . import layouts
from .layouts import EMPTY, INTEGER, MIXED, PLAIN, SCALAR, SIZE1, Absent, Case, leaf, one_operand
from .samples_arrays import ANY, SOLID, lone, needs_dimensions, operands, simple, single


def numbers(x):
    """Elements as real numbers."""
    x = np.ascontiguousarray(x)
    return np.ravel(x).view(float) if x.dtype.kind == "c" else np.ravel(x)


def mT(x):
    return np.swapaxes(x, -1, -2)


def symmetrised(a):
    return (a + mT(a)) / 2


def hermitian(a):
    return (a + np.conj(mT(a))) / 2


# ---------------------------------------------------------------- extensions to complex matrices


def stacked(function: Any, base: Any) -> Any:
    """Apply a function of one matrix, and of the matrix whose factors tell the signs, to a stack."""

    def apply(a, base=base):
        if a.ndim == 2:
            return function(a, base)
        if len(a) == 0:
            one = np.eye(*a.shape[-2:])
            return np.zeros((0, *np.shape(function(one + 0j, one))), complex)
        return np.stack([apply(*pair) for pair in zip(a, base, strict=True)])

    return apply


def smooth_cholesky(a):
    low = np.zeros_like(a)
    for j in range(len(a)):
        low[j, j] = np.sqrt(a[j, j] - np.sum(low[j, :j] ** 2))
        for i in range(j + 1, len(a)):
            low[i, j] = (a[i, j] - np.sum(low[i, :j] * low[j, :j])) / low[j, j]
    return low


def refined(a, w, v):
    """An eigenpair of length 1 near one of the real part."""
    n = len(a)
    w, v = w + 0j, v + 0j
    for _ in range(4):
        system = np.block([[a - w * np.eye(n), -v[:, None]], [v[None], np.zeros((1, 1))]])
        step = np.linalg.solve(system, -np.append(a @ v - w * v, (v @ v - 1) / 2))
        v, w = v + step[:n], w + step[n]
    return w, v


def smooth_pairs(a, w, v):
    found = [refined(a, w[k], v[:, k]) for k in range(len(w))]
    return np.array([w for w, _ in found], complex), np.array([v for _, v in found], complex).T


def smooth_eigh(part, **more):
    return lambda base: stacked(
        lambda a, base: smooth_pairs(symmetrised(a), *np.linalg.eigh(base, **more))[part], base
    )


def smooth_eig(part):
    return lambda base: stacked(lambda a, base: smooth_pairs(a, *np.linalg.eig(base))[part], base)


def smooth_svd(part):
    """By the symmetric matrix with a beside the diagonal, whose eigenvectors are pairs of singular ones."""

    def of(a, base):
        rows, columns = a.shape
        u, s, vh = np.linalg.svd(base, full_matrices=False)
        whole = np.block([[np.zeros((rows, rows)), a], [a.T, np.zeros((columns, columns))]])
        s, both = smooth_pairs(whole, s, np.concatenate([u, vh.T]) / np.sqrt(2))
        return (both[:rows] * np.sqrt(2), s, both[rows:].T * np.sqrt(2))[part]

    return lambda base: stacked(of, base)


def smooth_qr(part, mode="reduced"):
    def of(a, base):
        k = min(a.shape)
        square = a[:, :k]
        signs = np.sign(np.diag(np.linalg.qr(base)[1]))
        r = smooth_cholesky(square.T @ square).T * signs[:, None]
        q = np.linalg.solve(r.T, square.T).T
        if part == 0:
            return q
        whole = q.T @ a * (np.arange(a.shape[1]) >= k)
        whole[:, :k] = r
        more = len(a) - k if mode == "complete" else 0
        return np.concatenate([whole, np.zeros((more, a.shape[1]))])

    return lambda base: stacked(of, base)


def smooth_pinv(a):
    if a.shape[-1] <= a.shape[-2]:
        return np.linalg.solve(mT(a) @ a, mT(a))
    return mT(smooth_pinv(mT(a)))


def smooth_log_det(a):
    found = np.linalg.det(a)
    return np.log(np.where(np.real(found) < 0, -found, found))


# ---------------------------------------------------------------- matrices


def orthogonal(random, n):
    return np.linalg.qr(random.normal(size=(n, n)))[0]


def general(random, shape):
    """Singular values apart from each other and from 0."""
    rows, columns = shape
    k = min(shape)
    values = np.zeros(shape)
    values[range(k), range(k)] = 1.0 + np.arange(k)
    return orthogonal(random, rows) @ values @ orthogonal(random, columns)


def independent(random, shape):
    """Leading columns that are far from dependent."""
    triangle = np.triu(random.uniform(-0.4, 0.4, shape), 1)
    triangle[range(min(shape)), range(min(shape))] = 1.0 + np.arange(min(shape)) / 2
    return orthogonal(random, shape[0]) @ triangle


def singular(random, shape):
    """Of half the rank."""
    basis = orthogonal(random, shape[-1])
    values = np.arange(shape[-1]) * (np.arange(shape[-1]) * 2 >= shape[-1])
    return basis @ np.diag(values) @ orthogonal(random, shape[-1])


def symmetric(random, shape):
    """Eigenvalues of both signs apart from each other."""
    basis = orthogonal(random, shape[-1])
    values = 1.0 + np.arange(shape[-1])
    return symmetrised(basis @ np.diag(values * (-1.0) ** np.arange(shape[-1])) @ basis.T)


def positive(random, shape):
    basis = orthogonal(random, shape[-1])
    return symmetrised(basis @ np.diag(1.0 + np.arange(shape[-1])) @ basis.T)


def real_spectrum(random, shape):
    """No symmetry, but real eigenvalues apart from each other."""
    n = shape[-1]
    basis = np.eye(n) + 0.3 * orthogonal(random, n)
    return basis @ np.diag(1.0 + np.arange(n)) @ np.linalg.inv(basis)


WHOLE = {  # integers
    general: [[2, 1, 0], [-1, 3, 1], [0, 1, -2]], singular: [[2, 1, 0], [1, -1, 1], [3, 0, 1]],
    symmetric: [[4, 1, 0], [1, -2, 1], [0, 1, 1]],
    independent: [[2, 1, 0], [0, 2, 1], [1, 0, 3]],
    positive: [[4, 1, 0], [1, 3, 1], [0, 1, 2]], real_spectrum: [[4, 1, 2], [0, 2, 1], [0, 0, 1]],
}  # fmt: skip


def unitary(random, n):
    return np.linalg.qr(random.normal(size=(n, n)) + 1j * random.normal(size=(n, n)))[0]


def drawn(kind: Any, random: Any, shape: tuple[int, ...], dtype: str) -> Any:
    count = int(np.prod(shape[:-2]))
    found = np.array([kind(random, shape[-2:]) for _ in range(count)]).reshape(shape)
    if dtype in layouts.COMPLEX:  # with the same singular values, or eigenvalues
        left, right = unitary(random, shape[-2]), unitary(random, shape[-1])
        found = left @ found @ np.conj(left.T if kind in (symmetric, positive, real_spectrum) else right.T)
        if kind is independent:
            found = found @ right
        elif kind in (symmetric, positive):
            found = hermitian(found.astype(dtype))
    return found.astype(dtype)


def matrices(kind: Any, shapes: Any, *calls: Any, of_complex: Any = None) -> Any:
    """Samples of calls with matrices of a kind: on Tensors, on arrays, what extends it near an array.

    `of_complex` replaces them for complex matrices, of which vectors known up to a phase are left to
    test_linalg.py; a fourth function gives results the order and the signs that they have at an array.
    """

    def build(op, layout, dtype, random):
        if layout == MIXED:
            return one_operand(op)
        if layout == SCALAR:
            call = calls[0][0]
            return needs_dimensions(lambda: lone(call), ValueError)
        found = shapes.get(layout, shapes[PLAIN])
        cases = []
        for shape in found if layout != INTEGER else [(3, 3)]:
            for call, reference, smooth, *near in (dtype in layouts.COMPLEX and of_complex) or calls:
                if layout == INTEGER:
                    x = tg.tensor(np.array(WHOLE[kind], layouts.integer(dtype)))
                else:
                    x = leaf(drawn(kind, random, shape, dtype), layout)
                base = x.detach().numpy()
                function = near[0](reference, base) if near and dtype in layouts.COMPLEX else None
                cases.append(Case((x,), call, reference, smooth(base), floor=4, function=function))
        return cases

    return build


SQUARE = {PLAIN: [(3, 3), (2, 2, 2), (2, 1, 2, 2)], SIZE1: [(1, 1), (1, 2, 2)], EMPTY: [(0, 2, 2), (0, 0)]}
BATCHES = {**SQUARE, EMPTY: [(0, 2, 2)]}
OBLONG = {
    PLAIN: [(3, 3), (3, 2), (2, 3), (2, 1, 3, 2), (3, 2, 3)], SIZE1: [(1, 1), (3, 1), (1, 2)],
    EMPTY: [(0, 3, 2)],
}  # fmt: skip


def factor(function: Any, part: int, smooth: Any, symmetry: bool = False, **more: Any) -> Any:
    """One of several results, of matrices symmetrised if the function reads one triangle."""
    prepared = hermitian if symmetry else np.asarray
    return (
        lambda a: function(a, **more)[part],
        lambda a: function(prepared(a), **more)[part],
        smooth,
    )


def triangular(upper):
    def smooth(a, base):
        low = smooth_cholesky(symmetrised(a))
        return low.T if upper else low

    return (
        lambda a: np.linalg.cholesky(a, upper=upper),
        lambda a: np.linalg.cholesky(hermitian(a), upper=upper),
        lambda base: stacked(smooth, base),
    )


def in_order(eigenvalues, base):
    """Each beside what it is at `base`."""
    there = eigenvalues(base)

    def near(a):
        found = eigenvalues(a)
        return np.take_along_axis(found, np.abs(there[..., None] - found[..., None, :]).argmin(-1), -1)

    return near


def with_signs(columns):
    """Factors with the signs that the diagonal of the triangular one, which is real, has at `base`."""

    def signs(a):
        return np.sign(np.real(np.linalg.diagonal(np.linalg.qr(a)[1])))

    def maker(factor, base):
        then = signs(base)

        def near(a):
            found = factor(a)
            change = np.ones(found.shape[:-2] + found.shape[-1 if columns else -2 :][:1])
            change[..., : then.shape[-1]] = then * signs(a)
            return found * (change[..., None, :] if columns else change[..., None])

        return near

    return maker


def everywhere(smooth: Any) -> Any:
    """An extension that needs no array to be near."""
    return lambda base: smooth


def euclidean(x, **form):
    """Length; of complex numbers without conjugation."""
    if isinstance(x, tg.Tensor) or not np.iscomplexobj(x):
        return np.linalg.vector_norm(x, **form)
    return np.sqrt(np.sum(x * x, **form))


def norm(op, layout, dtype, random):
    forms = [{}, {"axis": 0}, {"axis": np.int64(-1), "keepdims": True}, {"axis": (0, np.int8(2))}]
    forms = {SCALAR: [{}, {"keepdims": True}], EMPTY: [{"axis": 1}]}.get(layout, forms)
    calls = [lambda x, form=form: euclidean(x, **form) for form in forms]
    cases = simple(SOLID, lambda layout: calls)(op, layout, dtype, random)
    for case in cases if not isinstance(cases, Absent) else []:
        case.ulps = 4
        if not case.moves:
            case.reference = lambda x, f=case.reference: f(x.astype(float))
    return cases


def hermitian_pinv(a):
    return np.linalg.pinv(a, hermitian=True)


DET = (np.linalg.det, np.linalg.det, everywhere(np.linalg.det))
REGULAR_DET = matrices(general, {**SQUARE, PLAIN: [(3, 3), (2, 4, 4), (2, 1, 2, 2)]}, DET)
SINGULAR_DET = matrices(singular, {**SQUARE, PLAIN: [(2, 2), (3, 3), (4, 4), (2, 5, 5)]}, DET)
GENERAL_PINV = matrices(general, OBLONG, (np.linalg.pinv, np.linalg.pinv, everywhere(smooth_pinv)))
HERMITIAN_PINV = matrices(
    symmetric,
    BATCHES,
    (
        hermitian_pinv,
        lambda a: hermitian_pinv(hermitian(a)),
        everywhere(lambda a: np.linalg.inv(symmetrised(a))),
    ),
)


# ---------------------------------------------------------------- Fourier transforms


def transformed(function: Any, to_real: bool = False) -> Any:
    """Samples of a transform of real numbers; it is linear, so the matrix it has extends it."""

    def smooth(shape, form):
        one = np.zeros(shape)
        columns = []
        for at in np.ndindex(shape):
            one[at] = 1
            columns.append(numbers(function(one, **form)))
            one[at] = 0
        return lambda x: np.array(columns).reshape(x.size, -1).T @ np.ravel(x)

    def build(op, layout, dtype, random):
        if layout == MIXED:
            return one_operand(op)
        if layout == SCALAR:
            return needs_dimensions(lambda: lone(function), IndexError)
        forms = [{}, {"n": 3, "axis": 0, "norm": "ortho"}, {"n": np.int8(2), "norm": "forward"}]
        forms += [{"n": 7}]
        shapes = {EMPTY: (0, 3), SIZE1: (2, 1)}
        cases = []
        for form in forms:
            shape = shapes.get(layout, (2, 4))
            if (layout == EMPTY and "axis" in form) or (to_real and layout == SIZE1 and not form):
                continue
            call = functools.partial(function, **form)
            x = single(layouts.drawn(random, shape, ANY, dtype), layout, dtype, random, shape)
            cases.append(Case((x,), call, call, smooth(shape, form), floor=1))
        return cases

    return build


LSTSQ = {
    PLAIN: [((4, 3), (4,)), ((4, 2), (4, 2)), ((3, 3), (3,)), ((2, 3), (2,)), ((2, 3), (2, 2))],
    SIZE1: [((1, 1), (1,)), ((3, 1), (3, 1)), ((1, 2), (1,))], EMPTY: [((3, 2), (3, 0))],
    INTEGER: [((3, 3), (3, 2))],
}  # fmt: skip


def lstsq(op, layout, dtype, random):
    """Overdetermined, regular and underdetermined equations."""

    def solution(a, b):
        return np.linalg.lstsq(a, b)[0]

    if layout == SCALAR:
        return needs_dimensions(lambda: lone(lambda x: solution(x, x)), ValueError)
    cases = []
    for a_shape, b_shape in LSTSQ.get(layout, LSTSQ[PLAIN]):
        a, b = drawn(general, random, a_shape, dtype), layouts.drawn(random, b_shape, ANY, dtype)
        chosen = operands(layout, dtype, random, a, b)
        if layout == INTEGER:
            chosen[0] = (tg.tensor(np.array(WHOLE[general], layouts.integer(dtype))), chosen[0][1])
        smooth = lambda a, b: smooth_pinv(a) @ b
        cases += [Case(xs, solution, solution, smooth, floor=4) for xs in chosen]
    return cases


def pinv(op, layout, dtype, random):
    """General and Hermitian matrices."""
    found = GENERAL_PINV(op, layout, dtype, random)
    return found if isinstance(found, Absent) else found + HERMITIAN_PINV(op, layout, dtype, random)


def det(op, layout, dtype, random):
    """Regular and singular matrices."""
    found = REGULAR_DET(op, layout, dtype, random)
    return found if isinstance(found, Absent) else found + SINGULAR_DET(op, layout, dtype, random)


LINALG = {
    "cholesky": matrices(positive, SQUARE, triangular(False), triangular(True)),
    "eigh": matrices(
        symmetric, SQUARE, *(factor(np.linalg.eigh, k, smooth_eigh(k), True) for k in (0, 1)),
        factor(np.linalg.eigh, 1, smooth_eigh(1, UPLO="U"), True, UPLO="U"),
        of_complex=[factor(np.linalg.eigh, 0, smooth_eigh(0), True)],
    ),
    "eig": matrices(
        real_spectrum, BATCHES, *(factor(np.linalg.eig, k, smooth_eig(k)) for k in (0, 1)),
        of_complex=[(*factor(np.linalg.eig, 0, smooth_eig(0)), in_order)],
    ),
    "svd": matrices(
        general, OBLONG,
        *(factor(np.linalg.svd, k, smooth_svd(k), full_matrices=False) for k in (0, 1, 2)),
        of_complex=[factor(np.linalg.svd, 1, smooth_svd(1), full_matrices=False)],
    ),
    "qr": matrices(
        independent, OBLONG, *(factor(np.linalg.qr, k, smooth_qr(k)) for k in (0, 1)),
        factor(np.linalg.qr, 1, smooth_qr(1, "complete"), mode="complete"),
        of_complex=[
            (*factor(np.linalg.qr, 0, smooth_qr(0)), with_signs(True)),
            (*factor(np.linalg.qr, 1, smooth_qr(1)), with_signs(False)),
            (*factor(np.linalg.qr, 1, smooth_qr(1), mode="complete"), with_signs(False)),
        ],
    ),
    "inv": matrices(general, SQUARE, (np.linalg.inv, np.linalg.inv, everywhere(np.linalg.inv))),
    "det": det,
    "slogdet": matrices(
        general, SQUARE, factor(np.linalg.slogdet, 1, everywhere(smooth_log_det)),
        of_complex=[factor(np.linalg.slogdet, k, everywhere(smooth_log_det)) for k in (0, 1)],
    ),
    "pinv": pinv, "lstsq": lstsq, "norm": norm, "fft": transformed(np.fft.fft),
    "rfft": transformed(np.fft.rfft), "irfft": transformed(np.fft.irfft, True),
}  # fmt: skip
