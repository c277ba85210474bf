"""What all modules of `tapegrad.scipy` have in common: when they are imported, and what falls through."""

import subprocess
import sys

import pytest

import tapegrad.scipy as ts

CODE = """
import sys, tapegrad.scipy as ts
later = ["stats", "integrate", "interpolate", "signal", "ndimage", "spatial"]
assert not [name for name in later if f"scipy.{name}" in sys.modules]
assert ts.spatial.distance.cdist is not None and "scipy.spatial" in sys.modules
import tapegrad.scipy.stats as stats
assert ts.stats is stats
"""


@pytest.mark.full
def test_modules_are_imported_when_they_are_asked_for():
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.full
@pytest.mark.parametrize("name", ["stats", "integrate", "interpolate", "signal", "ndimage", "spatial"])
def test_all_names_of_scipys_are_there(name):
    module = getattr(ts, name)
    for other in dir(module):
        assert getattr(module, other) is not None
    with pytest.raises(AttributeError):
        module.no_such_function


def test_another_name_is_no_module():
    with pytest.raises(AttributeError, match="no_such_module"):
        ts.no_such_module
