"""The least values by which partials can be computed, beside all sets of values."""

from itertools import combinations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tapegrad.native.emission.cut import fewest

pytestmark = pytest.mark.quick


@st.composite
def graphs(draw):
    """Roots, and what each value is computed of: values of greater numbers, or none that is known."""
    count = draw(st.integers(1, 9))
    parts = {}
    for k in range(count):
        later = st.lists(st.integers(k + 1, count - 1), max_size=3) if k + 1 < count else st.just([])
        parts[k] = draw(st.none() | later)
    return draw(st.lists(st.integers(0, count - 1), unique=True)), parts


def needed(roots, parts, kept=()):
    """Values that are computed on the way to roots, those that are kept not."""
    found, left = set(), [root for root in roots if root not in kept]
    while left:
        value = left.pop()
        if value not in found:
            found.add(value)
            left += [part for part in parts[value] or () if part not in kept]
    return found


def suffice(kept, roots, parts):
    return all(parts[value] is not None for value in needed(roots, parts, kept))


@settings(max_examples=500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(graphs())
def test_the_least_set_that_suffices_and_the_nearest_of_these(graph):
    roots, parts = graph
    found = fewest(roots, parts)
    assert suffice(found, roots, parts)
    assert len(found) <= len(roots)
    for size in range(len(found) + 1):
        sets = [set(kept) for kept in combinations(parts, size) if suffice(kept, roots, parts)]
        assert not sets or size == len(found)
    for other in sets:
        assert needed(roots, parts, found) <= needed(roots, parts, other)


def test_a_way_turns_another_aside():
    parts = {"a": ["c", "d"], "b": ["c"], "c": None, "d": None}
    assert fewest(["a", "b"], parts) == fewest(["b", "a"], parts) == {"a", "b"}


def test_what_is_computed_of_literals_alone_is_not_kept():
    assert fewest(["a"], {"a": ["b"], "b": []}) == set()
