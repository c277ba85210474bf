"""Complex numbers and their parts: real-linear maps, which are their own tangents.

The cotangent of z is dL/d(re z) + i dL/d(im z), so that of a real part is real and of an imaginary part
stands at i.
"""

import numpy as np

from tapegrad.ops.lanes import same
from tapegrad.ops.primitive import linear
from tapegrad.tape.record import Template


@linear(np.conjugate, forward=np.conjugate, lift=same, template=Template.PYTHON)
def conjugate(ct, shapes, wanted):
    """Complex conjugate."""
    return {0: np.conj(ct)}


@linear(np.real, forward=lambda x: np.real(x).copy(), lift=same, template=Template.PYTHON)
def real(ct, shapes, wanted):
    """Real part."""
    return {0: ct}


@linear(np.imag, forward=lambda x: np.imag(x).copy(), lift=same, template=Template.PYTHON)
def imag(ct, shapes, wanted):
    """Imaginary part."""
    return {0: 1j * ct}
