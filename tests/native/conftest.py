"""What compiles takes a second and more: here a test is in the tier `full` unless it is marked `quick`."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their markers
def pytest_collection_modifyitems(items):
    for item in items:
        if HERE in item.path.parents and not {mark.name for mark in item.iter_markers()} & {"quick", "slow"}:
            item.add_marker("full")
