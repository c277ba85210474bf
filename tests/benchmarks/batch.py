"""Ensembles on workers: time on one and on two processes, and the volume of what is sent.

``python -m tests.benchmarks.batch [--dask] [--members N] [--steps N] [--chunk-size N] [--rounds N]``. The
gradients of an ensemble of compiled simulations are summed by processes of Python's own, or of a cluster of
Dask's on this machine. Rounds of one worker and of two take turns; the ratio is that of the best times.
"""

import argparse
import contextlib
import multiprocessing
import os
import pickle
import time
from concurrent.futures import ProcessPoolExecutor

import numpy as np

import tapegrad as tg
from tapegrad import batch

P = np.array([1.5, 1.0, 0.8, 0.4])


@tg.njit(cache=True)
def simulate(p, member):
    """Predators and prey, from one of many starts."""
    start, steps = member
    x, y = p[0], p[1] + 0.001 * start
    for _ in range(steps):
        x, y = x + 0.0004 * (p[2] * x - p[3] * x * y), y + 0.0004 * (x * y - y)
    return x * x + y


def nothing(p, member):
    return p[0] * 0.0


@contextlib.contextmanager
def pools(dask):
    """Executors of one process and of two, workers started; those of Dask are of one cluster."""
    with contextlib.ExitStack() as stack:
        if dask:
            from distributed import Client, LocalCluster

            cluster = stack.enter_context(
                LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50)
            )
            client = stack.enter_context(Client(cluster))
            first = next(iter(client.scheduler_info()["workers"]))
            yield client.get_executor(workers=[first]), client.get_executor()
        else:
            context = multiprocessing.get_context("spawn")
            yield [stack.enter_context(ProcessPoolExecutor(n, mp_context=context)) for n in (1, 2)]


def timed(function, *args):
    begin = time.perf_counter()
    found = function(*args)
    return time.perf_counter() - begin, found


def main():
    parser = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.batch", description=__doc__.splitlines()[0]
    )
    parser.add_argument("--dask", action="store_true")
    parser.add_argument("--members", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=250_000)
    parser.add_argument("--chunk-size", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    members = [(float(k), options.steps) for k in range(options.members)]
    print("load", os.getloadavg()[0], "processors", os.cpu_count())
    with pools(options.dask) as executors:
        sums = [
            batch.value_and_grad(simulate, executor=pool, chunk_size=options.chunk_size) for pool in executors
        ]
        empty = [
            batch.value_and_grad(nothing, executor=pool, chunk_size=options.chunk_size) for pool in executors
        ]
        whole = [  # one chunk for each worker: what its processors give, nothing sent and summed in between
            batch.value_and_grad(simulate, executor=pool, chunk_size=-(-len(members) // workers))
            for workers, pool in enumerate(executors, 1)
        ]
        found = [
            total(P, members)
            for total in (*sums, batch.value_and_grad(simulate, chunk_size=options.chunk_size))
        ]
        assert all(f[0] == found[0][0] and np.array_equal(f[1], found[0][1]) for f in found), "other bits"
        times = [[], [], [], []]
        for _ in range(options.rounds):
            for k, total in enumerate((*sums, *whole)):
                times[k].append(timed(total, P, members)[0])
        before = time.process_time()
        sums[1](P, members)
        ours = time.process_time() - before  # of the process that sums, Dask's scheduler among it
        overhead = min(timed(empty[0], P, members)[0] for _ in range(3))
    derivative = tg.func.value_and_grad(simulate)
    before = time.process_time()
    alone = min(timed(lambda: [derivative(P, k) for k in members])[0] for _ in range(3))
    work = (time.process_time() - before) / 3
    one, two, one_chunk, two_chunks = (min(t) for t in times)
    ratios = sorted(a / b for a, b in zip(*times[:2], strict=True))
    chunks = len(batch._chunks("map", members, options.chunk_size))
    down = len(pickle.dumps((batch._Sent(simulate), P, 0, *members[: -(-len(members) // chunks)])))
    up = len(pickle.dumps(found[0]))
    each = alone / len(members) * 1e3
    print(f"{len(members)} members, {each:.2f} ms each here; the same bits here, on one worker and on two")
    print(f"one worker {one:.3f} s, two {two:.3f} s: {one / two:.2f} times")
    print(f"a chunk for each worker: {one_chunk / two_chunks:.2f} times, what the processors give")
    print(f"rounds: {ratios[0]:.2f} to {ratios[-1]:.2f} times, load {os.getloadavg()[0]:.1f}")
    print(f"CPU: {work:.3f} s for the members, {ours:.3f} s here to send and sum; two processors can be")
    print(
        f"{2 / (1 + ours / work):.2f} times as fast as one, and more than two {1 + work / ours:.1f} at most"
    )
    print(f"a chunk of nothing {overhead / chunks * 1e3:.2f} ms; sent to each {down} bytes, back {up}")


if __name__ == "__main__":
    main()
