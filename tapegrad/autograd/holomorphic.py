"""Derivatives of complex functions of complex numbers, as complex analysis has them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tapegrad.autograd.backward import grad
from tapegrad.errors import GradientError
from tapegrad.tensor import Tensor

__all__ = ["holomorphic_grad"]


def holomorphic_grad(
    output: Tensor, inputs: Tensor | Sequence[Tensor], create_graph: bool = False
) -> tuple[Tensor, ...]:
    """Return the complex derivatives of a holomorphic function.

    The gradient of w by z is conj(dw/dz) where w is holomorphic in z; that it is so is seen from a second
    sweep, whose cotangent is i.

    Parameters
    ----------
    output : Tensor
        Complex, of one element, or the sum of elementwise results.
    inputs : Tensor or sequence of Tensor
        Complex.
    create_graph : bool, optional
        Record the sweeps, so that the results can be differentiated again.

    Returns
    -------
    tuple of Tensor
        One per input.

    Raises
    ------
    GradientError
        The function is not holomorphic in an input, or an input or the output is not complex.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> z = tg.tensor(1.0 + 2.0j, requires_grad=True)
    >>> tg.autograd.holomorphic_grad(z**2, z)
    (tensor(2.+4.j, dtype=complex128),)
    """
    targets = (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)
    if any(x.dtype.kind != "c" for x in (output, *targets)):
        found = ", ".join(str(x.dtype) for x in (output, *targets))
        raise GradientError(f"holomorphic_grad takes a complex output and complex inputs, found {found}")
    one = np.ones(output.shape, output.dtype)
    along = grad(output, targets, one, retain_graph=True, create_graph=create_graph)
    across = grad(output, targets, 1j * one, retain_graph=True)
    for k, (a, b) in enumerate(zip(along, across, strict=True)):
        first, second = 1j * a.detach().numpy(), b.detach().numpy()
        if not np.allclose(first, second, rtol=1e-6, atol=1e-12 * (1 + np.abs(first).max(initial=0))):
            raise GradientError(f"holomorphic_grad: the output is not a holomorphic function of input {k}")
    return tuple(a.conj() for a in along)
