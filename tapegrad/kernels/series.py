"""The compiled power series (`kernels.replay.series`): compiled when first wanted, beside the sweep."""

from __future__ import annotations

import functools
from collections.abc import Callable

from tapegrad.kernels import machine
from tapegrad.kernels.locks import loaded_once
from tapegrad.kernels.replay import layout, series_layout


@loaded_once
def load() -> Callable[[int, int, int], int]:
    """Return ``expand(state, 0, 0)``, which gives how it ended."""
    machine.load()  # by which functions are recorded in compiled code
    enter = machine.build("series", [machine.text_of("series")], "expand", layout, series_layout)
    return functools.partial(enter, 0)
