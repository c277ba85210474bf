"""Timing in turns, so that a disturbance of the machine meets all, and comparing results."""

from time import perf_counter

import numpy as np


def in_turns(calls, rounds, inner=1, arguments=tuple, parts=lambda result: ()):
    """Seconds a call by name: an array with a row for each round, of the call and of the parts it tells.

    Parameters
    ----------
    calls : dict
        By name what is timed; each is called in every round, and frees within the time what it gave.
    rounds : int
    inner : int or dict of int by name
        How often in a row it is called in a round; a row has the mean.
    arguments : callable
        Called before each call, outside the time, for its arguments.
    parts : callable
        Of a call's result: times within the call.
    """
    times = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            count = inner[name] if isinstance(inner, dict) else inner
            rows = []
            for _ in range(count):
                given = arguments()
                begin = perf_counter()
                result = call(*given)
                inside = parts(result)
                result = None
                rows.append((perf_counter() - begin, *inside))
            times[name].append(np.mean(rows, axis=0))
    return {name: np.array(rows) for name, rows in times.items()}


def ratios(theirs, mine):
    """Times over others: the median of the rounds' ratios and the ratio of the best, for call and parts."""
    with np.errstate(invalid="ignore"):  # parts that are not there
        return np.array([np.median(theirs / mine, axis=0), theirs.min(axis=0) / mine.min(axis=0)])


def difference(found, expected):
    """The largest difference, as a multiple of the largest element."""
    return np.max(np.abs(found - expected)) / np.max(np.abs(expected))
