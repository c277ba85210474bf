"""Convolution of vectors."""

import numpy as np

from tapegrad.ops.primitive import primitive


def _conj(x):
    return np.conj(x) if np.result_type(x).kind == "c" else x


@primitive(
    forward=lambda a, v, mode: np.convolve(a, v, mode), arity=2, flops=lambda a, v: 2 * a[0] * v[0],
    multilinear=True,
)  # fmt: skip
class convolve:
    """All places of one vector against another, or ("valid") those where the second lies within the first."""

    reads = (0b10, 0b1)

    def vjp(ct, out, inputs, wanted, mode):
        a, v = inputs
        found = {}
        if 0 in wanted:
            found[0] = np.convolve(ct, _conj(v[::-1]), "valid" if mode == "full" else "full")
        if 1 in wanted and mode == "full":
            found[1] = np.convolve(ct, _conj(a[::-1]), "valid")
        elif 1 in wanted:
            found[1] = np.convolve(_conj(a), ct[::-1], "valid")[::-1]
        return found

    def jvp(tangents, out, inputs, mode):
        a, v = inputs
        terms = []
        if tangents[0] is not None:
            terms.append(np.convolve(tangents[0], v, mode))
        if tangents[1] is not None:
            terms.append(np.convolve(a, tangents[1], mode))
        return terms[0] if len(terms) == 1 else terms[0] + terms[1]
