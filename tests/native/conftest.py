"""What compiles takes a second and more: here a test is in the tier `full` unless it is marked `quick`."""

from pathlib import Path

import pytest

from tapegrad.native import function, segment

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before tests are selected by their markers
def pytest_collection_modifyitems(items):
    paths = {item.path for item in items}  # some hundred, of items some ten thousand
    ours = {path for path in paths if HERE in path.parents}
    for item in items:
        if item.path in ours and not {mark.name for mark in item.iter_markers()} & {"quick", "slow"}:
            item.add_marker("full")


@pytest.fixture
def recordings(monkeypatch):
    """The recordings of compiled functions of Tensors, as they are made."""
    made = []

    class Kept(segment.Recording):
        def __init__(self, inputs):
            super().__init__(inputs)
            made.append(self)

    monkeypatch.setattr(function, "Recording", Kept)
    return made
