"""Trees of arguments: what is a container, in what order leaves come, what is built again."""

import dataclasses
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tapegrad.func.trees import flatten, map_tree

Point = namedtuple("Point", "x y")


@dataclasses.dataclass
class Model:
    weights: list
    bias: float
    steps: int = dataclasses.field(default=0, init=False)


@pytest.mark.parametrize(
    ("tree", "leaves"),
    [
        (1.0, [1.0]),
        (None, []),
        ([], []),
        ([1, (2, 3)], [1, 2, 3]),
        ({"b": 1, "a": {"c": 2}}, [1, 2]),
        (OrderedDict(b=1, a=2), [1, 2]),
        (Point(1, [2]), [1, 2]),
        (Model([1, 2], 3), [1, 2, 3]),
        ((1, None, "text"), [1, "text"]),
    ],
)
def test_leaves_and_back(tree, leaves):
    found, structure = flatten(tree)
    assert found == leaves
    again = structure.build(found)
    assert again == tree
    assert type(again) is type(tree)
    assert structure.count() == len(leaves)


TREES = st.recursive(
    st.floats(allow_nan=False),
    lambda parts: st.lists(parts) | st.tuples(parts, parts) | st.dictionaries(st.text(), parts),
)


@given(TREES)
def test_any_tree(tree):
    leaves, structure = flatten(tree)
    assert structure.build(leaves) == tree
    assert flatten(structure.build(leaves))[1] == structure


def test_an_array_is_a_leaf():
    x = np.arange(3.0)
    leaves, _ = flatten({"x": x})
    assert leaves[0] is x


def test_leaves_that_do_not_fit():
    _, structure = flatten([1, 2])
    with pytest.raises(ValueError, match="3 leaves for a structure of 2"):
        structure.build([1, 2, 3])


def test_map():
    assert map_tree(lambda a, b: a + b, {"a": 1, "b": [2]}, {"a": 10, "b": [20]}) == {"a": 11, "b": [22]}
    with pytest.raises(ValueError, match="different structure"):
        map_tree(lambda a, b: a + b, [1], (1,))
