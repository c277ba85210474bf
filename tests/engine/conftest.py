"""What tests of the engine share."""

import pytest

from tapegrad.kernels import machine
from tapegrad.tape import tape as tapes


@pytest.fixture
def compiled():
    """What records and sweeps in compiled code is loaded, and the tape that is open has no records."""
    machine.load()
    if tapes.local.tape is not None:
        tapes.close(tapes.local.tape)
