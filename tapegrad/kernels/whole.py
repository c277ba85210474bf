"""Code that LLVM optimises as a whole alone. Sources of kernels import this."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from llvmlite.binding import ModuleRef
from numba.core.codegen import JITCodeLibrary
from numba.core.registry import cpu_target


class Library(JITCodeLibrary):
    """A library of hundreds of internal functions, which alone are not optimised before the whole is."""

    def _optimize_functions(self, module: ModuleRef) -> None:
        module.data_layout = self._codegen._data_layout


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
