"""What rules give that is no Tensor, or does not fit: a constant or an error, never memory of others."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import traced_rules
from tapegrad.errors import GradientError
from tapegrad.kernels import abi, machine
from tapegrad.kernels.replay import layout
from tapegrad.ops import REGISTRY
from tapegrad.ops.primitive import elementwise, primitive
from tapegrad.tape import tape as tapes

SHAPES = [(3,), (2, 2), (0,), ()]
by_address = pytest.mark.skipif(
    not abi.native() or bool(layout.BOUNDS), reason="Python, which reads nothing by address, finds gradients"
)
given = []  # by the rule of an op below: a function of the cotangent and the operand


@primitive(forward=lambda x: x * 1.0, arity=1)
class odd:
    """Its operand."""

    reads = (0b0001,)

    def vjp(ct, out, inputs, wanted):
        return {0: given[0](ct, inputs[0])}

    def jvp(tangents, out, inputs):
        return tangents[0]


@elementwise(forward=lambda x: x * 1.0)
def number(ct, x):
    """Its operand, of which the rule forgets the cotangent."""
    return 2.0


for _op in (odd, number):  # what is listed has samples
    del REGISTRY[_op.name]


@pytest.fixture
def rule():
    """Let `odd` have a rule."""
    machine.load()

    def use(function):
        given[:] = [function]
        traced_rules.forget()

    yield use
    traced_rules.forget()


def leaf(shape):
    return tg.tensor(np.full(shape, 1.5), requires_grad=True)


def seed(x):
    return np.full(x.shape, 2.0)


def one_tape(x):
    return odd(x)


def two_tapes(x):
    """With an array as the cotangent that comes to an older tape."""
    y = np.sin(x)
    tapes.leave(y._tape)
    z = odd(y)
    z.register_hook(lambda g: g)
    return z


def of_constants(x):
    return np.ones(x.shape)


def of_constant_tensors(x):
    return tg.tensor(np.ones(x.shape))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("constant", [of_constants, of_constant_tensors])
@pytest.mark.parametrize("way", [one_tape, two_tapes])
def test_a_part_that_depends_on_nothing_is_a_constant(rule, constant, shape, way):
    rule(lambda ct, x: constant(x))
    slope = 1.0 if way is one_tape else np.cos(1.5)
    for _ in range(4):  # the third time by a program, if there is one
        x = leaf(shape)
        (g,) = tg.grad(way(x), x, seed(x), create_graph=True)
        assert type(g) is tg.Tensor
        np.testing.assert_array_equal(g.detach().numpy(), np.full(shape, slope))
        (again,) = tg.grad(np.sum(x * g), x)
        curved = 0.0 if way is one_tape else -1.5 * np.sin(1.5)
        np.testing.assert_allclose(again.numpy(), np.full(shape, slope + curved))
        if shape and way is one_tape:
            g.detach().numpy()[...] = 7.0  # which is the caller's


NO_PARTS = {
    "text": "abc", "object": object(), "number": 2.0, "list": [1.0, 2.0], "no list": [],
    "objects": np.array([None]), "type": np.ndarray,
}  # fmt: skip


@by_address
@pytest.mark.parametrize("shape", [(3,), ()])
@pytest.mark.parametrize("part", NO_PARTS)
def test_a_part_of_another_kind_is_an_error(rule, part, shape):
    rule(lambda ct, x: NO_PARTS[part])
    for _ in range(4):
        x = leaf(shape)
        with pytest.raises(GradientError, match="the rule of odd gave"):
            tg.grad(odd(x), x, seed(x), create_graph=True)


@by_address
@pytest.mark.parametrize("shape", SHAPES[:2])
@pytest.mark.parametrize("make", [np.asarray, tg.tensor])
def test_a_part_of_another_shape_is_an_error(rule, make, shape):
    rule(lambda ct, x: make(np.ones(7)))
    for order in (1, 2, 2, 2, 1):
        x = leaf(shape)
        with pytest.raises(ValueError):
            tg.grad(odd(x), x, seed(x), create_graph=order == 2)
        cts = np.ones((5, *shape))
        with pytest.raises(ValueError):
            tg.grad(odd(x), x, cts, create_graph=order == 2, is_grads_batched=True)


@pytest.mark.parametrize("shape", SHAPES[:2])
def test_a_number_in_the_place_of_a_product_with_the_cotangent_is_an_error(rule, shape):
    for _ in range(4):
        x = leaf(shape)
        with pytest.raises(ValueError):
            tg.grad(number(x), x, seed(x), create_graph=True)


@pytest.mark.parametrize("shape", SHAPES)
def test_parts_with_lanes(rule, shape):
    """Of a result on an older tape too: compiled code adds them up there."""
    rule(lambda ct, x: np.ones(x.shape))
    for _ in range(4):
        x = leaf(shape)
        y = np.sin(x)
        tapes.leave(y._tape)
        (g,) = tg.grad(odd(y), x, np.ones((5, *shape)), is_grads_batched=True)
        np.testing.assert_allclose(g.numpy(), np.full((5, *shape), np.cos(1.5)))
