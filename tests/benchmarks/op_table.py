"""Calls that NumPy and torch both have, a row for each way in which users write them; and what has no row.

A row is a name, operands, and the call: a function of a namespace and the operands; a second one where torch
spells it in another way. A name is that of a function of NumPy's, or of an op that has none, up to a comma.
Operands are letters, small ones of constants (plain arrays), capital ones of Tensors that require grad:

v w  vectors of n numbers from 0.2 to 1         m n  matrices of such numbers, n x n
u    a vector of numbers from 1.2 to 2          d    a symmetric matrix with eigenvalues from 1 to n
h    a vector of numbers and nan                g    a matrix that is not symmetric, with real eigenvalues
c    a vector of complex numbers                r    a matrix of such numbers, 2 n x n
p q  n vectors of three numbers                 t    a row of n // 5 matrices, 5 x 5
s    a scalar                                   x    four axes, as `tensorinv` wants them
i    n indices, some of them several times      k    a permutation of n indices
j    n integers from 0 to 2                     b    n truth values
"""


def other(m, x):
    """The other dtype of real numbers."""
    return m.float32 if x.dtype == m.float64 else m.float64


def multiply(x, y):
    return x * y


def write(x, index, value):
    """An array after an assignment."""
    x[index] = value
    return x


def added_to(x, values):
    """An array after parts of it, and all of it, were added to in place."""
    x[1:4] += values[1:4]
    x[2:] *= values[2:]
    x += values
    return x


def filled(x, values):
    """An array after an assignment to each element."""
    for k in range(len(values)):
        x[k] = values[k]
    return x


def left(function, x, *args):
    """An array after a function has written to it."""
    function(x, *args)
    return x


def after(x, take):
    """A view, after its whole was written to."""
    view = take(x)
    x *= 3.0
    return view


def of_conv(torch, x, kernel):
    """Every overlap of two vectors, by torch."""
    return torch.nn.functional.conv1d(x[None, None], kernel[None, None], padding=len(kernel) - 1)[0, 0]


UNARY = """
    absolute negative positive square reciprocal sqrt exp expm1 log log1p sin cos tan tanh cosh sinh
    arcsin arccos arctan arcsinh arctanh exp2 log2 log10 deg2rad rad2deg sinc i0"""
BINARY = """
    add subtract multiply divide arctan2 hypot maximum minimum fmax fmin copysign logaddexp logaddexp2
    fmod remainder float_power"""
ELEMENTWISE = [
    *((name, "V", lambda m, x, name=name: getattr(m, name)(x)) for name in UNARY.split()),
    ("arccosh", "U", lambda m, x: m.arccosh(x)),
    *((name, "VW", lambda m, x, y, name=name: getattr(m, name)(x, y)) for name in BINARY.split()),
    ("add, number", "V", lambda m, x: x + 2.0),
    ("add, array", "Vw", lambda m, x, y: x + y),
    ("add, row", "MV", lambda m, x, y: x + y),
    ("subtract, from a number", "V", lambda m, x: 1.0 - x),
    ("multiply, array", "Vw", lambda m, x, y: x * y),
    ("multiply, itself", "V", lambda m, x: x * x),
    ("multiply, scalar", "VS", lambda m, x, y: x * y),
    ("multiply, column", "MV", lambda m, x, y: x * y[:, None]),
    ("multiply, matrices", "MN", lambda m, x, y: x * y),
    ("multiply, complex", "C", lambda m, x: x * x),
    ("divide, array", "Vw", lambda m, x, y: x / y),
    ("divide, number by", "V", lambda m, x: 2.0 / x),
    ("power", "VW", lambda m, x, y: x**y),
    ("power, 2", "V", lambda m, x: x**2),
    ("power, 3", "V", lambda m, x: x**3),
    ("power, 1.5", "V", lambda m, x: x**1.5),
    ("power, of a number", "V", lambda m, x: 2.0**x),
    ("maximum, array", "Vw", lambda m, x, y: m.maximum(x, y)),
    ("exp, complex", "C", lambda m, x: m.exp(x)),
    ("where", "bVW", lambda m, b, x, y: m.where(b, x, y)),
    ("where, array", "bVw", lambda m, b, x, y: m.where(b, x, y)),
    ("where, number", "V", lambda m, x: m.where(x > 0.5, x, 0.0)),
    ("clip", "V", lambda m, x: m.clip(x, 0.3, 0.6)),
    ("nan_to_num", "H", lambda m, x: m.nan_to_num(x)),
    ("ldexp", "Vj", lambda m, x, j: m.ldexp(x, j)),
    ("conjugate", "C", lambda m, x: x.conj() * 2.0),
    ("real", "C", lambda m, x: x.real * 2.0),
    ("imag", "C", lambda m, x: x.imag * 2.0),
    ("absolute, complex", "C", lambda m, x: m.abs(x)),
    ("angle", "C", lambda m, x: m.angle(x)),
    ("modf", "V", lambda m, x: m.modf(x)[0], lambda m, x: m.frac(x)),
    ("nextafter", "Vw", lambda m, x, y: m.nextafter(x, y)),
    ("frexp", "V", lambda m, x: m.frexp(x)[0]),
]  # fmt: skip

SHAPES = [
    ("reshape", "M", lambda m, x: x.reshape(2, -1)),
    ("ravel", "M", lambda m, x: x.ravel()),
    ("transpose", "T", lambda m, x: m.transpose(x, (2, 0, 1)), lambda m, x: m.permute(x, (2, 0, 1))),
    ("transpose, T", "M", lambda m, x: x.T),
    ("matrix_transpose", "T", lambda m, x: x.mT),
    ("swapaxes", "T", lambda m, x: m.swapaxes(x, 0, 2)),
    ("moveaxis", "T", lambda m, x: m.moveaxis(x, 0, -1)),
    ("expand_dims", "V", lambda m, x: m.expand_dims(x, 0), lambda m, x: m.unsqueeze(x, 0)),
    ("squeeze", "V", lambda m, x: m.squeeze(x[None])),
    ("broadcast_to", "V", lambda m, x: m.broadcast_to(x, (3, len(x)))),
    ("broadcast_arrays", "VM", lambda m, x, y: multiply(*m.broadcast_arrays(x, y)),
     lambda m, x, y: multiply(*m.broadcast_tensors(x, y))),
    ("meshgrid", "VW", lambda m, x, y: multiply(*m.meshgrid(x, y, indexing="ij"))),
    ("atleast_1d", "S", lambda m, x: m.atleast_1d(x)),
    ("atleast_2d", "V", lambda m, x: m.atleast_2d(x)),
    ("atleast_3d", "V", lambda m, x: m.atleast_3d(x)),
    ("concatenate", "VW", lambda m, x, y: m.concatenate([x, y])),
    ("concatenate, axis", "MN", lambda m, x, y: m.concatenate([x, y], axis=1)),
    ("concatenate, array", "Vw", lambda m, x, y: m.concatenate([x, y])),
    ("append", "VW", lambda m, x, y: m.append(x, y), lambda m, x, y: m.cat([x, y])),
    ("stack", "VW", lambda m, x, y: m.stack([x, y])),
    ("stack, axis", "VW", lambda m, x, y: m.stack([x, y], axis=1)),
    ("stack, scalars", "SV", lambda m, x, y: m.stack([x, y[0], x, y[1]])),
    ("stack, unpacked", "V", lambda m, x: m.stack([*x])),
    ("hstack", "VW", lambda m, x, y: m.hstack([x, y])),
    ("vstack", "VW", lambda m, x, y: m.vstack([x, y])),
    ("dstack", "VW", lambda m, x, y: m.dstack([x, y])),
    ("column_stack", "VW", lambda m, x, y: m.column_stack([x, y])),
    ("split", "V", lambda m, x: m.split(x, 2)[0], lambda m, x: m.split(x, len(x) // 2)[0]),
    ("split, all parts", "V", lambda m, x: multiply(*m.split(x, 2)),
     lambda m, x: multiply(*m.split(x, len(x) // 2))),
    ("array_split", "V", lambda m, x: m.array_split(x, 3)[0], lambda m, x: m.tensor_split(x, 3)[0]),
    ("hsplit", "M", lambda m, x: m.hsplit(x, 2)[1]),
    ("vsplit", "M", lambda m, x: m.vsplit(x, 2)[1]),
    ("unstack", "M", lambda m, x: m.unstack(x)[1], lambda m, x: m.unbind(x)[1]),
    ("flip", "V", lambda m, x: m.flip(x, (0,))),
    ("fliplr", "M", lambda m, x: m.fliplr(x)),
    ("flipud", "M", lambda m, x: m.flipud(x)),
    ("roll", "V", lambda m, x: m.roll(x, 1)),
    ("roll, axis", "M", lambda m, x: m.roll(x, 1, 1)),
    ("rot90", "M", lambda m, x: m.rot90(x)),
    ("tile", "V", lambda m, x: m.tile(x, (2,))),
    ("repeat", "V", lambda m, x: m.repeat(x, 2), lambda m, x: m.repeat_interleave(x, 2)),
    ("pad", "V", lambda m, x: m.pad(x, 1), lambda m, x: m.nn.functional.pad(x, (1, 1))),
    ("pad, matrix", "M", lambda m, x: m.pad(x, ((1, 2), (0, 1))),
     lambda m, x: m.nn.functional.pad(x, (0, 1, 1, 2))),
    ("copy", "V", lambda m, x: x.copy(), lambda m, x: x.clone()),
    ("astype", "V", lambda m, x: x.astype(other(m, x)), lambda m, x: x.to(other(m, x))),
    ("lib.stride_tricks.sliding_window_view", "V", lambda m, x: m.lib.stride_tricks.sliding_window_view(x, 3),
     lambda m, x: x.unfold(0, 3, 1)),
]  # fmt: skip

INDEXING = [
    ("getitem, slice", "V", lambda m, x: x[1:]),
    ("getitem, slice with a step", "V", lambda m, x: x[::2]),
    ("getitem, row", "M", lambda m, x: x[1]),
    ("getitem, column", "M", lambda m, x: x[:, 1]),
    ("getitem, window", "M", lambda m, x: x[1:, :-1]),
    ("getitem, None", "V", lambda m, x: x[:, None]),
    ("getitem, neighbours", "V", lambda m, x: x[1:] * x[:-1]),
    ("element", "V", lambda m, x: x[3]),
    ("element, of a matrix", "M", lambda m, x: x[1, 2]),
    ("take", "Vi", lambda m, x, i: m.take(x, i)),
    ("take, axis", "Mi", lambda m, x, i: m.take(x, i, 1), lambda m, x, i: m.index_select(x, 1, i)),
    ("take, index array", "Vi", lambda m, x, i: x[i]),
    ("take, rows", "Mi", lambda m, x, i: x[i]),
    ("take, two index arrays", "Mik", lambda m, x, i, k: x[i, k]),
    ("take, mask", "Vb", lambda m, x, b: x[b]),
    ("take_along_axis", "Mk", lambda m, x, k: m.take_along_axis(x, k[None], 1),
     lambda m, x, k: m.take_along_dim(x, k[None], 1)),
    ("extract", "Vb", lambda m, x, b: m.extract(b, x), lambda m, x, b: m.masked_select(x, b)),
    ("diag", "V", lambda m, x: m.diag(x)),
    ("diag, of a matrix", "M", lambda m, x: m.diag(x)),
    ("diagflat", "V", lambda m, x: m.diagflat(x)),
    ("diagonal", "M", lambda m, x: m.diagonal(x, 1)),
    ("linalg.diagonal", "T", lambda m, x: m.linalg.diagonal(x)),
    ("trace", "M", lambda m, x: m.trace(x)),
    ("linalg.trace", "T", lambda m, x: m.linalg.trace(x),
     lambda m, x: m.linalg.diagonal(x).sum(-1)),
    ("tril", "M", lambda m, x: m.tril(x)),
    ("triu", "M", lambda m, x: m.triu(x, 1)),
    ("assign, slice", "VW", lambda m, x, y: write(x.copy(), slice(2, 5), y[2:5]),
     lambda m, x, y: write(x.clone(), slice(2, 5), y[2:5])),
    ("assign, number", "V", lambda m, x: write(x.copy(), 3, 2.0), lambda m, x: write(x.clone(), 3, 2.0)),
    ("assign, one by one", "VW", lambda m, x, y: filled(x.copy(), y), lambda m, x, y: filled(x.clone(), y)),
    ("assign, in place", "VW", lambda m, x, y: added_to(x.copy(), y), lambda m, x, y: added_to(x.clone(), y)),
    ("scatter", "VkW", lambda m, x, k, y: write(x.copy(), k, y), lambda m, x, k, y: write(x.clone(), k, y)),
    ("scatter, mask", "Vb", lambda m, x, b: write(x.copy(), b, 0.0),
     lambda m, x, b: write(x.clone(), b, 0.0)),
    ("view", "V", lambda m, x: after(x.copy(), lambda y: y[1:4]),
     lambda m, x: after(x.clone(), lambda y: y[1:4])),
    ("rearrange", "M", lambda m, x: after(x.T * 2.0, lambda y: y[1])),
    ("collect", "ViW", lambda m, x, i, y: left(m.add.at, x.copy(), i, y),
     lambda m, x, i, y: x.clone().index_add_(0, i, y)),
    ("copyto", "VW", lambda m, x, y: left(m.copyto, x.copy(), y), lambda m, x, y: x.clone().copy_(y)),
    ("fill_diagonal", "M", lambda m, x: left(m.fill_diagonal, x.copy(), 2.0),
     lambda m, x: x.clone().fill_diagonal_(2.0)),
    ("put", "VkW", lambda m, x, k, y: left(m.put, x.copy(), k, y), lambda m, x, k, y: x.clone().put_(k, y)),
    ("put_along_axis", "VkW", lambda m, x, k, y: left(m.put_along_axis, x.copy(), k, y, 0),
     lambda m, x, k, y: x.clone().scatter_(0, k, y)),
    ("putmask", "Vb", lambda m, x, b: left(m.putmask, x.copy(), b, 2.0),
     lambda m, x, b: x.clone().masked_fill_(b, 2.0)),
    ("place", "VbW", lambda m, x, b, y: left(m.place, x.copy(), b, y),
     lambda m, x, b, y: x.clone().masked_scatter_(b, y)),
]  # fmt: skip

REDUCTIONS = [
    *((f"{name}{', ' if form else ''}{' '.join(form)}", operand,
       lambda m, x, name=name, form=form: getattr(m, name)(x, **form))
      for name in ("sum", "mean", "prod")
      for operand, form in (("V", {}), ("M", {"axis": 0}), ("M", {"axis": 1, "keepdims": True}))),
    ("sum, method", "V", lambda m, x: x.sum()),
    ("sum, matrix", "M", lambda m, x: m.sum(x)),
    ("sum, two axes", "T", lambda m, x: m.sum(x, axis=(0, 2))),
    ("max", "V", lambda m, x: m.max(x)),
    ("amax", "M", lambda m, x: m.amax(x, axis=1)),
    ("min", "V", lambda m, x: m.min(x)),
    ("amin", "M", lambda m, x: m.amin(x, axis=0)),
    ("std", "V", lambda m, x: m.std(x), lambda m, x: m.std(x, correction=0)),
    ("std, axis", "M", lambda m, x: m.std(x, axis=0), lambda m, x: m.std(x, dim=0, correction=0)),
    ("var", "V", lambda m, x: m.var(x), lambda m, x: m.var(x, correction=0)),
    ("var, axis", "M", lambda m, x: m.var(x, axis=1, ddof=1), lambda m, x: m.var(x, dim=1)),
    ("nansum", "H", lambda m, x: m.nansum(x)),
    ("nanmean", "H", lambda m, x: m.nanmean(x)),
    ("nanmedian", "H", lambda m, x: m.nanmedian(x), lambda m, x: m.nanquantile(x, 0.5)),
    ("nanquantile", "H", lambda m, x: m.nanquantile(x, 0.3)),
    ("median", "V", lambda m, x: m.median(x), lambda m, x: m.quantile(x, 0.5)),
    ("quantile", "V", lambda m, x: m.quantile(x, 0.3)),
    ("quantile, axis", "M", lambda m, x: m.quantile(x, 0.3, axis=1), lambda m, x: m.quantile(x, 0.3, dim=1)),
    ("percentile", "V", lambda m, x: m.percentile(x, 30), lambda m, x: m.quantile(x, 0.3)),
    ("logsumexp", "V", lambda m, x: m.logaddexp.reduce(x), lambda m, x: m.logsumexp(x, 0)),
    ("cumsum", "V", lambda m, x: m.cumsum(x, 0)),
    ("cumsum, axis", "M", lambda m, x: m.cumsum(x, 1)),
    ("cumprod", "V", lambda m, x: m.cumprod(x, 0)),
    ("cumprod, axis", "M", lambda m, x: m.cumprod(x, 1)),
    ("diff", "V", lambda m, x: m.diff(x)),
    ("diff, axis", "M", lambda m, x: m.diff(x, axis=0)),
    ("gradient", "V", lambda m, x: m.gradient(x), lambda m, x: m.gradient(x)[0]),
    ("trapezoid", "Vw", lambda m, x, y: m.trapezoid(x, y)),
    ("sort", "V", lambda m, x: m.sort(x), lambda m, x: m.sort(x)[0]),
    ("sort, axis", "M", lambda m, x: m.sort(x, axis=0), lambda m, x: m.sort(x, dim=0)[0]),
    ("cov", "M", lambda m, x: m.cov(x)),
    ("corrcoef", "M", lambda m, x: m.corrcoef(x)),
]  # fmt: skip

PRODUCTS = [
    ("matmul", "MN", lambda m, x, y: x @ y),
    ("matmul, matrix and vector", "MV", lambda m, x, y: x @ y),
    ("matmul, array and vector", "mV", lambda m, x, y: x @ y),
    ("matmul, array and matrix", "mN", lambda m, x, y: x @ y),
    ("matmul, vectors", "VW", lambda m, x, y: x @ y),
    ("matmul, quadratic form", "VM", lambda m, x, y: x @ y @ x),
    ("matmul, with its transpose", "M", lambda m, x: x @ x.T),
    ("matmul, batches", "T", lambda m, x: x @ x),
    ("linalg.matmul", "MN", lambda m, x, y: m.linalg.matmul(x, y)),
    ("dot", "VW", lambda m, x, y: m.dot(x, y)),
    ("dot, matrices", "MN", lambda m, x, y: m.dot(x, y), lambda m, x, y: m.mm(x, y)),
    ("vdot", "VW", lambda m, x, y: m.vdot(x, y)),
    ("inner", "MV", lambda m, x, y: m.inner(x, y)),
    ("outer", "VW", lambda m, x, y: m.outer(x, y)),
    ("matvec", "MV", lambda m, x, y: m.matvec(x, y), lambda m, x, y: m.mv(x, y)),
    ("vecmat", "VM", lambda m, x, y: m.vecmat(x, y), lambda m, x, y: m.matmul(x, y)),
    ("vecdot", "MN", lambda m, x, y: m.vecdot(x, y), lambda m, x, y: m.linalg.vecdot(x, y)),
    ("linalg.vecdot", "MN", lambda m, x, y: m.linalg.vecdot(x, y)),
    ("kron", "VW", lambda m, x, y: m.kron(x, y)),
    ("tensordot", "MN", lambda m, x, y: m.tensordot(x, y, 1)),
    ("tensordot, axes", "TM", lambda m, x, y: m.tensordot(x, y[:5], ([2], [0]))),
    ("linalg.tensordot", "MN", lambda m, x, y: m.linalg.tensordot(x, y, axes=1),
     lambda m, x, y: m.tensordot(x, y, 1)),
    ("einsum", "MN", lambda m, x, y: m.einsum("ij,jk->ik", x, y)),
    ("einsum, array", "mV", lambda m, x, y: m.einsum("ij,j->i", x, y)),
    ("einsum, batches", "T", lambda m, x: m.einsum("bij,bjk->bik", x, x)),
    ("einsum, form", "VMW", lambda m, x, y, z: m.einsum("i,ij,j->", x, y, z)),
    ("cross", "PQ", lambda m, x, y: m.cross(x, y), lambda m, x, y: m.linalg.cross(x, y)),
    ("linalg.cross", "PQ", lambda m, x, y: m.linalg.cross(x, y)),
    ("convolve", "VW", lambda m, x, y: m.convolve(x, y), lambda m, x, y: of_conv(m, x, y.flip(0))),
    ("correlate", "VW", lambda m, x, y: m.correlate(x, y, "full"), lambda m, x, y: of_conv(m, x, y)),
]  # fmt: skip

LINALG = [
    ("linalg.solve", "DV", lambda m, a, b: m.linalg.solve(a, b)),
    ("linalg.solve, matrix", "DM", lambda m, a, b: m.linalg.solve(a, b)),
    ("linalg.solve, array", "dV", lambda m, a, b: m.linalg.solve(a, b)),
    ("linalg.inv", "D", lambda m, x: m.linalg.inv(x)),
    ("linalg.det", "T", lambda m, x: m.linalg.det(x)),
    ("linalg.slogdet", "D", lambda m, x: m.linalg.slogdet(x)[1]),
    ("linalg.cholesky", "D", lambda m, x: m.linalg.cholesky(x)),
    ("linalg.eigh", "D", lambda m, x: m.linalg.eigh(x)[0]),
    ("linalg.eigh, vectors", "D", lambda m, x: (lambda w, v: (v * m.sqrt(w)) @ v.T)(*m.linalg.eigh(x))),
    ("linalg.eigvalsh", "D", lambda m, x: m.linalg.eigvalsh(x)),
    ("linalg.eig", "G", lambda m, x: (m.abs(m.linalg.eig(x)[1]) ** 4).sum()),
    ("linalg.eigvals", "G", lambda m, x: (m.real(m.linalg.eigvals(x)) ** 3).sum()),
    ("linalg.svd", "D", lambda m, x: (lambda u, s, vh: (u * m.sqrt(s)) @ vh)(*m.linalg.svd(x))),
    ("linalg.svdvals", "D", lambda m, x: m.linalg.svdvals(x)),
    ("linalg.qr", "R", lambda m, x: m.linalg.qr(x)[0] ** 2),
    ("linalg.qr, r", "R", lambda m, x: m.linalg.qr(x)[1] ** 2),
    ("linalg.pinv", "R", lambda m, x: m.linalg.pinv(x)),
    ("linalg.lstsq", "RR", lambda m, a, b: m.linalg.lstsq(a, b)[0]),
    ("linalg.matrix_power", "D", lambda m, x: m.linalg.matrix_power(x, 3)),
    ("linalg.multi_dot", "MNV", lambda m, x, y, z: m.linalg.multi_dot([x, y, z])),
    ("linalg.cond", "D", lambda m, x: m.linalg.cond(x)),
    ("linalg.tensorinv", "X", lambda m, x: m.linalg.tensorinv(x, ind=2)),
    ("linalg.tensorsolve", "XM", lambda m, a, b: m.linalg.tensorsolve(a, b[:2, :3])),
    ("norm", "V", lambda m, x: m.linalg.norm(x)),
    ("norm, axis", "M", lambda m, x: m.linalg.norm(x, axis=1), lambda m, x: m.linalg.norm(x, dim=1)),
    ("norm, 1", "V", lambda m, x: m.linalg.norm(x, 1)),
    ("linalg.norm", "M", lambda m, x: m.linalg.norm(x)),
    ("linalg.vector_norm", "M", lambda m, x: m.linalg.vector_norm(x, ord=3)),
    ("linalg.matrix_norm", "M", lambda m, x: m.linalg.matrix_norm(x)),
    ("linalg.matrix_norm, nuclear", "D", lambda m, x: m.linalg.matrix_norm(x, ord="nuc")),
]  # fmt: skip

FFT = [
    *((f"fft.{name}", operand, lambda m, x, name=name: getattr(m.fft, name)(x))
      for operand, names in (("V", "fft ifft rfft ihfft fftshift ifftshift"), ("C", "irfft hfft"),
                             ("M", "fft2 ifft2 fftn ifftn rfft2 rfftn irfft2 irfftn"))
      for name in names.split()),
    ("fft.fft, complex", "C", lambda m, x: m.fft.fft(x)),
]  # fmt: skip

OTHERS = [*SHAPES, *INDEXING, *REDUCTIONS, *PRODUCTS, *LINALG, *FFT]

WITH_A_HISTORY = {  # what both libraries compute for a row then, where of constants they compute less
    "linalg.eigvalsh": lambda m, x: m.linalg.eigh(x),
    "linalg.eigvals": lambda m, x: m.linalg.eig(x),
    **dict.fromkeys(
        ("linalg.svdvals", "linalg.cond", "linalg.matrix_norm, nuclear"),
        lambda m, x: m.linalg.svd(x, full_matrices=False),
    ),
}
TORCH_HAS_NONE = {
    "recorded by sweeps only": "add_at embed",
    "no such function": """
        apply_along_axis apply_over_axes average block cbrt choose compress delete divmod ediff1d
        histogram_bin_edges insert interp ix_ nancumprod nancumsum nanmax nanmin nanpercentile nanprod nanstd
        nanvar partition piecewise poly polyadd polyder polydiv polyfit polyint polymul polysub polyval ptp
        real_if_close resize roots select setdiff1d setxor1d intersect1d trim_zeros union1d unwrap""",
    "no derivative of it": """
        bincount digitize full_like geomspace heaviside histogram histogram2d histogramdd linspace logspace
        sign unique unique_all unique_counts unique_inverse unique_values""",
    "an error, as one of its steps overwrites what another reads": "vander",
    "only in derivatives, of other rows": "recurrence iv",
}
SAME_AS = {  # other names of NumPy's for what has a row
    "fabs": "absolute", "radians": "deg2rad", "degrees": "rad2deg", "rollaxis": "moveaxis",
    "cumulative_sum": "cumsum", "cumulative_prod": "cumprod", "dsplit": "split", "linalg.outer": "outer",
    "linalg.matrix_transpose": "matrix_transpose",
}  # fmt: skip
