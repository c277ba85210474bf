"""Calls of numpy.linalg and numpy.fft, as in `calls`: (name, function of arrays or Tensors, operands)."""

import numpy as np

from .calls import SQUARE, T3, A, B, S, V

L, F = np.linalg, np.fft
M = (SQUARE, (3, 3))
MS = (SQUARE, (2, 3, 3))  # two matrices
BLOCK = (3, 2, 6)


def even(x):
    """A symmetric matrix."""
    return x + np.swapaxes(x, -1, -2)


def span(q):
    """What a set of orthonormal columns spans."""
    return q @ np.swapaxes(q, -1, -2)


def by_name(f, *names, **form):
    """Several results in one, taken by name."""
    return lambda x: sum(np.sum(getattr(f(x, **form), name) ** 2, axis=(-2, -1)) for name in names)


LINALG = [
    ("cholesky", lambda x: L.cholesky(even(x)), [MS]),
    ("cholesky, upper", lambda x: L.cholesky(even(x), upper=True), [M]),
    ("eigh", lambda x: L.eigh(even(x))[0] + L.eigh(even(x), "U").eigenvalues, [MS]),
    ("eigh, vectors", lambda x: L.eigh(even(x) ** 3).eigenvectors, [M]),
    ("eigvalsh", lambda x: L.eigvalsh(even(x)) * L.eigvalsh(even(x), UPLO="U"), [MS]),
    ("eig", lambda x: L.eig(np.tril(np.ones((3, 3))) * x**3)[0], [M]),
    ("eig, vectors", lambda x: L.eig(np.tril(np.ones((3, 3))) * (x + np.diag([1.0, 2.0, 3.0]))).eigenvectors,
     [M]),
    ("eigvals", lambda x: L.eigvals(np.tril(np.ones((3, 3))) * (x + np.diag([1.0, 2.0, 3.0]))), [M]),
    ("svd", by_name(L.svd, "U", "Vh", full_matrices=False), [T3]),
    ("svd, values", lambda x: L.svd(x, compute_uv=False) + L.svd(x)[1] * L.svdvals(x), [T3]),
    ("svd, full", lambda x: span(L.svd(x)[0][..., 2:]), [T3]),
    ("svd, full, wide", lambda x: span(L.svd(x).Vh[2:].T), [A]),
    ("svd, vectors", lambda x: L.svd(x, full_matrices=False)[0][:, :1] * L.svd(x).Vh[:1], [A]),
    ("svd, hermitian", lambda x: L.svd(even(x) ** 3 - 40, hermitian=True)[1], [MS]),
    ("svd, hermitian, vectors",
     lambda x: (lambda u, s, vh: u[..., :1] * vh[..., :1, :])(*L.svd(even(x) ** 3 - 40, hermitian=True)),
     [MS]),
    ("svd, hermitian, values", lambda x: L.svd(even(x) - 5, True, False, True), [M]),
    ("qr", lambda x: (lambda q, r: q * 2 + q @ r * r[..., :1, :1])(*L.qr(x)), [T3]),
    ("qr, wide", lambda x: L.qr(x).R + L.qr(x).Q @ x, [A]),
    ("qr, r", lambda x: L.qr(x, mode="r"), [T3]),
    ("qr, complete", lambda x: span(L.qr(x, "complete")[0][..., 2:]), [T3]),
    ("qr, complete, r", lambda x: L.qr(x, "complete").R, [T3]),
    ("det", lambda x: L.det(x) * 2, [MS]),
    ("slogdet", lambda x: L.slogdet(x)[0] * L.slogdet(x).logabsdet, [MS]),
    ("slogdet, negative", lambda x: L.slogdet(-x)[0] * L.slogdet(-x)[1], [M]),
    ("inv", lambda x: L.inv(x) @ L.inv(x[0]), [MS]),
    ("pinv", lambda x: L.pinv(x) + L.pinv(np.swapaxes(x, -1, -2), rtol=0.01).swapaxes(-1, -2), [T3]),
    ("pinv, cut off", lambda x: L.pinv(x[:, None] * x, rcond=0.1) @ L.pinv(x[:, None] * x, 1e-3), [V]),
    ("pinv, hermitian", lambda x: L.pinv(even(x), hermitian=True), [MS]),
    ("lstsq", lambda a, b: L.lstsq(a, b)[0] * 2, [B, V]),
    ("lstsq, residuals", lambda a, b: L.lstsq(a, b, rcond=None)[1] + L.lstsq(a, b[:, 0])[1], [B, (3, 2)]),
    ("lstsq, singular values", lambda a, b: L.lstsq(a, b)[3] * L.lstsq(a, b)[0], [B, V]),
    ("lstsq, wide", lambda a, b: L.lstsq(a, b)[0], [A, (2, 3)]),
    ("matrix_power", lambda x: L.matrix_power(x, 3) - L.matrix_power(x, 2) + L.matrix_power(x, np.int8(1)),
     [MS]),
    ("matrix_power, negative", lambda x: L.matrix_power(x, -2), [M]),
    ("matrix_power, 0", lambda x: L.matrix_power(x, 0), [MS]),
    ("multi_dot", lambda x, y, z: L.multi_dot([z, y, x, y, x, z]), [A, B, V]),
    ("multi_dot, two", lambda x, y: L.multi_dot((x, y)) @ L.multi_dot([x, y, x, y]), [A, B]),
    ("tensorinv", lambda x: L.tensorinv(x) + L.tensorinv(x.reshape(6, 3, 2), ind=1)[0, 0, 0], [(3, 2, 3, 2)]),
    ("tensorsolve", lambda a, b: L.tensorsolve(a, b), [BLOCK, (3, 2)]),
    ("tensorsolve, axes", lambda a, b: L.tensorsolve(a, b, axes=(0,)), [(6, 3, 2), (3, 2)]),
    ("cond", lambda x: L.cond(x) + L.cond(x, 2) * L.cond(x, -2), [MS]),
    ("cond of other norms", lambda x: sum(L.cond(x, p) for p in (1, -1, np.inf, -np.inf, "fro", "nuc")), [M]),
    *((f"norm {p}", lambda x, p=p: L.norm(x[:, 0], p) * L.norm(x, p, axis=0, keepdims=True), [A])
      for p in (None, 0, 0.5, 1, 2, 2.5, 3, -1, np.inf, -np.inf)),
    *((f"matrix norm {p}",
       lambda x, p=p: L.norm(x[0], p) + L.norm(x, p, (0, 2), True)[..., 0]
       * L.matrix_norm(x, ord=p or "fro")[:, None],
       [T3]) for p in (None, "fro", "nuc", 1, -1, 2, -2, np.inf, -np.inf)),
    ("norm of all", lambda x: L.norm(x) + L.norm(x, axis=(2,)) * L.matrix_norm(x, keepdims=True)[:, 0], [T3]),
    ("vector_norm", lambda x: L.vector_norm(x) + L.vector_norm(x, axis=(0, 2), ord=3, keepdims=True)
     * L.vector_norm(x, axis=-1, ord=np.inf)[..., None], [T3]),
    ("norm of 0-d", lambda x: L.norm(x) + L.vector_norm(x), [S]),
    ("diagonal", lambda x: L.diagonal(x) * L.diagonal(x, offset=-1)[:, :1], [T3]),
    ("diagonal beyond", lambda x: np.sum(L.diagonal(x, offset=5)) + L.diagonal(x, offset=1), [T3]),
    ("trace", lambda x: L.trace(x) * L.trace(x, offset=1, dtype=float), [T3]),
    ("matmul", lambda x, y: L.matmul(x, y), [A, B]),
    ("linalg.outer", lambda x, y: L.outer(x, y[0]) + L.outer([1.0, 2.0, 3.0], x), [V, A]),
    ("vecdot", lambda x, y: L.vecdot(x, y) * L.vecdot(x, y[0]) + L.vecdot(x, y, axis=0)[0], [A, A]),
    ("linalg.cross", lambda x, y: L.cross(x, y) + L.cross(y, x[0]) + L.cross(x.T, y.T, axis=0).T, [A, A]),
    ("tensordot", lambda x, y: L.tensordot(x, y, axes=1), [A, (3, 2, 2)]),
    ("tensordot over two", lambda x, y: L.tensordot(x, y) + L.tensordot(x, y, axes=([-1, 1], [1, 0])),
     [T3, (3, 2, 2)]),
    ("tensordot over named", lambda x, y: L.tensordot(x, y, axes=(1, 0)) * L.tensordot(x, y, axes=0)[0, 0, 0],
     [A, (3, 2)]),
]  # fmt: skip


def weighed(z):
    """Real numbers from complex ones, by parts and by size."""
    return np.real(z) * 2 - np.imag(z) + np.real(z * np.conj(z))


ONE_AXIS = [{}, {"n": 2}, {"n": 5, "norm": "ortho"}, {"axis": 0, "norm": "forward"}, {"n": 4, "axis": -2}]
AXES = [{}, {"axes": (0, 1)}, {"s": (2, 4), "axes": (0, 2)}, {"s": (3, -1), "axes": (1, 0), "norm": "ortho"}]
FFT = [
    (f"{f.__name__} {form}", lambda x, f=f, form=form: weighed(f(x, **form)), [(2, 4)])
    for f in (F.fft, F.ifft, F.rfft, F.irfft, F.hfft, F.ihfft)
    for form in ONE_AXIS
] + [
    (f"{f.__name__} {form}", lambda x, f=f, form=form: weighed(f(x, **form)), [(2, 3, 2)])
    for f in (F.fft2, F.ifft2, F.fftn, F.ifftn, F.rfft2, F.rfftn, F.irfft2, F.irfftn)
    for form in AXES
] + [
    ("fftn, of the last axes", lambda x: weighed(F.fftn(x, axes=(-1, -1))), [A]),
    ("there and back", lambda x: np.real(F.ifft(F.fft(x) * F.fft(x[0]))) + F.irfft(F.rfft(x), 3), [A]),
    ("shifts", lambda x: F.fftshift(x) * F.ifftshift(x) + F.fftshift(x, 1) * F.ifftshift(x, axes=(0,)), [T3]),
]  # fmt: skip
