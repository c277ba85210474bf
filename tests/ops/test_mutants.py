"""Broken rules are noticed: a few always, ``pytest -m slow -s tests/ops/test_mutants.py`` takes 500."""

import re

import pytest

from . import mutants

SEED = 20240611
# What nothing can notice, or only by its speed: part of a mutant's text, and the reason.
EQUIVALENT = {
    r"convolution.convolve.jvp, .*: operands exchanged": "a convolution commutes, in both modes",
}


def explained(text):
    return next((reason for part, reason in EQUIVALENT.items() if re.search(part, text)), None)


def test_a_few_mutants_are_noticed():
    found, _ = mutants.survivors(mutants.chosen(24, SEED))
    assert not [text for text in found if explained(text) is None]


def test_rules_are_as_they_were_after_a_mutant():
    """Nothing of an installed mutant stays, also where its check fails."""
    for text, function, definition in mutants.chosen(24, SEED):
        with pytest.raises(ZeroDivisionError), mutants.installed(function, definition):
            raise ZeroDivisionError
        assert mutants.noticed(function, 12) is None, text


@pytest.mark.slow
def test_mutants_are_noticed():
    chosen = mutants.chosen(500, SEED)
    found, late = mutants.survivors(chosen)
    print(f"\n{len(chosen)} mutants of {len(mutants.everything())}, in {len(mutants.users())} functions: "
          f"{len(chosen) - len(found)} noticed, {late} of them by no cell but by other tests of the op")
    for text in found:
        print(f"not noticed: {text}\n    {explained(text) or '?'}")
    assert len(chosen) >= 400
    assert len(found) <= 0.05 * len(chosen)
    assert not [text for text in found if explained(text) is None]
