"""The rows of `tests.benchmarks.ops` have every op and function with a derivative, or it is said why not."""

import gc
from functools import partial
from operator import attrgetter

import numpy as np

from tapegrad.diagnostics.functions import catalog
from tapegrad.ops import REGISTRY

from .benchmarks.gradbench.tools import Eager
from .benchmarks.op_table import ELEMENTWISE, OTHERS, SAME_AS, TORCH_HAS_NONE
from .benchmarks.ops import calls_of, operands

ROWS = [*ELEMENTWISE, *OTHERS]
LACKING = {name for names in TORCH_HAS_NONE.values() for name in names.split()}


def meant(name):
    """A function of NumPy's, or the name of an op that has none."""
    return name if name in REGISTRY and not REGISTRY[name].functions else attrgetter(name)(np)


def test_nothing_is_missing_and_nothing_told_twice():
    wanted = {row.name for row in catalog() if row.status in ("op", "composed")}
    wanted |= {name for name, op in REGISTRY.items() if not op.functions}
    named = {row[0].split(",")[0] for row in ROWS}
    places = [{meant(name) for name in names} for names in (named, LACKING, SAME_AS)]
    assert {meant(name) for name in wanted} == set.union(*places)
    assert sum(map(len, places)) == len(set.union(*places))
    assert set(SAME_AS.values()) <= named
    assert len({row[0] for row in ROWS}) == len(ROWS)


def test_rows_record_every_op():
    arrays, found = operands(10, "float64"), set()
    for row in ROWS:
        value, _ = calls_of(row, Eager(), arrays)
        nodes = [value().grad_fn]
        while nodes:
            node = nodes.pop()
            found.add(node.name())
            nodes += [n for n, _ in node.next_functions if n is not None]
    assert {op.node_name({}) for name, op in REGISTRY.items() if name not in LACKING} <= found


def test_rows_leave_no_cycles():
    """What a gradient held is free when the call returns, without the collector."""
    arrays, calls, found = operands(10, "float64"), {}, {}
    for row in ROWS:
        value, gradients = calls_of(row, Eager(), arrays)
        result = value()
        cotangent = Eager().leaf(np.ones(result.shape, result.dtype)).detach()
        calls[row[0]] = partial(gradients, cotangent)
        calls[row[0]]()
    del result
    gc.collect()
    gc.freeze()  # what there is by now takes the collector long
    gc.disable()
    try:
        for name, call in calls.items():
            call()
            gc.collect()
            for _ in range(20):
                call()
            found[name] = gc.collect()
    finally:
        gc.enable()
        gc.unfreeze()
    assert not {name: count for name, count in found.items() if count >= 20}  # ctypes leaves a type
