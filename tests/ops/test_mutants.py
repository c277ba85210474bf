"""Broken rules are noticed: a few always, ``pytest -m slow -s tests/ops/test_mutants.py`` takes 500."""

import os
import re

import pytest

from . import mutants

SEED = 20240611
# What nothing can notice, or only by its speed: part of a mutant (behind | is what it is in) and the reason.
EQUIVALENT = {
    r"convolve.(jvp|vjp), .*: operands exchanged": "a convolution commutes, in both modes",
    r"convolve.vjp, .*: another comparison in mode == 'full' \| of 1 in": "the same of both reversed",
    r"eig.vjp, .*: real dropped in real\(found\)": "of a real matrix; the sweep takes the real part",
    r"prod_factors, .*: negated in np.ones\(np.shape": "of no elements",
    r"decompositions.(mask|diagonal|identity), .*: (another number|sign dropped) in": "a square matrix",
    r"decompositions._lower, .*: (another number in 1 \| of -1|sign dropped in -1)": "a square matrix",
    r"decompositions._lower, .*: another comparison in n <= BLOCK": "another limit",
    r"buffers.*: .* in .*nbytes( <| \*)": "other memory for the same numbers",
    r"_into_memory.* in a.(shape if alike|shape == b.shape|dtype if)": "other memory for the same numbers",
    r"determinants.cofactors, .*: another number in 1 \| of -1$": "a square matrix",
    r"determinants._written_out, .*: another operator: Div in .*\[\[1, -1\]": "division by a sign",
    r"decompositions.gaps, .*: another operator: Sub": "0 divided by -1",
    r"determinants._tolerance": "another limit between two ways to one result",
    r"determinants._polynomial, .*: (another operator: Add|operands exchanged) in n - 1": "the same parity",
    r"determinants._singular, .* in n \* np.finfo": "another limit of what is rounding alone",
    r"matmul.vjp, .* in sum\(axes\) - 2": "the way for stacks and lanes, for matrices alone too",
    r"determinants._regular, .*: (another number in 0|(left|right) operand dropped)": "another limit",
    r"determinants._length, .*": "another limit between two ways to one result",
    r"qr.jvp, .*: sign dropped in -1 \| of np.shape\(q\)": "the other way adds a part of no columns",
    r"(linalg._solution|_transposed_inverse), .*: branches exchanged": "the same, by factors of its own",
    r"decompositions._constant, .*BLOCK": "kept or made anew",
    r"determinants.cofactors, .*noise": "a way for all matrices in the place of one for some",
    r"determinants.cofactors, .* in n / _tol": "another limit between two ways to one result",
    r"determinants._singular, .*: (negated|left operand dropped) in np.linalg.det\(a\)":
        "only between two bounds of a condition",
    r"determinants._singular, .*: another number in 0 \| of s\[0\]": "the other way, sooner",
    r"(prod_factors|matmul.vjp|lstsq.vjp|scatter|_kept|_length), .*: another number in 1 \| of -1$":
        "any negative extent is unknown to NumPy",
    r"_slope_of_sinc, .*: another number in 1 \| of np.where\(near == 1, 1, x\)":
        "a divisor where the quotient is not taken",
    r"ufuncs.sinc, [^|]*e-1[1-9]": "below rounding",
    r"arc(sin|cos|tanh), .*: another number in 0.25": "another limit between two ways to one result",
    r"copysign, .*: negated in 0": "-0 is 0",
    r"_left_out, [^|]* in eps \* max": "another limit of what is rounding alone",
    r"_moving_spaces, .* in np.finfo": "another limit of what is rounding alone",
    r"_left_out, .*: another number in 2 \|": "another limit of what is rounding alone",
    r"_left_out, .*: (another number in (0.0|1.0|1e-08|3|1 \| of (int|1))|right operand dropped in int)":
        "more terms than it takes",
    r"_left_out, .*: (another operator: Add|right operand dropped|operands exchanged) in 1 - eps":
        "more terms than it takes",
    r"_left_out, .*: (operands exchanged in out / least|(left|right) operand dropped in ratio \* ratio)":
        "more terms than it takes",
    r"_left_out, .*: negated in between": "a scale that cancels",
    r"_left_out, .*(least \* np.where|> 1e-08 \* least)": "a scale that cancels",
    r"buffers.matmul, .*: another comparison in stack != b.shape": "the same shape by the longer way",
    r"_known_pinv, .* in (a if a.shape|a.shape\[0\]|0 \| of a.shape|adjoint\(a\) \| of a if)":
        "by singular vectors, which serve wide matrices too",
    r"(_known_pinv|_triangle), .* in cut <": "another limit between two ways to one result",
    r"_triangle, .*: negated in triangular_factor": "what is used is r^H r",
    r"_from_the_end, .*: another number in 0": "multiplies the 0 before the first",
}


# The same of functions that call LAPACK by address.
BY_ADDRESS = {
    r"functions, .*: right operand dropped in .* \+ \[ctypes.c_size_t\]": "lengths that nothing reads",
    r"lapack.getrs\(.*, 1\)$": "lengths that nothing reads, or a place for info",
    r"(_proved|_logarithms|_ufuncs), .*: another number": "another proof",
    r"_logarithms, .*: right operand dropped in": "addresses are as long as other integers",
    r"lapack.eigh, .*: branches exchanged": "NumPy's way",
    r"another number in 0 \| of _words|another number in 1 \| of np.(ones|empty)": "not read",
    r"_ufuncs_for, .*: another number in [02]": "NumPy's way",
    r"Kept.name, .*: branches exchanged": "kept or made anew",
    r"triangle, .*: another number in 1 \| of -1": "any negative extent is unknown to NumPy",
    r"through_(cholesky|eigh), .*: (another number in 1 \| of|sign dropped in) -1": "a square matrix",
    r"through_(qr|eigh), .*: another number in [23] \| of \([23], n, n\)": "more room",
    r"LU.solve, .*: another number in [12] \| of (:1|-2)": "NumPy's way",
    r"LU.solve, .*(dropped|exchanged|number) in .*(\(0,\)|b.ndim - 2)": "any right side, or none",
    r"LU.solve, .*: another number in 1 \| of -1": "any negative extent is unknown to NumPy",
    r"_fits, .* x.size > 0": "NumPy's way",
    r"_laid, .* buffers.LARGE": "another way to the same",
    r"_getrs, .*2 \* step": "a place for info that nothing reads",
    r"lapack._by_reflectors, .* buffers.LARGE": "another way to the same",
    r"lapack.triangular_factor, .*: another comparison in": "another limit between two ways to one result",
    r"lapack.qr, .*: another number in 2": "NumPy's way",
    r"lapack.solve_square, .*: another (number in 2|comparison in len\(a\) > SMALL)": "NumPy's way",
    r"_reflectors_proved, .*: another function": "another proof",
    r"lapack._room, .*": "less room, or more: another time",
    r"_factorise, .*: another number in 0": "not read, or as much room",
}  # fmt: skip


def explained(text, reasons=EQUIVALENT):
    return next((reason for part, reason in reasons.items() if re.search(part, text)), None)


@pytest.mark.full
def test_a_few_mutants_are_noticed():
    found, *_ = mutants.survivors(mutants.chosen(12, SEED))
    assert not [text for text in found if explained(text) is None]


def test_rules_are_as_they_were_after_a_mutant():
    """Nothing of an installed mutant stays, also where its check fails."""
    for text, function, definition in mutants.chosen(12, SEED):
        with pytest.raises(ZeroDivisionError), mutants.installed(function, definition):
            raise ZeroDivisionError
        assert mutants.noticed(function, 4) is None, text


def test_what_counts_as_quick_is():
    for _, test, *_ in mutants.OWN:
        for mark in getattr(test, "pytestmark", ()):
            assert mark.name not in ("full", "slow"), test
            assert not any(getattr(row, "marks", ()) for row in mark.args[1]), test


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of those that do not end
def test_mutants_are_noticed():
    chosen = mutants.chosen(500, SEED)
    found, own, late = mutants.survivors(chosen)
    quick = len(chosen) - len(found) - len(late)
    print(f"\n{len(chosen)} mutants of {len(mutants.everything())}, in {len(mutants.users())} functions: "
          f"{len(chosen) - len(found)} noticed, {own} of them by no cell but by other tests of the op, "
          f"{quick} of them in the quick tier")
    for text in found:
        print(f"not noticed: {text}\n    {explained(text) or '?'}")
    for text in late:
        print(f"not in the quick tier: {text}")
    assert len(chosen) >= 400
    assert len(found) <= 0.07 * len(chosen)  # equivalent ones, see the last line
    assert quick >= 0.9 * len(chosen)
    assert not [text for text in found if explained(text) is None]


needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="a wrong address ends the process")


@pytest.mark.full
@needs_fork
def test_a_few_mutants_of_calls_by_address_are_noticed():
    chosen = [row for row in mutants.by_address() if explained(row[0], BY_ADDRESS) is None][::80]
    assert len(chosen) >= 2
    assert [text for text, *mutant in chosen if not mutants.noticed_apart(*mutant)] == []


@needs_fork
@pytest.mark.slow
def test_mutants_of_calls_by_address_are_noticed():
    chosen = mutants.by_address()
    found = [text for text, *mutant in chosen if not mutants.noticed_apart(*mutant)]
    print(f"\n{len(chosen)} mutants: {len(chosen) - len(found)} noticed")
    assert [text for text in found if explained(text, BY_ADDRESS) is None] == []
    assert len(found) <= 0.25 * len(chosen)
