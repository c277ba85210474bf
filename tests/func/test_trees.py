"""Trees of arguments: what is a container, in what order leaves come, what is built again."""

import dataclasses
from collections import OrderedDict, namedtuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tapegrad as tg
from tapegrad.errors import DTypeError, ShapeError
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


@dataclasses.dataclass
class Pair:
    x: float
    y: float


@dataclasses.dataclass
class Turned:
    angle: float
    radians: float = dataclasses.field(init=False)
    name: object = dataclasses.field(default_factory=object, init=False)

    def __post_init__(self):
        self.radians = np.deg2rad(self.angle)


@dataclasses.dataclass
class Converted(Turned):
    def __post_init__(self):
        self.angle = np.deg2rad(self.angle)
        self.radians = self.angle


@dataclasses.dataclass
class Kept:
    rows: object
    scale: float = 1.0

    def __post_init__(self):
        self.rows = np.atleast_2d(np.maximum(self.rows, 0.0))


@dataclasses.dataclass
class Node:
    value: float
    parent: object = dataclasses.field(default=None, init=False)
    children: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        for child in self.children:
            child.parent = self


class Doubled(Pair):
    def __init__(self, x, y=2.0):
        super().__init__(2 * x, y)


def test_what_refers_to_its_parent():
    tree = Node(2.0, [Node(3.0), Node(4.0)])
    total = lambda node: node.value * node.children[1].value * node.children[0].parent.value
    found = tg.func.grad(total)(tree)
    assert [found.value, *(child.value for child in found.children)] == [16.0, 0.0, 4.0]


def test_a_constructor_of_a_subclass():
    with pytest.raises(TypeError, match=r"^Doubled.x is 6.0, and 12.0"):
        tg.func.grad(lambda p: p.x * p.y)(Doubled(3.0))


@pytest.mark.parametrize("take", [tg.func.grad, tg.compile], ids=["grad", "compile"])
def test_what_a_dataclass_computes_of_its_fields_is_computed_anew(take):
    grad = take(lambda p: p.angle * p.radians)
    for _ in range(4):
        found = (grad if take is tg.func.grad else grad.grad)(Turned(90.0))
        assert found.angle == pytest.approx(np.pi)
    grad = tg.func.grad(lambda p: np.sum(p.rows**2) * p.scale)
    assert grad(Kept(np.array([1.0, -2.0]))).rows.tolist() == [[2.0, 0.0]]
    leaf = tg.tensor([1.0, 2.0], requires_grad=True)
    assert grad(Kept(leaf)).rows.tolist() == [[2.0, 4.0]]


def test_a_dataclass_that_its_constructor_makes_another_of_is_refused():
    """It was differentiated at other numbers than it holds."""
    later = Model([1.0, 2.0], 3.0)
    later.steps = 7
    grads = tg.func.grad(lambda p: p.angle**2), tg.func.grad(lambda p: p.bias * p.steps)
    trees, names = (Converted(90.0), later), ("Converted.angle", "Model.steps")
    for grad, tree, name in zip(grads, trees, names, strict=True):
        for whole in (tree, [tree]):
            with pytest.raises(TypeError, match=f"^{name} is .*__post_init__.*in a dict$"):
                grad(whole)
    with pytest.raises(TypeError, match=r"^Converted.angle"):
        tg.func.vjp(lambda a: Converted(a))(90.0)


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


# ---------------------------------------------------------------- as one vector


def test_a_tree_goes_to_a_vector_and_back():
    tree = {"z": np.array([1 + 2j, 3 - 1j]), "p": Point(2.0, [np.ones((2, 1), np.float32), None]), "n": 3}
    vector, unravel = tg.func.ravel_tree(tree)
    np.testing.assert_array_equal(vector, [1, 3, 2, -1, 2, 1, 1, 3])
    assert vector.dtype == np.float64
    again = unravel(vector)
    assert flatten(again)[1] == flatten(tree)[1]
    assert (again["p"].x, type(again["p"].x), again["n"]) == (2.0, float, 3.0)
    assert (again["z"].dtype, again["p"].y[0].dtype) == (np.complex128, np.float32)
    np.testing.assert_array_equal(again["z"], tree["z"])
    assert tg.func.ravel_tree([])[0].shape == (0,)
    assert tg.func.ravel_tree([np.ones(2, np.float32)])[0].dtype == np.float32


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128, np.clongdouble])
def test_infinite_imaginary_parts_come_back(dtype):
    z = np.array([1.0, 2.0, 3.0, np.inf], dtype)
    z.imag = [np.inf, -np.inf, np.nan, 0.25]
    vector, unravel = tg.func.ravel_tree(z)
    for x in (vector, tg.tensor(vector), tg.tensor(vector, requires_grad=True)):
        found = unravel(x)
        assert found.dtype == dtype
        with tg.no_grad():
            np.testing.assert_array_equal(np.real(found), z.real)
            np.testing.assert_array_equal(np.imag(found), z.imag)
    number, build = tg.func.ravel_tree({"z": complex(2.0, np.inf)})
    assert build(number)["z"] == complex(2.0, np.inf)
    g = tg.func.grad(lambda v: np.sum(np.imag(unravel(v))) * 2.0)(np.ones_like(vector))
    np.testing.assert_array_equal(g, [0.0] * 4 + [2.0] * 4)
    _, tangent = tg.func.jvp(unravel)(vector, np.arange(8.0).astype(vector.dtype))
    np.testing.assert_array_equal(tangent, np.arange(4.0) + 1j * np.arange(4.0, 8.0))


def test_vectors_of_trees_are_differentiated():
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    vector, unravel = tg.func.ravel_tree([x * 3.0, 5.0])
    parts = unravel(vector * vector)
    (g,) = tg.grad(parts[0].sum() * parts[1], x)
    np.testing.assert_allclose(g, 25.0 * 18.0 * np.array([1.0, 2.0]))
    w = {"a": np.array([0.5, -1.0]), "b": 2.0, "c": np.array([1.0 + 1.0j])}
    vector, unravel = tg.func.ravel_tree(w)

    def loss(p):
        return np.sum(np.sin(p["a"])) * p["b"] ** 2 + np.sum(np.abs(p["c"]) ** 2) * p["b"]

    by_tree, _ = tg.func.ravel_tree(tg.func.grad(loss)(w))
    np.testing.assert_allclose(tg.func.grad(lambda v: loss(unravel(v)))(vector), by_tree, rtol=1e-15)
    H = tg.func.hessian(lambda v: loss(unravel(v)))(vector)
    np.testing.assert_allclose(H, H.T)
    assert H[2, 2] == 2 * np.sum(np.sin(w["a"]))


def test_what_is_no_tree_of_numbers():
    with pytest.raises(DTypeError, match="dtype <U1"):
        tg.func.ravel_tree({"a": "b"})
    _, unravel = tg.func.ravel_tree([1.0, 2.0])
    with pytest.raises(ShapeError, match=r"\(2,\), found shape \(3,\)"):
        unravel(np.ones(3))
