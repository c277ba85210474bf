"""Twins as dispatchers of Numba's: one for each kind of number, made when it is first asked for.

Numba's own pipeline compiles them, with two passes of ours. What those do they know in `twin`, which stands
above the types and functions that twins of their own are needed for; so it declares them here.
"""

from __future__ import annotations

import functools
import types as python_types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from numba import njit
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import register_pass
from numba.core.dispatcher import Dispatcher
from numba.core.errors import TypingError
from numba.core.typed_passes import NativeLowering, NopythonRewrites, NopythonTypeInference
from numba.core.untyped_passes import InlineInlinables

from tapegrad.kernels.libraries import waiting
from tapegrad.native.analysis import activity, promotion
from tapegrad.native.analysis.captured import frozen
from tapegrad.native.analysis.masks import Masks
from tapegrad.native.analysis.notes import announce
from tapegrad.native.arrays.arrays import Token
from tapegrad.native.arrays.counting import Counting
from tapegrad.native.arrays.expanding import Expanding
from tapegrad.native.arrays.fused_sums import FusedSums
from tapegrad.native.arrays.lowering import Borrowing, TwinLowering
from tapegrad.native.arrays.storing import Storing
from tapegrad.native.arrays.views import Views
from tapegrad.native.emission.algebra import Spec
from tapegrad.native.emission.annotations import Compiled
from tapegrad.native.numbers.scalar import Active
from tapegrad.native.tapes.runtime import digest, sweeps, tapes
from tapegrad.native.tapes.stored import Stored

if TYPE_CHECKING:
    from numba.core.compiler_machinery import PassManager

KEPT = ("boundscheck", "error_model", "fastmath", "nogil")  # options that a twin has from its primal
PASSES: list[Callable[[Spec, bool], Any]] = []  # make the passes before types are known and after


def twin_of(primal: Compiled, spec: Spec, entry: bool = False) -> Compiled:
    """Return the dispatcher that records what `primal` computes.

    Parameters
    ----------
    primal
        A dispatcher of Numba's.
    spec
        The tangents that active numbers carry.
    entry
        Whether it is called from Python: then arguments and results cross the border as arrays of records.
    """
    known = vars(primal).setdefault("_tapegrad_twins", {})
    found = known.get((spec, entry))
    if found is None:
        options = {k: v for k, v in primal.targetoptions.items() if k in KEPT}
        if not entry:
            options.update(no_cpython_wrapper=True, no_cfunc_wrapper=True)
        source = frozen(primal)
        function = python_types.FunctionType(
            source.__code__, source.__globals__, source.__name__, source.__defaults__, source.__closure__
        )
        function.__kwdefaults__ = source.__kwdefaults__
        function.__module__ = source.__module__
        lanes = "".join(f"_{n}" for n in spec)
        function._tapegrad_held = source
        function.__qualname__ = f"{source.__qualname__}__tape{lanes}{'_entry' * entry}_{digest()}"
        found = njit(pipeline_class=_compiler(spec, entry), **options)(function)
        found._tapegrad_twin, found._tapegrad_of = True, primal
        if entry:
            kept = getattr(primal, "_tapegrad_cached", False)
            announce(found, f"the recording form of {source.__name__}", kept)
            if kept:
                tapes(), sweeps(spec)  # what is stored may call them, and names their modules
                function._tapegrad_kept = True
                found._cache = Stored(primal, "twin", spec)
        found = known.setdefault((spec, entry), found)
    return found


def primal_of(value: Any) -> Compiled | None:
    """Return the dispatcher that a value of the user's program means, or None."""
    if isinstance(value, Dispatcher):
        return None if getattr(value, "_tapegrad_twin", False) else value
    return getattr(value, "_tapegrad_primal", None)


@functools.cache
def token(spec: Spec) -> Token:
    """Return what stands for the dtype of arrays of active numbers in compiled code."""
    return Token(Active(spec))


@functools.cache
def _compiler(spec: Spec, entry: bool) -> type[CompilerBase]:
    untyped, typed = (make(spec, entry) for make in PASSES)
    for one in (untyped, typed):
        register_pass(mutates_CFG=False, analysis_only=False)(one)

    def define_pipelines(self: CompilerBase) -> list[PassManager]:
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.add_pass_after(untyped, InlineInlinables)
        passes.add_pass_after(typed, NopythonTypeInference)
        passes.add_pass_after(Masks, NopythonTypeInference)
        passes.add_pass_after(Views, NopythonRewrites)
        passes.add_pass_after(FusedSums, NopythonRewrites)
        passes.add_pass_after(Storing, NopythonRewrites)
        passes.add_pass_after(Expanding, NopythonRewrites)
        passes.add_pass_after(Counting, NopythonRewrites)
        return [_lowered_by(passes, TwinLowering)]

    return type("TwinCompiler", (OnceCompiler,), {"define_pipelines": define_pipelines})


def _lowered_by(passes: PassManager, lowering: Any) -> PassManager:
    """Passes, of which the one that lowers is another."""
    passes.passes = [(lowering if one is NativeLowering else one, impl) for one, impl in passes.passes]
    passes.finalize()
    return passes


class OnceCompiler(CompilerBase):
    """Numba's compiler, but all that is compiled for a function is optimised with it, once."""

    def define_pipelines(self) -> list[PassManager]:
        """Return Numba's own, whose functions do not refer to their arguments."""
        return [_lowered_by(DefaultPassBuilder.define_nopython_pipeline(self.state), Borrowing)]

    def _compile_core(self) -> Any:
        with waiting(getattr(self.state.func_id.func, "_tapegrad_kept", False)):
            while True:
                try:
                    return super()._compile_core()
                except TypingError as error:
                    function = self.state.func_id.func
                    if not (activity.give_up(function) or promotion.note(error, function)):
                        raise
                    self.state.func_ir = self.state.status.fail_reason = None  # anew from the code


piece = njit(pipeline_class=OnceCompiler, no_cpython_wrapper=True, no_cfunc_wrapper=True)
whole = njit(pipeline_class=OnceCompiler)
