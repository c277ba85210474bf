"""Many cotangents or tangents of one record at once: lanes, an axis in front of those of the value.

Operands and result have no lanes. Elementwise ops and reductions take lanes as they are; a linear op is
the same op on larger arrays, whose attributes its declaration tells (`along`, `same`, ...); of the others
some broadcast, and for the rest one record is differentiated lane by lane.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tapegrad.ops.primitive import Attributes, Elementwise, Primitive, Reduction


def same(attrs, n, shapes):
    """The attributes of an op that has nothing to do with axes."""
    return attrs


def along(attrs, n, shapes):
    """The attributes of an op along an axis counted from the first."""
    return {**attrs, "axis": attrs["axis"] + 1}


def vjp(
    op: Primitive, n: int, ct, out, inputs: Sequence, attrs: Attributes, wanted: Sequence[int]
) -> dict[int, Any]:
    """As `Primitive.vjp`, of n cotangents."""
    if isinstance(op, (Elementwise, Reduction)):
        return op.vjp(ct, out, inputs, attrs, wanted, (n,))
    if op.lift is not None:
        lifted = op.lift(attrs, n, [np.shape(x) for x in inputs])
        if lifted is not None:
            return op.rule(ct, [(n, *np.shape(x)) for x in inputs], wanted, **lifted)
    if hasattr(op, "vjp_of_lanes"):
        return op.vjp_of_lanes(n, ct, attrs, wanted)
    if op.broadcasts:
        return op.vjp(ct, out, inputs, attrs, wanted)
    if n == 0:
        return {k: np.zeros((0, *np.shape(inputs[k])), np.result_type(inputs[k])) for k in wanted}
    found = [op.vjp(ct[lane], out, inputs, attrs, wanted) for lane in range(n)]
    return {k: np.stack([part[k] for part in found]) for k in found[0]}


def jvp(op: Primitive, n: int, tangents: Sequence, out, inputs: Sequence, attrs: Attributes):
    """As `Primitive.jvp`, of n tangents."""
    if isinstance(op, (Elementwise, Reduction)):
        return op.jvp(tangents, out, inputs, attrs, (n,))
    if op.lift is not None:
        lifted = op.lift(attrs, n, [np.shape(x) for x in inputs])
        if lifted is not None:
            moved = [
                np.zeros((n, *np.shape(x)), np.result_type(x)) if t is None else t
                for t, x in zip(tangents, inputs, strict=True)
            ]
            return moved[0][lifted["index"]] if "place" in lifted else op(*moved, **lifted)
    ndims = {np.ndim(x) for x in inputs}
    if op.broadcasts and len(ndims) == 1 and min(ndims) > 1:  # else lanes would meet another axis
        return op.jvp(tangents, out, inputs, attrs)
    if n == 0:
        return np.zeros((0, *np.shape(out)), np.result_type(out))
    return np.stack(
        [op.jvp([None if t is None else t[lane] for t in tangents], out, inputs, attrs) for lane in range(n)]
    )
