"""Functions of `scipy.linalg` on Tensors and arrays; all its other names are its own.

Of arrays, and where no derivative is asked for, results are SciPy's own. Derivatives are to any order, in
forward mode too. What is in one triangle of a Hermitian matrix has, as in `numpy.linalg`, half of its
derivative in each. ``overwrite_*`` changes nothing in Tensors.
"""

from __future__ import annotations

from typing import Any

import scipy.linalg as _scipy

from tapegrad.scipy.calls import plain_only
from tapegrad.scipy.linalg.bands import matmul_toeplitz, solve_banded, solve_toeplitz, solveh_banded
from tapegrad.scipy.linalg.construction import block_diag, circulant, companion, hankel, khatri_rao, toeplitz
from tapegrad.scipy.linalg.decompositions import (
    cho_factor,
    cho_solve,
    cholesky,
    ldl,
    lu,
    lu_factor,
    lu_solve,
    polar,
    qr,
    svd,
    svdvals,
)
from tapegrad.scipy.linalg.eigenvalues import (
    eig,
    eig_banded,
    eigh,
    eigh_tridiagonal,
    eigvals,
    eigvals_banded,
    eigvalsh,
    eigvalsh_tridiagonal,
)
from tapegrad.scipy.linalg.equations import det, inv, lstsq, norm, pinv, solve, solve_triangular
from tapegrad.scipy.linalg.functions import (
    coshm,
    cosm,
    expm,
    expm_frechet,
    fractional_matrix_power,
    logm,
    sinhm,
    sinm,
    sqrtm,
    tanhm,
    tanm,
)
from tapegrad.scipy.linalg.matrix_equations import (
    solve_continuous_are,
    solve_continuous_lyapunov,
    solve_discrete_are,
    solve_discrete_lyapunov,
    solve_lyapunov,
    solve_sylvester,
)

__all__ = [
    "block_diag", "cho_factor", "cho_solve", "cholesky", "circulant", "companion", "coshm", "cosm", "det",
    "eig", "eig_banded", "eigh", "eigh_tridiagonal", "eigvals", "eigvals_banded", "eigvalsh",
    "eigvalsh_tridiagonal", "expm", "expm_frechet", "fractional_matrix_power", "hankel", "inv", "khatri_rao",
    "ldl", "logm", "lstsq", "lu", "lu_factor", "lu_solve", "matmul_toeplitz", "norm", "pinv", "polar", "qr",
    "sinhm", "sinm", "solve", "solve_banded", "solve_continuous_are", "solve_continuous_lyapunov",
    "solve_discrete_are", "solve_discrete_lyapunov", "solve_lyapunov", "solve_sylvester", "solve_toeplitz",
    "solve_triangular", "solveh_banded", "sqrtm", "svd", "svdvals", "tanhm", "tanm", "toeplitz",
]  # fmt: skip

REFUSED = {
    "null_space": "a basis of it is one of many; the projector 1 - pinv(A) @ A has a derivative",
    "orth": "a basis is one of many; the projector A @ pinv(A) has a derivative, and so have svd and qr",
    "matrix_balance": "its scales are powers of two, which jump; detach() the matrix",
    "funm": "at equal eigenvalues Parlett's recurrence has none; use expm, logm, sqrtm, cosm, ..., or "
            "w, v = eig(A); (v * f(w)) @ inv(v) of a matrix whose eigenvalues differ",
    "schur": "its basis is one of many; use eig or eigh",
    "hessenberg": "its basis is one of many; detach() the matrix",
    "signm": "use A @ inv(sqrtm(A @ A))",
    "pinvh": "use pinv",
    "subspace_angles": "use svdvals of the product of orthonormal bases by qr",
}  # fmt: skip
_refused = {
    name: plain_only(getattr(_scipy, name), f"scipy.linalg.{name}", f"has no derivative here: {why}")
    for name, why in REFUSED.items()
    if hasattr(_scipy, name)
}


def __getattr__(name: str) -> Any:
    return _refused.get(name) or getattr(_scipy, name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_scipy.__all__})
