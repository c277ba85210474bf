"""Whether compiled functions give back the memory and the tapes that they take."""

import gc
import operator

import pytest

from tapegrad.native.tapes import runtime


def counted(call, times=1):
    """What calls take and give back by Numba's counts: ``alloc free mi_alloc mi_free``."""
    from numba.core.runtime import _nrt_python, rtsys

    gc.collect()
    _nrt_python.memsys_enable_stats()
    try:
        before = rtsys.get_allocation_stats()
        for _ in range(times):
            call()
        after = rtsys.get_allocation_stats()
    finally:
        _nrt_python.memsys_disable_stats()
    return type(after)(*map(operator.sub, after, before))


def assert_given_back(call, fail, message):
    """Of a call that computes, and of one that raises a ValueError of this message."""
    pytest.importorskip("numba.core.runtime._nrt_python").memsys_enable_stats()
    from numba.core.runtime import rtsys

    call()
    tape = runtime.tapes().acquire()
    runtime.tapes().release(tape)
    before = rtsys.get_allocation_stats()
    for _ in range(100):
        call()
    after = rtsys.get_allocation_stats()
    assert after.alloc - before.alloc == after.free - before.free > 0
    assert after.mi_alloc - before.mi_alloc == after.mi_free - before.mi_free > 0
    for _ in range(100):
        with pytest.raises(ValueError, match=message):
            fail()
    again = runtime.tapes().acquire()
    runtime.tapes().release(again)
    assert again == tape
