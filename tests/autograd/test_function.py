"""Functions: cases G-1 to G-16 but G-14 (`test_second_derivatives.py`), F-14, H-6, H-7."""

import collections
import fractions
import threading
import warnings
import weakref

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import Function, once_differentiable
from tapegrad.autograd.function import InplaceFunction, NestedIOFunction
from tapegrad.core.dispatch import COPIED
from tapegrad.errors import DTypeError, GradientError, GraphFreedError, MutationError, ShapeError
from tapegrad.tape.tape import close, current

pytestmark = pytest.mark.usefixtures("tape_length")


def leaf(data=(1.0, 2.0)):
    return tg.tensor(data, dtype=float, requires_grad=True)


def of(forward, backward=None, **others):
    methods = {"forward": staticmethod(forward), **{k: staticmethod(v) for k, v in others.items()}}
    return type(
        "E", (Function,), methods if backward is None else methods | {"backward": staticmethod(backward)}
    )


class Cube(Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


triple = of(lambda ctx, x: x * 3, lambda ctx, g: g * 3)


# ---------------------------------------------------------------- G-1, G-2


def test_G1_apply_has_the_derivative_of_backward():
    x = leaf()
    y = of(lambda ctx, x: x * 3, lambda ctx, g: g * 7).apply(x)
    assert y.grad_fn.name() == "EBackward"
    assert repr(y).endswith("grad_fn=<EBackward>)")
    assert y.tolist() == [3.0, 6.0]
    assert tg.grad(y.sum(), x)[0].tolist() == [7.0, 7.0]


def test_G1_instances_of_static_functions_are_deprecated_and_not_callable():
    with pytest.warns(DeprecationWarning, match="apply"):
        instance = triple()
    with pytest.raises(GradientError, match="apply"):
        instance(leaf())


def test_G2_what_is_missing():
    x = leaf()
    with pytest.raises(NotImplementedError, match="forward"):
        type("E", (Function,), {}).apply(x)
    y = of(lambda ctx, x: x * 1).apply(x)
    with pytest.raises(NotImplementedError, match="backward"):
        y.sum().backward()
    with pytest.raises(GradientError, match="backward and vjp"):
        of(lambda ctx, x: x * 1, lambda ctx, g: g, vjp=lambda ctx, g: g).apply(x).sum().backward()
    y = of(lambda ctx, x: x * 1, vjp=lambda ctx, g: g * 5).apply(x)
    assert tg.grad(y.sum(), x)[0].tolist() == [5.0, 5.0]


def test_G2_a_backward_that_is_inherited_counts():
    base = of(lambda ctx, x: x * 3, lambda ctx, g: g * 3)
    child = type("Child", (base,), {"forward": staticmethod(lambda ctx, x: x * 5)})
    x = leaf()
    y = child.apply(x)
    assert y.grad_fn.name() == "ChildBackward"
    assert tg.grad(y.sum(), x)[0].tolist() == [3.0, 3.0]


# ---------------------------------------------------------------- G-3, G-4: what backward returns


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (lambda g: (g, g, None), GradientError),
        (lambda g: g, GradientError),
        (lambda g: (5.0, None), GradientError),
        (lambda g: ("text", None), GradientError),
        (lambda g: (g, g), GradientError),  # for a number
        (lambda g: (g * 5, None), [5.0, 5.0]),
        (lambda g: (g * 5, None, None, None), [5.0, 5.0]),
        (lambda g: (np.full(2, 5.0), None), [5.0, 5.0]),
    ],
)
def test_G3_number_and_kind_of_gradients(found, expected):
    x = leaf()
    y = of(lambda ctx, x, k: x * k, lambda ctx, g: found(g)).apply(x, 2.0)
    if isinstance(expected, type):
        with pytest.raises(expected, match="EBackward returned"):
            tg.grad(y.sum(), x)
    else:
        assert tg.grad(y.sum(), x)[0].tolist() == expected


def test_G3_a_gradient_of_what_needs_none_is_ignored():
    x, c = leaf(), tg.tensor([3.0, 4.0])
    y = of(lambda ctx, x, c: x * c, lambda ctx, g: (g * 2, g * 100)).apply(x, c)
    y.sum().backward()
    assert x.grad.tolist() == [2.0, 2.0]
    assert c.grad is None


def test_G3_none_leaves_grad_none():
    x, z = leaf(), leaf()
    of(lambda ctx, x, z: x * z, lambda ctx, g: (None, g)).apply(x, z).sum().backward()
    assert x.grad is None
    assert z.grad.tolist() == [1.0, 1.0]
    (of(lambda ctx, x: x * 1, lambda ctx, g: None).apply(x) + x).sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]  # D-12: the other way counts


def test_G4_shapes_and_dtypes():
    x = leaf()
    E = of(lambda ctx, x: x * 1, lambda ctx, g: np.stack([g, 2 * g, 3 * g]))
    assert tg.grad(E.apply(x).sum(), x)[0].tolist() == [6.0, 6.0]
    for wrong in (lambda ctx, g: g.sum(), lambda ctx, g: tg.ones(3), lambda ctx, g: tg.ones((2, 3))):
        with pytest.raises(ShapeError, match="argument has shape"):
            tg.grad(of(lambda ctx, x: x * 1, wrong).apply(x).sum(), x)
    single = tg.tensor([1.0, 2.0], dtype=np.float32, requires_grad=True)
    E = of(lambda ctx, x: x * 1, lambda ctx, g: g.astype(np.float64) * 2)
    (g,) = tg.grad(E.apply(single).sum(), single)
    assert g.dtype == np.float32
    assert g.tolist() == [2.0, 2.0]


def test_G4_a_sum_reduced_gradient_is_differentiable():
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    E = of(forward, lambda ctx, g: np.stack([g, g]) * ctx.saved_tensors[0])
    x = leaf()
    (g,) = tg.grad(E.apply(x).sum(), x, create_graph=True)
    assert g.tolist() == [2.0, 4.0]
    assert tg.grad(g.sum(), x)[0].tolist() == [2.0, 2.0]


# ---------------------------------------------------------------- G-5, G-6: ctx


def test_G5_needs_input_grad_is_not_narrowed():
    seen = []

    def backward(ctx, g):
        seen.append(ctx.needs_input_grad)
        return g, None, None, g

    x, z = leaf(), leaf()
    y = of(lambda ctx, x, k, c, z: x * z, backward).apply(x, 2.0, tg.ones(2), z)
    tg.grad(y.sum(), x)
    assert seen == [(True, False, False, True)]


def test_G6_only_tensors_are_saved():
    def forward(ctx, x):
        ctx.save_for_backward(x, None, 5.0)
        return x

    with pytest.raises(TypeError, match="float at 2"):
        of(forward, lambda ctx, g: g).apply(leaf())


def test_G6_saved_input_is_the_same_object_and_the_last_call_wins():
    x, z, seen = leaf(), leaf(), []

    def forward(ctx, x, z):
        ctx.save_for_backward(x)
        ctx.save_for_backward(z, None, x)
        return x * z

    def backward(ctx, g):
        seen.extend(ctx.saved_tensors)
        return g, g

    y = of(forward, backward).apply(x, z)
    assert y.grad_fn.saved_tensors[0] is z
    y.sum().backward()
    assert seen[0] is z
    assert seen[1] is None
    assert seen[2] is x


def test_G6_saved_variables_is_the_older_name():
    def backward(ctx, g):
        with pytest.warns(DeprecationWarning, match="saved_tensors"):
            (x,) = ctx.saved_variables
        return 3 * x**2 * g

    x = leaf()
    assert tg.grad(of(Cube.forward, backward).apply(x).sum(), x)[0].tolist() == [3.0, 12.0]


@pytest.mark.parametrize("change", ["no_grad", "data", "other", "numpy"])
def test_G6_a_saved_input_modified_afterwards_is_what_it_was(change):
    x = leaf()
    y = Cube.apply(x).sum()
    if change == "no_grad":
        with tg.no_grad():
            x.mul_(10)
    elif change == "data":
        x.data.mul_(10)
    elif change == "numpy":
        x.detach().numpy()[:] = 10
    else:
        x.data = tg.tensor([10.0, 20.0])
    y.backward()
    assert x.grad.tolist() == [3.0, 12.0]


def test_G6_a_saved_result_on_the_way_modified_afterwards_is_what_it_was():
    x = leaf()
    a = x * 1
    y = Cube.apply(a).sum()
    a.mul_(100)
    (g,) = tg.grad(y, x, create_graph=True)
    assert g.tolist() == [3.0, 12.0]
    assert tg.grad(g.sum(), x)[0].tolist() == [6.0, 12.0]


@pytest.mark.parametrize("data", [0.5, np.full(3, 0.5), np.full(1000, 0.5)], ids=np.shape)
@pytest.mark.parametrize("attribute", [False, True])
def test_G6_a_saved_result_that_nobody_uses_is_kept_for_backward(data, attribute):
    """Whatever is pruned before the sweep, in which a second derivative goes through it, too."""

    def forward(ctx, x):
        a, b = np.sin(x), np.cos(x)
        ctx.save_for_backward(a, b)
        if attribute:
            ctx.save_for_backward()
            ctx.parts = a, b
        return a, b

    def backward(ctx, ga, gb):
        a, b = ctx.parts if attribute else ctx.saved_tensors
        return ga * b - gb * a

    x = leaf(data)
    y = of(forward, backward).apply(x)[0]
    close(current())
    (g,) = tg.grad(np.sum(y), x, create_graph=True)
    np.testing.assert_allclose(g.detach(), np.cos(data))
    np.testing.assert_allclose(tg.grad(np.sum(g), x)[0], -np.sin(data))


def test_G6_a_saved_result_does_not_outlive_its_call():
    """What a rule reads of a call that nothing leads to is pruned with it."""
    kept = []

    def forward(ctx, x):
        a, b = np.sin(x), np.cos(x)
        ctx.save_for_backward(a, b)
        kept.extend(weakref.ref(y._v) for y in (a, b))
        return a, b

    x = leaf(np.ones(10))
    a, b = of(forward, lambda ctx, ga, gb: ga + gb).apply(x)
    other = x * 2.0
    del a, b
    close(current())
    other._tape.prune()
    assert all(r() is None for r in kept)
    assert other.requires_grad


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("write", [False, True])
def test_G6_results_within_attributes_are_what_they_were(several, write):
    """They are not owned by what keeps them, as it belongs to their tape."""

    def forward(ctx, x):
        y = np.exp(x)
        ctx.parts, ctx.x = {"all": [x, (y, "text")]}, x
        return (y, x * 2.0) if several else y

    def backward(ctx, g, *_):
        (x, (y, text)), there = ctx.parts["all"], ctx.x
        assert text == "text"
        return g * y + 0.0 * (x - there)

    def jvp(ctx, t):
        y = ctx.parts["all"][1][0]
        return (t * y, t * 2.0) if several else t * y

    x = leaf()
    y = of(forward, backward, jvp=jvp).apply(x)
    y = y[0] if several else y
    kept, expected = weakref.ref(y), y.detach().clone()
    if write:
        y *= 1.0
    g = tg.grad(y.sum(), x, create_graph=True)[0]
    assert g.tolist() == expected.tolist()
    assert tg.grad(g.sum(), x)[0].tolist() == expected.tolist()
    del y, g
    assert kept() is None
    with tg.autograd.forward_ad.dual_level():
        moving = tg.autograd.forward_ad.make_dual(leaf(), tg.tensor([1.0, 2.0]))
        out = of(forward, backward, jvp=jvp).apply(moving)
        tangent = tg.autograd.forward_ad.unpack_dual(out[0] if several else out).tangent
        assert tangent.tolist() == (expected * [1.0, 2.0]).tolist()


def test_B1_saved_tensors_after_they_were_freed():
    x = leaf()
    y = Cube.apply(x)
    y.sum().backward()
    with pytest.raises(GraphFreedError, match="retain_graph"):
        y.grad_fn.saved_tensors
    with pytest.raises(GraphFreedError, match="retain_graph"):
        y.sum().backward()
    y = Cube.apply(x).sum()
    y.backward(retain_graph=True)
    y.backward()
    assert x.grad.tolist() == [9.0, 36.0]


def test_B1_saved_values_of_operations_after_they_were_freed():
    x = leaf()
    y = x * x
    assert y.grad_fn._saved_self is x or y.grad_fn._saved_self.tolist() == [1.0, 2.0]
    y.sum().backward()
    with pytest.raises(GraphFreedError, match="retain_graph"):
        y.grad_fn._saved_self


def test_B1_ctx_read_after_it_was_freed():
    found = []

    def backward(ctx, g):
        found.append(ctx)
        return g

    x = leaf()
    y = of(Cube.forward, backward).apply(x)
    y.sum().backward()
    with pytest.raises(GraphFreedError):
        found[0].saved_tensors


# ---------------------------------------------------------------- G-7: mark_dirty


def doubling(ctx, a):
    a.mul_(2)
    ctx.mark_dirty(a)
    return a


def test_G7_a_dirty_input_is_the_result():
    x = leaf()
    a = x * 1
    y = of(doubling, lambda ctx, g: g * 2).apply(a)
    assert y is a
    assert a._version == 2
    assert a.tolist() == [2.0, 4.0]
    assert tg.grad((a * a).sum(), x)[0].tolist() == [8.0, 16.0]


def test_G7_of_a_scalar_and_of_a_view():
    x = leaf()
    a = x[0] * 1
    y = of(doubling, lambda ctx, g: g * 2).apply(a)
    assert y is a
    assert tg.grad(a * a, x)[0].tolist() == [8.0, 0.0]
    b = x * 1
    of(doubling, lambda ctx, g: g * 2).apply(b[1:])
    assert b.tolist() == [1.0, 4.0]
    assert tg.grad((b * b).sum(), x)[0].tolist() == [2.0, 16.0]


def test_G7_saved_dirty_result():
    def forward(ctx, a):
        np.exp(a.clone(), out=a)
        ctx.mark_dirty(a)
        ctx.save_for_backward(a)
        return a

    x = leaf()
    a = x * 1
    of(forward, lambda ctx, g: g * ctx.saved_tensors[0]).apply(a)
    (g,) = tg.grad(a.sum(), x, create_graph=True)
    (h,) = tg.grad(g.sum(), x)
    np.testing.assert_allclose([g.tolist(), h.tolist()], [np.exp([1.0, 2.0])] * 2)


def test_G7_errors():
    def unreturned(ctx, a):
        ctx.mark_dirty(a)
        return a * 2

    with pytest.raises(GradientError, match="must return it"):
        of(unreturned, lambda ctx, g: g).apply(leaf() * 1)
    with pytest.raises(GradientError, match="leaf"):
        of(doubling, lambda ctx, g: g).apply(leaf())

    def of_another(ctx, a):
        ctx.mark_dirty(tg.zeros(2))
        return a * 2

    with pytest.warns(UserWarning, match="no input"):
        of(of_another, lambda ctx, g: g).apply(leaf())


# ---------------------------------------------------------------- G-8, G-9: results


def pair(seen, *, plain=False, materialize=True):
    def forward(ctx, x):
        a, b = x * 2, x * 3
        if plain:
            ctx.mark_non_differentiable(b)
        ctx.set_materialize_grads(materialize)
        return a, b

    def backward(ctx, ga, gb):
        seen.append([None if g is None else g.tolist() for g in (ga, gb)])
        return (0 if ga is None else ga * 2) + (0 if gb is None else gb * 3)

    return of(forward, backward)


def test_G8_marked_results_require_no_grad_and_get_zeros():
    seen, x = [], leaf()
    a, b = pair(seen, plain=True).apply(x)
    assert a.requires_grad
    assert not b.requires_grad
    assert tg.grad((a * b).sum(), x)[0].tolist() == [6.0, 12.0]
    assert seen == [[[3.0, 6.0], [0.0, 0.0]]]


@pytest.mark.parametrize("result", [np.argmax, lambda x: x > 1, lambda x: x.astype(int)])
def test_G8_results_without_a_derivative_are_known_by_their_dtype(result):
    def forward(ctx, x):
        i = result(x)
        ctx.save_for_backward(i)
        ctx.i = i
        return x * 2, i

    def backward(ctx, g, gi):
        assert gi.dtype == ctx.i.dtype
        assert not gi.any()
        assert ctx.saved_tensors[0].tolist() == ctx.i.tolist()
        return g * 2

    x = leaf()
    y, i = of(forward, backward).apply(x)
    assert not i.requires_grad
    assert tg.grad(y.sum(), x)[0].tolist() == [2.0, 2.0]


def test_G8_all_results_marked():
    def forward(ctx, x):
        y = x * 2
        ctx.mark_non_differentiable(y)
        return y

    y = of(forward, lambda ctx, g: g).apply(leaf())
    assert not y.requires_grad
    assert y.is_leaf


def test_G9_missing_gradients():
    for materialize, missing in ((True, [0.0, 0.0]), (False, None)):
        seen, x = [], leaf()
        _, b = pair(seen, materialize=materialize).apply(x)
        assert tg.grad(b.sum(), x)[0].tolist() == [3.0, 3.0]
        assert seen == [[missing, [1.0, 1.0]]]


def test_G9_results_on_several_tapes_come_together():
    seen, x = [], leaf()
    a, b = pair(seen).apply(x)
    for _ in range(20):
        a = a * 1.0
    assert tg.grad((a + b).sum(), x)[0].tolist() == [5.0, 5.0]
    assert len(seen) == 1


def test_G9_a_sweep_that_failed_leaves_no_gradient_behind():
    seen, x = [], leaf()
    a, b = pair(seen).apply(x)
    c = b * 1
    c.register_hook(lambda g: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        tg.grad((a * 1 + c).sum(), x, retain_graph=True)
    assert tg.grad(a.sum(), x, retain_graph=True)[0].tolist() == [2.0, 2.0]
    assert seen[-1] == [[1.0, 1.0], [0.0, 0.0]]


# ---------------------------------------------------------------- G-10, G-11: arguments and results


def test_G10_an_input_returned_is_another_tensor():
    x = leaf()
    y = of(lambda ctx, x: x, lambda ctx, g: g * 7).apply(x)
    assert y is not x
    assert y.grad_fn.name() == "EBackward"
    assert tg.grad(y.sum(), x)[0].tolist() == [7.0, 7.0]
    y.mul_(100)
    assert x.tolist() == [1.0, 2.0]


@pytest.mark.parametrize("mode", [tg.no_grad, tg.inference_mode])
def test_G10_nothing_has_a_history_under_no_grad(mode):
    """Neither an argument that is returned, nor what forward has recorded itself."""

    def recorded(ctx, x):
        with tg.enable_grad():
            return x * 2, x, 5

    x = leaf()
    for given in (x, x * 1.0):
        with mode():
            y = of(lambda ctx, x: x, lambda ctx, g: g * 7).apply(given)
            found = of(recorded, lambda ctx, *gs: gs[0] * 7).apply(given)
        assert not any(z.requires_grad for z in (y, *found[:2]))
        assert given.requires_grad
        assert y.tolist() == [1.0, 2.0]
        assert found[2] == 5


def test_G10_others_pass_through():
    thing = object()
    forward = lambda ctx, x: (x * 2, 5, True, thing, None, "a", [1, "b"], x.shape)
    y, *others = of(forward, lambda ctx, g, *_: g * 2).apply(leaf())
    assert y.requires_grad
    assert others == [5, True, thing, None, "a", [1, "b"], (2,)]
    assert of(lambda ctx, x: 5, lambda ctx, g: g).apply(leaf()) == 5


def test_G10_the_same_tensor_twice():
    def forward(ctx, x):
        y = x * 2
        return y, y

    x = leaf()
    a, b = of(forward, lambda ctx, ga, gb: 2 * ga + 20 * gb).apply(x)
    assert tg.grad(a.sum() + 10 * b.sum(), x)[0].tolist() == [202.0, 202.0]


def test_G10_arrays_are_results_too():
    E = of(lambda ctx, x: np.sin(x.numpy()), lambda ctx, g: g * 7)
    x = leaf()
    y = E.apply(x)
    assert isinstance(y, tg.Tensor)
    assert tg.grad(y.sum(), x)[0].tolist() == [7.0, 7.0]
    with tg.no_grad():
        assert isinstance(E.apply(x), tg.Tensor)


NUMBERS = {
    "float": float, "float64": np.float64, "0-d array": np.array, "float32": np.float32, "complex": complex,
}  # fmt: skip


@pytest.mark.parametrize("kind", NUMBERS)
def test_a_number_is_a_result_with_the_derivative_of_backward(kind):
    E = of(lambda ctx, x: NUMBERS[kind](x.sum().item()), lambda ctx, g: g.real * np.ones(2) * 7)
    x = leaf()
    y = E.apply(x)
    assert (y.shape, y.item()) == ((), 3.0)
    assert tg.grad(y.real, x)[0].tolist() == [7.0, 7.0]
    with tg.no_grad():
        assert isinstance(E.apply(x), tg.Tensor)


def test_numbers_among_the_results():
    pair = collections.namedtuple("pair", "tensor number")

    def forward(ctx, x):
        return pair(x * 2, x.sum().item())

    def with_context(x):
        return forward(None, x)

    def backward(ctx, g, h):
        return 2 * g + 10 * h

    seen = []
    split = {"setup_context": lambda ctx, inputs, output: seen.append([type(y) for y in output])}
    for E in (of(forward, backward), of(with_context, backward, **split)):
        x = leaf()
        a, b = E.apply(x)
        assert tg.grad(b * 3.0, x, retain_graph=True)[0].tolist() == [30.0, 30.0]
        assert tg.grad(a.sum() + b, x)[0].tolist() == [12.0, 12.0]
    assert seen == [[tg.Tensor, tg.Tensor]]


def test_a_number_of_the_older_kind_of_function():
    class Total(Function):
        def forward(self, x):
            return x.sum().item()

        def backward(self, g):
            return g * np.ones(2) * 7

    x = leaf()
    assert tg.grad(Total()(x), x)[0].tolist() == [7.0, 7.0]


LOST = {
    "list": lambda x: [x * 2], "dict": lambda x: {"y": x * 2}, "list of numbers": lambda x: [x.sum().item()],
    "nested": lambda x: (x * 2, (x.numpy() * 3,)), "set": lambda x: {x.sum().item()},
    "fraction": lambda x: (x * 2, fractions.Fraction(x.sum().item())),
}  # fmt: skip


@pytest.mark.parametrize("kind", LOST)
def test_results_that_would_lose_their_derivative_are_refused(kind):
    E = of(lambda ctx, x: LOST[kind](x), lambda ctx, *g: g[0] * 2)
    with pytest.raises(GradientError, match=r"E\.forward returned a (\w+) as result \d.*return"):
        E.apply(leaf())
    E.apply(tg.tensor([1.0, 2.0]))  # has none to lose
    with tg.no_grad():
        E.apply(leaf())
    with tg.autograd.forward_ad.dual_level():
        moving = tg.autograd.forward_ad.make_dual(tg.tensor([1.0, 2.0]), tg.tensor([1.0, 0.0]))
        with pytest.raises(GradientError, match=r"E\.forward returned"):
            E.apply(moving)


@pytest.mark.parametrize(
    ("result", "message"),
    [
        (lambda x: np.ma.masked_array(x.numpy(), [True, False]), "MaskedArray"),
        (lambda x: np.array([x[0], None]), "object"),
        (lambda x: x.numpy().astype(np.float16), "float16"),
        (lambda x: (x * 2, x.numpy().astype(np.float16)), "float16"),
    ],
)
def test_arrays_that_cannot_have_a_derivative_are_refused(result, message):
    E = of(lambda ctx, x: result(x), lambda ctx, *g: g[0] * 2)
    with pytest.raises(DTypeError, match=message):
        E.apply(leaf())


def test_an_array_of_the_other_byte_order_is_a_result():
    E = of(lambda ctx, x: x.numpy().astype(">f8"), lambda ctx, g: (g * 7).numpy().astype(">f8"))
    x = leaf()
    y = E.apply(x) * 1.0
    assert y.dtype == float
    assert tg.grad(y.sum(), x)[0].tolist() == [7.0, 7.0]


def test_only_tensors_are_marked():
    def forward(ctx, x):
        y = x.numpy() * 2
        ctx.mark_non_differentiable(y)
        return y

    with pytest.raises(TypeError, match=r"mark_non_differentiable takes Tensors, found ndarray at 0"):
        of(forward, lambda ctx, g: g).apply(leaf())


class Power(Function):
    @staticmethod
    def forward(x, p=2, *, k=1.0):
        return k * x**p

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.p = inputs
        ctx.save_for_backward(x, output)

    @staticmethod
    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * ctx.p * y / x, None


def test_G11_setup_context_and_keywords():
    x = leaf()
    for y, expected in (
        (Power.apply(x), [2.0, 4.0]),
        (Power.apply(x, 3), [3.0, 12.0]),
        (Power.apply(p=3, x=x), [3.0, 12.0]),
        (Power.apply(x, k=5.0), [10.0, 20.0]),
    ):
        (g,) = tg.grad(y.sum(), x)
        np.testing.assert_allclose(g.tolist(), expected)
    (g,) = tg.grad(Power.apply(x, 3).sum(), x, create_graph=True)
    np.testing.assert_allclose(tg.grad(g.sum(), x)[0].tolist(), [6.0, 12.0])


def test_G11_a_tensor_by_keyword_only_would_not_be_tracked():
    E = of(lambda ctx, x, *, w: x * w, lambda ctx, g: g)
    with pytest.raises(GradientError, match="w by keyword only"):
        E.apply(leaf(), w=leaf())
    assert E.apply(leaf(), w=tg.ones(2)).requires_grad


def test_G15_mark_shared_storage_warns():
    def forward(ctx, x):
        y = x[:1]
        with pytest.warns(FutureWarning, match="not needed"):
            ctx.mark_shared_storage((x, y))
        return y

    assert of(forward, lambda ctx, g: g).apply(leaf()).tolist() == [1.0]


@pytest.mark.parametrize("function", [Cube.apply, lambda x: Power.apply(x, 3)])
def test_G16_any_order(function):
    x, found = leaf(2.0), []
    y = function(x)
    for _ in range(3):
        (y,) = tg.grad(y, x, create_graph=True)
        found.append(y.item())
    np.testing.assert_allclose(found, [12.0, 12.0, 6.0])


def test_A14_by_the_gradient():
    x, v = leaf(), leaf((1.0, 1.0))
    (g,) = tg.grad(Cube.apply(x), x, v, create_graph=True)
    assert tg.grad(g.sum(), v)[0].tolist() == [3.0, 12.0]


def test_G16_gradcheck():
    x = leaf()
    assert tg.gradcheck(Cube.apply, (x,))
    assert tg.gradgradcheck(Cube.apply, (x,))


# ---------------------------------------------------------------- F-14, modes


def test_F14_backward_within_backward():
    def forward(ctx, x):
        with tg.enable_grad():
            ctx.x = x.detach().requires_grad_()
            ctx.y = (ctx.x**3).sum()
        return ctx.y.detach()

    def backward(ctx, g):
        ctx.y.backward()
        return ctx.x.grad * g

    x = leaf()
    assert tg.grad(of(forward, backward).apply(x) * 2, x)[0].tolist() == [6.0, 24.0]


def test_F14_to_a_depth():
    def forward(ctx, x, depth):
        ctx.save_for_backward(x)
        ctx.depth = depth
        return x * 1

    def backward(ctx, g):
        if ctx.depth:
            with tg.enable_grad():
                inner = ctx.saved_tensors[0].detach().requires_grad_()
                E.apply(inner, ctx.depth - 1).sum().backward()
            g = g + inner.grad
        return g, None

    E = of(forward, backward)
    x = leaf()
    assert tg.grad(E.apply(x, 40).sum(), x)[0].tolist() == [41.0, 41.0]


def test_F14_gradient_of_a_saved_result_on_the_way():
    """The inner sweep ends on a tape that the outer one is at work on."""

    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with tg.enable_grad():
            y = (x**3).sum()
        return tg.grad(y, x, create_graph=tg.is_grad_enabled())[0] * g

    E = of(Cube.forward, backward)
    x = leaf()
    (g,) = tg.grad(E.apply(x * 1).sum(), x, create_graph=True)
    assert g.tolist() == [3.0, 12.0]
    assert tg.grad(g.sum(), x)[0].tolist() == [6.0, 12.0]
    assert tg.grad(E.apply(x * 1).sum(), x)[0].tolist() == [3.0, 12.0]


def test_F9_modes():
    seen = []

    def forward(ctx, x):
        seen.append(tg.is_grad_enabled())
        return x * 1

    def backward(ctx, g):
        seen.append(tg.is_grad_enabled())
        return g

    x = leaf()
    tg.grad(of(forward, backward).apply(x).sum(), x)
    tg.grad(of(forward, backward).apply(x).sum(), x, create_graph=True)
    with tg.no_grad():
        assert not of(forward, backward).apply(x).requires_grad
    assert seen == [False, False, False, True, False]
    assert tg.is_grad_enabled()


def test_G14_once_differentiable_sees_no_history():
    seen = []

    @once_differentiable
    def backward(ctx, g):
        seen.append((tg.is_grad_enabled(), g.requires_grad))
        return g

    x, v = leaf(), leaf()
    tg.grad(of(lambda ctx, x: x * 1, backward).apply(x), x, v, create_graph=True)
    assert seen[0][0] is False


# ---------------------------------------------------------------- H-6, H-7: the older kinds


class Scale(Function):
    def __init__(self, k):
        self.k = k

    def forward(self, x):
        assert not x.requires_grad
        self.save_for_backward(x)
        return x * self.k

    def backward(self, g):
        assert not tg.is_grad_enabled()
        assert not self.saved_tensors[0].requires_grad
        assert self.needs_input_grad == (True,)
        return g * self.k


def test_H6_an_instance_is_called_once():
    x, f = leaf(), Scale(5.0)
    y = f(x)
    assert y.grad_fn.name() == "Scale"
    assert tg.grad(y.sum(), x)[0].tolist() == [5.0, 5.0]
    with pytest.raises(GradientError, match="once"):
        f(x)
    with pytest.raises(GradientError, match=r"call Scale\(\.\.\.\)\(\.\.\.\)"):
        Scale.apply(x)


def test_H6_no_deprecation():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Scale(1.0)(leaf())


def test_H6_only_inputs_and_results_are_saved():
    class Wrong(Function):
        def forward(self, x):
            self.save_for_backward(x * 2)
            return x * 1

    with pytest.raises(GradientError, match="inputs and results only"):
        Wrong()(leaf())

    class Right(Function):
        def forward(self, x):
            y = np.exp(x)
            self.save_for_backward(x, y, None)
            return y

        def backward(self, g):
            x, y, none = self.saved_tensors
            assert none is None
            return g * y + 0 * x

    x = leaf()
    np.testing.assert_allclose(tg.grad(Right()(x).sum(), x)[0].tolist(), np.exp([1.0, 2.0]))


def test_H6_non_differentiable_results_get_none():
    seen = []

    class Both(Function):
        def forward(self, x):
            y = x * 2
            self.mark_non_differentiable(y)
            return x * 1, y

        def backward(self, g, gy):
            seen.append(gy)
            return g

    x = leaf()
    a, b = Both()(x)
    assert not b.requires_grad
    tg.grad(a.sum(), x)
    assert seen == [None]


def test_H6_previous_functions():
    x = leaf()
    first, second = Scale(2.0), Scale(3.0)
    assert first.previous_functions == ()
    y = second(first(x) * 1.0)
    ((node, index),) = second.previous_functions
    assert (node.name(), index) == ("MulBackward", 0)
    ((node, index),) = first.previous_functions
    assert node.variable is x
    assert y.grad_fn.next_functions == second.previous_functions


@pytest.mark.parametrize("inplace", [False, True])
def test_H6_inplace_function(inplace):
    class Double(InplaceFunction):
        def forward(self, x):
            if self.inplace:
                self.mark_dirty(x)
                return x.mul_(2)
            return x * 2

        def backward(self, g):
            return g * 2

    assert not Double().inplace
    x = leaf()
    a = x * 1
    y = Double(inplace)(a)
    assert (y is a) is inplace
    assert a.tolist() == ([2.0, 4.0] if inplace else [1.0, 2.0])
    assert tg.grad((y * y).sum(), x)[0].tolist() == [8.0, 16.0]


class Mixed(NestedIOFunction):
    """a, [b, (c, None)] -> [a * b, (c * a, None)], b * 1."""

    def forward_extended(self, a, rest):
        b, (c, none) = rest
        assert none is None
        self.save_for_backward([a, (b, None)], c)
        return [a * b, (c * a, None)], b * 1

    def backward_extended(self, grads, last):
        (a, (b, none)), c = self.saved_tensors
        assert none is None
        first, (second, nothing) = grads
        assert nothing is None
        return first * b + second * c, [first * a + last, (second * a, None)]


def test_H7_nested_arguments_and_results():
    a, b, c = leaf(), leaf((3.0, 4.0)), leaf((5.0, 6.0))
    (ab, (ca, none)), same = Mixed()(a, [b, (c, None)])
    assert none is None
    assert ab.tolist() == [3.0, 8.0]
    assert ca.tolist() == [5.0, 12.0]
    loss = (ab + 10 * ca + 100 * same).sum()
    found = [g.tolist() for g in tg.grad(loss, [a, b, c])]
    assert found == [[53.0, 64.0], [101.0, 102.0], [10.0, 20.0]]


def test_H7_one_result_and_none_for_a_list():
    class First(NestedIOFunction):
        def forward_extended(self, pair, other):
            return pair[0] * 2

        def backward_extended(self, g):
            return [g * 2, None], None

    a, b, c = leaf(), leaf(), leaf()
    y = First()([a, b], (c, [c]))
    found = tg.grad(y.sum(), [a, b, c], allow_unused=True)
    assert found[0].tolist() == [2.0, 2.0]
    assert found[1:] == (None, None)


def test_H7_other_objects():
    with pytest.raises(ValueError, match="found float"):
        Mixed()(leaf(), [leaf(), (5.0, None)])

    class Wrong(NestedIOFunction):
        def forward_extended(self, x):
            return [x * 1, "text"]

    with pytest.raises(ValueError, match="found str"):
        Wrong()(leaf())

    class Missing(NestedIOFunction):
        pass

    with pytest.raises(NotImplementedError, match="forward_extended"):
        Missing()(leaf())


def test_H7_gradients_nested_otherwise():
    class Wrong(NestedIOFunction):
        def forward_extended(self, pair):
            return pair[0] * pair[1]

        def backward_extended(self, g):
            return [g]

    y = Wrong()([leaf(), leaf()])
    with pytest.raises(GradientError, match="1 gradients for 2"):
        y.sum().backward()


def test_H7_dirty_and_non_differentiable_are_flattened():
    class Both(NestedIOFunction):
        def forward_extended(self, pair):
            pair[0].mul_(2)
            flags = [pair[1] * 3, (pair[1] * 4,)]
            self.mark_dirty([pair[0]])
            self.mark_non_differentiable(flags[0], more=flags[1])
            return pair[0], flags

        def backward_extended(self, g, flags):
            assert flags == [None, (None,)]
            return ([g * 2, None],)

    x, z = leaf(), leaf()
    a = x * 1
    y, (first, (second,)) = Both()([a, z])
    assert y is a
    assert not first.requires_grad
    assert not second.requires_grad
    assert tg.grad(y.sum(), x)[0].tolist() == [2.0, 2.0]


# ---------------------------------------------------------------- errors and threads


class Expected(Exception):
    pass


@pytest.mark.parametrize("where", ["forward", "setup_context", "backward", "second backward"])
def test_an_exception_leaves_everything_usable(where):
    fail = []

    class E(Function):
        @staticmethod
        def forward(x):
            if "forward" in fail:
                raise Expected
            return x**3

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(*inputs)
            if "setup_context" in fail:
                raise Expected

        @staticmethod
        def backward(ctx, g):
            if "backward" in fail or ("second backward" in fail and tg.is_grad_enabled()):
                raise Expected
            return 3 * ctx.saved_tensors[0] ** 2 * g

    x = leaf()
    kept = (E.apply(x * 1) * x).sum()
    fail.append(where)
    with pytest.raises(Expected):
        tg.grad((E.apply(x) * x).sum(), x, create_graph=where == "second backward")
    if where == "backward":
        with pytest.raises(Expected):
            kept.backward(retain_graph=True)
        assert x.grad is None
    fail.clear()
    assert tg.is_grad_enabled()
    assert (x * 2).requires_grad
    for _ in range(2):
        assert tg.grad(kept, x, retain_graph=True)[0].tolist() == [4.0, 32.0]
    kept.backward()
    assert x.grad.tolist() == [4.0, 32.0]


def test_many_threads_differentiate_through_functions():
    wrong = []

    def work(k):
        x = leaf((1.0 + k, 2.0))
        for _ in range(30):
            (g,) = tg.grad(Cube.apply(x).sum(), x, create_graph=True)
            (h,) = tg.grad(g.sum(), x)
            if h.tolist() != [6.0 * (1 + k), 12.0]:
                wrong.append(h)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong


def test_a_graph_may_be_swept_by_another_thread():
    x, found = leaf(), []
    y = Cube.apply(Cube.apply(x)).sum()
    thread = threading.Thread(target=lambda: found.append(tg.grad(y, x)[0].tolist()))
    thread.start()
    thread.join()
    assert found == [[9.0, 9 * 2.0**8]]


# ---------------------------------------------------------------- among other operations, in one sweep


def mixed(which, x, w):
    class Scaled(tg.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            out = a * b
            ctx.save_for_backward(a, b, out)
            return out

        @staticmethod
        def backward(ctx, g):
            a, b, out = ctx.saved_tensors
            return g * b + 0 * out, g * a

    class Pair(tg.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            return a * 2, a * 3

        @staticmethod
        def backward(ctx, g, h):
            return 2 * g + 3 * h

    class Second(tg.autograd.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(b)
            return a * 0 + b**2

        @staticmethod
        def backward(ctx, g):
            (b,) = ctx.saved_tensors
            return None, 2 * b * g

    if which == 0:
        return np.sin(Scaled.apply(np.exp(x), w)) * x
    if which == 1:
        return Scaled.apply(Scaled.apply(x, w), Scaled.apply(w, w)) + x * w
    if which == 2:
        return Second.apply(np.tanh(x), w) + x
    if which == 3:
        first, second = Pair.apply(x * w)
        return Scaled.apply(first, second) * w
    return Scaled.apply(np.linalg.norm(x) * w, np.sort(x * w)) + np.cumsum(x)


@pytest.mark.parametrize("which", range(5))
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("shape", [(), (3,), (40, 30)])
def test_calls_among_other_operations_take_part_in_every_kind_of_sweep(which, dtype, shape):
    if which == 4 and len(shape) != 1:
        shape = (5,)
    rng = np.random.default_rng(which)
    x, w = (tg.tensor(rng.uniform(0.5, 1.5, shape).astype(dtype), requires_grad=True) for _ in "xw")

    def total():
        return np.sum(mixed(which, x, w))

    quick = tg.grad(total(), (x, w))
    whole = tg.grad(total(), (x, w), materialize_grads=True)
    y = total()
    y.backward(retain_graph=True)
    y.backward()
    for a, b, leaf in zip(quick, whole, (x, w), strict=True):
        assert a.dtype == b.dtype == dtype
        np.testing.assert_array_equal(a.numpy(), b.numpy())
        np.testing.assert_array_equal(leaf.grad.numpy(), (b + b).numpy())
    with pytest.raises(GraphFreedError):
        y.backward()


def test_an_exception_in_backward_leaves_the_graph_usable():
    left = [1]

    class Failing(tg.autograd.Function):
        @staticmethod
        def forward(ctx, a):
            ctx.save_for_backward(a)
            return a * a

        @staticmethod
        def backward(ctx, g):
            if left:
                left.pop()
                raise KeyError("mine")
            (a,) = ctx.saved_tensors
            with tg.enable_grad():
                b = tg.tensor(5.0, requires_grad=True)
                (inner,) = tg.grad(b * b, b)
            assert inner.item() == 10.0
            return 2 * a * g

    x = tg.tensor(3.0, requires_grad=True)
    y = Failing.apply(x * 1.0)
    with pytest.raises(KeyError, match="mine"):
        tg.grad(y, x)
    assert tg.grad(y, x)[0].item() == 6.0


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize("by", ["the array given out", "the leaf"])
@pytest.mark.parametrize("guard", ["checksum", "copy"])
@pytest.mark.parametrize("n", [3, COPIED // 8, COPIED // 8 + 1])
def test_what_was_saved_is_as_it_was_where_others_write_to_it(n, guard, by, create):
    x = tg.tensor(np.linspace(1.0, 2.0, n), requires_grad=True)
    given_out = x.detach().numpy()
    expected = 3 * given_out**2
    with tg.guard(guard):
        y = np.sum(Cube.apply(x))
    if by == "the leaf":
        with tg.no_grad():
            x *= 3.0
    else:
        given_out *= 3.0
    if n * 8 > COPIED and guard == "checksum":
        with pytest.raises(MutationError, match="after CubeBackward had used it"):
            tg.grad(y, x, create_graph=create)
    else:
        assert tg.grad(y, x, create_graph=create)[0].tolist() == expected.tolist()


@pytest.mark.parametrize("n", [3, COPIED // 8, COPIED // 8 + 1])
def test_what_was_saved_besides_operands_is_as_it_was(n):
    class Scaled(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(w)
            return x * w

        @staticmethod
        def backward(ctx, g):
            (w,) = ctx.saved_tensors
            return w * g

    memory = np.linspace(1.0, 2.0, n)
    w, x, expected = tg.from_numpy(memory), tg.tensor(np.ones(n), requires_grad=True), memory.tolist()
    y = np.sum(Scaled.apply(x))
    memory *= 3.0
    if n * 8 > COPIED:
        with pytest.raises(MutationError, match="after ScaledBackward had saved it"):
            tg.grad(y, x)
    else:
        assert tg.grad(y, x)[0].tolist() == expected


def test_what_a_checkpoint_is_given_is_as_it_was_where_others_write_to_it():
    x = leaf()
    given_out = x.detach().numpy()
    y = tg.autograd.checkpoint(lambda x: np.sum(x * x * x), x)
    given_out *= 3.0
    assert tg.grad(y, x)[0].tolist() == [3.0, 12.0]
