"""Every case also runs with tapes so short that its graph spans several of them."""

import pytest

from tapegrad.tape import tape as tape_module


def close_current():
    tape = tape_module.local.tape
    if tape is not None:
        tape_module.close(tape)


@pytest.fixture(params=[1, 8, tape_module.MAX_RECORDS], ids=["tapes-of-1", "tapes-of-8", "long-tapes"])
def tape_length(request, monkeypatch):
    """Length at which a tape is closed; the test starts and ends on a fresh one."""
    close_current()
    monkeypatch.setattr(tape_module, "MAX_RECORDS", request.param)
    yield request.param
    close_current()
