"""What runs rows of programs (`kernels.replay.programs`): compiled when first wanted, beside the sweep."""

from __future__ import annotations

import functools

from tapegrad.kernels import machine
from tapegrad.kernels.locks import loaded_once
from tapegrad.kernels.replay import layout
from tapegrad.kernels.words import Address


@loaded_once
def load() -> functools.partial[int]:
    """Return ``run_program(what, state, begin, end)`` of `kernels.replay.programs`."""
    machine.load()  # by which functions are recorded in compiled code
    return machine.build("program", [machine.text_of("programs")], "run_program", layout)


def address() -> Address:
    """Return where that function is."""
    at: Address = load().args[0]
    return at
