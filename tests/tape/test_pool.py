"""Buffers used again: only when nothing can see them."""

import subprocess
import sys
import threading

import numpy as np
import pytest

from tapegrad.kernels import abi
from tapegrad.tape import pool

DOUBLE = np.dtype(float)


@pytest.fixture(autouse=True)
def empty_stock():
    pool._stock.latest.clear()
    pool._stock.free.clear()
    pool._stock.held = 0


def memory(array):
    return abi.address(array)


def test_a_buffer_is_used_again_when_it_is_dead():
    a = pool.empty((10_000,), DOUBLE)
    at = memory(a)
    b = pool.empty((10_000,), DOUBLE)
    assert memory(b) != at
    del a
    assert memory(pool.empty((100, 100), DOUBLE)) == at


def test_a_view_keeps_its_buffer():
    a = pool.empty((10_000,), DOUBLE)
    at, view = memory(a), a[5:]
    del a
    others = [pool.empty((10_000,), DOUBLE) for _ in range(20)]
    assert at not in {memory(x) for x in others}
    view[:] = 1.0
    for x in others:
        x[:] = 2.0
    assert np.all(view == 1.0)


def test_recycled_buffers_come_back_and_shared_ones_do_not():
    values = [pool.empty((10_000,), DOUBLE) for _ in range(20)]
    kept, view = values[3], values[4][1:]
    places = {memory(v) for v in values}
    shared = {memory(kept), memory(view) - 8}
    pool.recycle(values, range(20))
    assert values == [None] * 20
    again = [pool.empty((10_000,), DOUBLE) for _ in range(25)]
    found = {memory(x) for x in again}
    assert not found & shared
    assert len(found & (places - shared)) >= 10
    assert len(found) == 25


def test_what_is_not_from_here_is_left_alone():
    values = [np.zeros(10_000), np.float64(2.0), None, np.zeros(10_064, np.uint8)[:10_000], np.zeros(3)]
    pool.recycle(values, range(5))
    assert not pool._stock.free


def test_arrays_of_others_that_look_alike_are_left_alone():
    base = np.zeros((4, 20_001, 2)).transpose(1, 0, 2).copy(order="K")
    values = [base[1:], np.zeros((20_001, 8), order="F")[1:]]
    assert values[0].base.nbytes == values[0].nbytes + pool.ALIGNMENT
    base = None
    pool.recycle(values, range(2))
    assert not pool._stock.free


def test_alone():
    makers = (
        lambda: np.zeros(10), lambda: pool.empty((10_000,), DOUBLE), lambda: np.zeros(10)[2:],
        lambda: np.zeros((3, 4)).T,
    )  # fmt: skip
    for make in makers:
        holder = [make()]
        assert pool.alone(list(holder), [1])
        view = holder[0][1:]
        assert not pool.alone(list(holder), [1])
        holder.append(view)
        view = None
        assert pool.alone(list(holder), [1, 1])
        held = memoryview(holder[0])
        assert not pool.alone(list(holder), [1, 1])
        held.release()
    assert not pool.alone([np.frombuffer(bytearray(80))], [0])


def test_reference_counts_are_known_under_a_tracer():
    """One that reads the locals of frames, which adds references; those of modules make CPython 3.12 fail."""
    code = """
import sys
def trace(frame, event, argument):
    if frame.f_code.co_name != "<module>":
        frame.f_locals
    return trace
sys.settrace(trace)
import tapegrad as tg
sys.settrace(None)
import numpy as np
a, b = tg.tensor(np.full(20000, 1.0)), tg.tensor(np.full(20000, 2.0))
print(a.numpy()[0], b.numpy()[0])
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True
    )
    assert done.stdout.split() == ["1.0", "2.0"]


def test_the_import_under_a_profiler_written_in_C():
    done = subprocess.run(
        [sys.executable, "-m", "cProfile", "-s", "ncalls", "-m", "tapegrad.config"],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "(_in_a_list)" in done.stdout  # still at work after the import


def test_the_stock_is_bounded(monkeypatch):
    monkeypatch.setattr(pool, "STOCK_BYTES", 1 << 20)
    values = [pool.empty((20_000,), DOUBLE) for _ in range(40)]
    pool.recycle(values, range(40))
    assert 0 < pool._stock.held <= 1 << 20
    other = [pool.empty((30_000,), DOUBLE) for _ in range(20)]
    pool.recycle(other, range(20))
    assert list(pool._stock.free) == [30_000 * 8 + pool.ALIGNMENT]
    assert pool._stock.held <= 1 << 20
    pool.give_back()
    assert pool._stock.held == 0


def test_results_are_aligned_and_small_or_huge_ones_are_numpys():
    for shape in ((8192,), (100, 101), (3, 7, 1001)):
        array = pool.empty(shape, DOUBLE)
        assert memory(array) % 64 == 0
        assert array.shape == shape
        assert array.flags.c_contiguous
        assert array.flags.writeable
    assert pool.empty((10,), DOUBLE).base is None
    assert pool.empty((pool.MAX_BYTES // 8 + 1,), DOUBLE).base is None


def test_threads_have_stocks_of_their_own():
    a = pool.empty((10_000,), DOUBLE)
    at = memory(a)
    del a
    found = []

    def work():
        found.append(memory(pool.empty((10_000,), DOUBLE)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found[0] != at
    assert memory(pool.empty((10_000,), DOUBLE)) == at


def test_a_shadow_has_a_shape_and_no_memory():
    shadow = pool.shadow(np.zeros((1000, 1000)))
    assert shadow.shape == (1000, 1000)
    assert shadow.base.nbytes == 8
    assert pool.shadow(np.ones((1000, 1000))) is shadow
    assert pool.shadow(np.ones((1000, 1000), "f")) is not shadow
    with pytest.raises(ValueError, match="read-only"):
        shadow[0, 0] = 1.0
