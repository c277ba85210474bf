"""Functions that do what compilers of traced code get wrong: each is made anew, with state of its own.

`FUNCTIONS` are by name: makers of a function of an array of four elements and the number of the call, and of
what shows its effects.
"""

import contextlib
import math
import operator
import threading
import types
import warnings
import weakref
from collections import deque
from functools import cache, partial

import numpy as np

import tapegrad as tg

FUNCTIONS = {}


def hostile(make):
    """Take in a maker, which returns a function and, if it has effects, what shows them."""
    FUNCTIONS[make.__name__] = make
    return make


def simple(function):
    """Take in a function without state."""
    FUNCTIONS[function.__name__] = lambda: (function, None)
    return function


# ------------------------------------------------------------ control flow by values


@simple
def branch_on_sign(x, k):
    return np.sum(x * x) if x[0] > 0 else np.sum(np.sin(x))


@simple
def branch_on_sum(x, k):
    s = np.sum(x)
    return s * s if s > 1.0 else s + 3.0


@simple
def branch_late(x, k):
    for _ in range(5):
        x = np.tanh(x) * 1.1
    return np.sum(x) if float(x[1].detach()) > 0.2 else np.prod(x)


@simple
def loop_until_small(x, k):
    n = 0
    while np.max(np.abs(x)).item() > 0.3 and n < 50:
        x, n = x * 0.7, n + 1
    return np.sum(x)


@simple
def bisection(x, k):
    low, high = x[0] * 0.0, x[0] * 0.0 + 2.0
    for _ in range(8):
        middle = (low + high) / 2
        low, high = (middle, high) if middle * middle < 1.3 else (low, middle)
    return middle * np.sum(x)


@simple
def index_by_argmax(x, k):
    return x[int(np.argmax(x.detach().numpy()))] * 2.0


@simple
def index_by_argmax_of_the_tensor(x, k):
    return x[np.argmax(x)] ** 2


@simple
def boolean_mask(x, k):
    return np.sum(x[x > 0.2] ** 2)


@simple
def mask_as_factor(x, k):
    return np.sum((x > 0.1) * x * 3.0)


@simple
def where_of_values(x, k):
    return np.sum(np.where(x > 0.1, x * x, np.sin(x)))


@simple
def sorting(x, k):
    return np.sum(np.sort(x) * np.arange(1.0, 5.0))


@simple
def median(x, k):
    return np.median(x) * np.sum(x)


@simple
def searching(x, k):
    place = np.searchsorted(np.linspace(-2, 2, 9), x.detach().numpy())
    return np.sum(x * place)


@simple
def any_and_all(x, k):
    return np.sum(x) if np.any(x > 1.0) or np.all(x < 0.5) else np.sum(x**3)


@simple
def comparison_chain(x, k):
    return x[0] * 2.0 if 0.1 < x[0] < 0.6 else x[0] * x[1]


@simple
def equality(x, k):
    return np.sum(x) if x[0] == x[0] * 1.0 else np.sum(x) * 2.0


@simple
def truth_of_a_number(x, k):
    return np.sum(x) if x[0] - x[0] else np.sum(x) * x[1]


@simple
def warning_where_it_leaves(x, k):
    a, b = x[0] * 9.0, x[1] * 0.1
    return np.arcsin(a if k % 3 == 2 else b) + np.sum(x)


@simple
def text_decides(x, k):
    return np.sum(x) * (2.0 if "-" in f"{x[0].item():.3f}" else 3.0)


@simple
def text_of_a_tensor_decides(x, k):
    return np.sum(x) * float(len(repr(x[0] * 1.5)) % 7)


@simple
def rounding_decides(x, k):
    return np.sum(x) * round(x[0].item(), 1) + math.floor(x[1].item())


@simple
def int_of_a_value(x, k):
    return np.sum(x[: 1 + int(abs(x[0].item()) * 3) % 4])


@simple
def stops_at_a_value(x, k):
    total = x[0] * 0.0
    for i in range(4):
        total = total + x[i]
        if total > 0.7:
            break
    return total * 2.0


@simple
def number_of_turns_changes(x, k):
    for _ in range(k % 4):
        x = np.sin(x) + x
    return np.sum(x)


# ------------------------------------------------------------ numbers and arrays from outside


@hostile
def global_number():
    state = {"c": 1.0}

    def f(x, k):
        state["c"] += 0.5
        return np.sum(x * state["c"])

    return f, state


@hostile
def closure_number():
    c = 1.0

    def f(x, k):
        nonlocal c
        c = c * -1.1
        return np.sum(np.sin(x) * c) + c

    return f, None


@hostile
def attribute():
    holder = types.SimpleNamespace(scale=1.0)

    def f(x, k):
        holder.scale = 1.0 + k
        return np.sum(x / holder.scale)

    return f, holder


@simple
def number_of_the_call(x, k):
    return np.sum(x) * k + float(k)


@simple
def integer_of_the_call(x, k):
    return np.sum(x * k + (k - 3))


@simple
def kind_of_number_changes(x, k):
    c = [2, 2.0, np.float64(2.0), np.float32(2.0), np.int64(2), True][k % 6]
    return np.sum(x * c)


@simple
def exponent_changes(x, k):
    return np.sum(np.abs(x) ** (1.5 + k % 3))


@simple
def exponent_is_an_integer(x, k):
    return np.sum(x ** (k % 4 + 1))


@simple
def minus_zero(x, k):
    return np.sum(x * (-0.0 if k % 2 else 0.0))


@simple
def nan_and_inf(x, k):
    with np.errstate(all="ignore"):
        return np.sum(x * [1.0, math.nan, math.inf][k % 3])


@hostile
def array_written_between_calls():
    a = np.ones(4)

    def f(x, k):
        a[k % 4] += 1.0
        return np.sum(x * a)

    return f, a


@hostile
def array_written_between_uses():
    a = np.arange(4.0)

    def f(x, k):
        y = x * a
        a[:] += 1.0
        z = np.sum(y * a)
        a[:] -= 1.0
        return z

    return f, a


@hostile
def large_array_written_between_uses():
    a = np.linspace(0.0, 1.0, 10_000)

    def f(x, k):
        y = a * x[0]
        kept = a.copy()
        a[:] = 2.0
        z = np.sum(y) * 0.001 + x[1] * 2.0
        a[:] = kept
        return z

    return f, None


@simple
def array_of_another_shape(x, k):
    return np.sum(x * np.ones([4, (1, 4), (2, 4)][k % 3]))


@simple
def array_of_another_dtype(x, k):
    return np.sum(x * np.arange(4, dtype=["float64", "int64", "float32", "bool"][k % 4]))


@simple
def array_in_another_order(x, k):
    a = np.arange(16.0).reshape(4, 4)
    return np.sum((a if k % 2 else a.T) @ x)


@simple
def array_of_negative_strides(x, k):
    return np.sum(x * np.arange(4.0)[:: 1 if k % 2 else -1])


@simple
def a_list_as_operand(x, k):
    return np.sum(x * [1.0, 2.0, float(k), 4.0])


@hostile
def random_numbers():
    random = np.random.default_rng(3)

    def f(x, k):
        return np.sum(x * random.normal(size=4)) + random.normal()

    return f, None


@hostile
def dropout():
    random = np.random.default_rng(5)

    def f(x, k):
        return np.sum(np.where(random.random(4) < 0.5, x, 0.0) ** 2)

    return f, None


@hostile
def constant_tensor():
    c = tg.tensor([1.0, 2.0, 3.0, 4.0])

    def f(x, k):
        return np.sum(x * c * (1.0 + k))

    return f, None


@hostile
def constant_tensor_written():
    c = tg.tensor([1.0, 2.0, 3.0, 4.0])

    def f(x, k):
        c[k % 4] = float(k)
        return np.sum(x * c)

    return f, None


@hostile
def parameter_from_outside():
    w = tg.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)

    def f(x, k):
        return np.sum(x * w)

    return f, w


# ------------------------------------------------------------ effects


@hostile
def counter():
    seen = []

    def f(x, k):
        seen.append(k)
        return np.sum(x) * len(seen)

    return f, seen


@hostile
def keeps_values():
    seen = []

    def f(x, k):
        y = np.sin(x)
        seen.append(y[0].item())
        return np.sum(y)

    return f, seen


@hostile
def keeps_tensors():
    seen = []

    def f(x, k):
        y = np.sin(x)
        seen.append(y)
        return np.sum(y * y)

    return f, seen


@hostile
def keeps_the_argument():
    seen = []

    def f(x, k):
        seen.append(x)
        return np.sum(x * x)

    return f, seen


@hostile
def keeps_the_result():
    seen = []

    def f(x, k):
        y = np.sum(x * x)
        seen.append(y)
        return y

    return f, seen


@hostile
def keeps_an_array():
    seen = []

    def f(x, k):
        y = np.cos(x)
        seen.append(y.detach().numpy())
        return np.sum(y * y)

    return f, seen


@hostile
def refers_weakly():
    seen, known = [], []

    def f(x, k):
        y = np.sin(x)
        known.append(weakref.ref(y, lambda _: seen.append("gone")))
        seen.append(known[-1]() is y)
        return np.sum(y * y)

    return f, seen


@hostile
def finalizes():
    seen = []

    def f(x, k):
        weakref.finalize(x, seen.append, ("argument", k))
        y = x * 2.0
        weakref.finalize(y, seen.append, k)
        return np.sum(y)

    return f, seen


@hostile
def volatile_at_times():
    def f(x, k):
        c = tg.autograd.Variable(np.ones(4), volatile=k % 4 == 3)
        return np.sum(x) + np.sum(x * c)

    return f, None


@hostile
def keeps_every_third():
    seen = deque(maxlen=3)

    def f(x, k):
        y = x * 2.0
        if k % 3 == 0:
            seen.append(y)
        return np.sum(y * np.sin(y))

    return f, seen


@hostile
def uses_what_it_kept():
    last = [None]

    def f(x, k):
        y = np.sin(x)
        found = np.sum(y) if last[0] is None else np.sum(y * last[0])
        last[0] = y.detach() * 1.0
        return found

    return f, None


@hostile
def memo():
    @cache
    def factor(k):
        return 1.0 + k * 0.1

    def f(x, k):
        return np.sum(x) * factor(k % 3)

    return f, None


@hostile
def generator_kept():
    state = iter(range(1000))

    def f(x, k):
        return np.sum(x) * next(state)

    return f, None


@hostile
def writes_to_an_array():
    out = np.zeros(3)

    def f(x, k):
        y = np.exp(x)
        out[k % 3] = y[1].item()
        return np.sum(y)

    return f, out


@hostile
def warns():
    def f(x, k):
        warnings.warn("as ever", stacklevel=1)
        return np.sum(x)

    return f, None


@hostile
def identity_of_results():
    seen = []

    def f(x, k):
        y = x * 2.0
        z = x * 2.0
        seen.append((y is z, y is y, len({id(y), id(z)})))
        return np.sum(y + z)

    return f, seen


# ------------------------------------------------------------ writes and views


@simple
def written_argument(x, k):
    x[1] = x[0] * 3.0
    return np.sum(x * x)


@simple
def written_result(x, k):
    y = np.sin(x)
    y[1:3] = y[:2] * 2.0
    return np.sum(y)


@simple
def written_view(x, k):
    y = np.sin(x)
    v = y[1:]
    v[0] = 5.0
    return np.sum(y * y) + v[0]


@simple
def in_place_operators(x, k):
    y = x * 1.0
    y += np.sin(x)
    y *= 2.0
    return np.sum(y)


@simple
def in_place_then_unused(x, k):
    y = x * 0.7
    z = y.copy()
    y *= np.sin(z)
    return np.sum(z)


@simple
def view_before_and_after(x, k):
    y = x * 2.0
    v = y.reshape(2, 2).T
    s = np.sum(v[0])
    y[0] = 1.0
    return s + np.sum(v)


@simple
def add_at(x, k):
    y = x * 1.0
    np.add.at(y, [0, 0, 1], 2.0)
    return np.sum(y * y)


@simple
def fill(x, k):
    y = x * 1.0
    y.fill_(3.0)
    return np.sum(y * x)


@simple
def written_once_in_three(x, k):
    y = x * 2.0
    if k % 3 == 0:
        y[0] = 0.5
    return np.sum(np.sin(y))


# ------------------------------------------------------------ modes, derivatives, hooks


@simple
def without_grad(x, k):
    with tg.no_grad():
        c = np.sum(x) * 2.0
    return np.sum(x) * c


@simple
def detached(x, k):
    return np.sum(x * x.detach())


@simple
def detached_deep(x, k):
    y = np.sin(x) * 2.0
    return np.sum(y * y.detach() * 1.0)


@simple
def derivative_inside(x, k):
    y = np.sum(np.sin(x) ** 2)
    (g,) = tg.grad(y, x, create_graph=True)
    return np.sum(g * x)


@simple
def derivative_of_a_part(x, k):
    y = np.sin(x) * x
    (g,) = tg.grad(np.sum(y), x, retain_graph=True)
    return np.sum(y) * g[0].item()


@simple
def cotangents_of_other_graphs(x, k):
    w = tg.tensor(np.ones(4), requires_grad=True)
    y, h = np.sin(w) * 2.0, x * 2.0
    (g,) = tg.grad(y, w, h, create_graph=k % 2 == 0)
    z = np.cos(w) * 2.0
    z.backward(np.sin(x))
    return np.sum(h * g) + np.sum(w.grad.detach())


@simple
def inputs_that_no_way_leads_to(x, k):
    w = tg.tensor(np.ones(4), requires_grad=True)
    y = x * 3.0
    found = tg.grad(np.sum(w * w), [w, y], allow_unused=True)
    np.sum(w * 2.0).backward(inputs=[w])
    return np.sum(y) + np.sum(found[0]) * float(found[1] is None)


@simple
def all_kinds_of_attributes(x, k):
    y = np.sin(x)
    told = y.requires_grad, y.is_leaf, y.grad_fn is None, y.retains_grad, y._version, y.is_inference(), len(y)
    y.retain_grad()
    return np.sum(y) * float(sum(map(int, told)))


@simple
def every_way_to_write(x, k):
    y, z, v = x * 2.0, x * 3.0, np.exp(x)
    match k % 8:
        case 0:
            y[1:] += z[:-1]
        case 1:
            y[...] = z
        case 2:
            np.copyto(y, z)
        case 3:
            y.copy_(z)
        case 4:
            y.add_(z)
        case 5:
            np.put(y, [0, 1], z[:2])
        case 6:
            y[[0, 2]] = z[:2]
        case 7:
            y[0] = z[1]
    return np.sum(y * z) + np.sum(v)


@simple
def written_by_what_is_given_out(x, k):
    w = tg.tensor(np.ones(4), requires_grad=True) * 1.0
    w[1:3] = (x * 2.0)[:2]
    w += np.sin(x)
    w[0] *= x[1] * 2.0
    return np.sum(w * w)


@simple
def own_leaf_inside(x, k):
    w = tg.tensor([1.0, 2.0], requires_grad=True)
    (g,) = tg.grad(np.sum(w * w * (1.0 + k)), w)
    return np.sum(x) * g[1]


@simple
def func_grad_inside(x, k):
    return np.sum(tg.func.grad(lambda u: np.sum(np.sin(u) * x))(x * 2.0))


@simple
def forward_mode_inside(x, k):
    value, tangent = tg.func.jvp(np.sin)(x, np.ones(4))
    return np.sum(value * tangent)


@hostile
def hook():
    seen = []

    def f(x, k):
        y = np.sin(x)
        y.register_hook(lambda g: seen.append(g.numpy().copy()))
        return np.sum(y * y)

    return f, seen


@simple
def hook_that_changes(x, k):
    y = np.sin(x)
    y.register_hook(lambda g: g * 2.0)
    return np.sum(y * x)


@simple
def history_is_looked_at(x, k):
    y = np.sin(x)
    return np.sum(y) * (2.0 if y.grad_fn is not None and y.requires_grad and not y.is_leaf else 3.0)


@simple
def inference_inside(x, k):
    with tg.inference_mode():
        c = float(np.sum(x))
    return np.sum(x) * c


class Cubed(tg.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x * x

    @staticmethod
    def backward(ctx, ct):
        (x,) = ctx.saved_tensors
        return ct * 3.0 * x * x


@simple
def own_function(x, k):
    return np.sum(Cubed.apply(np.sin(x)))


@simple
def stop_at_kink(x, k):
    return np.sum(np.abs(x - x)) + np.sum(np.maximum(x, x)) + np.sum(np.sign(x) * x)


@tg.njit
def compiled_helper(x):
    return np.sum(x * x) + x[0]


@simple
def compiled_inside(x, k):
    return compiled_helper(np.sin(x)) * 2.0


@simple
def checkpointed(x, k):
    return np.sum(tg.autograd.checkpoint(lambda u: np.sin(u) * u, x * 2.0))


# ------------------------------------------------------------ errors


@simple
def caught_error(x, k):
    try:
        y = x @ np.ones((3, 3))
    except ValueError:
        y = x * 2.0
    return np.sum(y)


@simple
def caught_error_at_times(x, k):
    try:
        y = x * np.ones(4 if k % 3 else 5)
    except ValueError:
        y = x * 7.0
    return np.sum(y)


@simple
def caught_error_of_values(x, k):
    a = np.outer(x, x) + np.eye(4) * (0.0 if k % 4 == 3 else 1.0)
    try:
        return np.sum(np.linalg.cholesky(a)) + np.sum(np.linalg.inv(a))
    except np.linalg.LinAlgError:
        return np.sum(x) * 100.0


@simple
def raises_at_times(x, k):
    y = np.sin(x)
    if k % 4 == 3:
        raise RuntimeError(f"call {k}, {y[0].item():.3f}")
    return np.sum(y)


@simple
def lost_derivative(x, k):
    y = np.sin(x)
    return np.sum(y) * float(np.asarray(y)[0])


@simple
def division_by_zero(x, k):
    with np.errstate(all="ignore"):
        return np.sum(x / (0.0 if k % 3 == 2 else 1.0))


@simple
def division_by_zero_warns(x, k):
    return np.sum(x / (0.0 if k % 3 == 2 else 1.0))


@simple
def logarithm_of_negatives_warns(x, k):
    return np.sum(np.log(x))


@simple
def overflow_raises(x, k):
    with np.errstate(over="raise"):
        try:
            return np.sum(np.exp(x * (1000.0 if k % 2 else 1.0)))
        except FloatingPointError:
            return np.sum(x)


@simple
def builtin_max(x, k):
    return max(x[0], x[1]) * min(x[1], x[2]) + sorted([x[0], x[1], x[2]])[0]


@hostile
def helper_replaced():
    state = types.SimpleNamespace(helper=lambda x: x * 2.0)

    def f(x, k):
        if k == 9:
            state.helper = lambda x: x * x
        return np.sum(state.helper(x))

    return f, None


@hostile
def list_of_functions():
    functions = [np.sin]

    def f(x, k):
        if k % 6 == 5:
            functions.append(np.tanh)
        for function in functions:
            x = function(x)
        return np.sum(x)

    return f, None


@hostile
def class_with_slots():
    class Model:
        __slots__ = ("scale",)
        offset = 1.0

        def __init__(self):
            self.scale = 2.0

        def __call__(self, x, k):
            self.scale += 0.1
            Model.offset = float(k)
            return np.sum(x * self.scale + self.offset)

    return Model(), None


# ------------------------------------------------------------ what a function returns, and other company


@simple
def returns_its_argument(x, k):
    return x[0] if k % 2 else x[1]


@simple
def returns_a_number(x, k):
    return 3.0


@simple
def returns_what_does_not_depend(x, k):
    return np.sum(np.ones(4)) + 0.0 * k


@simple
def returns_an_early_result(x, k):
    y = np.sum(x)
    z = np.sin(y)
    return z if k % 2 else y


@simple
def unused_results(x, k):
    np.exp(x), np.sin(x) * 2.0
    return np.sum(x)


@simple
def shapes_decide(x, k):
    y = np.outer(x, x)[: 1 + k % 3]
    return np.sum(y) * len(y) * y.size / y.ndim


@simple
def iterates(x, k):
    total = 0.0
    for v in x * 2.0:
        total = total + v * v
    return total


@simple
def unpacks(x, k):
    a, b, c, d = np.sin(x)
    return a * b + c * d


@hostile
def array_among_those_joined():
    a = np.ones(2)

    def f(x, k):
        a[0] = float(k)
        other = [a, [1.0, 2.0], np.arange(3.0), a.astype(np.float32), (3.0,)][k % 5]
        y = np.concatenate([other, x[:-1] * 2.0])
        z = np.concatenate((y, x), axis=0) if k % 3 else np.concatenate([y, x])
        return np.sum(z * np.arange(float(len(z))))

    return f, None


@simple
def arguments_of_functions(x, k):
    m = np.outer(x, x + 1.0)
    axis, keep = [(0, True), (1, False), (None, False), ((0, 1), True), (-1, False)][k % 5]
    found = np.sum(m, axis, keepdims=keep) * np.max(m, axis=axis, keepdims=keep)
    return np.sum(found) + np.sum(np.reshape(m, (2, 8)) if k % 2 else m) + np.sum(m[k % 3 :, 1:][..., None])


@simple
def nan_aware(x, k):
    y = np.sin(x) * (1.0 if k % 3 else np.array([1.0, np.nan, 1.0, 1.0]))
    return np.nansum(y) + np.nanmax(y)


@simple
def stacks(x, k):
    return np.sum(np.stack([x[0] * x[1], x[2], x[3] * 2.0]) ** 2)


@simple
def list_of_tensors(x, k):
    return np.sum(tg.array([x[0] * x[1], x[2] * 2.0, 1.0]))


@simple
def reductions(x, k):
    m = np.outer(x, x + 1.0)
    return (m.sum(axis=0) * m.max(axis=1)).mean() + m.min() + m.prod(axis=0)[0] + np.std(m) + m.var()


@simple
def linear_algebra(x, k):
    a = np.outer(x, x) + np.eye(4) * 3.0
    return np.sum(np.linalg.solve(a, x)) + np.linalg.det(a) * 0.01 + np.sum(np.linalg.eigvalsh(a) ** 2)


@simple
def factors(x, k):
    q, r = np.linalg.qr(np.outer(x, x + 1.0) + np.eye(4) * 2.0)
    return np.sum(np.abs(np.diag(r))) + np.sum(q[:, 0] ** 2)


@simple
def contraction(x, k):
    return np.einsum("i,ij,j->", x, np.outer(x, np.ones(4)), x)


@simple
def transform(x, k):
    return np.sum(np.abs(np.fft.fft(x)) ** 2)


@simple
def complex_numbers(x, k):
    z = x * np.exp(1j * x)
    return np.sum(z.real * z.imag)


@simple
def casts(x, k):
    return np.sum(x.astype(np.float32) * np.float32(1.5)).astype(float)


@simple
def operators_as_functions(x, k):
    return np.sum(operator.add(operator.mul(x, 2.0), partial(np.power, x)(2.0)))


@simple
def reflected_operators(x, k):
    return np.sum(2.0 - x) + np.sum(2.0 / (x + 5.0)) + np.sum(2.0**x) + np.sum(np.float64(2.0) * x)


@simple
def out_argument(x, k):
    out = np.zeros(4)
    np.multiply(x.detach().numpy(), 2.0, out=out)
    return np.sum(x * out)


@simple
def recursion(x, k):
    def power(u, n):
        return u if n == 0 else power(u, n - 1) * np.cos(u)

    return np.sum(power(x, k % 5))


@hostile
def another_thread():
    def f(x, k):
        found = []
        y = np.sin(x)
        worker = threading.Thread(target=lambda: found.append(np.sum(y.detach() * 2.0).item()))
        worker.start()
        worker.join()
        return np.sum(y) * found[0]

    return f, None


@hostile
def another_thread_records():
    def f(x, k):
        found = []
        y = np.sin(x)
        worker = threading.Thread(target=lambda: found.append(np.cos(y) * 2.0))
        worker.start()
        worker.join()
        return np.sum(y * found[0])

    return f, None


@hostile
def context_manager():
    seen = []

    @contextlib.contextmanager
    def scaled(k):
        seen.append(k)
        yield 1.0 + k
        seen.append(-k)

    def f(x, k):
        with scaled(k) as c:
            return np.sum(x * c)

    return f, seen


@hostile
def type_of_a_tensor():
    seen = []

    def f(x, k):
        y = x * 2.0
        seen.append((type(y) is tg.Tensor, isinstance(y, tg.Tensor), y.shape, y.dtype, hasattr(y, "nothing")))
        return np.sum(y)

    return f, seen


@simple
def attribute_error(x, k):
    y = x * 2.0
    try:
        y.no_such_thing
    except AttributeError as error:
        return np.sum(y) * float("no_such_thing" in str(error))
    return np.sum(y)


@simple
def hashed(x, k):
    y = x * 2.0
    return np.sum({y: y * 3.0}[y])


@simple
def deleted(x, k):
    y = x * 2.0
    z = np.sum(y)
    del y
    return z * z
