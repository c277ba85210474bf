"""What a power series costs: a chain of 15 operations on a number, beside its first gradient.

    python -m tests.benchmarks.series

Printed are microseconds, the best of many rounds: of the gradient (leaf, record, sweep), of the series (leaf,
record, walk) to some orders and of the walk alone, with its error by mpmath. Bars: to order 6 the walk at
most 10 us, and the whole call at most 1.5 times the gradient, by the median of the rounds and by the best.
"""

import functools
from time import thread_time

import mpmath
import numpy as np

import tapegrad as tg
from tapegrad.func import recorded_series

from .rounds import in_turns, ratios, verdict

ROUNDS, CALLS, ORDERS = 25, 500, (1, 6, 20)


def chain(m, half, z):
    for _ in range(5):
        z = m.sin(z) * half + half
    return z


def gradient():
    x = tg.tensor(0.3, requires_grad=True)
    return tg.grad(chain(np, 0.5, x), x)


def walk(order):
    """A call that walks over the records of a chain, which stays recorded."""
    x = tg.tensor(0.3, requires_grad=True)
    y = chain(np, 0.5, x)
    log, at, state = y._tape.log, y._tape.leaves[x._at], recorded_series._State()
    return lambda: recorded_series._walked(state, log, at // 4 - 1, y, x._v, 1.0, order)


def main():
    gradient()  # compiles recording and sweeps
    with mpmath.workdps(60):
        exact = mpmath.taylor(functools.partial(chain, mpmath, mpmath.mpf(0.5)), mpmath.mpf(0.3), max(ORDERS))
    calls, f = {"gradient": gradient}, functools.partial(chain, np, 0.5)
    for order in ORDERS:
        calls[f"order {order}"] = functools.partial(tg.func.taylor(f, order), 0.3, 1.0)
    times = in_turns(calls, ROUNDS, inner=CALLS, clock=thread_time)
    print(f"gradient {times['gradient'].min() * 1e6:6.2f}")
    for order in ORDERS:
        found = calls[f"order {order}"]()
        error = max(abs(float(a / b) - 1) for a, b in zip(found, exact, strict=False))
        (pair,) = ratios(times[f"order {order}"], times["gradient"]).T
        alone = in_turns({"walk": walk(order)}, ROUNDS, inner=CALLS, clock=thread_time)["walk"].min() * 1e6
        bars = verdict(pair, 1.5, most=True), verdict([alone], 10, most=True, unit=" us")
        bar = f"; {bars[0]}, walk {bars[1]}" * (order == 6)
        whole = (
            f"{times[f'order {order}'].min() * 1e6:6.2f}, {pair[0]:.2f} and {pair[1]:.2f} times the gradient"
        )
        print(f"order {order:2d} {whole}; walk {alone:5.2f}; error {error:.1e}{bar}")


if __name__ == "__main__":
    main()
