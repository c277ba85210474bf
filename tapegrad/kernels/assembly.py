"""Functions in LLVM's own language: optimised, linked and kept on disk without Numba's front end.

Numba's lock is not held, as whoever wants a kernel meanwhile would wait for it. LLVM does its work without
Python's lock, under one of its own, a call at a time.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from typing import Any

from tapegrad.kernels import cache
from tapegrad.kernels.locks import compiling
from tapegrad.kernels.words import Address

ENTRY = "tapegrad_entry"  # the name of the function in its text
# No vectors of straight code: what is in lanes beyond those wanted would raise errors of numbers.
OPTIONS = {"loop_vectorization": True, "loop_interleaving": True, "slp_vectorization": False}
MOST_KERNELS = 4096  # of a process: nothing that is linked is ever let go
_known: dict[str, Address] = {}
_lock = threading.Lock()
statistics = {"compiled": 0, "cached": 0, "seconds": 0.0}


_linkers: list[tuple[Any, Any]] = []  # one, when it is there
_earlier: list[tuple[Any, Any]] = []  # those of processes that this one was forked from, with their code


def _linker() -> tuple[Any, Any]:
    """A linker of objects, and the machine as Numba has it, so that forms give the same bits."""
    if not _linkers:
        _linkers.append(_new_linker())
    return _linkers[0]


def _new_linker() -> tuple[Any, Any]:
    import llvmlite.binding as llvm

    with compiling():
        from numba.core.registry import cpu_target

        triple, name, features = cpu_target.target_context.codegen().magic_tuple()
    machine = llvm.Target.from_triple(triple).create_target_machine(
        cpu=name, features=features, opt=3, reloc="static" if "86" in triple else "default",
        codemodel="jitdefault", jit=True,
    )  # fmt: skip
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine), machine


def _compiled(text: str, symbol: str) -> bytes:
    """The object of a text, in which the function has a name of its own."""
    import llvmlite.binding as llvm

    _, machine = _linker()
    module = llvm.parse_assembly(text.replace(ENTRY, symbol))
    module.triple, module.data_layout = machine.triple, str(machine.target_data)
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    for name, value in OPTIONS.items():
        setattr(options, name, value)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    found: bytes = machine.emit_object(module)
    return found


def text_of(module: Any) -> str:
    """Return the text of a module of llvmlite's, which is used up: it refers to itself, so it would stay."""
    text = str(module)
    for function in module.functions:
        for block in function.blocks:
            for instruction in block.instructions:
                vars(instruction).clear()
            vars(block).clear()
        vars(function).clear()
    return text


def load(text: str) -> Address:
    """Return the address of the function of a text, compiled once and kept; 0 where there are too many.

    The text, in which there are no addresses, is all that tells one function from another.
    """
    import llvmlite.binding as llvm

    content = f"{OPTIONS}\n{text}".encode()
    key = hashlib.sha256(content).hexdigest()[:24]
    with _lock:
        if key not in _known and len(_known) < MOST_KERNELS:
            begin, symbol = time.perf_counter(), f"tapegrad_{key}"
            data = cache.fetch(f"group_{key}", content)
            statistics["compiled" if data is None else "cached"] += 1
            if data is None:
                data = _compiled(text, symbol)
                cache.keep(f"group_{key}", content, data)
            engine, _ = _linker()
            engine.add_object_file(llvm.ObjectFileRef.from_data(data))
            engine.finalize_object()
            _known[key] = engine.get_function_address(symbol)
            statistics["seconds"] += time.perf_counter() - begin
        return _known.get(key, 0)


def _begin_anew() -> None:
    """In a child process: nobody holds the lock, and what a thread was linking is left as it is."""
    global _lock
    _lock = threading.Lock()
    _earlier.extend(_linkers)
    _linkers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)
