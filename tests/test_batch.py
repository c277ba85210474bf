"""Ensembles and shards on executors: the same bits whoever computes them, and after workers died."""

import math
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import tapegrad as tg
from tapegrad import batch, progress

P = {"a": 1.3, "k": np.array([0.7, 0.1])}


def misfit(p, k):
    t = np.linspace(0.0, 1.0 + k, 40)
    return np.sum((p["a"] * np.exp(-p["k"][0] * t) - np.cos(t + p["k"][1])) ** 2)


@tg.njit
def growth(p, k):
    x = p[0] + 0.001 * k
    for _ in range(50):
        x = x + 0.01 * x * (p[1] - x)
    return x


def misfit_of_the_dying(p, job):
    k, flag = job
    if k == 7 and not os.path.exists(flag):
        open(flag, "w").close()
        os.kill(os.getpid(), signal.SIGKILL)
    return misfit(p, k)


def inverse(k):
    return 1 / k


def product(p, k):
    a = np.random.default_rng(k).normal(size=(200, 200))
    return np.sum((a @ a.T @ p) ** 2)


def same(a, b):
    return a[0] == b[0] and all(np.array_equal(a[1][name], b[1][name]) for name in P)


def spawned(workers=2):
    return ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"))


def expected(members):
    """By one call of `value_and_grad` each, summed up exactly."""
    parts = [tg.func.value_and_grad(misfit)(P, k) for k in members]
    value = math.fsum(v for v, _ in parts)
    k = [math.fsum(g["k"][j] for _, g in parts) for j in (0, 1)]
    return value, {"a": math.fsum(g["a"] for _, g in parts), "k": k}


def test_sums_are_those_of_all_members():
    value, slope = batch.value_and_grad(misfit)(P, range(30))
    exact = expected(range(30))
    np.testing.assert_allclose(value, exact[0], rtol=1e-14)
    np.testing.assert_allclose(slope["a"], exact[1]["a"], rtol=1e-13)
    np.testing.assert_allclose(slope["k"], exact[1]["k"], rtol=1e-13)
    assert isinstance(value, float) and isinstance(slope["a"], float)


def test_the_same_bits_for_any_number_of_threads():
    found = []
    for workers in (1, 2, 5):
        with ThreadPoolExecutor(workers) as pool:
            found.append(batch.value_and_grad(misfit, executor=pool)(P, range(300)))
    assert same(found[0], found[1]) and same(found[0], found[2])
    assert same(found[0], batch.value_and_grad(misfit)(P, iter(range(300))))


def test_chunks_depend_on_members_alone():
    assert [members for _, members in batch._chunks("map", range(5), 2)] == [[0, 1], [2, 3], [4]]
    for n in (0, 1, batch.CHUNKS, batch.CHUNKS + 1, 1000):
        chunks = batch._chunks("map", range(n), None)
        assert [k for _, members in chunks for k in members] == list(range(n))
        assert [start for start, _ in chunks] == [members[0] for _, members in chunks]
        assert len(chunks) <= batch.CHUNKS


def test_results_are_in_the_order_of_members():
    def late(k):
        time.sleep(0.02 * (3 - k))
        return k

    assert batch.map(late, range(4), chunk_size=1) == [0, 1, 2, 3]
    assert batch.map(late, []) == []


def test_compiled_functions():
    p = np.array([0.3, 1.2])
    value, slope = batch.value_and_grad(growth)(p, [0.0, 1.0])
    parts = [tg.func.value_and_grad(growth)(p, k) for k in (0.0, 1.0)]
    assert value == parts[0][0] + parts[1][0]
    assert np.array_equal(slope, parts[0][1] + parts[1][1])


def test_minimize_takes_the_lowest_of_all_starts():
    def wells(x, tilt):
        return np.sum((x**2 - 1) ** 2 + tilt * x)

    best = batch.minimize(wells, [[1.5], [-0.5], [0.9]], (0.3,), method="BFGS")
    assert best.start == 1 and best.success and len(best.results) == 3
    assert best.fun == best.results[1].fun < best.results[0].fun
    alone = tg.scipy.optimize.minimize(wells, [-0.5], args=(0.3,), method="BFGS")
    assert np.array_equal(best.x, alone.x)


def test_minimize_prefers_what_converged():
    def falling(x):
        return np.sum(np.where(x < 0, x, x**2))  # without bound on one side

    best = batch.minimize(falling, [[-1.0], [2.0]], method="BFGS", options={"maxiter": 20})
    assert best.start == 1 and not best.results[0].success


def test_an_error_is_that_of_the_function_and_names_the_member():
    began, sent = [], []

    class Noting(ThreadPoolExecutor):
        def submit(self, *args):
            sent.append(super().submit(*args))
            return sent[-1]

    def part(k):
        began.append(k)
        end = time.monotonic() + 60
        while k > 3 and not sent[-1].cancelled() and time.monotonic() < end:
            time.sleep(1e-3)
        return 1 / (k - 3)

    with Noting(1) as pool, pytest.raises(ZeroDivisionError) as caught:
        batch.map(part, range(500), executor=pool, chunk_size=2)
    assert caught.value.__notes__ == ["tapegrad.batch: member 3"]
    assert len(began) <= 6  # what had not begun is cancelled


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: batch.map(1, [1]), TypeError, "a function is wanted first, found int"),
        (lambda: batch.map(abs, [1], chunk_size=0), ValueError, "chunk_size is a whole number from 1"),
        (lambda: batch.map(abs, [1], executor=2), TypeError, "one of concurrent.futures, found int"),
        (lambda: batch.value_and_grad(misfit)(P, []), ValueError, "no members"),
        (lambda: batch.minimize(abs, []), ValueError, "no starts"),
    ],
    ids=["function", "chunk_size", "executor", "members", "starts"],
)  # fmt: skip
def test_mistakes(call, error, message):
    with pytest.raises(error, match=message):
        call()


class Failing(Executor):
    """Runs at once what it is given, but breaks at some of the calls, as a pool whose worker died does."""

    def __init__(self, at):
        self.at, self.calls, self.broken = set(at), 0, False

    def submit(self, fn, /, *args):
        if self.broken:
            raise BrokenExecutor("broken")
        self.calls += 1
        future = Future()
        if self.calls in self.at:
            self.broken = True
            future.set_exception(BrokenExecutor("died"))
        else:
            future.set_result(fn(*args))
        return future


class Clock:
    """By which nothing takes time but what is said to."""

    now = 0.0

    def perf_counter(self):
        return self.now

    def sleep(self, seconds):
        self.now += seconds


@pytest.fixture
def clock(monkeypatch):
    monkeypatch.setattr(batch, "time", Clock())
    return batch.time


class Far(Executor):
    """Takes some time to send a task, and notes how many members each has."""

    def __init__(self, clock, seconds):
        self.clock, self.seconds, self.sizes = clock, seconds, []

    def submit(self, fn, /, number, work, sent, shared, starts, *members):
        self.clock.sleep(self.seconds)
        self.sizes.append(len(members))
        future = Future()
        future.set_result(fn(number, work, sent, shared, starts, *members))
        return future


def test_quick_chunks_are_sent_together_and_their_sums_are_the_same(clock):
    far, near, sizes = Far(clock, 0.02), Far(clock, 0.0), [3] * 100
    members = range(300)
    found = [batch.value_and_grad(misfit, executor=executor)(P, members) for executor in (far, near)]
    assert same(*found) and same(found[0], batch.value_and_grad(misfit, chunk_size=3)(P, members))
    most = batch.TASKS + batch.ALONE + 1
    assert far.sizes[0] == 3 and batch.TASKS <= len(far.sizes) <= most
    far.sizes.clear()
    assert batch.map(abs, members, executor=far) == [*members] and len(far.sizes) <= most
    far.sizes.clear()
    far.seconds = 0.0
    assert batch.map(abs, members, executor=far, chunk_size=3) == [*members] and far.sizes == sizes
    near.sizes.clear()
    batch.map(lambda k: clock.sleep(0.02), range(20), executor=near)
    assert near.sizes == [1] * 20


@pytest.mark.parametrize("count", [2 * batch.TASKS - 1, 2 * batch.TASKS])
def test_few_chunks_are_sent_at_once(monkeypatch, count):
    """Nobody waits for the first one, where no others could go together."""
    waited = []
    monkeypatch.setattr(batch, "_chunks_worth", lambda *first: waited.append(first) or 1)
    assert batch.map(abs, range(count)) == [*range(count)]
    assert len(waited) == (count >= 2 * batch.TASKS)


@pytest.mark.parametrize("together", [1, 2, 7, 10**6])
def test_each_chunk_is_of_one_task(together):
    for n in range(300):
        tasks = [slice(k, k + 1) for k in range(min(batch.ALONE, n))] + batch._tasks(n, together)
        assert [k for task in tasks for k in range(n)[task]] == [*range(n)]
        assert n < batch.TASKS or len(tasks) >= batch.TASKS


def test_errors_and_deaths_where_chunks_are_sent_together(clock):
    with pytest.raises(ZeroDivisionError) as caught:
        batch.map(inverse, [1.0] * 250 + [0.0] + [1.0] * 49, executor=Far(clock, 2e-3))
    assert caught.value.__notes__ == ["tapegrad.batch: member 250"]
    pools = iter([Failing([3]), Failing([1]), Failing([])])
    pool = batch.RenewingExecutor(lambda: next(pools))
    assert batch.map(abs, range(-300, 0), executor=pool, retries=2) == [*range(300, 0, -1)]


def test_what_a_broken_pool_had_is_sent_again():
    pools = iter([Failing([3]), Failing([1]), Failing([])])
    pool = batch.RenewingExecutor(lambda: next(pools))
    assert batch.map(abs, range(-5, 0), executor=pool, retries=2, chunk_size=1) == [5, 4, 3, 2, 1]


def test_workers_may_die_so_often_and_no_more():
    pool = batch.RenewingExecutor(lambda: Failing([1]))
    with pytest.raises(BrokenExecutor, match="more often than retries"):
        batch.map(abs, [1], executor=pool, retries=4)
    with pytest.raises(BrokenExecutor, match="RenewingExecutor"):
        batch.map(abs, [1, 2], executor=Failing([2]), chunk_size=1)


def test_derivatives_by_what_is_outside_are_not_lost():
    """In threads they are right; a process would have to pickle a history, which is refused."""
    p = tg.tensor([1.0, 2.0], requires_grad=True)
    _, slope = batch.value_and_grad(lambda q, k: np.sum(q**3) * k)(p, [1.0, 2.0])
    assert tg.grad(np.sum(slope), p)[0].numpy().tolist() == [18.0, 36.0]
    with pytest.raises(tg.errors.GradientError, match="pickle"):
        slope.__reduce_ex__(2)


def test_blas_has_one_thread_meanwhile():
    threadpoolctl = pytest.importorskip("threadpoolctl")

    def threads(k=0):
        found = threadpoolctl.threadpool_info()
        return [library["num_threads"] for library in found if library["user_api"] == "blas"]

    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        before = threads()
        assert batch.map(threads, range(4)) == [[1] * len(before)] * 4
        assert threads() == before and 2 in before


@pytest.mark.parametrize("seen", [True, False])
def test_progress(capsys, monkeypatch, seen):
    monkeypatch.setattr(progress, "watched", lambda: seen)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    assert batch.map(abs, range(300), progress=True) == [*range(300)]
    assert ("batch.map: 100 of 100" in capsys.readouterr().err) == seen


# ---------------------------------------------------------------- processes


@pytest.mark.full
def test_processes():
    """The same bits, of compiled functions and with BLAS too."""
    with spawned() as pool:
        there = batch.value_and_grad(misfit, executor=pool)(P, range(40))
        assert same(there, batch.value_and_grad(misfit)(P, range(40)))
        p, members = np.array([0.3, 1.2]), [0.0, 1.0, 2.0]
        here, there = (batch.value_and_grad(growth, executor=e)(p, members) for e in (None, pool))
        assert here[0] == there[0] and np.array_equal(here[1], there[1])
        p = np.linspace(-1.0, 1.0, 200)
        pytest.importorskip("threadpoolctl")
        here, there = (batch.value_and_grad(product, executor=e)(p, range(4)) for e in (None, pool))
        assert here[0] == there[0] and np.array_equal(here[1], there[1])
        with pytest.raises(ZeroDivisionError):
            batch.map(inverse, [1, 0], executor=pool)
        best = batch.minimize(quartic, [[1.5, 0.1], [-0.5, 0.3]], executor=pool)
        assert best.success and len(best.results) == 2


def quartic(x):
    return np.sum((x**2 - 1) ** 2 + 0.3 * x)


@pytest.mark.full
def test_a_process_that_is_killed(tmp_path):
    """Its members are computed by others, to the same bits."""
    jobs = [(k, str(tmp_path / "died")) for k in range(40)]
    with batch.RenewingExecutor(spawned) as pool:
        found = batch.value_and_grad(misfit_of_the_dying, executor=pool)(P, jobs)
    assert os.path.exists(jobs[0][1])
    assert same(found, batch.value_and_grad(misfit)(P, range(40)))


def draw(k):
    return os.urandom(8)


@pytest.mark.full
def test_dask_with_a_worker_that_is_killed(tmp_path):
    distributed = pytest.importorskip("distributed")
    jobs = [(k, str(tmp_path / "died")) for k in range(40)]
    local = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "silence_logs": 50}
    with distributed.LocalCluster(**local) as cluster, distributed.Client(cluster) as client:
        pool = client.get_executor()
        found = batch.value_and_grad(misfit_of_the_dying, executor=pool)(P, jobs)
        assert os.path.exists(jobs[0][1])
        assert same(found, batch.value_and_grad(misfit)(P, range(40)))
        assert batch.map(inverse, client.scatter([1.0, 2.0]), executor=pool) == [1.0, 0.5]  # Dask's futures
        with pytest.raises(ZeroDivisionError):
            batch.map(inverse, [1, 0], executor=pool)
        drawn = [x for _ in range(5) for x in batch.map(draw, range(4), executor=pool)]
        assert len(set(drawn)) == len(drawn)  # no call is given what an equal one gave


MPI = """
from mpi4py.futures import MPIPoolExecutor
from tapegrad import batch
from tests.test_batch import P, misfit, same

if __name__ == "__main__":
    with MPIPoolExecutor() as pool:
        there = batch.value_and_grad(misfit, executor=pool)(P, range(40))
    print("the same bits:", same(there, batch.value_and_grad(misfit)(P, range(40))))
"""


@pytest.mark.full
@pytest.mark.parametrize("ranks", [2, 3])
def test_mpi(tmp_path, ranks):
    """One rank sums, the others compute."""
    pytest.importorskip("mpi4py")
    mpiexec = shutil.which("mpiexec")
    if mpiexec is None:
        pytest.skip("there is no mpiexec on the path")
    (tmp_path / "script.py").write_text(MPI)
    root = dict.fromkeys(("OMPI_ALLOW_RUN_AS_ROOT", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"), "1")
    more = {"OMPI_MCA_rmaps_base_oversubscribe": "1", "PYTHONPATH": str(Path(__file__).parent.parent)}
    done = subprocess.run(
        [mpiexec, "-n", str(ranks), sys.executable, "-m", "mpi4py.futures", tmp_path / "script.py"],
        env={**os.environ, **root, **more}, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert "the same bits: True" in done.stdout, done.stdout + done.stderr
