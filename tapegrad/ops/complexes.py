"""Complex numbers and their parts: real-linear maps, which are their own tangents.

The cotangent of z is dL/d(re z) + i dL/d(im z), so that of a real part is real and of an imaginary part
stands at i.
"""

import numpy as np

from tapegrad.ops.primitive import elementwise


@elementwise(np.conjugate, node="conj")
def conjugate(ct, x):
    """Complex conjugate."""
    return np.conj(ct)


@elementwise(np.real, forward=lambda x: np.real(x).copy())
def real(x):
    """Real part."""
    return 1


def _along_i(x):
    return 1j


@elementwise(np.imag, forward=lambda x: np.imag(x).copy(), of_complex=_along_i)
def imag(x):
    """Imaginary part; of real numbers it is 0."""
    return 0
