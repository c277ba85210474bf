"""The native tape: memory, limits, interrupts, threads, the cache."""

import ctypes
import os
import resource
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numba import typeof

import tapegrad as tg
from tapegrad.native import border
from tapegrad.native.tapes import runtime, tape
from tapegrad.native.twin import twin_of

ROOT = Path(__file__).parents[2]


@tg.njit(nogil=True)
def logistic(x, n):
    s = x[0]
    for _ in range(n):
        s = x[1] * s * (1.0 - s)
    return s


def leaf():
    return tg.tensor([0.3, 3.1], requires_grad=True)


def word(address, k):
    return ctypes.c_int64.from_address(address + 8 * k).value


def segment_of(y):
    """What the newest call on the tape of a result was."""
    return [attrs["segment"] for attrs in y._tape.attrs.values() if "segment" in attrs][-1]


@pytest.mark.quick
def test_statements_and_bytes():
    y = logistic(leaf(), 1000)
    recording = segment_of(y).recording
    assert recording.statements == 2 + 1000
    # numbers of x[1] and of s, which is told once; two partials; the kind of the record
    assert recording.nbytes == (2 * 4 + 2 * 8 + 8) * 1000


@pytest.mark.quick
def test_a_tape_is_used_again():
    addresses = set()
    for _ in range(20):
        y = logistic(leaf(), 100)
        addresses.add(segment_of(y).recording.address)
        y.backward()
        del y
    assert len(addresses) <= 3


@pytest.mark.quick
def test_many_tapes_at_once():
    """More than the pool has slots; all give the same gradient, and memory is returned."""
    x = leaf()
    results = [logistic(x, 10) for _ in range(3 * tape.SLOTS)]
    expected = tg.grad(logistic(x, 10), x)[0].numpy()
    for y in results:
        np.testing.assert_array_equal(tg.grad(y, x)[0], expected)


@tg.njit
def endless(x):
    s = x[0]
    while s != 0.0:
        s = s * x[1] + 1.0
    return s


def test_a_growth_that_fails_raises_and_loses_nothing():
    code = """if True:
        import resource, numpy as np, tapegrad as tg
        from tests.native.test_tape import endless, logistic, leaf
        x = leaf()
        before = logistic(x, 1000)
        tg.grad(before, x, retain_graph=True)
        size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + (600 << 20),) * 2)
        for _ in range(2):
            try:
                endless(x)
            except MemoryError as error:
                print("MemoryError", "cannot grow" in str(error))
        print(np.array_equal(tg.grad(before, x)[0], tg.grad(logistic(x, 1000), x)[0]))
    """
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.stdout.split() == ["MemoryError", "True", "MemoryError", "True", "True"], done.stderr[-2000:]


def test_a_process_ends_with_tapes_in_use():
    code = """if True:
        import tapegrad as tg
        @tg.njit
        def f(x):
            return x[0] * x[0] * x[1]
        x = tg.tensor([0.3, 3.1], requires_grad=True)
        (g,) = tg.grad(f(x), x, create_graph=True)
        (h,) = tg.grad(g.sum(), x, create_graph=True)
        tg.grad(h.sum(), x)
        print("kept")
    """
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "kept"), done.stderr[-2000:]


@pytest.mark.quick
def test_the_number_of_statements_is_limited():
    """As if two thousand million were on the tape already."""
    module = runtime.tapes()
    x = leaf()
    y = logistic(x, 5)
    recording = segment_of(y).recording
    address = recording.address
    ctypes.c_int64.from_address(address + 8 * tape.COUNT).value = tape.NUMBERS - 2
    ctypes.c_int64.from_address(address + 8 * tape.LIMIT).value = word(address, tape.TOP)
    ctypes.c_int64.from_address(address + 8 * tape.END).value = word(address, tape.TOP)
    from tapegrad.native.segment import entering

    rows = entering(np.array([[0.3], [3.1]]), (), address, 1)
    with pytest.raises(MemoryError, match=r"2\*\*31"):
        twin_of(logistic.primal, (), True)(rows, 10)
    module.reset(address, 2)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers")
def test_an_interrupt_stops_a_long_recording():
    def ring(*_):
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, ring)
    x = leaf()
    logistic(x, 10)
    endless.primal
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            logistic(x, 60_000_000)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert tg.grad(logistic(x, 1), x)[0].shape == (2,)


@tg.njit
def catching(x):
    s = 0.0
    try:
        s = endless(x)
    except Exception:
        s = 1.0
    return s * x[0]


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers")
def test_an_interrupt_is_not_lost_where_the_program_catches_exceptions():
    def ring(*_):
        raise KeyboardInterrupt

    twin_of(catching.primal, (), True).compile((typeof(np.zeros(2, border.record(()))),))
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    try:
        with pytest.raises(KeyboardInterrupt):
            catching(leaf())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_threads_record_at_the_same_time():
    def run(k):
        x = tg.tensor([0.2 + 0.01 * k, 3.1], requires_grad=True)
        return [tg.grad(logistic(x, 2000), x)[0].numpy() for _ in range(20)]

    expected = [run(k) for k in range(8)]
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(run, range(8)))
    np.testing.assert_array_equal(found, expected)


def test_threads_inside_compiled_code():
    value_and_grad = tg.func.value_and_grad(logistic)
    import numba

    @numba.njit(nogil=True)
    def many(x, n):
        total = np.zeros(2)
        for _ in range(n):
            total += value_and_grad(x, 50)[1]
        return total

    expected = many(np.array([0.3, 3.1]), 200)
    results = [None] * 8

    def run(k):
        results[k] = many(np.array([0.3, 3.1]), 200)

    threads = [threading.Thread(target=run, args=(k,)) for k in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    np.testing.assert_array_equal(results, [expected] * 8)


@pytest.mark.parametrize("together", [False, True])
def test_threads_that_write_to_one_array(together):
    """Each enters it on a tape of its own. At the same time one may be lost; the rest has its derivatives."""

    @tg.njit(nogil=True)
    def add(x, out, n):
        for _ in range(n):
            for i in range(out.size):
                out[i] += x[i] * x[i] / n

    n = 2000
    out = tg.tensor(np.zeros(3))
    leaves = [tg.tensor(np.arange(1.0, 4.0) * k, requires_grad=True) for k in (1.0, 2.0, 3.0)]
    add(leaves[0], out, n)
    threads = [threading.Thread(target=add, args=(x, out, n)) for x in leaves[1:]]
    for t in threads:
        t.start()
        if not together:
            t.join()
    for t in threads:
        t.join()
    found = tg.grad(np.sum(out), leaves, materialize_grads=True)
    there = [float(g[0].item() != 0.0) for g in found]
    assert there[0] == 1.0 and (sum(there) == 3.0 or (together and sum(there) == 2.0))
    for x, g, k in zip(leaves, found, there, strict=True):
        np.testing.assert_allclose(g, 2.0 * k * x.detach().numpy(), rtol=1e-10)
    of_all = sum(k * x.detach().numpy() ** 2 for x, k in zip(leaves, there, strict=True))
    np.testing.assert_allclose(out.detach(), of_all, rtol=1e-10)


CACHED = """
import numpy as np, numba, tapegrad as tg

@numba.njit(cache=True)
def helper(a):
    return a * a

@tg.njit(cache=True)
def cubed(x):
    return helper(x[0]) * x[0], np.array([x[0], x[0] * x[0]]), 2.0 * x
"""


def test_the_cache_of_another_process(tmp_path):
    (tmp_path / "cached_program.py").write_text(CACHED, "utf-8")
    code = """if True:
        import numpy as np, tapegrad as tg, time
        from cached_program import cubed
        x = tg.tensor([2.0], requires_grad=True)
        cube, several, array = cubed(x)
        (g,) = tg.grad(cube, x, create_graph=True, retain_graph=True)
        print(*tg.grad(several.sum() + array.sum(), x)[0].tolist())
        (h,) = tg.grad(g[0], x)
        from tapegrad.native.twin import twin_of
        stats = [twin_of(cubed.primal, spec, True).stats.cache_hits for spec in ((), (1,))]
        print(g.item(), h.item(), *(sum(hits.values()) for hits in stats), cubed(np.array([2.0]))[0])
    """
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    found = [
        subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout.split()
        for _ in range(2)
    ]
    assert found == [["7.0", "12.0", "12.0", hits, hits, "8.0"] for hits in "01"]


def test_resident_memory_of_cotangents():
    """One for each statement, whatever there is on the tape."""
    x = leaf()
    n = 10_000_000 // 3
    y = logistic(x, n)
    recording = segment_of(y).recording
    y.backward()
    assert 8 * word(recording.address, tape.ROOM) <= 1.25 * 8 * (n + 4)
    assert resource.getpagesize() > 0
