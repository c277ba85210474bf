"""Masks of several axes as indices, which Numba takes for another index and cannot lower."""

from __future__ import annotations

from numba.core import ir, types
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.core.errors import TypingError

from tapegrad.native.emission.annotations import CompilerState, Type


def _is_mask(kind: Type) -> bool:
    """Whether this is the type of such an index, or of one with such a part."""
    if isinstance(kind, types.BaseTuple):
        return any(map(_is_mask, kind))
    return isinstance(kind, types.Array) and isinstance(kind.dtype, types.Boolean) and kind.ndim > 1


@register_pass(mutates_CFG=False, analysis_only=True)
class Masks(FunctionPass):
    """Refuses them, with a way around."""

    _name = "tapegrad_masks"

    def __init__(self) -> None:
        FunctionPass.__init__(self)

    def run_pass(self, state: CompilerState) -> bool:
        """Look at each index of a function."""
        for block in state.func_ir.blocks.values():
            for line in block.body:
                if isinstance(line, ir.SetItem):
                    array, index = line.target, line.index
                elif isinstance(line, ir.Assign) and getattr(line.value, "op", "") == "getitem":
                    array, index = line.value.value, line.value.index
                else:
                    continue
                mask = _is_mask(state.typemap[index.name])
                if mask and isinstance(state.typemap[array.name], types.Array):
                    raise TypingError(
                        "compiled code takes masks of one axis as indices, and here is one of several. What "
                        "to do: y.ravel()[mask.ravel()] reads such elements, y.reshape(-1)[mask.ravel()] = v "
                        "writes to those of an array in C order, and np.where(mask, v, y) chooses; or loop "
                        "over the elements",
                        line.loc,
                    )
        return False
