"""Functions in forward mode and over batches: cases G-12 and G-13.

Where one derivative goes through another, what a Function kept is exact or refused, as in G-14.
"""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import Function, once_differentiable
from tapegrad.autograd import forward_ad as fw
from tapegrad.errors import GradientError, ShapeError

pytestmark = pytest.mark.usefixtures("tape_length")


def leaf(data=(1.0, 2.0)):
    return tg.tensor(data, dtype=float, requires_grad=True)


def of(forward, **others):
    methods = {"forward": forward, **others}
    return type("E", (Function,), {name: staticmethod(method) for name, method in methods.items()})


def derivative(f):
    """The derivative of a function by forward mode; each element's for a function of elements."""

    def slope(x):
        with fw.dual_level():
            tangent = fw.unpack_dual(f(fw.make_dual(x, tg.ones(x.shape)))).tangent
        return tg.zeros(x.shape) if tangent is None else tangent

    return slope


triple = of(lambda ctx, x: x * 3, jvp=lambda ctx, t: t * 7)

# ---------------------------------------------------------------- G-12: one level


def test_G12_the_tangent_is_that_of_jvp():
    with fw.dual_level():
        d = fw.make_dual(tg.tensor([1.0, 2.0]), tg.tensor([10.0, 20.0]))
        y = triple.apply(d)
        assert fw.unpack_dual(y).primal.tolist() == [3.0, 6.0]
        assert fw.unpack_dual(y).tangent.tolist() == [70.0, 140.0]
        assert fw.unpack_dual(y * y).tangent.tolist() == [420.0, 1680.0]
    assert not y.requires_grad


def test_G12_without_jvp():
    E = of(lambda ctx, x: x * 3, backward=lambda ctx, g: g * 3)
    with fw.dual_level():
        with pytest.raises(NotImplementedError, match="jvp"):
            E.apply(fw.make_dual(tg.ones(2), tg.ones(2)))
        assert E.apply(tg.ones(2)).tolist() == [3.0, 3.0]  # nothing moves
    with pytest.raises(NotImplementedError, match="jvp"), fw.dual_level():
        E.apply(fw.make_dual(leaf(), tg.ones(2)))


def test_G12_arguments_that_do_not_move():
    """A Tensor without a tangent has one of zeros, or None; what is no Tensor has None."""
    seen = []

    def jvp(ctx, *tangents):
        seen.append(tangents)
        return tangents[0] * 2

    for materialize in (True, False):

        def forward(ctx, x, k, c, text):
            ctx.set_materialize_grads(materialize)
            return x * k

        with fw.dual_level():
            d = fw.make_dual(tg.ones(2), tg.ones(2))
            y = of(forward, jvp=jvp).apply(d, 2.0, tg.ones(3), "text")
            assert fw.unpack_dual(y).tangent.tolist() == [2.0, 2.0]
        t, number, constant, text = seen.pop()
        assert (number, text) == (None, None)
        assert t.tolist() == [1.0, 1.0]
        assert (constant is None) if not materialize else constant.tolist() == [0.0, 0.0, 0.0]


def test_G12_several_results():
    def forward(ctx, x, z):
        ctx.save_for_forward(x, z)
        return x * z, x.argmax(), x + z, "text"

    def jvp(ctx, u, v):
        x, z = ctx.saved_for_forward
        return u * z + x * v, None, None, None

    with fw.dual_level():
        x = fw.make_dual(tg.tensor([1.0, 2.0]), tg.ones(2))
        z = fw.make_dual(tg.tensor([3.0, 5.0]), tg.tensor([10.0, 10.0]))
        product, place, total, text = of(forward, jvp=jvp).apply(x, z)
        assert fw.unpack_dual(product).tangent.tolist() == [13.0, 25.0]
        assert fw.unpack_dual(total).tangent is None
        assert (place.item(), text) == (1, "text")


@pytest.mark.parametrize(
    ("returned", "error"),
    [
        (lambda t: (t, t), GradientError),
        (lambda t: (), GradientError),
        (lambda t: t.sum(), ShapeError),
        (lambda t: "text", ShapeError),
        (lambda t: 5.0, ShapeError),
    ],
)
def test_G12_tangents_that_do_not_fit(returned, error):
    E = of(lambda ctx, x: x * 1, jvp=lambda ctx, t: returned(t))
    with fw.dual_level(), pytest.raises(error, match="jvp returned"):
        E.apply(fw.make_dual(tg.ones(2), tg.ones(2)))


def test_G12_a_tangent_has_the_dtype_of_its_result():
    E = of(lambda ctx, x: x * 1, jvp=lambda ctx, t: t.astype(np.float64) * 2)
    with fw.dual_level():
        y = E.apply(fw.make_dual(tg.ones(2, dtype=np.float32), tg.ones(2, dtype=np.float32)))
        assert fw.unpack_dual(y).tangent.dtype == np.float32


def test_G12_a_tangent_may_be_an_array():
    E = of(lambda ctx, x: x * 1, jvp=lambda ctx, t: np.full(2, 5.0))
    with fw.dual_level():
        assert fw.unpack_dual(E.apply(fw.make_dual(tg.ones(2), tg.ones(2)))).tangent.tolist() == [5.0, 5.0]


def test_G12_setup_context():
    class Cube(Function):
        @staticmethod
        def forward(x, power=3):
            return x**power

        @staticmethod
        def setup_context(ctx, inputs, output):
            x, ctx.power = inputs
            ctx.save_for_forward(x)

        @staticmethod
        def jvp(ctx, t, power):
            assert power is None
            return ctx.power * ctx.saved_for_forward[0] ** (ctx.power - 1) * t

    x = tg.tensor([1.0, 2.0])
    assert derivative(Cube.apply)(x).tolist() == [3.0, 12.0]
    assert derivative(derivative(lambda x: Cube.apply(x, power=2)))(x).tolist() == [2.0, 2.0]


def test_G12_what_carries_a_tangent_is_not_written_to():
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    E = of(forward, jvp=lambda ctx, t: t * 2)
    x = tg.tensor([1.0, 2.0])
    with fw.dual_level():
        d = fw.make_dual(x, tg.ones(2))
        with pytest.raises(GradientError, match="dirty"):
            E.apply(d)
        assert d.tolist() == [1.0, 2.0]
    assert x.tolist() == [1.0, 2.0]


def test_G12_an_argument_returned():
    E = of(lambda ctx, x: x, jvp=lambda ctx, t: t * 7)
    x = tg.tensor(3.0)
    assert derivative(lambda x: E.apply(x) * x)(x).item() == 7 * 3 + 3
    assert derivative(derivative(lambda x: E.apply(x) * x))(x).item() == 14.0


def test_G12_lanes():
    """A jvp of the user's gets one tangent at a time."""
    seen = []

    def forward(ctx, x):
        ctx.save_for_forward(x)
        return x**2, x * 1

    def jvp(ctx, t):
        seen.append(t.shape)
        return 2 * ctx.saved_for_forward[0] * t, t if t[0].item() else None

    x = tg.tensor([1.0, 2.0, 3.0])
    f = lambda x: sum(of(forward, jvp=jvp).apply(x))
    jacobian = tg.autograd.functional.jacobian(f, x, vectorize=True, strategy="forward-mode")
    assert seen == [(3,)] * 3
    expected = np.diag([2.0, 4.0, 6.0])
    expected[0, 0] += 1.0  # only the first lane has a tangent of the second result
    np.testing.assert_array_equal(jacobian.tolist(), expected)


def test_G12_saved_tensors_are_not_packed_where_tangents_would_be_lost():
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    E = of(
        forward,
        backward=lambda ctx, g: 3 * ctx.saved_tensors[0] ** 2 * g,
        jvp=lambda ctx, t: 3 * ctx.saved_tensors[0] ** 2 * t,
    )
    x = leaf()
    hooks = tg.autograd.graph.saved_tensors_hooks(lambda x: x.numpy().copy(), tg.tensor)
    with fw.dual_level(), hooks:
        (g,) = tg.grad(E.apply(fw.make_dual(x, tg.ones(2))).sum(), x)
        assert g.tolist() == [3.0, 12.0]
        assert fw.unpack_dual(g).tangent.tolist() == [6.0, 12.0]


# ---------------------------------------------------------------- G-12: derivatives of derivatives

ELSEWHERE = {}  # what forward leaves outside of ctx


def keep(ctx, x, y):
    ctx.save_for_forward(x, y)
    ctx.save_for_backward(x, y)
    ctx.x, ctx.y, ctx.nested = x, y, {"all": ([x], (y, 5))}
    ctx.doubled, ctx.apart = x * 2, x.detach()
    ELSEWHERE.update(x=x, doubled=ctx.doubled)


EXACT = {
    "saved argument": lambda ctx: ctx.saved_tensors[0],
    "saved result": lambda ctx: np.cbrt(ctx.saved_tensors[1]),
    "argument saved for forward": lambda ctx: ctx.saved_for_forward[0],
    "result saved for forward": lambda ctx: np.cbrt(ctx.saved_for_forward[1]),
    "attribute": lambda ctx: ctx.x,
    "result as attribute": lambda ctx: np.cbrt(ctx.y),
    "in a container": lambda ctx: ctx.nested["all"][0][0],
    "result in a container": lambda ctx: np.cbrt(ctx.nested["all"][1][0]),
}
REFUSED = {
    "intermediate": lambda ctx: ctx.doubled / 2,
    "detached in forward": lambda ctx: ctx.apart,
    "detached in the rule": lambda ctx: ctx.saved_tensors[0].detach(),
    "intermediate elsewhere": lambda ctx: ELSEWHERE["doubled"] / 2,
    "number": lambda ctx: np.array([v.item() for v in ctx.saved_tensors[0]]),
    "list": lambda ctx: np.array(ctx.saved_tensors[0].tolist()),
}


def cube(base, compute):
    """x**3, of which both derivatives use what they compute of ctx for x."""

    class Cube(base):
        @staticmethod
        def jvp(ctx, t):
            x = compute(ctx)
            return 3 * x * x * t

        @staticmethod
        def backward(ctx, g):
            x = compute(ctx)
            return 3 * x * x * g

    return Cube.apply


class OneMethod(Function):
    @staticmethod
    def forward(ctx, x):
        y = x**3
        keep(ctx, x, y)
        return y


class TwoMethods(Function):
    @staticmethod
    def forward(x):
        return x**3

    @staticmethod
    def setup_context(ctx, inputs, output):
        keep(ctx, *inputs, output)


def reverse_over_forward(f, x):
    with fw.dual_level():
        tangent = fw.unpack_dual(f(fw.make_dual(x, tg.ones(2)))).tangent
        return tg.grad((tangent + x).sum(), x)[0] - 1


def forward_over_reverse(f, x, create_graph=False):
    with fw.dual_level():
        (g,) = tg.grad(f(fw.make_dual(x, tg.ones(2))).sum(), x, create_graph=create_graph)
        return fw.unpack_dual(g).tangent


SECOND = {
    "forward over forward": lambda f, x: derivative(derivative(f))(x.detach()),
    "forward over forward of a leaf": lambda f, x: derivative(derivative(f))(x),
    "forward over forward, unrecorded": lambda f, x: tg.no_grad()(derivative(derivative(f)))(x),
    "reverse over forward": reverse_over_forward,
    "forward over reverse": forward_over_reverse,
    "forward over recorded reverse": lambda f, x: forward_over_reverse(f, x, create_graph=True),
}


@pytest.mark.parametrize("way", SECOND)
@pytest.mark.parametrize("route", EXACT)
def test_G12_second_derivatives(route, way):
    for base in (OneMethod, TwoMethods):
        found = SECOND[way](cube(base, EXACT[route]), leaf((1.0, 2.0)))
        np.testing.assert_allclose(found.tolist(), [6.0, 12.0], rtol=1e-14)


@pytest.mark.parametrize("way", SECOND)
@pytest.mark.parametrize("route", REFUSED)
def test_G12_what_has_lost_its_tangent_is_refused(route, way):
    for base in (OneMethod, TwoMethods):
        with pytest.raises(GradientError, match="second derivative"):
            SECOND[way](cube(base, REFUSED[route]), leaf((1.0, 2.0)))
        first = derivative(cube(base, REFUSED[route]))
        np.testing.assert_allclose(first(tg.tensor([1.0, 2.0])).tolist(), [3.0, 12.0], rtol=1e-14)
        np.testing.assert_allclose(first(leaf((1.0, 2.0))).tolist(), [3.0, 12.0], rtol=1e-14)


@pytest.mark.parametrize("way", [way for way in SECOND if way != "reverse over forward"])
def test_G12_an_argument_kept_elsewhere_is_refused(way):
    for base in (OneMethod, TwoMethods):
        with pytest.raises(GradientError, match="second derivative"):
            SECOND[way](cube(base, lambda ctx: ELSEWHERE["x"]), leaf())


def test_G12_an_argument_kept_elsewhere_has_its_history():
    f = cube(OneMethod, lambda ctx: ELSEWHERE["x"])
    assert reverse_over_forward(f, leaf()).tolist() == [6.0, 12.0]


def test_G12_values_taken_out_with_a_promise():
    def forward(ctx, x):
        ctx.mark_twice_differentiable()
        ctx.positive = x.numpy() > 0
        ctx.save_for_backward(x)
        return x**3

    class Cube(Function):
        pass

    Cube.forward = staticmethod(forward)
    Cube._is_legacy = False
    f = cube(Cube, lambda ctx: ctx.saved_tensors[0] * ctx.positive)
    for way in SECOND.values():
        np.testing.assert_allclose(way(f, leaf()).tolist(), [6.0, 12.0], rtol=1e-14)


@pytest.mark.parametrize("create_graph", [True, False])
def test_G12_once_differentiable_refuses_tangents(create_graph):
    E = of(lambda ctx, x: x * 3, backward=once_differentiable(lambda ctx, g: g * 3), jvp=lambda ctx, t: t * 3)
    with pytest.raises(GradientError, match="second derivative"):
        forward_over_reverse(E.apply, leaf(), create_graph)


@pytest.mark.parametrize("create_graph", [True, False])
@pytest.mark.parametrize("lose", [None, lambda g: tg.tensor(g.item()), lambda g: g.detach()])
def test_G12_a_cotangent_that_moves(lose, create_graph):
    E = of(lambda ctx, x: x * 3, backward=lambda ctx, g: 3 * (g if lose is None else lose(g)))
    x = leaf(2.0)
    y = E.apply(x)
    with fw.dual_level():
        seed = fw.make_dual(tg.tensor(1.0), tg.tensor(5.0))
        if lose is None:
            (g,) = tg.grad(y, x, seed, create_graph=create_graph)
            assert fw.unpack_dual(g).tangent.item() == 15.0
        else:
            with pytest.raises(GradientError, match="second derivative"):
                tg.grad(y, x, seed, create_graph=create_graph)
    assert tg.grad(E.apply(x), x)[0].item() == 3.0


def test_G12_third_derivatives_and_mixtures():
    f = cube(OneMethod, EXACT["saved argument"])
    x = tg.tensor([1.0, 2.0])
    assert derivative(derivative(derivative(f)))(x).tolist() == [6.0, 6.0]
    assert derivative(derivative(derivative(derivative(f))))(x).tolist() == [0.0, 0.0]
    assert reverse_over_forward(derivative(f), leaf()).tolist() == [6.0, 6.0]
    assert forward_over_reverse(derivative(f), leaf()).tolist() == [6.0, 6.0]

    def gradient(x):
        return tg.grad(f(x).sum(), x, create_graph=True)[0]

    assert derivative(derivative(gradient))(leaf()).tolist() == [6.0, 6.0]


def test_G12_random_numbers_are_drawn_once():
    """Forward runs once however many levels there are."""
    calls = []

    def forward(ctx, x):
        calls.append(x)
        ctx.save_for_forward(x)
        return x**3

    f = of(forward, jvp=lambda ctx, t: 3 * ctx.saved_for_forward[0] ** 2 * t).apply
    derivative(derivative(derivative(f)))(tg.tensor([1.0, 2.0]))
    assert len(calls) == 1


def test_G12_a_parameter_beside_what_moves():
    """Not recorded, a parameter's history is nothing to tangents."""

    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return x**2 * w**2

    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return 2 * x * (w * w) * g, 2 * w * (x * x) * g

    def jvp(ctx, u, v):
        x, w = ctx.saved_tensors
        return 2 * x * (w * w) * u + 2 * w * (x * x) * v

    E, x, w = of(forward, backward=backward, jvp=jvp), leaf((1.0, 2.0)), leaf((3.0, 5.0))
    for create_graph in (False, True):
        with fw.dual_level():
            found = tg.grad(E.apply(fw.make_dual(x, tg.ones(2)), w).sum(), [x, w], create_graph=create_graph)
            tangents = [fw.unpack_dual(g).tangent.tolist() for g in found]
        assert tangents == [[18.0, 50.0], [12.0, 40.0]]
    with tg.no_grad():
        f = lambda x: E.apply(x, w)
        assert derivative(derivative(f))(tg.tensor([1.0, 2.0])).tolist() == [18.0, 50.0]


def test_G12_after_the_level_the_gradient_is_as_ever():
    f = cube(OneMethod, REFUSED["intermediate"])
    x = leaf()
    with fw.dual_level():
        y = f(fw.make_dual(x, tg.ones(2)))
    assert tg.grad(y.sum(), x)[0].tolist() == [3.0, 12.0]


def test_G12_a_function_within_a_function():
    inner = cube(OneMethod, EXACT["saved argument"])

    def forward(ctx, x):
        ctx.save_for_forward(x)
        return x**4 / 4

    f = of(forward, jvp=lambda ctx, t: inner(ctx.saved_for_forward[0]) * t).apply
    x = tg.tensor([1.0, 2.0])
    assert [derivative(f)(x).tolist(), derivative(derivative(f))(x).tolist()] == [[1.0, 8.0], [3.0, 12.0]]
    hidden = cube(OneMethod, lambda ctx: ctx.saved_tensors[0])
    g = of(
        lambda ctx, x: (setattr(ctx, "half", x / 2), x**4 / 4)[1],
        jvp=lambda ctx, t: hidden(2 * ctx.half) * t,
    ).apply
    with pytest.raises(GradientError, match="second derivative"):
        derivative(derivative(g))(x)


def test_G12_gradcheck():
    f = cube(TwoMethods, EXACT["saved argument"])
    x = leaf((0.5, -1.5))
    assert tg.autograd.gradcheck(f, (x,), check_forward_ad=True, check_batched_grad=True)
    assert tg.autograd.gradgradcheck(f, (x,), check_fwd_over_rev=True)
    wrong = of(OneMethod.forward, backward=lambda ctx, g: 3 * ctx.x**2 * g, jvp=lambda ctx, t: t)
    with pytest.raises(RuntimeError):
        tg.autograd.gradcheck(wrong.apply, (x,), check_forward_ad=True)


# ---------------------------------------------------------------- G-13


def test_G13_a_function_without_vmap():
    with pytest.raises(RuntimeError, match="vmap"):
        triple.vmap(None, (0,), tg.ones(2))


def test_G13_vmap_is_the_users_and_batches_of_gradients_do_without():
    E = of(
        lambda ctx, x: x * 3,
        backward=lambda ctx, g: g * 7,
        vmap=lambda info, dims, x: (x * 3, dims[0]),
    )
    out, axis = E.vmap(None, (0,), tg.ones((4, 2)))
    assert (out.shape, axis) == ((4, 2), 0)
    x = leaf()
    for F in (E, of(lambda ctx, x: x * 3, backward=lambda ctx, g: g * 7)):
        (g,) = tg.grad(F.apply(x), x, np.eye(2), is_grads_batched=True)
        assert g.tolist() == [[7.0, 0.0], [0.0, 7.0]]
