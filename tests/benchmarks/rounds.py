"""Timing in turns, so that a disturbance of the machine meets all, and comparing results."""

from time import perf_counter

import numpy as np


def in_turns(calls, rounds, inner=1, arguments=tuple, parts=lambda result: (), clock=perf_counter):
    """Seconds a call by name: an array with a row for each round, of the call and of parts that it tells.

    Parameters
    ----------
    calls : dict
        By name what is timed; each has its turn in every round. Freeing what it gives is part of it.
    rounds : int
    inner : int or dict
        How many calls a turn has, perhaps by name; a row has their mean.
    arguments : callable or dict
        Gives the arguments of each call, perhaps by name, before the turn is timed; they are freed after it.
    parts : callable
        Of what the last call of a turn gives: seconds that it measured itself.
    clock : callable
        `time.thread_time` is disturbed least by a busy machine; it is only for calls that have one thread.
    """
    times = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            count = inner[name] if isinstance(inner, dict) else inner
            make = arguments[name] if isinstance(arguments, dict) else arguments
            each = None  # what the last call was given is freed here, not in this one's time
            given = [make() for _ in range(count)]
            begin = clock()
            for each in given:
                result = None
                result = call(*each)
            inside = parts(result)
            result = None
            times[name].append(((clock() - begin) / count, *inside))
    return {name: np.array(rows) for name, rows in times.items()}


def ratios(theirs, mine):
    """Times over others: the median of the rounds' ratios and the ratio of the best, for call and parts."""
    with np.errstate(invalid="ignore"):  # parts that nobody tells are zero
        return np.array([np.median(theirs / mine, axis=0), theirs.min(axis=0) / mine.min(axis=0)])


def verdict(pair, bar, most=False, unit="x"):
    """Whether both figures reach a bar, or are at most that; unclear where only one is, on a busy machine."""
    reached = [figure <= bar if most else figure >= bar for figure in pair]
    return f"bar {bar:g}{unit} {'met' if all(reached) else 'unclear' if any(reached) else 'missed'}"


def difference(found, expected):
    """The largest difference, as a multiple of the largest element."""
    return np.max(np.abs(found - expected)) / np.max(np.abs(expected))
