"""Complex numbers and their parts: real-linear maps, which are their own tangents.

The cotangent of z is dL/d(re z) + i dL/d(im z), so that of a real part is real and of an imaginary part
stands at i.
"""

import numpy as np

from tapegrad.ops.primitive import Primitive, elementwise


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


class Pair(Primitive):
    """Complex numbers of their parts; real + 1j * imag would make nan of what is infinite."""

    listed, broadcasts = False, True

    def __init__(self):
        super().__init__("pair", (), self.join, 2, self.__doc__)

    @staticmethod
    def join(real, imag):
        out = np.empty(np.shape(real), np.result_type(np.complex64, real, imag))
        out.real, out.imag = real, imag
        return out[()]

    def reads(self, k):
        return 0

    def vjp(self, ct, out, inputs, attrs, wanted):
        return {k: (np.real, np.imag)[k](ct) for k in wanted}

    def jvp(self, tangents, out, inputs, attrs):
        known = next(t for t in tangents if t is not None)
        zero = np.zeros(known.shape, known.dtype)
        return self(*(zero if t is None else t for t in tangents))


pair = Pair()
