"""What a sparse Hessian costs: Rosenbrock's function of a thousand numbers, its pattern found.

    python -m tests.benchmarks.sparse

Printed are microseconds of a call that returns a `scipy.sparse` array, the best and the median of rounds
taken in turns, for a plain function, for one compiled by `tg.njit` and, where it is installed, for casadi,
which returns its own sparse matrix; and milliseconds of the set-up, which is a new plan's first call, of
functions that are compiled already. Bars: compiled at most 150 us, plain 350 us, set-up 50 ms. The matrix
is verified against its formula at two points before anything is timed.
"""

import itertools
from time import thread_time

import numpy as np
import scipy.sparse

import tapegrad as tg

from .rounds import in_turns, verdict

N, ROUNDS, CALLS, SETUPS = 1000, 25, 20, 9


def rosenbrock(x):
    return np.sum(100.0 * (x[1:] - x[:-1] ** 2) ** 2 + (1.0 - x[:-1]) ** 2)


@tg.njit
def compiled(x):
    total = 0.0
    for i in range(x.size - 1):
        total += 100.0 * (x[i + 1] - x[i] ** 2) ** 2 + (1.0 - x[i]) ** 2
    return total


def formula(x):
    """The three diagonals of the matrix."""
    main, beside = np.zeros(x.size), -400.0 * x[:-1]
    main[:-1] = 1200.0 * x[:-1] ** 2 - 400.0 * x[1:] + 2.0
    main[1:] += 200.0
    return scipy.sparse.csr_array(scipy.sparse.diags_array([beside, main, beside], offsets=[-1, 0, 1]))


def of_casadi(points):
    """A call of casadi's; None where it is not installed."""
    try:
        import casadi
    except ModuleNotFoundError:
        return None
    x = casadi.SX.sym("x", N)
    y = casadi.sumsqr(10.0 * (x[1:] - x[:-1] ** 2)) + casadi.sumsqr(1.0 - x[:-1])
    function = casadi.Function("hessian", [x], [casadi.hessian(y, x)[0]])
    assert abs(scipy.sparse.csr_array(function(points[0]).sparse()) - formula(points[0])).max() < 1e-9
    turns = itertools.cycle(points)
    return lambda: function(next(turns))


def main():
    points = np.random.default_rng(3).normal(size=(8, N))
    functions = {"plain": rosenbrock, "compiled": compiled}
    calls = {}
    for name, f in functions.items():
        hessian, turns = tg.func.sparse_hessian(f), itertools.cycle(points)
        for x in points[:2]:
            exact = formula(x)
            assert abs(hessian(x) - exact).max() <= 1e-13 * abs(exact).max()
        assert scipy.sparse.issparse(hessian(points[0]))
        calls[name] = lambda hessian=hessian, turns=turns: hessian(next(turns))
    peer = of_casadi(points)
    if peer is not None:
        calls["casadi"] = peer
    times = in_turns(calls, ROUNDS, inner=CALLS, clock=thread_time)
    bars = {"plain": 350.0, "compiled": 150.0}
    for name, found in times.items():
        best, median = 1e6 * found.min(), 1e6 * np.median(found)
        bar = f"; {verdict([median, best], bars[name], most=True, unit=' us')}" if name in bars else ""
        print(f"{name:9s} {best:7.1f} (median {median:7.1f}) us{bar}")
    first = {name: lambda f=f: tg.func.sparse_hessian(f)(points[0]) for name, f in functions.items()}
    for name, found in in_turns(first, SETUPS, inner=1, clock=thread_time).items():
        best, median = 1e3 * found.min(), 1e3 * np.median(found)
        bar = verdict([median, best], 50, most=True, unit=" ms")
        print(f"{name:9s} set-up {best:5.1f} (median {median:5.1f}) ms; {bar}")


if __name__ == "__main__":
    main()
