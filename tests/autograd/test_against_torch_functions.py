"""Programs of Functions, hooks and nodes here and in torch: values, or the class of what is raised."""

import numpy as np
import pytest

import tapegrad as tg

torch = pytest.importorskip("torch")

from .test_against_torch import Ours, Theirs, assert_equal, outcome  # noqa: E402

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("tape_length")]


class OursToo(Ours):
    autograd, Function, graph = tg.autograd, tg.autograd.Function, tg.autograd.graph
    once = staticmethod(tg.autograd.once_differentiable)
    enable_grad, set_grad_enabled, inference_mode = tg.enable_grad, tg.set_grad_enabled, tg.inference_mode
    is_grad_enabled = staticmethod(tg.is_grad_enabled)
    zeros = staticmethod(lambda *shape: tg.zeros(shape))
    stack = staticmethod(np.stack)


class TheirsToo(Theirs):
    autograd, Function, graph = torch.autograd, torch.autograd.Function, torch.autograd.graph
    once = staticmethod(torch.autograd.function.once_differentiable)
    enable_grad, set_grad_enabled, inference_mode = (
        torch.enable_grad,
        torch.set_grad_enabled,
        torch.inference_mode,
    )
    is_grad_enabled = staticmethod(torch.is_grad_enabled)
    zeros = staticmethod(lambda *shape: torch.zeros(shape, dtype=torch.float64))
    stack = staticmethod(torch.stack)


PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def function(t, forward, backward=None, **others):
    """A class of a Function."""
    methods = {"forward": staticmethod(forward)}
    if backward is not None:
        methods["backward"] = staticmethod(backward)
    methods |= {name: staticmethod(method) for name, method in others.items()}
    return type("E", (t.Function,), methods)


def scaled(t, k=3.0, **others):
    return function(t, lambda ctx, x: x * k, lambda ctx, g: g * k, **others)


def cube(t):
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    return function(t, forward, lambda ctx, g: 3 * ctx.saved_tensors[0] ** 2 * g)


# ---------------------------------------------------------------- G


@program
def G1_apply(t, x, z):
    y = scaled(t).apply(x)
    return y, y.requires_grad, y.grad_fn.name(), t.grad(y.sum(), x)


@program
def G1_instance_called(t, x, z):
    return scaled(t)()(x)


@program
def G1_no_input_requires_grad(t, x, z):
    y = scaled(t).apply(x.detach())
    return y, y.requires_grad, y.is_leaf


@program
def G1_under_no_grad(t, x, z):
    with t.no_grad():
        y = scaled(t).apply(x)
    return y, y.requires_grad


@program
def G2_no_forward(t, x, z):
    return type("E", (t.Function,), {}).apply(x)


@program
def G2_no_backward(t, x, z):
    y = function(t, lambda ctx, x: x * 1).apply(x)
    return t.grad(y.sum(), x)


@program
def G2_both(t, x, z):
    y = scaled(t, vjp=lambda ctx, g: g).apply(x)
    return t.grad(y.sum(), x)


@program
def G2_vjp_only(t, x, z):
    y = function(t, lambda ctx, x: x * 2, vjp=lambda ctx, g: g * 2).apply(x)
    return t.grad(y.sum(), x)


def returning(*gradients):
    def run(t, x, z):
        E = function(
            t, lambda ctx, x, k: x * k, lambda ctx, g: gradients if len(gradients) != 1 else gradients[0]
        )
        return t.grad(E.apply(x, 2.0).sum(), x, allow_unused=True)

    return run


PROGRAMS["G3 float"] = returning(5.0, None)
PROGRAMS["G3 text"] = returning("text", None)
PROGRAMS["G3 none at all"] = returning(None, None)


@program
def G3_extra(t, x, z):
    return t.grad(function(t, lambda ctx, x: x * 1, lambda ctx, g: (g, g)).apply(x).sum(), x)


@program
def G3_trailing_nones(t, x, z):
    return t.grad(function(t, lambda ctx, x: x * 1, lambda ctx, g: (g * 5, None, None)).apply(x).sum(), x)


@program
def G3_too_few(t, x, z):
    return t.grad(function(t, lambda ctx, x, z: x * z, lambda ctx, g: g).apply(x, z).sum(), x)


@program
def G3_for_a_number(t, x, z):
    return t.grad(function(t, lambda ctx, x, k: x * k, lambda ctx, g: (g, g)).apply(x, 2.0).sum(), x)


@program
def G3_for_a_constant(t, x, z):
    E = function(t, lambda ctx, x, k: x * k, lambda ctx, g: (g * 2, g * 100))
    return t.grad(E.apply(x, z.detach()).sum(), x)


@program
def G4_larger(t, x, z):
    E = function(t, lambda ctx, x: x * 1, lambda ctx, g: t.stack([g, g * 2, g * 3]))
    return t.grad(E.apply(x).sum(), x)


@program
def G4_smaller(t, x, z):
    return t.grad(function(t, lambda ctx, x: x * 1, lambda ctx, g: g.sum()).apply(x).sum(), x)


@program
def G4_incompatible(t, x, z):
    return t.grad(function(t, lambda ctx, x: x * 1, lambda ctx, g: t.zeros(3)).apply(x).sum(), x)


@program
def G5(t, x, z):
    seen = []

    def forward(ctx, x, k, c, z):
        seen.append(list(ctx.needs_input_grad))
        return x * z

    def backward(ctx, g):
        seen.append(list(ctx.needs_input_grad))
        return g, None, None, g

    y = function(t, forward, backward).apply(x, 2.0, z.detach(), z)
    t.grad(y.sum(), x)
    return seen


@program
def G6_number(t, x, z):
    def forward(ctx, x):
        ctx.save_for_backward(5.0)
        return x * 1

    return function(t, forward, lambda ctx, g: g).apply(x)


@program
def G6_twice_and_none(t, x, z):
    def forward(ctx, x, z):
        ctx.save_for_backward(x, z)
        ctx.save_for_backward(z, None, x)
        return x * z

    seen = []

    def backward(ctx, g):
        a, none, b = ctx.saved_tensors
        seen.extend([a is z, none is None, b is x])
        return g * a, g * b

    return t.grad(function(t, forward, backward).apply(x, z).sum(), [x, z]), seen


@program
def G6_freed(t, x, z):
    y = cube(t).apply(x).sum()
    y.backward()
    y.backward()


@program
def G6_read_after_it_was_freed(t, x, z):
    y = cube(t).apply(x)
    y.sum().backward()
    return y.grad_fn.saved_tensors


@program
def G6_retained(t, x, z):
    y = cube(t).apply(x).sum()
    y.backward(retain_graph=True)
    y.backward()
    return x.grad


@program
def B2_nothing_saved_runs_again(t, x, z):
    y = scaled(t).apply(x).sum()
    y.backward()
    y.backward()
    return x.grad


def dirtying(t, **others):
    def forward(ctx, a):
        a.mul_(2)
        ctx.mark_dirty(a)
        return a

    return function(t, forward, lambda ctx, g: g * 2)


@program
def G7(t, x, z):
    a = x * 1
    y = dirtying(t).apply(a)
    return y is a, a, a.is_leaf, a._version, t.grad((a * a).sum(), x)


@program
def G7_of_a_view(t, x, z):
    a = x * 1
    dirtying(t).apply(a[:1])
    return a, t.grad((a * a).sum(), x)


@program
def G7_not_returned(t, x, z):
    def forward(ctx, a):
        ctx.mark_dirty(a)
        return a * 2

    return function(t, forward, lambda ctx, g: g).apply(x * 1)


@program
def G7_leaf(t, x, z):
    return dirtying(t).apply(x)


@program
def G7_no_grad_leaf(t, x, z):
    with t.no_grad():
        dirtying(t).apply(x)
    return x, x.requires_grad


@program
def G7_constant(t, x, z):
    def forward(ctx, c, x):
        c.add_(x)
        ctx.mark_dirty(c)
        return c

    c = z.detach().clone()
    y = function(t, forward, lambda ctx, g: (None, g * 3)).apply(c, x)
    return y is c, c, c.requires_grad, t.grad(c.sum(), x)


def halves(t, seen, *, materialize=True, plain=False):
    def forward(ctx, x):
        a, b = x * 2, x * 3
        ctx.set_materialize_grads(materialize)
        if plain:
            ctx.mark_non_differentiable(b)
        return a, b

    def backward(ctx, ga, gb):
        seen.append((ga, gb))
        ga, gb = (0 if g is None else g for g in (ga, gb))
        return ga * 2 + gb * 3

    return function(t, forward, backward)


@program
def G8(t, x, z):
    seen = []
    a, b = halves(t, seen, plain=True).apply(x)
    return a.requires_grad, b.requires_grad, b.grad_fn is None, t.grad(a.sum(), x), seen


@program
def G8_integers(t, x, z):
    def forward(ctx, x):
        i = x.argmax()
        ctx.save_for_backward(x, i)
        return x * x, i

    def backward(ctx, g, gi):
        x, i = ctx.saved_tensors
        return 2 * x * g + int(i) * 100

    y, i = function(t, forward, backward).apply(x)
    return i, i.requires_grad, t.grad(y.sum(), x)


@program
def G9(t, x, z):
    seen = []
    _a, b = halves(t, seen).apply(x)
    return t.grad(b.sum(), x), seen


@program
def G9_not_materialized(t, x, z):
    seen = []
    _a, b = halves(t, seen, materialize=False).apply(x)
    return t.grad(b.sum(), x), seen


@program
def G9_both_used(t, x, z):
    seen = []
    a, b = halves(t, seen).apply(x)
    return t.grad((a * b).sum(), x), seen


@program
def G9_create_graph(t, x, z):
    seen = []
    _a, b = halves(t, seen).apply(x)
    (g,) = t.grad((b * b).sum(), x, create_graph=True)
    return g, t.grad(g.sum(), x)


@program
def G10_input_returned(t, x, z):
    y = function(t, lambda ctx, x: x, lambda ctx, g: g * 7).apply(x)
    return y is x, y, y.grad_fn.name(), t.grad(y.sum(), x)


@program
def G10_view_returned(t, x, z):
    y = function(t, lambda ctx, x: x[:1], lambda ctx, g: t.stack([g[0] * 7, g[0] * 9])).apply(x)
    return y, y.grad_fn.name(), t.grad(y.sum(), x)


@program
def G10_two_inputs_returned(t, x, z):
    a, b = function(t, lambda ctx, x, z: (z, x), lambda ctx, ga, gb: (gb * 2, ga * 3)).apply(x, z)
    return t.grad((a * 10 + b).sum(), [x, z])


@program
def G10_others_pass_through(t, x, z):
    y, n, s, none = function(t, lambda ctx, x: (x * 2, 5, "text", None), lambda ctx, g, *_: g * 2).apply(x)
    return y, n, s, none, t.grad(y.sum(), x)


@program
def G10_no_tensor_at_all(t, x, z):
    return function(t, lambda ctx, x: 5, lambda ctx, g: g).apply(x)


@program
def G10_list_of_arguments(t, x, z):
    y = function(t, lambda ctx, x, others: x * others[0], lambda ctx, g: (g * 2, None)).apply(x, [z])
    return y, t.grad(y.sum(), [x, z], allow_unused=True)


def with_setup(t):
    def forward(x, k=3.0, p=2):
        return k * x**p

    def setup_context(ctx, inputs, output):
        x, ctx.k, ctx.p = inputs
        ctx.save_for_backward(x, output)

    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * ctx.p * y / x, None, None

    return function(t, forward, backward, setup_context=setup_context)


@program
def G11(t, x, z):
    E = with_setup(t)
    return [t.grad(y.sum(), x) for y in (E.apply(x), E.apply(x, 5.0), E.apply(x, p=3), E.apply(p=1, x=x))]


@program
def G11_second_derivative(t, x, z):
    (g,) = t.grad(with_setup(t).apply(x, p=3).sum(), x, create_graph=True)
    return g, t.grad(g.sum(), x)


@program
def G11_keywords_in_the_old_style(t, x, z):
    E = function(t, lambda ctx, x, w=None: x * w, lambda ctx, g: (g, g * 3))
    return t.grad(E.apply(x, w=z).sum(), [x, z])


@program
def G14_gradient_that_requires_grad(t, x, z):
    E = function(t, lambda ctx, x: x * 2, t.once(lambda ctx, g: g * 2))
    (g,) = t.grad(E.apply(x), x, z, create_graph=True)
    return t.grad(g.sum(), z)


@program
def G14_once_first_derivative(t, x, z):
    E = function(t, lambda ctx, x: x * 2, t.once(lambda ctx, g: g * 2))
    return t.grad(E.apply(x).sum(), x), t.grad(E.apply(x).sum(), x, create_graph=True)


@program
def G14_once_runs_without_recording(t, x, z):
    seen = []

    def backward(ctx, g):
        seen.append((t.is_grad_enabled(), g.requires_grad))
        return g * 2

    E = function(t, lambda ctx, x: x * 2, t.once(backward))
    t.grad(E.apply(x), x, z, create_graph=True)
    return seen


@program
def G16(t, x, z):
    found, y = [], cube(t).apply(x).sum()
    for _ in range(3):
        (g,) = t.grad(y, x, create_graph=True)
        found.append(g)
        y = g.sum()
    return found


@program
def G16_saved_result(t, x, z):
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        return y

    y = function(t, forward, lambda ctx, g: g * ctx.saved_tensors[0]).apply(x).sum()
    found = []
    for _ in range(3):
        (g,) = t.grad(y, x, create_graph=True)
        found.append(g)
        y = g.sum()
    return found


@program
def A14_through_a_function(t, x, z):
    (g,) = t.grad(cube(t).apply(x), x, z, create_graph=True)
    return t.grad(g.sum(), [x, z])


@program
def E13_names(t, x, z):
    y = scaled(t).apply(x)
    return repr(y).split("grad_fn=")[1].rstrip(">)").lstrip("<")


# ---------------------------------------------------------------- F


@program
def F1_replaces_in_order(t, x, z):
    y, seen = x * z, []
    y.register_hook(lambda g: seen.append(g.tolist()))
    y.register_hook(lambda g: g * 10)
    y.register_hook(lambda g: seen.append(g.tolist()))
    return t.grad((y * y).sum(), [x, z]), seen


@program
def F1_leaf(t, x, z):
    x.register_hook(lambda g: g * 10)
    (x * x).sum().backward()
    return x.grad, t.grad((x * x).sum(), x)


@program
def F1_sum_of_all_contributions(t, x, z):
    seen = []
    x.register_hook(lambda g: seen.append(g.tolist()))
    (x * x + x * z + x).sum().backward()
    return seen, x.grad


@program
def F1_edited_in_place(t, x, z):
    y = x * z
    y.register_hook(lambda g: [g.mul_(10), None][1])
    x.register_hook(lambda g: [g.add_(1), None][1])
    return t.grad((y * y).sum(), [x, z])


@program
def F1_root(t, x, z):
    y = (x * z).sum()
    y.register_hook(lambda g: g * 5)
    return t.grad(y, x)


@program
def F1_gradient_of_what_is_hooked(t, x, z):
    y = x * z
    y.register_hook(lambda g: g * 5)
    return t.grad((y * 2).sum(), [y])


@program
def F5_what_a_hooked_node_retains(t, x, z):
    y = x * z
    y.grad_fn.register_prehook(lambda go: (go[0] * 7,))
    y.register_hook(lambda g: g * 5)
    y.retain_grad()
    (y * 2).sum().backward(retain_graph=True)
    return y.grad, x.grad, t.grad((y * 2).sum(), y)


@program
def F1_create_graph(t, x, z):
    y, seen = x * x, []
    y.register_hook(lambda g: g * g)
    y.register_hook(lambda g: seen.append((g.requires_grad, t.is_grad_enabled())))
    (g,) = t.grad((y * y).sum(), x, create_graph=True)
    return seen, g, t.grad(g.sum(), x)


def hooked(hook):
    def run(t, x, z):
        (x * 1).register_hook(hook) if hook is None else x.register_hook(lambda g: hook(t, g))
        return t.grad((x * x).sum(), x)

    return run


PROGRAMS["F2 float"] = hooked(lambda t, g: 5.0)
PROGRAMS["F2 shape"] = hooked(lambda t, g: t.zeros(3))
PROGRAMS["F2 raises"] = hooked(lambda t, g: [][1])


@program
def F2_no_grad(t, x, z):
    return x.detach().register_hook(lambda g: g)


@program
def F2_removed(t, x, z):
    handle = x.register_hook(lambda g: g * 10)
    kept = x.register_hook(lambda g: g * 3)
    handle.remove()
    handle.remove()
    return kept is not handle, t.grad((x * x).sum(), x)


@program
def F2_removed_by_with(t, x, z):
    with x.register_hook(lambda g: g * 10):
        inside = t.grad((x * x).sum(), x)
    return inside, t.grad((x * x).sum(), x)


@program
def F2_survives_its_handle(t, x, z):
    x.register_hook(lambda g: g * 10)
    y = x * z
    y.register_hook(lambda g: g * 3)
    return t.grad(y.sum(), x)


@program
def F3(t, x, z):
    y = x * z
    y.retain_grad()
    y.register_hook(lambda g: g * 10)
    (y * 2).sum().backward()
    return y.grad, x.grad


@program
def F4(t, x, z):
    y, seen = x * z, []
    y.register_hook(lambda g: seen.append(g.tolist()))
    y.mul_(5)
    y.register_hook(lambda g: seen.append(g.tolist()))
    y.sum().backward()
    return seen, x.grad


@program
def F5(t, x, z):
    order, y = [], x * z
    node = y.grad_fn
    node.register_hook(lambda gi, go: order.append("post"))
    node.register_prehook(lambda go: order.append("pre"))
    y.register_hook(lambda g: order.append("tensor"))
    x.register_hook(lambda g: order.append("leaf"))
    x.register_post_accumulate_grad_hook(lambda p: order.append("accumulated"))
    y.sum().backward()
    return order


@program
def F6_prehook(t, x, z):
    y = x * z
    y.grad_fn.register_prehook(lambda go: (go[0] * 10,))
    return t.grad(y.sum(), [x, z])


@program
def F6_posthook(t, x, z):
    y, seen = x * z, []
    y.grad_fn.register_hook(lambda gi, go: seen.append((gi, go)))
    y.grad_fn.register_hook(lambda gi, go: (gi[0] * 10, gi[1]))
    y.grad_fn.register_hook(lambda gi, go: seen.append((gi, go)))
    return t.grad(y.sum(), [x, z]), seen


@program
def F6_posthook_of_too_many(t, x, z):
    y = x * z
    y.grad_fn.register_hook(lambda gi, go: (gi[0],))
    return t.grad(y.sum(), [x, z])


@program
def F6_hooks_of_a_function(t, x, z):
    y, seen = (
        function(t, lambda ctx, x, k, c, z: x * z, lambda ctx, g: (g, None, None, g * 5)).apply(
            x, 2, z.detach(), z
        ),
        [],
    )
    y.grad_fn.register_prehook(lambda go: (go[0] * 10,))
    y.grad_fn.register_hook(lambda gi, go: seen.append((gi, go)))
    y.grad_fn.register_hook(lambda gi, go: (gi[0] * 2, gi[1], gi[2]))
    return t.grad(y.sum(), [x, z]), seen


@program
def F6_posthook_of_none(t, x, z):
    y, seen = x * 3, []
    y.grad_fn.register_hook(lambda gi, go: seen.append(len(gi)))
    return t.grad(y.sum(), x), seen


@program
def F7(t, x, z):
    seen = []
    x.register_post_accumulate_grad_hook(lambda p: seen.append((p is x, p.grad.tolist())))
    (x * x).sum().backward()
    t.grad((x * x).sum(), x)
    (x * x).sum().backward()
    return seen


@program
def F7_not_a_leaf(t, x, z):
    return (x * 2).register_post_accumulate_grad_hook(lambda p: None)


@program
def F7_returns_something(t, x, z):
    x.register_post_accumulate_grad_hook(lambda p: 5)
    x.sum().backward()


@program
def F7_sets_grad_to_none(t, x, z):
    x.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
    (x * z).sum().backward()
    return x.grad, z.grad


@program
def F8_all(t, x, z):
    seen, a, b = [], x * 2, z * 3
    t.graph.register_multi_grad_hook([a, b, x], lambda gs: seen.append(list(gs)))
    (a * b).sum().backward()
    (a * 1).sum().backward()
    b.sum().backward()
    return seen


@program
def F8_any(t, x, z):
    seen, a, b = [], x * 2, z * 3
    t.graph.register_multi_grad_hook([a, b], lambda g: seen.append(g), mode="any")
    (a * b).sum().backward()
    b.sum().backward()
    return len(seen), seen[1]


@program
def F8_mode(t, x, z):
    return t.graph.register_multi_grad_hook([x], print, mode="some")


@program
def F8_removed(t, x, z):
    seen = []
    t.graph.register_multi_grad_hook([x, z], seen.append).remove()
    (x * z).sum().backward()
    return seen


@program
def F9_only_on_executed_paths(t, x, z):
    seen, a, b = [], x * 2, z * 3
    a.register_hook(lambda g: seen.append("a"))
    b.register_hook(lambda g: seen.append("b"))
    t.grad((a * b).sum(), x)
    return seen


@program
def F9_modes(t, x, z):
    seen = []

    def forward(ctx, x):
        seen.append(("forward", t.is_grad_enabled()))
        return x * 2

    def backward(ctx, g):
        seen.append(("backward", t.is_grad_enabled()))
        return g * 2

    for create in (False, True):
        y = function(t, forward, backward).apply(x)
        y.register_hook(lambda g: seen.append(("hook", t.is_grad_enabled())))
        y.grad_fn.register_prehook(lambda go: seen.append(("pre", t.is_grad_enabled())))
        y.grad_fn.register_hook(lambda gi, go: seen.append(("post", t.is_grad_enabled())))
        t.grad(y.sum(), x, create_graph=create)
    return seen


@program
def F10_newest_first(t, x, z):
    order, a = [], x * 1
    b = a * 2
    c = a * 3
    for name, y in (("a", a), ("b", b), ("c", c)):
        y.register_hook(lambda g, name=name: order.append(name))
    (b + c).sum().backward()
    return order


@program
def F10_leaves_as_soon_as_ready(t, x, z):
    order, w = [], t.tensor([1.0, 1.0])
    for name, y in (("a", x), ("b", z), ("c", w)):
        y.register_hook(lambda g, name=name: order.append(name))
    (x * z + w).sum().backward()
    return order


@program
def F11_names(t, x, z):
    found = [
        x + z, x - z, x * z, x / z, x**2.0, x.exp(), -x, x[0], x.sum(), x.sin(), x.log(),
    ]  # fmt: skip
    return [y.grad_fn.name().rstrip("0") for y in found]


@program
def F11_graph(t, x, z):
    y = x * z.detach()
    (first, i), (second, j) = y.grad_fn.next_functions
    node = y.grad_fn
    node.metadata["a"] = 5
    same = y.grad_fn is y.grad_fn, y.grad_fn.metadata
    return first.variable is x, i, second, j, same, x.grad_fn, first is (x * 2).grad_fn.next_functions[0][0]


@program
def F11_deep(t, x, z):
    y = ((x * z).exp() + x).sum()
    names, todo = [], [y.grad_fn]
    while todo:
        node = todo.pop()
        names.append(node.name().rstrip("0").split("::")[-1])
        todo += [n for n, _ in node.next_functions if n is not None]
    return names


@program
def F11_function(t, x, z):
    seen = []
    a, b = halves(t, seen).apply(x)
    c = a * b
    (na, i), (nb, j) = c.grad_fn.next_functions
    return na is nb, i, j, na.name(), na is a.grad_fn, b.grad_fn is a.grad_fn


@program
def F11_function_next(t, x, z):
    y = function(t, lambda ctx, x, k, c, z: x * z, lambda ctx, g: (g, None, None, g)).apply(
        x, 2, z.detach(), z
    )
    return [None if n is None else n.variable for n, _ in y.grad_fn.next_functions]


@program
def F11_function_attributes(t, x, z):
    def forward(ctx, x):
        ctx.k = 5
        ctx.save_for_backward(x)
        return x * 5

    y = function(t, forward, lambda ctx, g: g).apply(x)
    return y.grad_fn.k, y.grad_fn.saved_tensors[0] is x


@program
def F12_no_grad(t, x, z):
    return t.graph.get_gradient_edge(x.detach())


@program
def F12_edges(t, x, z):
    y = x * z
    edge = t.graph.get_gradient_edge(y)
    leaf = t.graph.get_gradient_edge(x)
    loss = (y * y).sum()
    return (
        edge.output_nr,
        edge.node is y.grad_fn,
        t.grad(loss, [edge, leaf], retain_graph=True),
        t.grad(edge, x, t.tensor([1.0, 10.0])),
    )


@program
def F12_edge_of_a_function(t, x, z):
    a, b = halves(t, []).apply(x)
    edge = t.graph.get_gradient_edge(b)
    return edge.output_nr, t.grad((a * b).sum(), edge)


@program
def F12_backward(t, x, z):
    edge = t.graph.get_gradient_edge((x * z).sum())
    t.autograd.backward(edge, inputs=[t.graph.get_gradient_edge(x)])
    return x.grad, z.grad


@program
def F14(t, x, z):
    def forward(ctx, x):
        with t.enable_grad():
            ctx.x = x.detach().clone().requires_grad_()
            ctx.y = (ctx.x**3).sum()
        return ctx.y.detach()

    def backward(ctx, g):
        with t.enable_grad():
            ctx.y.backward()
        return ctx.x.grad * g

    y = function(t, forward, backward).apply(x)
    return t.grad(y * 2, x)


@program
def F14_deep(t, x, z):
    def forward(ctx, x, depth):
        ctx.save_for_backward(x)
        ctx.depth = depth
        return x * 1

    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        if ctx.depth:
            with t.enable_grad():
                inner = x.detach().requires_grad_()
                t.autograd.backward(E.apply(inner, ctx.depth - 1).sum())
            g = g + inner.grad
        return g, None

    E = function(t, forward, backward)
    return t.grad(E.apply(x, 10).sum(), x)


# ---------------------------------------------------------------- E


@program
def E7(t, x, z):
    c = t.zeros(2)
    c += x
    d = t.zeros(2)
    d[0] = x[1]
    e = t.zeros(2)
    e.copy_(x)
    return c.requires_grad, c.is_leaf, e.is_leaf, t.grad((c + d).sum(), x)


@program
def E7_zeroed(t, x, z):
    y = x * 2
    y.zero_()
    return y.requires_grad, t.grad(y.sum(), x)


@program
def E8(t, x, z):
    y = x * 1
    v = y[:1]
    before = v.grad_fn
    v.mul_(10)
    return v.grad_fn is not before, t.grad(y.sum(), x)


@program
def E8_view_after_base(t, x, z):
    y = x * 1
    v = y[:1]
    before = v.grad_fn
    y.mul_(3)
    return v.grad_fn is not before, v, t.grad(v.sum(), x)


# ---------------------------------------------------------------- modes


@program
def F2_1_forward_of_a_function(t, x, z):
    seen = []

    def forward(ctx, x):
        y = x * 2
        seen.append((t.is_grad_enabled(), y.requires_grad))
        with t.enable_grad():
            seen.append((t.is_grad_enabled(), (x * 2).requires_grad))
        return y

    function(t, forward, lambda ctx, g: g).apply(x)
    return seen, t.is_grad_enabled()


@program
def F2_3_no_grad(t, x, z):
    with t.inference_mode():
        y = x * z
    return y.requires_grad, y.is_inference(), x.is_inference()


@program
def F2_3_saved(t, x, z):
    with t.inference_mode():
        y = x * 1
    return y * z


@program
def F2_3_added(t, x, z):
    with t.inference_mode():
        y = x * 1
    return t.grad((y + z).sum(), z)


@program
def F2_3_written(t, x, z):
    with t.inference_mode():
        y = x * 1
    y.add_(1)


@program
def F2_3_written_inside(t, x, z):
    with t.inference_mode():
        y = x * 1
        y.add_(1)
    return y


@program
def F2_3_requires_grad(t, x, z):
    with t.inference_mode():
        y = x * 1
    y.requires_grad_()


@program
def F2_3_version(t, x, z):
    with t.inference_mode():
        y = x * 1
    return y._version


@program
def F2_3_clone(t, x, z):
    with t.inference_mode():
        y = x * 1
    w = y.clone()
    return w.is_inference(), t.grad((w * z).sum(), z), w.requires_grad_().requires_grad


@program
def F2_3_enable_grad_inside(t, x, z):
    with t.inference_mode(), t.enable_grad():
        y = x * 2
    return y.requires_grad


@program
def F2_3_false(t, x, z):
    with t.inference_mode(), t.inference_mode(False):
        y = x * 2
    with t.no_grad(), t.inference_mode(False):
        w = x * 2
    return y.requires_grad, y.is_inference(), w.requires_grad


@program
def F2_3_view(t, x, z):
    with t.inference_mode():
        v = x[:1]
        y = x * 1
        w = y[:1]
    return v.is_inference(), w.is_inference(), y[:1].is_inference()


@program
def F2_3_function(t, x, z):
    with t.inference_mode():
        y = cube(t).apply(x)
    return y, y.is_inference(), y.requires_grad


@program
def F2_3_saved_by_a_function(t, x, z):
    with t.inference_mode():
        y = x * 1

    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y

    def backward(ctx, g):
        x, y = ctx.saved_tensors
        return g * y, g * x

    return t.grad(function(t, forward, backward).apply(z, y).sum(), z)


def compare(program, ours, theirs):
    """Run a program in both; the same must come of it, or an exception of torch's kind."""
    ours, theirs = (outcome(program, api) for api in (ours, theirs))
    if isinstance(theirs, Exception):
        kinds = (NotImplementedError, IndexError, TypeError, ValueError, RuntimeError)
        kind = next(k for k in kinds if isinstance(theirs, k))
        assert isinstance(ours, kind), f"{ours!r} where torch raises {theirs!r}"
    else:
        if isinstance(ours, Exception):
            raise ours
        assert_equal(ours, theirs)


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_outcome(name):
    compare(PROGRAMS[name], OursToo, TheirsToo)
