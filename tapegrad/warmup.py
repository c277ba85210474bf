"""Compile ahead what programs commonly use, so that nobody waits for it later."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tapegrad import func
from tapegrad.autograd.backward import grad
from tapegrad.errors import DTypeError
from tapegrad.kernels import abi, cache, table
from tapegrad.kernels.emit import RuleError
from tapegrad.kernels.replay import layout
from tapegrad.native import njit
from tapegrad.progress import progress as shown
from tapegrad.tensor import tensor

__all__ = ["warm_up"]

CODES = {abi.NAMES[code]: code for code in range(1, layout.DIFFERENTIABLE + 1)}


def warm_up(dtypes: Sequence[str] = ("float64",), progress: bool = False) -> int:
    """Compile what derivatives commonly use, or load it where it is in the cache.

    That are compiled recording, writes and sweeps, recorded sweeps, power series, what `tapegrad.njit`
    records with, and the derivatives of all elementwise operations in the dtypes given. Call it where a
    container is built, or in new workers, with Dask by ``client.run(tg.batch.warm_up)``.

    Parameters
    ----------
    dtypes : sequence of str, optional
        Some of float64, float32, complex128 and complex64.
    progress : bool, optional
        Show how far it is, on a terminal or in a notebook: by tqdm if it is installed, else by a line.

    Returns
    -------
    int
        How many kernels were compiled; the others were in the cache.

    Raises
    ------
    DTypeError
        Another dtype is asked for.

    Examples
    --------
    Workers that have all kernels before they are given work:

    >>> import tapegrad as tg
    >>> from concurrent.futures import ProcessPoolExecutor
    >>> pool = ProcessPoolExecutor(2, initializer=tg.batch.warm_up)
    >>> pool.shutdown()
    """
    for dtype in dtypes:
        if dtype not in CODES:
            raise DTypeError(f"warm_up: dtypes are of {', '.join(CODES)}; found {dtype!r}")
    before = cache.statistics["compiled"]
    kernels = [(dtype, number) for dtype in dtypes for number in range(table.recipes())]
    steps: list[Callable[[], object]] = [*MACHINERY]
    steps += (functools.partial(_kernel, number, CODES[d]) for d, number in kernels)
    for step in shown(steps, "warm_up", progress):
        step()
    return cache.statistics["compiled"] - before


def _kernel(number: int, code: int) -> None:
    with contextlib.suppress(RuleError):  # of an op declared outside whose rule has no scalar form
        table.kernel(number, code)


# ---------------------------------------------------------------- what every program needs

X = np.array([0.5, 1.5])


def _program(x: Any) -> Any:
    return np.sum(np.sin(x) * x[0])


def _eager() -> None:
    leaf = tensor(X, requires_grad=True)
    grad(_program(leaf), leaf)


def _written() -> None:
    (tensor(X, requires_grad=True) * 1.0)[0] = 1.0


def _compiled() -> None:
    func.value_and_grad(njit(lambda x: x * x))(1.0)


MACHINERY: tuple[Callable[[], object], ...] = (
    _eager,
    _written,
    lambda: func.hvp(_program)(X, X),
    lambda: func.jvp(_program)(X, X),
    lambda: func.taylor(_program, 3)(X, X),
    lambda: func.sparse_hessian(_program)(X),
    _compiled,
)
