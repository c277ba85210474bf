"""One kernel cache per run, so that a test sees only what this run has compiled."""

import atexit
import gc
import os
import shutil
import tempfile

# Before NumPy is imported: threads of OpenBLAS, MKL and torch wait for work by counting.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest
from _pytest.doctest import DoctestModule

_kept = os.environ.get("TAPEGRAD_TEST_CACHE")
if _kept:
    os.makedirs(_kept, mode=0o700, exist_ok=True)
    os.environ["TAPEGRAD_CACHE"] = _kept
elif "PYTEST_XDIST_WORKER" not in os.environ:  # else it is there; before tapegrad is imported, of mode 0700
    os.environ["TAPEGRAD_CACHE"] = tempfile.mkdtemp(prefix="tapegrad-tests-")
    atexit.register(shutil.rmtree, os.environ["TAPEGRAD_CACHE"], ignore_errors=True)


gc.set_threshold(*gc.get_threshold()[:2], 100)  # what compiles holds what it made, millions of objects


@pytest.fixture
def random():
    """A generator seeded alike for every test."""
    return np.random.default_rng(20240611)


def collected_for_good():
    """What modules and Numba's kernels hold stays to the end: to visit it again took a tenth of a run."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _modules_are_not_collected_again():
    collected_for_good()


def pytest_runtest_logfinish():
    if gc.get_count()[2] >= 10:  # of a test that has made some 70,000 objects and left them
        collected_for_good()


@pytest.hookimpl(wrapper=True)
def pytest_collect_file():
    """Tests have no doctests, and to look for them takes as long as to import what only some tests need."""
    return [found for found in (yield) if not isinstance(found, DoctestModule)]


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Nothing is garbage of what tens of thousands of items are made of, and to look for it takes seconds."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items):
    """First what compiles functions of its own, while another process compiles what all tests wait for."""
    items.sort(key=lambda item: item.path.name != "test_vecmath.py")
