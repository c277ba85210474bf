"""Names of compiled functions, which no other process gives to other functions.

Numba tells functions alike in name and types apart by a number, counted from 1 in each process. Code that it
has cached keeps the names of all that is compiled in, and where code of two processes meets, the first
function of a name stands in for all others. So the count begins at a random number.
"""

from __future__ import annotations

import itertools
import os

from numba.core.bytecode import FunctionIdentity


def _begin() -> None:
    FunctionIdentity._unique_ids = itertools.count(int.from_bytes(os.urandom(7), "little"))


_begin()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin)
