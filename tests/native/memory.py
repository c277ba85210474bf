"""Whether compiled functions give back the memory and the tapes that they take."""

import pytest

from tapegrad.native import runtime


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
