"""Functions of plain values with a rule for one mode: the other mode, every order, trees, what is refused."""

import dataclasses
import gc
import math
import weakref

import numpy as np
import pytest
from scipy.integrate import solve_ivp

import tapegrad as tg
from tapegrad.autograd import forward_ad as fw
from tapegrad.autograd.functional import hessian, jacobian
from tapegrad.errors import BorderError, GradientError, MutationError
from tapegrad.func import custom_jvp, custom_vjp
from tapegrad.tape.tape import close, current
from tests.func.modes import every


@custom_vjp
def by_vjp(x, p):
    return {"s": np.sin(x) * p["a"], "n": x.size}


@by_vjp.def_vjp
def _(out, args, ct):
    x, p = args
    assert out["n"] == x.size and ct["n"] is None
    return ct["s"] * np.cos(x) * p["a"], {"a": np.sum(ct["s"] * np.sin(x)), "name": None}


@custom_jvp
def by_jvp(x, p):
    return {"s": np.sin(x) * p["a"], "n": x.size}


@by_jvp.def_jvp
def _(out, args, tangents):
    (x, p), (dx, dp) = args, tangents
    assert dp["name"] is None
    return {"s": dx * np.cos(x) * p["a"] + dp["a"] * np.sin(x), "n": None}


def plain(x, p):
    return {"s": np.sin(x) * p["a"], "n": x.size}


CUSTOM = pytest.mark.parametrize("custom", [by_vjp, by_jvp], ids=["vjp", "jvp"])


def of(f):
    return lambda x, a: f(x, {"a": a, "name": "a text"})["s"] ** 2


def leaves():
    return tg.tensor([0.3, 0.7, 1.1], requires_grad=True), tg.tensor(2.0, requires_grad=True)


@CUSTOM
@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
@pytest.mark.parametrize("vectorize", [False, True])
def test_a_rule_for_one_mode_gives_both(custom, strategy, vectorize):
    for found, exact in zip(
        jacobian(of(custom), leaves(), strategy=strategy, vectorize=vectorize),
        jacobian(of(plain), leaves()),
        strict=True,
    ):
        np.testing.assert_allclose(found, exact, rtol=1e-14)


@CUSTOM
@pytest.mark.parametrize("strategy", ["reverse-mode", "forward-mode"])
def test_hessians(custom, strategy):
    def total(f):
        return lambda *args: np.sum(of(f)(*args))

    found = hessian(total(custom), leaves(), outer_jacobian_strategy=strategy)
    for row, exact in zip(found, hessian(total(plain), leaves()), strict=True):
        for a, b in zip(row, exact, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-13)


@CUSTOM
@pytest.mark.parametrize("order", [1, 2, 3])
def test_every_order_of_modes(custom, order):
    x, a = leaves()

    def derivative(f):
        return every(lambda x: np.sum(of(f)(x, a.detach())), order)

    for (modes, found), (_, exact) in zip(derivative(custom), derivative(plain), strict=True):
        np.testing.assert_allclose(found(x).detach(), exact(x).detach(), rtol=1e-12, err_msg=modes)


@CUSTOM
def test_gradcheck(custom):
    assert tg.gradcheck(of(custom), leaves(), check_forward_ad=True, order=2)
    assert tg.gradgradcheck(of(custom), leaves(), check_fwd_over_rev=True)


@CUSTOM
def test_plain_arguments_give_what_the_function_returns(custom):
    found = custom(np.ones(2), {"a": 2.0, "name": None})
    assert type(found["s"]) is np.ndarray and found["n"] == 2
    with tg.no_grad():
        found = custom(leaves()[0], {"a": 2.0, "name": None})
    assert isinstance(found["s"], tg.Tensor) and not found["s"].requires_grad


def test_an_ordinary_differential_equation():
    """x' = a x (1 - x) solved by SciPy; the rule is of its end, so that its derivatives have every order."""
    T = 1.5

    @custom_jvp
    def end(x, a):
        solution = solve_ivp(lambda t, x: a * x * (1 - x), (0, T), [x], rtol=1e-11, atol=1e-13)
        return solution.y[0, -1]

    @end.def_jvp
    def _(out, args, tangents):
        (x, _), (dx, da) = args, tangents
        return out * (1 - out) * (dx / (x * (1 - x)) + T * da)

    def exact(x, a):
        return 1 / (1 + (1 / x - 1) * np.exp(-a * T))

    x, a = tg.tensor(0.2, requires_grad=True), tg.tensor(0.8, requires_grad=True)
    for order in (1, 2):
        for (modes, found), (_, wanted) in zip(
            every(lambda x: end(x, a * x), order), every(lambda x: exact(x, a * x), order), strict=True
        ):
            assert found(x).item() == pytest.approx(wanted(x).item(), rel=1e-9), modes


# ---------------------------------------------------------------- arguments and results


@dataclasses.dataclass
class Model:
    weights: list
    bias: object


@CUSTOM
def test_trees_of_containers(custom):
    kind = type(custom)

    @kind
    def f(model, scale=3.0):
        return [model.weights[0] * scale, (model.bias * 1.0, 2, "text")]

    def pulled(out, args, ct):
        return Model([ct[0] * args[1], None], ct[1][0]), None

    def pushed(out, args, tangents):
        model, (moved, _) = args[0], tangents
        assert model.weights[1] == 7 and moved.weights[1] is None
        return [moved.weights[0] * args[1], (moved.bias, None, None)]

    f.def_vjp(pulled) if kind is custom_vjp else f.def_jvp(pushed)
    w, b = tg.tensor([1.0, 2.0], requires_grad=True), tg.tensor(5.0, requires_grad=True)
    for out in (f(Model([w, 7], b)), f(model=Model([w, 7], b)), f(Model([w, 7], b), 3.0)):
        first, (second, whole, text) = out
        assert (whole, text) == (2, "text")
        assert [g.tolist() for g in tg.grad(np.sum(first) * second, [w, b])] == [[15.0, 15.0], 9.0]


def test_none_stands_for_a_branch():
    @custom_vjp
    def f(x, tree):
        return x * 2.0

    f.def_vjp(lambda out, args, ct: (ct * 2.0, None))
    x, y = tg.tensor(1.0, requires_grad=True), tg.tensor(1.0, requires_grad=True)
    assert tg.grad(f(x, {"a": [y, y], "b": y}), [x, y], allow_unused=True) == (tg.tensor(2.0), None)


def test_one_argument_needs_no_tuple_but_one_that_is_a_tuple_does():
    @custom_vjp
    def f(pair):
        return pair[0] * pair[1]

    x, y = tg.tensor(2.0, requires_grad=True), tg.tensor(3.0, requires_grad=True)
    f.def_vjp(lambda out, args, ct: ((ct * args[0][1], ct * args[0][0]),))
    assert [g.item() for g in tg.grad(f((x, y)), [x, y])] == [3.0, 2.0]
    f.def_vjp(lambda out, args, ct: (ct * args[0][1], ct * args[0][0]))
    with pytest.raises(GradientError, match="2 cotangents for 1 arguments"):
        tg.grad(f((x, y)), x)


def test_a_method():
    class Layer:
        def __init__(self, k):
            self.k = k

        @custom_vjp
        def apply(self, x):
            return x * self.k

        @apply.def_vjp
        def _(out, args, ct):
            return None, ct * args[0].k

    x = tg.tensor(2.0, requires_grad=True)
    assert tg.grad(Layer(5.0).apply(x), x)[0].item() == 5.0


def test_it_looks_like_the_function():
    assert by_vjp.__name__ == "by_vjp" and by_vjp.__wrapped__(np.zeros(1), {"a": 1.0})["n"] == 1
    x, a = leaves()
    assert repr(of(by_vjp)(x, a).grad_fn.next_functions[0][0]) == "<by_vjpBackward>"


def test_the_function_may_write_to_what_it_gets():
    @custom_vjp
    def f(x):
        assert type(x) is np.ndarray
        x *= 3.0
        return x

    f.def_vjp(lambda out, args, ct: ct * args[0])
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    y = f(x)
    assert (x.tolist(), y.tolist()) == ([1.0, 2.0], [3.0, 6.0])
    assert tg.grad(np.sum(y), x)[0].tolist() == [1.0, 2.0]


@CUSTOM
def test_single_precision_stays(custom):
    x, a = (tg.tensor(v.detach(), dtype=np.float32, requires_grad=True) for v in leaves())
    y = of(custom)(x, a)
    assert [g.dtype for g in (y, *tg.grad(np.sum(y), [x, a]))] == [np.float32] * 3
    with fw.dual_level():
        assert fw.unpack_dual(of(custom)(fw.make_dual(x, x), a)).tangent.dtype == np.float32


@pytest.mark.parametrize("kind", [custom_vjp, custom_jvp])
def test_complex_numbers(kind):
    """A holomorphic function times a conjugate: cotangents are of the real and imaginary part."""

    @kind
    def f(z):
        return z * z * z.conj()

    if kind is custom_vjp:
        f.def_vjp(lambda out, args, ct: ct * 2 * args[0] * args[0].conj() + ct.conj() * args[0] ** 2)
    else:

        @f.def_jvp
        def _(out, args, tangents):
            (z,), (dz,) = args, tangents
            return 2 * z * dz * np.conj(z) + z * z * np.conj(dz)

    def total(f):
        return lambda z: np.sum(f(z).real * 3 + f(z).imag)

    z = tg.tensor([1 + 2j, 0.5 - 1j], requires_grad=True)
    exact = total(lambda z: z * z * np.conj(z))
    np.testing.assert_allclose(tg.grad(total(f)(z), z)[0], tg.grad(exact(z), z)[0])
    direction = tg.tensor([0.3 - 1j, 2j])
    with fw.dual_level():
        d = fw.make_dual(z, direction)
        pair = [fw.unpack_dual(g(d)).tangent for g in (total(f), exact)]
        np.testing.assert_allclose(*(t.detach() for t in pair))
    pair = [tg.grad(total(g)(z), z, create_graph=True)[0] for g in (f, lambda z: z * z * np.conj(z))]
    np.testing.assert_allclose(*(tg.grad(np.sum(np.abs(g) ** 2), z)[0] for g in pair))


# ---------------------------------------------------------------- what is refused


def test_without_a_rule():
    for kind, name in ((custom_vjp, "def_vjp"), (custom_jvp, "def_jvp")):
        f = kind(lambda x: x)
        with pytest.raises(GradientError, match=name):
            f(1.0)
        with pytest.raises(TypeError, match="function"):
            kind(3.0)
        with pytest.raises(TypeError, match="function"):
            getattr(f, name)(3.0)


def outer_leaf():
    y = tg.tensor(3.0, requires_grad=True)
    return custom_vjp(lambda x: x * y), custom_vjp(lambda x: x * float(y))


@pytest.mark.parametrize("arg", [2.0, tg.tensor(2.0), tg.tensor(2.0, requires_grad=True)], ids=str)
def test_a_tensor_from_outside_is_refused(arg):
    returned, taken = outer_leaf()
    for f, error in ((returned, GradientError), (taken, BorderError)):
        f.def_vjp(lambda out, args, ct: ct)
        with pytest.raises(error, match="pass Tensors that it uses from outside as arguments"):
            f(arg)
    with tg.no_grad():
        found = returned(arg)
    assert float(found) == 6.0 and not (isinstance(found, tg.Tensor) and found.requires_grad)


def test_a_tensor_from_outside_with_a_tangent_is_refused():
    with fw.dual_level():
        y = fw.make_dual(tg.tensor(1.0), tg.tensor(1.0))
        f = custom_vjp(lambda x: x * y)
        f.def_vjp(lambda out, args, ct: ct)
        with tg.no_grad(), pytest.raises(GradientError, match="carries a tangent"):
            f(2.0)


def test_derivatives_inside_are_its_own_business():
    """Its Tensors are none from outside; grad mode is on there, whatever it is outside."""

    @custom_vjp
    def newton(a):
        x = tg.tensor(1.0, requires_grad=True)
        for _ in range(8):
            (slope,) = tg.grad(x * x - a, x)
            x = (x.detach() - (x.detach() ** 2 - a) / slope).requires_grad_()
        return x.item()

    newton.def_vjp(lambda out, args, ct: ct / (2 * out))
    a = tg.tensor(2.0, requires_grad=True)
    assert tg.grad(newton(a), a)[0].item() == pytest.approx(8**-0.5)
    with tg.no_grad():
        assert newton(a).item() == pytest.approx(2**0.5)


@pytest.mark.parametrize(
    "rule",
    [
        lambda out, args, ct: ct + ct.detach(),
        lambda out, args, ct: ct.detach(),
        lambda out, args, ct: ct * ct,
        lambda out, args, ct: tg.tensor([x.item() for x in ct]),
    ],
    ids=["in part", "whole", "not linear", "item"],
)
def test_a_rule_that_cannot_be_transposed_is_no_zero(rule):
    f = custom_vjp(lambda x: x * 2.0)
    f.def_vjp(rule)
    for x in (tg.ones(3), tg.ones(3, requires_grad=True)):
        with fw.dual_level(), pytest.raises(GradientError, match="transposed, but it is not linear"):
            f(fw.make_dual(x, tg.tensor([1.0, 2.0, 3.0])))
    g = custom_jvp(lambda x: x * 2.0)
    g.def_jvp(lambda out, args, tangents: rule(out, args, tangents[0]))
    x = tg.ones(3, requires_grad=True)
    with pytest.raises(GradientError, match="transposed, but it is not linear"):
        tg.grad(np.sum(g(x) * np.arange(1.0, 4.0)), x)


def test_zeros_are_linear():
    f = custom_vjp(lambda x, y: x * 2.0)
    f.def_vjp(lambda out, args, ct: (ct * 2.0, np.zeros(2)))
    with fw.dual_level():
        y = f(fw.make_dual(tg.ones(2), tg.ones(2)), fw.make_dual(tg.ones(2), tg.ones(2)))
        assert fw.unpack_dual(y).tangent.tolist() == [2.0, 2.0]
        y = f(tg.ones(2), fw.make_dual(tg.ones(2), tg.ones(2)))
        assert fw.unpack_dual(y).tangent.tolist() == [0.0, 0.0]


def test_a_rule_of_values_has_no_second_derivative():
    f = custom_vjp(lambda x: math.exp(x))
    f.def_vjp(lambda out, args, ct: ct * math.exp(args[0].item()))
    x = tg.tensor(1.0, requires_grad=True)
    (g,) = tg.grad(f(x), x, create_graph=True)
    assert g.item() == pytest.approx(math.e)
    with pytest.raises(GradientError, match="second derivative"):
        tg.grad(g, x)


def test_within_a_function_its_result_is_known_to_depend():
    """What forward computed by it and saved has no history: a second derivative through that is refused."""
    f = custom_vjp(lambda x: np.exp(x))
    f.def_vjp(lambda out, args, ct: ct * out)

    class Outer(tg.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(f(x))
            return f(x) * 1.0

        @staticmethod
        def backward(ctx, ct):
            return ct * ctx.saved_tensors[0]

    x = tg.tensor(0.0, requires_grad=True)
    (g,) = tg.grad(Outer.apply(x), x, create_graph=True)
    with pytest.raises(GradientError, match="second derivative"):
        tg.grad(g, x)


def test_within_a_function_tensors_from_outside_are_refused_too():
    """Nothing is recorded there, but what is computed from the inputs is looked after."""

    class Outer(tg.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            f = custom_vjp(lambda a: a * x)
            f.def_vjp(lambda out, args, ct: ct)
            ctx.save_for_backward(f(2.0))
            return x * 1.0

        @staticmethod
        def backward(ctx, ct):
            return ct * ctx.saved_tensors[0]

    with pytest.raises(GradientError, match="pass Tensors that it uses from outside"):
        Outer.apply(tg.tensor(3.0, requires_grad=True))


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda ct: (ct,), "1 cotangents for 2 arguments"),
        (lambda ct: (ct, ct), "one leaf, and dict of 2 leaves is wanted"),
        (lambda ct: (ct, {"a": ct}), "dict of 1 leaves, and dict of 2 leaves"),
        (lambda ct: (ct, {"a": ct, "b": [ct]}), "list of 1 leaves, and one leaf"),
        (lambda ct: (np.ones(7), None), "shape"),
    ],
)
def test_a_rule_that_returns_something_else(returned, message):
    f = custom_vjp(lambda x, p: x * 2.0)
    f.def_vjp(lambda out, args, ct: returned(ct))
    x = tg.ones(2, requires_grad=True)
    with pytest.raises((GradientError, ValueError), match=message):
        tg.grad(np.sum(f(x, {"a": x, "b": x})), x)


def test_what_the_rule_would_not_see_is_refused():
    for f in (custom_vjp(lambda x, *, scale=2.0: x * scale), custom_vjp(lambda x, **kw: x * kw["scale"])):
        f.def_vjp(lambda out, args, ct: ct)
        with pytest.raises(TypeError, match="takes scale by keyword only"):
            f(1.0, scale=3.0)
    f = custom_vjp(np.exp)
    f.def_vjp(lambda out, args, ct: ct * out)
    assert f(0.0) == 1.0 and tg.grad(f(x := tg.tensor(1.0, requires_grad=True)), x)[0].item() == np.e
    with pytest.raises(TypeError, match="by position"):
        f(0.0, where=True)
    with pytest.raises(TypeError, match="argument"):
        by_vjp(1.0)


def test_exceptions_pass_unchanged():
    class Mine(Exception):
        pass

    error = Mine("text")

    def fail(*args):
        raise error

    x = tg.tensor(1.0, requires_grad=True)
    f = custom_vjp(fail)
    f.def_vjp(fail)
    with pytest.raises(Mine) as caught:
        f(x)
    assert caught.value is error
    f = custom_vjp(lambda x: x * 2.0)
    f.def_vjp(fail)
    with pytest.raises(Mine) as caught:
        tg.grad(f(x), x)
    assert caught.value is error
    assert tg.grad(x * 2, x)[0].item() == 2.0


@CUSTOM
def test_nothing_outlives_the_results(custom):
    """Without a collection of cycles, as there are none."""
    x, a = leaves()
    gc.disable()
    try:
        y = of(custom)(x, a)
        kept = weakref.ref(y._tape)
        tg.grad(np.sum(y), [x, a], create_graph=True)
        close(current())
        assert kept() is not None
        del y
        assert kept() is None
    finally:
        gc.enable()


@pytest.mark.parametrize("n", [3, 5000], ids=["copied", "guarded"])
def test_an_array_that_is_written_to_later_gives_no_wrong_derivative(n):
    @custom_vjp
    def f(x, weights):
        return x * np.sum(weights)

    f.def_vjp(lambda out, args, ct: (ct * np.sum(args[1]), None))
    x, weights = tg.tensor(2.0, requires_grad=True), np.ones(n)
    for setting in ("checksum", "copy"):
        with tg.guard(setting):
            y = f(x, weights)
            weights *= 3.0
            if n > 3 and setting == "checksum":
                with pytest.raises(MutationError, match=rf"f was called with an array of shape \({n},\)"):
                    tg.grad(y, x)
            else:
                assert tg.grad(y, x)[0].item() == n * weights[0] / 3
    with tg.guard("off"):
        y = f(x, weights)
        assert tg.grad(y, x)[0].item() == n * weights[0]


def test_a_function_that_writes_to_an_array_it_is_given():
    """A derivative is at what it was called with; a large array is refused."""
    f = custom_vjp(lambda x, weights: [x * np.sum(weights), weights.fill(0.0)][0])
    f.def_vjp(lambda out, args, ct: (ct * np.sum(args[1]), None))
    x = tg.tensor(2.0, requires_grad=True)
    assert tg.grad(f(x, np.ones(3)), x)[0].item() == 3.0
    with pytest.raises(MutationError):
        tg.grad(f(x, np.ones(5000)), x)
