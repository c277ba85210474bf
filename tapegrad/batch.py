"""One function for many members: ensembles, shards of data, starts of a solver, on any executor.

An executor is one of `concurrent.futures`: threads, processes, loky's, `client.get_executor()` of Dask's, or
that of mpi4py.futures. Members are cut into chunks, whatever the number of workers, and sums go by the order
of members within a chunk and of chunks, so they have the same bits however many workers there are and
whichever is first. BLAS, whose bits depend on its threads, has one meanwhile, here and where workers are, if
threadpoolctl is installed.
"""

from __future__ import annotations

import functools
import math
import operator
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future, wait
from contextlib import contextmanager
from importlib import import_module
from itertools import pairwise
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import uuid4

import numpy as np

from tapegrad import func
from tapegrad.func.calls import named
from tapegrad.func.trees import Tree, map_tree
from tapegrad.progress import progress as shown
from tapegrad.tensor import Operand
from tapegrad.warmup import warm_up

if TYPE_CHECKING:
    from scipy.optimize import OptimizeResult

__all__ = ["RenewingExecutor", "map", "minimize", "value_and_grad", "warm_up"]

CHUNKS = 128  # at most, by default: some for each worker of a few dozen
TASKS = 8  # at least, where several chunks make one: some for each worker of a few
WORTH = 20  # a task takes so many times as long as it takes to send one, where chunks are quick
PATIENCE = 0.1  # seconds to wait for the first chunk, which tells that, while others are computed
KEPT = 32  # functions that a worker keeps
ALONE = 4  # chunks that are sent each by itself, before it is known how quick they are
RETRIES = 3
M = TypeVar("M")
P = TypeVar("P")
R = TypeVar("R")


def map(
    f: Callable[[M], R],
    members: Iterable[M],
    *,
    executor: Executor | None = None,
    chunk_size: int | None = None,
    retries: int = RETRIES,
    progress: bool = False,
) -> list[R]:
    """Return what a function makes of each member, in their order.

    Parameters
    ----------
    f : callable
        Of one member. For other processes it is pickled, by cloudpickle where that is installed, else by
        pickle; derivatives of `tapegrad.func` and lambdas want cloudpickle, functions of `tapegrad.njit` and
        sparse plans do not. A worker keeps it, so what it compiles is compiled once.
    members : iterable
        Anything that can be pickled; Dask's futures among them are resolved where they are.
    executor : concurrent.futures.Executor, optional
        By default a thread for each processor.
    chunk_size : int, optional
        How many members are sent together; by default such that there are at most 128 chunks, of which
        several are sent together where the first takes less than twenty times as long as sending it.
    retries : int, optional
        How often a worker may die; its members are computed again by others. See `RenewingExecutor`.
    progress : bool, optional
        Show how many chunks are done, on a terminal or in a notebook: by tqdm if it is installed, else by a
        line.

    Returns
    -------
    list

    Raises
    ------
    BrokenExecutor
        Workers died more often than that.

    Notes
    -----
    The first error of `f`, in the order of members, is raised as it is, with a note that says
    which member it is of. What has not begun by then is cancelled.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> tg.batch.map(tg.func.grad(lambda a: np.sum(a**3)), [np.array([1.0, 2.0]), np.array([3.0])])
    [array([ 3., 12.]), array([27.])]
    """
    sent, found = _Sent(f), []
    chunks = _chunks("map", members, chunk_size)
    for part in _results("map", _mapped, sent, None, chunks, executor, retries, progress, chunk_size is None):
        found += part
    return found


def value_and_grad(
    f: Callable[[P, M], Any],
    *,
    executor: Executor | None = None,
    chunk_size: int | None = None,
    retries: int = RETRIES,
    progress: bool = False,
) -> Callable[[P, Iterable[M]], tuple[Any, P]]:
    """Return a function of the sum of a function over members, and of its gradient.

    Parameters
    ----------
    f : callable
        Of parameters (an array, a number or a container of these, as for `tapegrad.func.value_and_grad`) and
        one member: a row, a shard of data, or rather what says where the worker finds it; one number.
    executor, chunk_size, retries, progress
        As for `map`. Sums depend on `chunk_size`, in their last bits, and on nothing else of these.

    Returns
    -------
    callable
        Of parameters and members: the sum, and its gradient built as the parameters. To each chunk go the
        parameters, `f` and its members; back comes one gradient.

    Raises
    ------
    ValueError
        There are no members.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> def misfit(p, shard):
    ...     t, y = shard
    ...     return np.sum((p["a"] * np.exp(-p["k"] * t) - y) ** 2)
    >>> t = np.linspace(0.0, 2.0, 6)
    >>> shards = [(t[:3], 3 * np.exp(-t[:3])), (t[3:], 3 * np.exp(-t[3:]))]
    >>> value, slope = tg.batch.value_and_grad(misfit)({"a": 2.0, "k": 1.0}, shards)
    >>> round(value, 6), round(slope["a"], 6), round(slope["k"], 6)
    (1.801021, -3.602043, 2.207845)
    """

    def derivative(p: P, members: Iterable[M]) -> tuple[Any, P]:
        chunks = _chunks("value_and_grad", members, chunk_size)
        if not chunks:
            raise ValueError("batch.value_and_grad: there are no members to sum over")
        sent = _Sent(f)
        parts = _results(
            "value_and_grad", _summed, sent, p, chunks, executor, retries, progress, chunk_size is None
        )
        total: tuple[Any, P] = functools.reduce(_added, parts)
        return total

    return named("value_and_grad", f, derivative)


def minimize(
    f: Callable[..., Any],
    starts: Iterable[Operand],
    args: tuple[Any, ...] = (),
    *,
    executor: Executor | None = None,
    retries: int = RETRIES,
    progress: bool = False,
    **options: Any,
) -> OptimizeResult:
    """Minimize a function from several starts, and return the lowest minimum.

    Parameters
    ----------
    f : callable
        ``f(x, *args)`` is a number, as for `tapegrad.scipy.optimize.minimize`.
    starts : iterable of array_like
        An x0 each.
    args : tuple, optional
        Further arguments of `f`.
    executor, retries, progress
        As for `map`; each start is sent on its own.
    **options
        ``method``, ``bounds`` and whatever else `tapegrad.scipy.optimize.minimize` takes.

    Returns
    -------
    OptimizeResult
        The one of the lowest ``fun`` of those that converged, the first of equals; where none did, of all.
        With ``start``, which it is, and ``results``, those of all starts.

    Raises
    ------
    ValueError
        There are no starts.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> def wells(x):
    ...     return np.sum((x**2 - 1) ** 2 + 0.3 * x)
    >>> best = tg.batch.minimize(wells, [[1.5], [-0.5]], method="BFGS")
    >>> best.start, best.x.round(4), best.results[0].x.round(4)
    (1, array([-1.0356]), array([0.9601]))
    """
    chunks = _chunks("minimize", starts, 1)
    if not chunks:
        raise ValueError("batch.minimize: there are no starts")
    sent, found = _Sent(f), []
    for part in _results("minimize", _minimized, sent, (args, options), chunks, executor, retries, progress):
        found += part

    def rank(start: int) -> tuple[bool, bool, float]:
        result = found[start]
        return not result.success, bool(np.isnan(result.fun)), result.fun

    start = min(range(len(found)), key=rank)
    best = found[start]
    return type(best)(best, start=start, results=found)


class RenewingExecutor(Executor):
    """An executor whose pool is made again after a worker has died.

    A pool of processes is of no use once one of them was killed. This one makes another when it is next
    asked, and the functions of `tapegrad.batch` then send again what was lost. Dask starts workers again by
    itself.

    Parameters
    ----------
    make : callable
        Without arguments, returns an executor: ``lambda: ProcessPoolExecutor(4)``, or
        ``loky.get_reusable_executor``.

    Examples
    --------
    >>> import tapegrad as tg
    >>> from concurrent.futures import ThreadPoolExecutor
    >>> with tg.batch.RenewingExecutor(lambda: ThreadPoolExecutor(2)) as pool:
    ...     tg.batch.map(abs, [-1.0, 2.0], executor=pool)
    [1.0, 2.0]
    """

    def __init__(self, make: Callable[[], Executor]) -> None:
        self._make, self._lock = make, threading.Lock()
        self._pool: Executor | None = None

    def submit(self, fn: Callable[..., R], /, *args: Any, **kwargs: Any) -> Future[R]:
        """Submit to the pool there is, or to another one where that is broken."""
        with self._lock:
            if self._pool is None:
                self._pool = self._make()
            try:
                return self._pool.submit(fn, *args, **kwargs)
            except BrokenExecutor:
                self._pool.shutdown(wait=False)
                self._pool = self._make()
                return self._pool.submit(fn, *args, **kwargs)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the pool there is; the next call of `submit` makes another."""
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait, cancel_futures=cancel_futures)


# ---------------------------------------------------------------- what workers do


class _Sent:
    """A function, pickled once however often it is sent; a worker that has it already uses that.

    What says that it is the same is all that was pickled of it, so one that changed in between is another.
    """

    def __init__(self, f: Callable[..., Any]) -> None:
        if not callable(f):
            raise TypeError(f"a function is wanted first, found {type(f).__name__}")
        self.f = f

    def __reduce__(self) -> tuple[Callable[[bytes], _Sent], tuple[bytes]]:
        return _received, (self._pickled,)

    @functools.cached_property
    def _pickled(self) -> bytes:
        try:
            dumps = import_module("cloudpickle").dumps
        except ImportError:
            dumps = pickle.dumps
        try:
            return dumps(self.f)  # type: ignore[no-any-return]
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            raise TypeError(
                f"tapegrad.batch cannot pickle {self.f!r} for another process: {error}; define it at the top "
                "of a module, or install cloudpickle"
            ) from error

    @functools.cached_property
    def value_and_grad(self) -> Callable[..., Any]:
        return func.value_and_grad(self.f)


@functools.lru_cache(KEPT)
def _received(pickled: bytes) -> _Sent:
    _one_thread.__enter__()  # for good: this process works for others
    return _Sent(pickle.loads(pickled))


class _OneThread:
    """One thread for BLAS, in the whole process while anybody is inside."""

    def __init__(self) -> None:
        self._lock, self._inside = threading.Lock(), 0
        self._limits: Any = None

    def __enter__(self) -> None:
        with self._lock:
            self._inside += 1
            if self._inside == 1 and (controller := _blas()) is not None:
                self._limits = controller.limit(limits=1, user_api="blas")

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._limits is not None:
                self._limits.restore_original_limits()
                self._limits = None


_one_thread = _OneThread()


@functools.cache
def _blas() -> Any:
    """What sets the threads of the BLAS of NumPy and of SciPy; None where threadpoolctl is not installed."""
    try:
        threadpoolctl = import_module("threadpoolctl")
    except ImportError:
        return None
    import_module("scipy.linalg")  # so that its BLAS is there to be found
    return threadpoolctl.ThreadpoolController()


@contextmanager
def _naming(member: int) -> Iterator[None]:
    """Say in errors which member it is."""
    try:
        yield
    except Exception as error:
        error.add_note(f"tapegrad.batch: member {member}")
        raise


def _several(
    number: str, work: Callable[..., R], sent: _Sent, shared: Any, starts: list[int], *members: Any
) -> tuple[float, list[R]]:
    """The seconds that some chunks take, and what is made of the members of each, by its first's number.

    The call has a number of its own, as Dask may give what an equal one has given.
    """
    begin = time.perf_counter()
    ends = [start - starts[0] for start in starts] + [len(members)]
    found = [work(sent, shared, starts[0] + a, *members[a:b]) for a, b in pairwise(ends)]
    return time.perf_counter() - begin, found


def _mapped(sent: _Sent, shared: None, start: int, *members: Any) -> list[Any]:
    found = []
    for k, member in enumerate(members, start):
        with _naming(k):
            found.append(sent.f(member))
    return found


def _summed(sent: _Sent, p: Operand, start: int, *members: Any) -> Any:
    total = None
    for k, member in enumerate(members, start):
        with _naming(k):
            part = sent.value_and_grad(p, member)
        total = part if total is None else _added(total, part)
    return total


def _minimized(sent: _Sent, shared: tuple[Any, Any], start: int, *members: Any) -> list[Any]:
    solve, (args, options) = import_module("tapegrad.scipy.optimize").minimize, shared
    found = []
    for k, x0 in enumerate(members, start):
        with _naming(k):
            found.append(solve(sent.f, x0, args=args, **options))
    return found


def _added(total: Tree, part: Tree) -> Tree:
    both: Tree = map_tree(operator.add, total, part)
    return both


# ---------------------------------------------------------------- who does it


def _chunks(what: str, members: Iterable[Any], size: int | None) -> list[tuple[int, list[Any]]]:
    """Members that are sent together, with the number of the first; they depend on nothing but these."""
    members = list(members)
    if size is None:
        size = max(1, -(-len(members) // CHUNKS))
    elif type(size) is not int or size < 1:
        raise ValueError(f"batch.{what}: chunk_size is a whole number from 1, or None; found {size!r}")
    return [(k, members[k : k + size]) for k in range(0, len(members), size)]


def _results(
    what: str,
    work: Callable[..., R],
    sent: _Sent,
    shared: Any,
    chunks: list[tuple[int, list[Any]]],
    executor: Executor | None,
    retries: int,
    progress: bool,
    together: bool = False,
) -> Iterator[R]:
    """What workers make of each chunk, in order; of those that died, others.

    `together`: several chunks may be sent at once.
    """
    if executor is None:
        from concurrent.futures import ThreadPoolExecutor  # cannot be imported while Python ends

        with ThreadPoolExecutor(os.cpu_count()) as threads:
            yield from _results(what, work, sent, shared, chunks, threads, retries, progress, together)
        return
    if not hasattr(executor, "submit"):
        raise TypeError(
            f"batch.{what}: executor is one of concurrent.futures, found {type(executor).__name__}; of a "
            "client of Dask's it is client.get_executor(), of a pool of loky's loky.get_reusable_executor()"
        )

    def submitted(task: slice) -> Future[tuple[float, list[R]]]:
        starts = [start for start, _ in chunks[task]]
        members = [member for _, part in chunks[task] for member in part]
        try:
            return executor.submit(_several, uuid4().hex, work, sent, shared, starts, *members)
        except BrokenExecutor as error:
            failed: Future[tuple[float, list[R]]] = Future()
            failed.set_exception(error)
            return failed

    futures: list[Any] = []
    left = iter(shown(range(len(chunks)), f"batch.{what}", progress))
    with _one_thread:
        try:
            begin, ended = time.perf_counter(), []
            tasks = [slice(k, k + 1) for k in range(min(ALONE, len(chunks)))]
            for task in tasks:
                futures.append(submitted(task))
                if task.start == 0:
                    futures[0].add_done_callback(lambda _: ended.append(time.perf_counter()))
            together = together and len(chunks) >= 2 * TASKS
            tasks += _tasks(len(chunks), _chunks_worth(futures[0], begin, ended) if together else 1)
            futures += [submitted(task) for task in tasks[len(futures) :]]
            for k in range(len(tasks)):
                while error := _death(futures[k]):
                    retries -= 1
                    if retries < 0:
                        raise BrokenExecutor(
                            f"batch.{what}: a worker died, more often than retries allow: {error!r}. A "
                            "pool of processes is broken then; tg.batch.RenewingExecutor makes another"
                        ) from error
                    if isinstance(error, BrokenExecutor):  # all that the pool had is lost
                        wait(futures[k:])
                    for j in range(k, len(tasks)):
                        if futures[j].done() and _death(futures[j]):
                            futures[j] = submitted(tasks[j])
                (_, found), futures[k] = futures[k].result(), None
                for result in found:
                    next(left)
                    yield result
            next(left, None)  # ends the bar
        finally:
            for future in futures:
                if future is not None:
                    future.cancel()


def _chunks_worth(first: Future[tuple[float, list[Any]]], begin: float, ended: list[float]) -> int:
    """How many chunks are sent together, by the time that the first one took here and where it ran."""
    done = wait([first], PATIENCE).done
    if not done or first.cancelled() or first.exception() is not None:
        return 1
    elapsed, there = (ended[0] if ended else time.perf_counter()) - begin, first.result()[0]
    return max(1, math.ceil(WORTH * (elapsed - there) / max(there, 1e-9)))


def _tasks(chunks: int, together: int) -> list[slice]:
    """All chunks but those that went alone, so many in each task, if that leaves some for each worker."""
    size = min(together, max(1, chunks // TASKS))
    return [slice(k, k + size) for k in range(ALONE, chunks, size)]


def _death(future: Future[Any]) -> BaseException | None:
    """Wait for a future, and return the error where its worker died, not its function."""
    try:
        error = future.exception()
    except CancelledError as cancelled:
        error = cancelled
    from_dask = type(error).__module__.partition(".")[0] == "distributed"
    return error if from_dask or isinstance(error, (BrokenExecutor, CancelledError)) else None
