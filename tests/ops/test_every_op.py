"""Every registered op in every dtype, layout and order: value, vjp, second order, jvp, kernel.

The quick tier has each op in double precision, real and complex, and a third of them in each kind of single;
``-m slow -s`` shows all cells and what does not exist.
"""

import collections
import dataclasses
import functools
import itertools

import numpy as np
import pytest

from tapegrad.autograd import at_once, recorded_rules
from tapegrad.core import dispatch
from tapegrad.kernels import abi
from tapegrad.kernels.replay.layout import BOUNDS
from tapegrad.ops import REGISTRY
from tapegrad.ops.primitive import PROGRAMS, Elementwise, Primitive, elementwise
from tapegrad.ops.programs import Program, Ref, Step, program_of
from tapegrad.tape.record import Template
from tests.tiers import every, thinned

from . import checks
from .layouts import COMPLEX, DTYPES, INTEGER, LAYOUTS, PLAIN, SIZE1, Absent, Case, Reason, leaf
from .samples import REAL_ONLY, SAMPLES

NAMES = sorted(REGISTRY)
# their kernels compile for seconds in each dtype
LONG = {"cholesky", "eig", "eigh", "float_power", "lstsq", "power", "qr", "svd"}
FLAT = {"imag"}  # of real operands; test_complex.py has others
LETTERS = dict(zip(Reason, "DNIRO", strict=True))
outcome = functools.cache(checks.outcome)


@functools.cache
def absent(name, layout):
    """The reason why an op has no such operands, and for integers whether it has but no derivative."""
    cases = checks.sample(name, layout, "float64")
    if isinstance(cases, Absent):
        return cases.reason
    return None if any(case.moves for case in cases) else Reason.INTEGER_ONLY


def why_not(name, dtype, layout, order):
    """Why a cell does not exist; None for one that does."""
    if dtype in COMPLEX and name in REAL_ONLY:
        return Reason.REAL_ONLY
    reason = absent(name, layout)
    alone = order == "value" and dtype in DTYPES  # values of integers, once for each of their dtypes
    return None if reason is Reason.INTEGER_ONLY and alone else reason


ALL = list(itertools.product(NAMES, DTYPES + COMPLEX, LAYOUTS, checks.ORDERS))
CELLS = [cell for cell in ALL if why_not(*cell) is None]
PLACES = list(dict.fromkeys(cell[:3] for cell in CELLS))  # of which each has several orders
SINGLE = ("float32", "complex64")
TURN = [layout for layout in LAYOUTS if layout not in (PLAIN, SIZE1)]


def quick_layouts(name, dtype):
    """The layouts of an op and a dtype in the quick tier: of double precision, which has one kernel for all,
    what is broadcast and the others in turn; of single, whose kernels have the same text, ops in turn.
    """
    place = NAMES.index(name)
    if dtype in SINGLE and (place % 3 != SINGLE.index(dtype) or name in LONG):
        return set()
    turn = {TURN[place % len(TURN)]}
    wanted = {"float64": {PLAIN, SIZE1} | turn, "complex64": turn}.get(dtype, {PLAIN})
    return {layout for layout in wanted if why_not(name, dtype, layout, "vjp") is None} or {PLAIN}


def is_quick(name, dtype, layout):
    return layout in quick_layouts(name, dtype)


def is_in_turn(name, dtype, layout):
    """Of double precision every layout, of complex numbers, whose layouts are those of real ones, a third,
    of single precision, whose kernels have one text with those of double, a sixth."""
    turn, every = NAMES.index(name) + LAYOUTS.index(layout), {"float64": 1, "complex128": 3}.get(dtype, 6)
    return turn % every == 0 or is_quick(name, dtype, layout)


def test_every_op_has_samples():
    assert sorted(SAMPLES) == NAMES


@pytest.mark.parametrize(
    ("name", "dtype", "layout"), thinned([place for place in PLACES if is_in_turn(*place)], is_quick)
)
def test_cell(name, dtype, layout):
    """All orders; those that fail are named, with the error of the first."""
    failed = {}
    for order in (o for o in checks.ORDERS if why_not(name, dtype, layout, o) is None):
        try:
            found = outcome(name, dtype, layout, order)
            assert not isinstance(found, Reason) and found > 0, f"nothing was compared: {found}"
        except Exception as error:
            failed[order] = error
    if failed:
        first = next(iter(failed.values()))
        raise AssertionError(f"{', '.join(failed)}: {first}") from first


def test_the_quick_tier_has_every_op_of_real_and_of_complex_numbers():
    quick, there = {place[:2] for place in PLACES if is_quick(*place)}, {place[:2] for place in PLACES}
    double = {place for place in there if place[1] not in SINGLE}
    assert double <= quick
    assert len(quick - double) > 0.25 * len(there - double)


@pytest.mark.parametrize("name", NAMES)
def test_cells_that_do_not_exist(name):
    """The op refuses such operands, or they are integers and their results have no history."""
    for dtype, layout in itertools.product(DTYPES, LAYOUTS):
        cases = checks.sample(name, layout, dtype)
        if isinstance(cases, Absent):
            assert cases.reason is absent(name, layout)
            assert cases.shown(), f"{name}, {layout}: not so: {cases.reason.value}"
        elif absent(name, layout) is Reason.INTEGER_ONLY:
            assert layout == INTEGER
            assert not any(case.call(*case.operands).requires_grad for case in cases)
        else:
            assert any(case.moves for case in cases)
    if name in REAL_ONLY - {"norm"}:
        with pytest.raises(TypeError, match=r"complex|not supported"):
            checks.recorded(checks.sample(name, PLAIN, "complex128")[0], name)


@pytest.mark.parametrize("name", NAMES)
def test_the_oracle_is_the_derivative_of_numpys_function(name):
    """The complex step through the extension against central differences of NumPy's own function."""
    cases = checks.sample(name, PLAIN, "float64")
    assert cases
    for case in (c for c in cases if name != "astype"):
        along, jacobian = checks.tangents(case), checks.jacobians(case)
        sides = []
        for step in (1e-6, -1e-6):
            moved = [np.asarray(v) + step * along[k] if k in along else v for k, v in enumerate(case.values)]
            sides.append(checks.numbers(case.reference(*moved)))
        slope = sum(jacobian[k] @ np.ravel(along[k]) for k in case.moves)
        np.testing.assert_allclose((sides[0] - sides[1]) / 2e-6, slope, rtol=1e-7, atol=1e-8)


def matrix(cells):
    """What became of each cell: number of comparisons, a reason, or an error."""
    found = {}
    for cell in cells:
        try:
            found[cell] = outcome(*cell)
        except Exception as error:
            found[cell] = error
    return found


def kind(x) -> str:
    if isinstance(x, Reason):
        return x.value
    return "failed" if isinstance(x, Exception) else "checked" if x else "EMPTY"


def table(found) -> str:
    """One line per op and dtype: per layout the number of orders checked, or a letter for a reason."""
    lines = [" " * 24 + "  ".join(f"{layout[:9]:9s}" for layout in LAYOUTS)]
    for name, dtype in itertools.product(NAMES, DTYPES + COMPLEX):
        marks = []
        for layout in LAYOUTS:
            cells = [(name, dtype, layout, order) for order in checks.ORDERS]
            count = collections.Counter(kind(found[cell]) for cell in cells if cell in found)
            reasons = "".join(sorted({LETTERS[why_not(*cell)] for cell in cells if cell not in found}))
            marks.append(f"{count['checked']}{reasons}{'!' * count['failed']}{'?' * count['EMPTY']}")
        lines.append(f"{name:13s}{dtype:11s}" + "  ".join(f"{mark:9s}" for mark in marks))
    kinds = collections.Counter(kind(x) for x in found.values())
    reasons = collections.Counter(why_not(*cell) for cell in ALL if cell not in found)
    compared = sum(x for x in found.values() if isinstance(x, int))
    lines += [f"{letter}: {reason.value}" for reason, letter in LETTERS.items()]
    lines.append(
        f"{len(found)} cells of {len(NAMES)} ops, {len(DTYPES + COMPLEX)} dtypes, {len(LAYOUTS)} layouts and "
        f"{len(checks.ORDERS)} orders: " + ", ".join(f"{n} {what}" for what, n in kinds.most_common())
    )
    missing = "; ".join(f"{n}: {reason.value}" for reason, n in reasons.most_common())
    lines.append(f"{len(ALL) - len(found)} combinations do not exist: {missing}")
    lines.append(f"{compared} elements compared")
    return "\n".join(lines)


def test_there_are_as_many_cells():
    assert len(CELLS) >= 12_000


@pytest.mark.slow  # what `test_cell` computes, once more in one process
def test_matrix_has_no_empty_cell():
    found = matrix(CELLS)
    print("\n" + table(found))
    empty = [cell for cell, x in found.items() if kind(x) == "EMPTY"]
    failed = [cell for cell, x in found.items() if kind(x) == "failed"]
    assert not empty, f"cells that checked nothing: {empty}"
    assert not failed, f"cells that failed: {failed}"


# ---------------------------------------------------------------- the checks notice what is wrong


def fails(name, order, layout=PLAIN, dtype="float64") -> bool:
    try:
        checks.outcome(name, dtype, layout, order)
    except AssertionError:
        return True
    return False


def scaled(function, factor):
    """A rule whose results are wrong by a factor."""

    def broken(*args, **kwargs):
        found = function(*args, **kwargs)
        if isinstance(found, dict):
            return {k: part * factor for k, part in found.items()}
        return [part * factor for part in found] if isinstance(found, list) else found * factor

    return broken


@pytest.mark.parametrize(
    ("name", "factor"), every(itertools.product(sorted({*NAMES} - FLAT), (-1.0, 1 + 1e-5)), 5)
)
def test_wrong_rules_are_noticed(name, factor, monkeypatch):
    for order in checks.ORDERS:
        assert not fails(name, order)
    with monkeypatch.context() as patch:
        patch.setattr(REGISTRY[name], "vjp", scaled(REGISTRY[name].vjp, factor))
        for call in ("rerecord", "rerecord_sealed"):  # which follow programs, see below
            patch.setattr(at_once, call, lambda *_: None)
        if REGISTRY[name].template == Template.PYTHON:  # the sweep runs the same rule, twice for a solve
            assert fails(name, "vjp")
        else:
            assert fails(name, "second order")
            assert fails(name, "kernel = rule")
    with monkeypatch.context() as patch:
        patch.setattr(REGISTRY[name], "jvp", scaled(REGISTRY[name].jvp, factor))
        assert fails(name, "jvp")
    with monkeypatch.context() as patch:
        patch.setattr(checks, "compiled", scaled(checks.compiled, factor))
        assert fails(name, "vjp")
        assert fails(name, "kernel = rule")


def has_program(op):
    """Whether compiled code records an op's rule; not where the operand is of another dtype."""
    elementwise = isinstance(op, Elementwise) and op.arity <= 2 and op.name != "astype"
    return elementwise and program_of(op, tuple(range(op.arity))) is not None


@pytest.mark.skipif(not abi.native() or bool(BOUNDS), reason="programs are for compiled code")
@pytest.mark.parametrize(
    "name", every([n for n in sorted({*NAMES} - FLAT) if has_program(REGISTRY[n])], 5)
)
def test_wrong_programs_are_noticed(name, monkeypatch):
    """Of the recorded sweep in compiled code: a part that is too large by a factor."""
    op = REGISTRY[name]

    def wrong(op, wanted):
        program = program_of(op, wanted)
        if program is None:
            return None
        steps, results = list(program.steps), {}
        for k, ref in program.results.items():
            results[k] = Ref("step", len(steps))
            steps.append(Step(np.multiply, REGISTRY["multiply"], (ref, Ref("object", 1 + 1e-5))))
        return Program(tuple(steps), results, program.constants)

    try:
        with monkeypatch.context() as patch:
            patch.setattr(recorded_rules, "program_of", wrong)
            PROGRAMS[op.opcode] = None
            assert fails(name, "second order")
    finally:
        PROGRAMS[op.opcode] = None
    assert not fails(name, "second order")


@pytest.mark.parametrize("name", every(sorted({*NAMES} - FLAT), 5))
def test_a_wrong_value_is_noticed(name, monkeypatch):
    build = SAMPLES[name]

    def other(*args):
        return [
            dataclasses.replace(c, reference=lambda *xs, f=c.reference: np.asarray(f(*xs)) * c_wrong(c))
            for c in build(*args)
        ]

    def c_wrong(case):
        return 1 + max(8 * case.ulps, 2) * np.finfo(float).eps

    monkeypatch.setitem(SAMPLES, name, other)
    assert fails(name, "value")


@pytest.mark.parametrize(
    "name", every([n for n in NAMES if isinstance(REGISTRY[n], Elementwise) and n != "imag"], 5)
)
def test_kernels_that_differ_by_a_few_ulp_are_noticed(name, monkeypatch):
    monkeypatch.setattr(checks, "compiled", scaled(checks.compiled, 1 + 16 * np.finfo(float).eps))
    assert fails(name, "kernel = rule")


def test_a_rule_declared_with_the_wrong_sign_is_noticed(monkeypatch):
    monkeypatch.setattr(Primitive, "registry", registry := dict(REGISTRY))
    monkeypatch.setattr(checks, "REGISTRY", registry)

    @elementwise(forward=np.sin)
    def crooked(x):
        return -np.cos(x)

    def samples(op, layout, dtype, random):
        x = leaf(np.array([0.3, -1.2], dtype), layout)
        return [Case((x,), lambda x: dispatch.apply(op, (x,)), np.sin, np.sin)]

    monkeypatch.setitem(SAMPLES, "crooked", samples)
    found = {order: fails("crooked", order) for order in checks.ORDERS}
    assert found == {
        "value": False, "vjp": True, "second order": True, "jvp": True, "kernel = rule": False
    }  # fmt: skip
    assert "crooked" not in REGISTRY


def test_cells_that_check_nothing_are_empty(monkeypatch):
    monkeypatch.setitem(SAMPLES, "sin", lambda *args: [])
    assert checks.outcome("sin", "float64", PLAIN, "vjp") == 0


def test_a_reason_that_does_not_hold_is_noticed(monkeypatch):
    monkeypatch.setitem(SAMPLES, "sin", lambda *args: Absent(Reason.NO_ELEMENT, lambda: False))
    with pytest.raises(AssertionError, match="not so"):
        checks.outcome("sin", "float64", PLAIN, "vjp")
