"""G-14: a second derivative through a Function is right or raises, whatever its backward is written from."""

import copy
import io
import pickle

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import Function, once_differentiable
from tapegrad.errors import GradientError

CLOSURE = {}


def leaf(data=(0.5, 1.5)):
    return tg.tensor(data, requires_grad=True)


def of(forward, backward):
    return type("E", (Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})


def square(keep, use):
    """x**2 by a Function whose forward keeps something of x, and whose backward makes 2x of it."""

    def forward(ctx, x):
        CLOSURE.clear()
        keep(ctx, x)
        return x * x

    def backward(ctx, g):
        return g * use(ctx)

    return of(forward, backward)


def gradient(E, x, root=False):
    """The first derivative of E(x).sum() + x**3, which must be right."""
    (g,) = tg.grad((E.apply(x) + x**3).sum(), x, create_graph=True)
    expected = 2 * x.detach().numpy() + 3 * x.detach().numpy() ** 2
    np.testing.assert_allclose(g.detach().numpy(), expected, rtol=1e-14)
    (plain,) = tg.grad((E.apply(x) + x**3).sum(), x)
    np.testing.assert_array_equal(plain.numpy(), g.detach().numpy())
    return g


def refuses(E, data=(0.5, 1.5), match=None):
    x = leaf(data)
    g = gradient(E, x)
    with pytest.raises(GradientError, match=match):
        tg.grad(g.sum(), x)
    with pytest.raises(GradientError, match=match):
        gradient(E, x).sum().backward()
    y = leaf(data)
    (g,) = tg.grad(E.apply(x * y).sum(), y, create_graph=True)  # through what x is, too
    with pytest.raises(GradientError, match=match):
        tg.grad(g.sum(), x)


def second(E, data=(0.5, 1.5)):
    x = leaf(data)
    (h,) = tg.grad(gradient(E, x).sum(), x)
    np.testing.assert_allclose(h.numpy(), 2 + 6 * np.array(data), rtol=1e-14)
    assert tg.gradcheck(E.apply, (x,))
    assert tg.gradgradcheck(E.apply, (x,))


def put(name):
    return lambda ctx, value: setattr(ctx, name, value)


def keep(compute):
    return lambda ctx, x: setattr(ctx, "kept", compute(x))


def kept(ctx):
    return ctx.kept


# ---------------------------------------------------------------- what is right


RIGHT = {
    "saved input": (lambda ctx, x: ctx.save_for_backward(x), lambda ctx: 2 * ctx.saved_tensors[0]),
    "input as an attribute": (keep(lambda x: x), lambda ctx: 2 * ctx.kept),
    "input in a container": (keep(lambda x: {"a": [x]}), lambda ctx: 2 * ctx.kept["a"][0]),
    "input in a closure": (lambda ctx, x: CLOSURE.update(x=x), lambda ctx: 2 * CLOSURE["x"]),
    "recorded in forward": (
        lambda ctx, x: setattr(ctx, "kept", tg.enable_grad(lambda: 2 * x)()),
        kept,
    ),
    "a mask": (
        lambda ctx, x: [ctx.save_for_backward(x), setattr(ctx, "kept", x > 0)],
        lambda ctx: np.where(ctx.kept, 2 * ctx.saved_tensors[0], 0.0),
    ),
    "what no value depends on": (
        lambda ctx, x: [ctx.save_for_backward(x), setattr(ctx, "kept", np.ones_like(x) * tg.full(2, 2.0))],
        lambda ctx: ctx.kept * ctx.saved_tensors[0],
    ),
    "what is rounded": (
        lambda ctx, x: [ctx.save_for_backward(x), setattr(ctx, "kept", np.sign(x) + np.floor(x) * 0 + 1.0)],
        lambda ctx: ctx.kept * ctx.saved_tensors[0],
    ),
    "a number that chooses": (
        lambda ctx, x: [ctx.save_for_backward(x), setattr(ctx, "kept", 2 if bool((x > 0).all()) else 3)],
        lambda ctx: ctx.kept * ctx.saved_tensors[0],
    ),
    "a promise": (
        lambda ctx, x: [ctx.save_for_backward(x), ctx.mark_twice_differentiable(), print(x.tolist())],
        lambda ctx: 2 * ctx.saved_tensors[0],
    ),
    "computed from constants": (
        lambda ctx, x: [ctx.save_for_backward(x), setattr(ctx, "kept", (tg.tensor([1.0, 1.0]) * 2).numpy())],
        lambda ctx: tg.tensor(ctx.kept) * ctx.saved_tensors[0],
    ),
}


@pytest.mark.parametrize("case", RIGHT)
def test_G14_what_has_a_history_is_right(case, capsys):
    second(square(*RIGHT[case]))


def test_G14_saved_results_are_right():
    def save(ctx, x):
        y = np.exp(x)
        ctx.save_for_backward(y)
        return y

    def attribute(ctx, x):
        ctx.y = np.exp(x)
        return ctx.y

    for E in (of(save, lambda ctx, g: g * ctx.saved_tensors[0]), of(attribute, lambda ctx, g: g * ctx.y)):
        assert tg.gradcheck(E.apply, (leaf(),))
        assert tg.gradgradcheck(E.apply, (leaf(),))


# ---------------------------------------------------------------- what was computed in forward


def written(x, by=lambda b, v: b.copy_(v)):
    buffer = tg.zeros(2)
    by(buffer, 2 * x)
    return buffer


def written_through_a_view(x):
    buffer = tg.zeros(4)
    view = buffer[1:3]
    view[...] = 2 * x
    return buffer


def read_through_a_view(x):
    buffer = tg.zeros(4)
    view = buffer[1:3]
    buffer[...] = np.concatenate([x, x])[np.array([0, 0, 1, 1])] * 2
    return view


def taken_by_data(x):
    t = tg.zeros(2)
    t.data = 2 * x
    return t


def started_anew(x):
    inner = x.detach().requires_grad_()
    with tg.enable_grad():
        return tg.grad((inner * inner).sum(), inner)[0]


def accumulated(x):
    inner = x.detach().clone().requires_grad_()
    with tg.enable_grad():
        (inner * inner).sum().backward()
    return inner.grad


@tg.njit
def doubled(x):
    return x * 2.0


@tg.njit
def doubled_number(x):
    return x * 2.0


@tg.njit
def fill(out, x):
    for k in range(x.size):
        out[k] = x[k]


@tg.njit
def listed(x):
    return [2.0 * v for v in x]


def gradient_of_the_input(x):
    with tg.enable_grad():
        return tg.grad((x * x).sum(), x)[0]


def plain_array(x, by):
    out = np.zeros(2)
    by(out, x)
    return out


class Twice(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, g):
        return 2 * g


INTERMEDIATES = {
    "product": lambda x: 2 * x,
    "reflected": lambda x: x * 2,
    "sum": lambda x: x + x,
    "of two": lambda x: (x + 1) + (x - 1),
    "negative": lambda x: -(x * -2),
    "ufunc": lambda x: np.multiply(x, 2),
    "array operand": lambda x: np.array([2.0, 2.0]) * x,
    "function": lambda x: np.sum(np.stack([x, x]), axis=0),
    "composed": lambda x: np.cross([0.0, 0.0, 2.0], np.append(x, 0.0))[np.array([1, 0])] * [1.0, -1.0],
    "dtype": lambda x: np.multiply(x, 2, dtype=float),
    "astype": lambda x: (2 * x).astype(np.longdouble).astype(np.float64),
    "modf": lambda x: np.modf(2 * x)[0] + np.floor(2 * x),
    "frexp": lambda x: np.ldexp(*np.frexp(2 * x)),
    "svd": lambda x: np.linalg.svd(np.diag(2 * x), compute_uv=False)[::-1],
    "qr": lambda x: np.abs(np.diag(np.linalg.qr(np.diag(2 * x)).R)),
    "slogdet": lambda x: np.exp(np.linalg.slogdet((2 * x).reshape(2, 1, 1)).logabsdet),
    "complex": lambda x: (2 * x * (1 + 0j)).real,
    "view": lambda x: (2 * x)[:],
    "reshape": lambda x: (2 * x).reshape(1, 2)[0],
    "transpose": lambda x: (2 * x).T,
    "iterated": lambda x: tg.array([2 * e for e in x]),
    "unpacked": lambda x: np.stack([2 * e for e in list(x)]),
    "flat": lambda x: tg.array([2 * e for e in x.flat]),
    "indexed": lambda x: tg.array([2 * x[0], 2 * x[1]]),
    "detach": lambda x: (2 * x).detach(),
    "detached input": lambda x: x.detach() * 2,
    "data": lambda x: x.data * 2,
    "clone": lambda x: (2 * x).clone(),
    "copy": lambda x: copy.copy(2 * x),
    "deepcopy": lambda x: copy.deepcopy(2 * x),
    "tensor": lambda x: tg.tensor(2 * x),
    "tensor of the input": lambda x: tg.tensor(x) * 2,
    "array": lambda x: tg.array(2 * x),
    "asarray": lambda x: tg.asarray(2 * x),
    "full": lambda x: tg.array([tg.full((), 2 * x[0]), tg.full((), 2 * x[1])]),
    "full_like": lambda x: np.full_like(x, 2 * x),
    "linspace": lambda x: tg.linspace(2 * x[0], 2 * x[1], 2),
    "copy_": written,
    "setitem": lambda x: written(x, lambda b, v: b.__setitem__(slice(None), v)),
    "setitem one by one": lambda x: written(x, lambda b, v: [b.__setitem__(k, v[k]) for k in range(2)]),
    "add_": lambda x: written(x, lambda b, v: b.add_(v)),
    "iadd": lambda x: written(x, lambda b, v: b.__iadd__(v)),
    "fill_": lambda x: tg.array([tg.zeros(1).fill_(2 * e)[0] for e in x]),
    "scalar in place": lambda x: tg.array([tg.tensor(0.0).add_(2 * e) for e in x]),
    "out=": lambda x: written(x, lambda b, v: np.add(v, 0, out=b)),
    "out= of a function": lambda x: written(
        x, lambda b, v: np.cumsum(np.append(v[:1], v[1:] - v[:1]), out=b)
    ),
    "at": lambda x: written(x, lambda b, v: np.add.at(b, [0, 1], v)),
    "copyto": lambda x: written(x, np.copyto),
    "put": lambda x: written(x, lambda b, v: np.put(b, [0, 1], v)),
    "place": lambda x: written(x, lambda b, v: np.place(b, np.array([True, True]), v)),
    "a view's base": lambda x: written_through_a_view(x)[1:3],
    "a base's view": read_through_a_view,
    "data replaced": taken_by_data,
    "nested Function": Twice.apply,
    "no_grad": lambda x: tg.no_grad(lambda: 2 * x)(),
    "enable_grad then no_grad": lambda x: tg.no_grad(lambda y: y * 1)(tg.enable_grad(lambda: 2 * x)()),
    "enable_grad on a value": lambda x: tg.enable_grad(lambda y: y * 1)(2 * x),
    "gradient": gradient_of_the_input,
    "compiled function": lambda x: doubled(x),
    "numbers of a compiled function": lambda x: tg.array([doubled_number(e) for e in x]),
    "compiled function in place": lambda x: written(x, lambda b, v: fill(b, v)),
}
TAKEN = {
    "numpy()": lambda x: 2 * x.numpy(),
    "numpy() of an intermediate": lambda x: (2 * x).numpy(),
    "np.asarray": lambda x: 2 * np.asarray(x),
    "np.array": lambda x: np.array(2 * x),
    "numpy() of what is detached": lambda x: 2 * x.detach().numpy(),
    "numpy() of data": lambda x: 2 * x.data.numpy(),
    "item": lambda x: np.array([2 * e.item() for e in x]),
    "item(k)": lambda x: np.array([2 * x.item(k) for k in range(2)]),
    "tolist": lambda x: 2 * np.array(x.tolist()),
    "float": lambda x: np.array([2 * float(e) for e in x]),
    "np.float64": lambda x: np.array([2 * np.float64(e) for e in x]),
    "complex": lambda x: np.array([2 * complex(e).real for e in x]),
    "math": lambda x: np.array([2 * __import__("math").fsum([e]) for e in x]),
    "tobytes": lambda x: np.frombuffer((2 * x).tobytes()),
    "pickle": lambda x: pickle.loads(pickle.dumps(2 * x)).numpy(),
    "dumps": lambda x: pickle.loads((2 * x).dumps()),
    "file": lambda x: stored(2 * x),
    "plain array": lambda x: plain_array(x, lambda a, x: a.__setitem__(slice(None), 2 * x)),
    "plain array, one by one": lambda x: plain_array(
        x, lambda a, x: [a.__setitem__(k, 2 * x[k]) for k in (0, 1)]
    ),
    "plain array, +=": lambda x: plain_array(x, lambda a, x: a.__iadd__(2 * x)),
    "plain array, out=": lambda x: plain_array(x, lambda a, x: np.multiply(x, 2, out=a)),
    "plain array, out= of a function": lambda x: plain_array(
        x, lambda a, x: np.concatenate([2 * x[:1], 2 * x[1:]], out=a)
    ),
    "plain array, at": lambda x: plain_array(x, lambda a, x: np.add.at(a, [0, 1], 2 * x)),
    "plain array, copyto": lambda x: plain_array(x, lambda a, x: np.copyto(a, 2 * x)),
    "plain array, put": lambda x: plain_array(x, lambda a, x: np.put(a, [0, 1], 2 * x)),
    "plain array, place": lambda x: plain_array(x, lambda a, x: np.place(a, a == 0, 2 * x)),
    "plain array, putmask": lambda x: plain_array(x, lambda a, x: np.putmask(a, a == 0, 2 * x)),
    "plain array, flat": lambda x: plain_array(x, lambda a, x: setattr(a, "flat", 2 * x)),
    "plain array, compiled function": lambda x: plain_array(x, lambda a, x: fill(a, 2 * x)),
    "list of a compiled function": lambda x: np.array(listed(x)),
    "requires_grad_": started_anew,
    "backward": accumulated,
    "tensor that requires grad": lambda x: 2 * tg.tensor(x, requires_grad=True).detach(),
}


def stored(x):
    file = io.BytesIO()
    np.save(file, x)
    file.seek(0)
    return np.load(file)


KEEPERS = {
    "save_for_backward": (
        lambda ctx, v: ctx.save_for_backward(v),
        lambda ctx: ctx.saved_tensors[0],
    ),
    "attribute": (put("kept"), kept),
    "container": (lambda ctx, v: setattr(ctx, "kept", [(v,)]), lambda ctx: ctx.kept[0][0]),
    "closure": (lambda ctx, v: CLOSURE.update(v=v), lambda ctx: CLOSURE["v"]),
}


@pytest.mark.parametrize("how", KEEPERS)
@pytest.mark.parametrize("case", INTERMEDIATES)
def test_G14_intermediates_refuse(case, how):
    put, get = KEEPERS[how]
    E = square(lambda ctx, x: put(ctx, INTERMEDIATES[case](x)), get)
    refuses(E, match="computed in its forward")


@pytest.mark.parametrize("case", TAKEN)
def test_G14_values_taken_out_refuse(case):
    E = square(lambda ctx, x: setattr(ctx, "kept", TAKEN[case](x)), kept)
    refuses(E, match="took values|computed in its forward")


@pytest.mark.parametrize("case", ["product", "copy_", "numpy()", "item"])
def test_G14_results_made_of_them_refuse_in_setup_context(case):
    compute = {**INTERMEDIATES, **TAKEN}[case]

    class E(Function):
        @staticmethod
        def forward(x):
            return x * x

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.kept = compute(inputs[0])

        @staticmethod
        def backward(ctx, g):
            return g * ctx.kept

    refuses(E)


def test_G14_a_result_said_to_have_no_derivative_refuses():
    """For others it is a constant, for backward what forward computed from x."""

    def forward(save):
        def run(ctx, x):
            h = 2 * x
            ctx.mark_non_differentiable(h)
            save(ctx, h)
            return x * x, h

        return run

    cases = [
        (lambda ctx, h: ctx.save_for_backward(h), lambda ctx: ctx.saved_tensors[0]),
        (lambda ctx, h: setattr(ctx, "kept", h), kept),
    ]
    for save, get in cases:
        E = of(forward(save), lambda ctx, g, _, get=get: g * get(ctx))
        x = leaf()
        y, h = E.apply(x)
        assert not h.requires_grad
        (g,) = tg.grad((y * h).sum(), x, create_graph=True)  # h is a constant here
        np.testing.assert_allclose(g.detach().numpy(), 4 * x.detach().numpy() ** 2)
        with pytest.raises(GradientError, match="computed in its forward"):
            tg.grad(g.sum(), x)


def test_G14_a_copy_of_a_result_refuses():
    def forward(ctx, x):
        y = np.exp(x)
        ctx.kept = y.clone()
        return y

    x = leaf()
    (g,) = tg.grad(of(forward, lambda ctx, g: g * ctx.kept).apply(x).sum(), x, create_graph=True)
    with pytest.raises(GradientError):
        tg.grad(g.sum(), x)


def test_G14_a_result_that_is_written_to_later_keeps_its_derivative():
    def forward(ctx, x):
        y = np.exp(x)
        ctx.save_for_backward(y)
        ctx.y = y
        return y

    for get in (lambda ctx: ctx.saved_tensors[0], lambda ctx: ctx.y):
        x = leaf()
        y = of(forward, lambda ctx, g, get=get: g * get(ctx)).apply(x)
        y.mul_(100)
        (g,) = tg.grad(y.sum(), x, create_graph=True)
        (h,) = tg.grad(g.sum(), x)
        np.testing.assert_allclose([g.tolist(), h.tolist()], [100 * np.exp([0.5, 1.5])] * 2)


# ---------------------------------------------------------------- what backward does


def cached(ctx):
    if not hasattr(ctx, "cache"):
        ctx.cache = 2 * ctx.saved_tensors[0]
    return ctx.cache


def gradient_in_backward(ctx):
    (x,) = ctx.saved_tensors
    with tg.enable_grad():
        return tg.grad((x * x).sum(), x)[0]


def restarted_in_backward(ctx):
    inner = ctx.saved_tensors[0].detach().requires_grad_()
    with tg.enable_grad():
        (inner * inner).sum().backward()
    return inner.grad


def with_hidden_cotangent(ctx):
    (x,) = ctx.saved_tensors
    y = tg.tensor([1.0, 1.0], requires_grad=True)
    with tg.enable_grad():
        return tg.grad(y * 2, y, x.detach(), create_graph=True)[0]


def save_input(ctx, x):
    ctx.save_for_backward(x)


IN_BACKWARD = {
    "detach": lambda ctx: 2 * ctx.saved_tensors[0].detach(),
    "data": lambda ctx: 2 * ctx.saved_tensors[0].data,
    "no_grad": lambda ctx: tg.no_grad(lambda: 2 * ctx.saved_tensors[0])(),
    "tensor": lambda ctx: 2 * tg.tensor(ctx.saved_tensors[0]),
    "item": lambda ctx: np.array([2 * e.item() for e in ctx.saved_tensors[0]]),
    "tolist": lambda ctx: 2 * np.array(ctx.saved_tensors[0].tolist()),
    "numpy of what is detached": lambda ctx: 2 * ctx.saved_tensors[0].detach().numpy(),
    "written": lambda ctx: tg.zeros(2).copy_(2 * ctx.saved_tensors[0].detach()),
    "nested Function": lambda ctx: Twice.apply(ctx.saved_tensors[0].detach()),
    "full": lambda ctx: tg.array([tg.full((), 2 * e.detach()) for e in ctx.saved_tensors[0]]),
    "composed": lambda ctx: np.full_like(np.ones(2), 2 * ctx.saved_tensors[0].detach()),
    "inner gradient": gradient_in_backward,
    "inner backward": restarted_in_backward,
    "cotangent of an inner gradient": with_hidden_cotangent,
}


@pytest.mark.parametrize("case", IN_BACKWARD)
def test_G14_values_taken_out_in_backward_refuse(case):
    refuses(square(save_input, IN_BACKWARD[case]))


def test_G14_what_an_unrecorded_backward_cached_refuses():
    E = square(save_input, cached)
    x = leaf()
    y = E.apply(x).sum()
    (first,) = tg.grad(y, x, retain_graph=True)
    (g,) = tg.grad(y, x, create_graph=True)
    assert first.tolist() == g.tolist() == [1.0, 3.0]
    with pytest.raises(GradientError):
        tg.grad(g.sum(), x)


def test_G14_a_number_that_an_unrecorded_backward_cached_refuses():
    def number(ctx):
        if not hasattr(ctx, "cache"):
            ctx.cache = np.array(ctx.saved_tensors[0].tolist())
        return tg.tensor(2 * ctx.cache)

    x = leaf()
    y = square(save_input, number).apply(x).sum()
    tg.grad(y, x, retain_graph=True)
    (g,) = tg.grad(y, x, create_graph=True)
    with pytest.raises(GradientError):
        tg.grad(g.sum(), x)


def test_G14_an_ndarray_from_backward_refuses():
    E = of(lambda ctx, x: x * 3, lambda ctx, g: np.full(2, 3.0))
    x, v = leaf(), leaf([1.0, 1.0])
    (g,) = tg.grad(E.apply(x), x, v, create_graph=True)
    assert g.tolist() == [3.0, 3.0]
    for at in (x, v):
        with pytest.raises(GradientError, match="ndarray"):
            tg.grad(g.sum(), at, retain_graph=True)


# ---------------------------------------------------------------- once_differentiable


def once(data=None):
    class E(Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        @once_differentiable
        def backward(ctx, g):
            return 2 * ctx.saved_tensors[0] * g

    return E


def test_G14_once_differentiable_refuses():
    refuses(once(), match="once_differentiable")


def test_G14_once_differentiable_refuses_for_the_gradient_too():
    x, v = leaf(), leaf([1.0, 1.0])
    (g,) = tg.grad(once().apply(x), x, v, create_graph=True)
    with pytest.raises(GradientError, match="once_differentiable"):
        tg.grad(g.sum(), v)


def test_G14_implicit_gradients_of_once_differentiable_refuse():
    x = leaf(3.0)
    (g,) = tg.grad(once().apply(x) + x**2, x, create_graph=True)
    assert g.item() == 12.0
    with pytest.raises(GradientError, match="once_differentiable"):
        tg.grad(g, x)


def test_G14_other_parts_of_the_graph_stay_differentiable():
    x, w = leaf(3.0), leaf(2.0)
    y = once().apply(x) * w + w**3
    gx, gw = tg.grad(y, [x, w], create_graph=True)
    (h,) = tg.grad(gw, w, retain_graph=True)  # gw = x**2 + 3 w**2: no second derivative of E in it
    assert h.item() == 12.0
    (h,) = tg.grad(gw, x, retain_graph=True)  # one derivative of E
    assert h.item() == 6.0
    with pytest.raises(GradientError, match="once_differentiable"):
        tg.grad(gx, x)


def test_G14_legacy_functions_refuse():
    class Square(Function):
        def forward(self, x):
            self.save_for_backward(x)
            return x * x

        def backward(self, g):
            return 2 * self.saved_tensors[0] * g

    x = leaf(3.0)
    (g,) = tg.grad(Square()(x) + x**2, x, create_graph=True)
    assert g.item() == 12.0
    with pytest.raises(GradientError, match="method of an instance"):
        tg.grad(g, x)


# ---------------------------------------------------------------- two arguments, outer Functions


def test_G14_only_what_was_hidden_refuses():
    """A value computed from one argument hides that one alone."""

    def forward(ctx, a, b):
        ctx.save_for_backward(a, b)
        ctx.h = b * b
        return a * b * b

    def backward(ctx, g):
        a, b = ctx.saved_tensors
        return g * ctx.h, 2 * a * b * g

    E = of(forward, backward)
    a, b = leaf(2.0), leaf(3.0)
    _, gb = tg.grad(E.apply(a, b), [a, b], create_graph=True)
    assert [h.item() for h in tg.grad(gb, [a, b])] == [6.0, 4.0]
    (ga,) = tg.grad(E.apply(a, b), a, create_graph=True)
    with pytest.raises(GradientError):
        tg.grad(ga, b)


def test_G14_a_tensor_that_is_no_argument():
    """Of what forward computes from it, backward does not know the history either."""
    w = leaf([5.0, 7.0])

    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.h = w * 1
        return x * w

    E = of(forward, lambda ctx, g: g * ctx.h)
    x = leaf()
    (g,) = tg.grad(E.apply(x).sum(), x, create_graph=True)
    with pytest.raises(GradientError):
        tg.grad(g.sum(), w)
    E = of(forward, lambda ctx, g: g * w)  # itself it is known
    (g,) = tg.grad(E.apply(x).sum(), x, create_graph=True)
    assert tg.grad(g.sum(), w)[0].tolist() == [1.0, 1.0]


def test_G14_an_argument_written_to_in_secret():
    def forward(ctx, x):
        x.mul_(2)
        ctx.save_for_backward(x)
        return x * x

    with pytest.raises(GradientError, match="mark_dirty"):
        of(forward, lambda ctx, g: g).apply(leaf() * 1)
    with pytest.raises(GradientError, match="mark_dirty"):
        of(forward, lambda ctx, g: g).apply(leaf())


def test_G14_constants_may_be_written_to():
    """As running statistics are."""
    mean = tg.zeros(2)

    def forward(ctx, x, mean):
        mean.mul_(0.5).add_(0.5 * x)
        ctx.save_for_backward(x)
        return x * x

    E = of(forward, lambda ctx, g: (2 * ctx.saved_tensors[0] * g, None))
    x = leaf()
    (g,) = tg.grad(E.apply(x, mean).sum(), x, create_graph=True)
    assert tg.grad(g.sum(), x)[0].tolist() == [2.0, 2.0]
    assert mean.tolist() == [0.25, 0.75]
    (g,) = tg.grad((mean * x).sum(), x, create_graph=True)  # elsewhere it is a constant
    assert g.tolist() == [0.25, 0.75]
    assert not g.requires_grad


def test_G14_a_workspace_refuses_when_backward_reads_it():
    space = tg.zeros(2)

    def forward(ctx, x):
        space[...] = 2 * x
        return x * x

    refuses(of(forward, lambda ctx, g: g * space))


def test_G14_within_another_function():
    """What the inner one hid is hidden from the derivative of the outer."""
    Inner = square(keep(lambda x: 2 * x), kept)

    def forward(ctx, x):
        ctx.save_for_backward(x)
        return Inner.apply(x) * 1.0

    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        with tg.enable_grad():
            y = Inner.apply(x)
        return tg.grad(y, x, g, create_graph=tg.is_grad_enabled())[0]

    refuses(of(forward, backward))
    Right = square(*RIGHT["saved input"])

    def exact(ctx, g):
        (x,) = ctx.saved_tensors
        with tg.enable_grad():
            y = Right.apply(x)
        return tg.grad(y, x, g, create_graph=tg.is_grad_enabled())[0]

    second(of(forward, exact))


def test_G14_a_hidden_value_through_another_function():
    refuses(square(keep(lambda x: 2 * x), lambda ctx: Twice.apply(ctx.kept) / 2))
    refuses(square(keep(lambda x: 2 * x), lambda ctx: once_of(ctx.kept)))


def once_of(x):
    class E(Function):
        @staticmethod
        def forward(ctx, x):
            return np.array([1.0, 1.0]) * np.asarray(x)

        @staticmethod
        def backward(ctx, g):
            raise AssertionError

    return E.apply(x)


def test_G14_the_error_says_what_to_do():
    x = leaf()
    (g,) = tg.grad(square(keep(lambda x: 2 * x), kept).apply(x).sum(), x, create_graph=True)
    with pytest.raises(GradientError, match=r"through E .*save_for_backward"):
        tg.grad(g.sum(), x)
    (g,) = tg.grad(square(keep(lambda x: 2 * x.numpy()), kept).apply(x).sum(), x, create_graph=True)
    with pytest.raises(GradientError, match=r"E took .*mark_twice_differentiable"):
        tg.grad(g.sum(), x)


@pytest.mark.parametrize("fit", [lambda g: np.stack([g, g]) / 2, lambda g: g.astype(np.float32)])
def test_G14_a_gradient_that_is_fitted_to_its_argument_refuses(fit):
    """One of a larger shape is summed, one of another dtype cast: what it was computed from counts."""

    def forward(ctx, x):
        ctx.doubled = x * 2
        return x * x

    refuses(of(forward, lambda ctx, g: fit(ctx.doubled * g)))
