"""What runs rows of programs (`kernels.replay.programs`): compiled when first wanted, beside the sweep."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path

from tapegrad.kernels import cache, machine
from tapegrad.kernels.locks import loaded_once
from tapegrad.kernels.replay import layout


@loaded_once
def load() -> Callable[[int, int, int, int], int]:
    """Return ``run_program(what, state, begin, end)`` of `kernels.replay.programs`."""
    machine.load()  # by which functions are recorded in compiled code
    constants = {k: v for k, v in vars(layout).items() if k.isupper() and isinstance(v, int)}
    text = (Path(layout.__file__).parent / "programs.py").read_text("utf-8")
    source = machine.SOURCE.format(texts=[text], constants=constants, trusted=1, quick=1, entry="run_program")
    module = cache.load("program", source)
    return functools.partial(module.enter, module.entry.address)
