"""Look at the package as installed, from outside the repository: it is whole, nothing else is, and it works.

``python -I .ci/smoke.py REPOSITORY``, with the Python it is installed for.
"""

import subprocess
import sys
import sysconfig
from importlib.metadata import files
from pathlib import Path

import numpy as np

import tapegrad as tg

there = Path(tg.__file__).parent
assert there.parent == Path(sysconfig.get_path("purelib")), f"{there} is not what is installed"
root = Path(sys.argv[1])
wanted = {path.relative_to(root).as_posix() for path in root.glob("tapegrad/**/*.py")} | {"tapegrad/py.typed"}
shipped = {path.as_posix() for path in files("tapegrad") if ".dist-info/" not in path.as_posix()}
assert {name for name in shipped if not name.endswith(".pyc")} == wanted, wanted ^ shipped

x = np.array([0.5, 1.5])
leaf = tg.tensor(x, requires_grad=True)
(slope,) = tg.grad(np.sum(np.sin(leaf) * leaf), leaf)
np.testing.assert_allclose(slope.numpy(), np.sin(x) + x * np.cos(x), rtol=1e-15)
assert tg.func.value_and_grad(tg.njit(lambda p: p * p))(3.0) == (9.0, 6.0)
subprocess.run([sys.executable, "-I", "-m", "tapegrad", "info"], check=True)
