"""Each test begins with a thread that has nothing left to do."""

import time

import pytest

from tapegrad.compilation import background


@pytest.fixture(autouse=True)
def _nothing_is_left_to_make():
    """What one has counted, jobs, expected Tensors or memory, is not of another that was there before it."""
    yield
    end = time.monotonic() + 60
    while background.waiting() and time.monotonic() < end:
        time.sleep(1e-3)
