"""Every case also runs with tapes so short that its graph spans several of them, in `full` of two lengths."""

import pytest

from tapegrad.tape import tape as tape_module


def close_current():
    tape = tape_module.local.tape
    if tape is not None:
        tape_module.close(tape)


LENGTHS = {"tapes-of-1": 1, "tapes-of-8": 8, "long-tapes": tape_module.MAX_RECORDS}


@pytest.fixture(
    params=[pytest.param(n, id=name, marks=pytest.mark.full if n == 8 else ()) for name, n in LENGTHS.items()]
)
def tape_length(request, monkeypatch):
    """Length at which a tape is closed; the test starts and ends on a fresh one."""
    close_current()
    monkeypatch.setattr(tape_module, "MAX_RECORDS", request.param)
    yield request.param
    close_current()
