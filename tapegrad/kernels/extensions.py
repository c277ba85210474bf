"""Programs beside the compiled sweep that call functions of it: each is compiled when it is first wanted."""

from __future__ import annotations

from tapegrad.kernels import machine
from tapegrad.kernels.locks import loaded_once
from tapegrad.kernels.replay import layout

COPIED = ("operands",)  # whose functions are short, and are inlined
RERECORDING = ("deferring", "rule_steps", "recorded_cotangents", "recorded_rules", "rerecording")


def _load(name: str, *texts: str) -> machine.Enter:
    machine.load()  # which has what is borrowed
    found = [machine.text_of(text) for text in (*COPIED, *texts)]
    how = {"trusted": len(found), "quick": len(COPIED), "borrowed": machine.OFFERED}
    return machine.build(name, found, name, layout, **how)


@loaded_once
def rerecording() -> machine.Enter:
    """Return ``rerecording(what, words, 0, 0)`` of `kernels.replay.rerecording`, for recorded sweeps."""
    return _load("rerecording", *RERECORDING)


@loaded_once
def writing() -> machine.Enter:
    """Return ``writing(what, words, 0, 0)`` of `kernels.replay.writing`, for writes to Tensors."""
    return _load("writing", "writing")
