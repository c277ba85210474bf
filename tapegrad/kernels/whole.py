"""Code that LLVM optimises as a whole alone, and once. Sources of kernels import this."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

from llvmlite import binding
from numba.core.codegen import JITCodeLibrary
from numba.core.registry import cpu_target

from tapegrad.kernels.locks import run_beside

# Cost of a function that is inlined; LLVM's own limit of 225 makes the sweep no quicker, but 5 % larger.
INLINED = 100


class Library(JITCodeLibrary):
    """A library of hundreds of internal functions, which alone are not optimised before the whole is.

    Nor is the whole optimised twice, as Numba does to leave out counting of references: there is none.
    """

    def add_llvm_module(self, ll_module: binding.ModuleRef) -> None:
        """Link a module; an interrupt just then would have llvmlite let go of it twice: the process ends."""
        run_beside([functools.partial(super().add_llvm_module, ll_module)])

    def _optimize_functions(self, module: binding.ModuleRef) -> None:
        module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        options = binding.create_pipeline_tuning_options(speed_level=3)
        options.loop_vectorization, options.inlining_threshold = True, INLINED
        builder = binding.create_pass_builder(self._codegen._tm, options)
        builder.getModulePassManager().run(self._final_module, builder)


@contextlib.contextmanager
def optimised_as_a_whole() -> Iterator[None]:
    """Let Numba make such a library of what is compiled inside; its lock is held by who compiles."""
    codegen = cpu_target.target_context.codegen()
    before = codegen._library_class
    codegen._library_class = Library
    try:
        yield
    finally:
        codegen._library_class = before
