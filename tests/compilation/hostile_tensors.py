"""More of them: what Tensors, modes and derivatives do inside of a function."""

import types

import numpy as np

import tapegrad as tg

from .hostile import hostile, simple

# ------------------------------------------------------------ one Tensor in many places


@simple
def one_tensor_twice(x, k):
    return x @ x + np.sum(x * x - x) + np.sum(np.concatenate([x, x])) + np.sum(np.where(x > 0, x, x))


@simple
def views_that_overlap(x, k):
    a, b = x[:3], x[1:]
    return np.sum(a * b) + np.sum((a + b) * a[::-1]) + np.sum(x[::-1] * x)


@simple
def results_in_other_order(x, k):
    a, b = np.sin(x), np.cos(x)
    if k % 2:
        a, b = b, a
    return np.sum(a * a * b)


@simple
def operands_are_swapped(x, k):
    y = np.exp(x)
    return np.sum(x - y if k % 3 else y - x) + np.sum(x / y if k % 2 else y / x)


@simple
def same_operations_on_other_results(x, k):
    y = np.sin(x)
    z = np.sin(x if k % 2 else y)
    return np.sum(np.sin(y if k % 3 else z) * z)


@simple
def one_operation_more_at_the_end(x, k):
    y = np.sum(np.sin(x))
    return y if k % 3 == 0 else y * 2.0 if k % 3 == 1 else y * 2.0 + 1.0


@simple
def one_operation_fewer_at_the_beginning(x, k):
    y = x if k % 2 else x * 2.0
    return np.sum(np.sin(y) * y)


@simple
def result_is_not_the_last(x, k):
    y = np.sum(x * x)
    for _ in range(k % 3):
        np.exp(y)
    return y


@simple
def result_of_one_element(x, k):
    y = np.sum(x * x, keepdims=True)
    return y if k % 3 == 0 else y[0] if k % 3 == 1 else y.reshape(())


@simple
def result_in_single_precision(x, k):
    return np.sum(x.astype(np.float32) ** 2)


@simple
def result_is_a_view(x, k):
    y = np.sin(x)
    return y[k % 4] if k % 2 else y.reshape(2, 2)[1, 1]


@simple
def results_that_are_nothing(x, k):
    y = np.sin(x)
    np.outer(y, y), y[:2], y.T, y.reshape(2, 2), -y, y == y
    return y[0] + y[-1]


class Place:
    """Another integer at each time."""

    def __index__(self):
        return self.number


@hostile
def slices_by_what_changes():
    number, place = np.array(1), Place()

    def f(x, k):
        number[...], place.number = k % 3, k % 2
        return np.sum(x[number:] * x[0]) + np.sum(x[place :: place.number + 1] ** 2) + x[place] * x[number]

    return f, (number,)


# ------------------------------------------------------------ writes


@simple
def swapped_in_place(x, k):
    y = x * 1.0
    y[0], y[1] = y[1] * 2.0, y[0] * 3.0
    return np.sum(y * np.arange(4.0))


@simple
def shifted_in_place(x, k):
    y = np.sin(x)
    y[1:] = y[:-1]
    y[::2] += x[:2]
    return np.sum(y * x)


@simple
def written_by_masks(x, k):
    y = x * 2.0
    y[y > 0.5] = 0.5
    y[np.array([True, False, k % 2 == 0, False])] *= x[0]
    return np.sum(y * y)


@simple
def written_by_lists(x, k):
    y = x * 2.0
    y[[0, k % 4]] = x[:2]
    y[[3, 3]] = [1.0, 2.0]
    return np.sum(y * x)


@simple
def written_through_a_transpose(x, k):
    m = np.outer(x, x)
    m.T[0] = x * 2.0
    m.reshape(-1)[5] = 1.0
    np.fill_diagonal(m, 0.5)
    return np.sum(m * m)


@simple
def argument_is_written_at_times(x, k):
    if k % 3 == 1:
        x[k % 4] = 2.0
    if k % 3 == 2:
        x *= 2.0
    return np.sum(np.sin(x) * x)


@simple
def accumulates_in_place(x, k):
    total = tg.zeros(4)
    for n in range(3):
        total += np.sin(x * (n + 1.0))
    total -= x
    total /= 2.0
    total **= 2
    return np.sum(total)


@simple
def fills_an_array_of_zeros(x, k):
    y = tg.zeros((4, 2))
    for n in range(4):
        y[n, k % 2] = x[n] * n
    return np.sum(y * y) + np.sum(y[0])


@simple
def methods_that_write(x, k):
    y = np.sin(x)
    y.mul_(2.0)
    y.sub_(x)
    if k % 2:
        y.zero_()
    z = y.clone()
    z.add_(x)
    return np.sum(y * z)


@simple
def sorted_in_place(x, k):
    y = x * 1.0
    y.sort()
    z = np.sort(x)[::-1]
    return np.sum(y * np.arange(4.0)) + z[0]


@hostile
def array_of_a_tensor_is_written():
    a = np.arange(4.0)
    t = tg.from_numpy(a)

    def f(x, k):
        a[k % 4] = float(k)
        return np.sum(x * t) + np.sum(t + x)

    return f, a


@hostile
def array_of_a_tensor_is_written_between_uses():
    a = np.arange(4.0)
    t = tg.from_numpy(a)

    def f(x, k):
        y = x * t
        a[0] += 1.0
        try:
            return np.sum(y * t)
        finally:
            a[1] += 1.0

    return f, a


@simple
def array_of_a_result_is_written(x, k):
    y = np.sin(x)
    a = y.detach().numpy()
    z = y * 2.0
    if k % 3 == 2:
        a = a.copy()
    w = np.sum(z * a.sum())
    return w


@hostile
def values_given_out_before_are_written():
    kept = []

    def f(x, k):
        for a in kept:
            a[:] = -7.0
        y = np.cos(x)
        kept[:] = [y.detach().numpy()]
        return np.sum(y * y)

    return f, None


@hostile
def constant_of_another_dtype():
    constants = [
        tg.ones(4),
        tg.ones(4, dtype=np.float32),
        tg.tensor([1, 2, 3, 4]),
        tg.tensor(3.0),
        tg.ones((2, 4)),
    ]
    return (lambda x, k: np.sum(x * constants[k % 5]) + np.sum(constants[k % 5])), None


@hostile
def constant_becomes_a_parameter():
    w = tg.ones(4)

    def f(x, k):
        if k == 8:
            w.requires_grad_()
        if k == 14:
            w.requires_grad_(False)
        y = np.sum(x * w)
        return y.detach() * np.sum(x) if k % 5 == 4 else y

    return f, None


# ------------------------------------------------------------ modes


@simple
def recording_is_switched(x, k):
    with tg.set_grad_enabled(k % 2 == 0):
        y = np.sin(x)
    return np.sum(y * x)


@simple
def recording_is_switched_on_again(x, k):
    with tg.no_grad():
        y = np.sin(x)
        with tg.enable_grad():
            z = np.cos(x)
    return np.sum(y * z) * (2.0 if tg.is_grad_enabled() else 3.0)


@simple
def decorated_without_grad(x, k):
    @tg.no_grad()
    def scale(y):
        return np.sum(y * y) + 1.0

    return np.sum(x) / scale(x)


@simple
def detached_in_place(x, k):
    y = np.sin(x)
    if k % 2:
        y.detach_()
    return np.sum(y * x)


@simple
def clones_and_data(x, k):
    y = np.sin(x).clone()
    return np.sum(y * y.data) + np.sum(y.detach() * x) * (2.0 if y.data.requires_grad else 3.0)


@simple
def saved_tensors_are_packed(x, k):
    seen = []

    def pack(t):
        seen.append(t)
        return t

    with tg.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        y = np.sum(np.sin(x) * x)
    return y * (2.0 if seen else 3.0)


@simple
def anomalies_are_looked_for(x, k):
    if k % 2:
        with tg.autograd.detect_anomaly():
            return np.sum(np.sin(x) * x)
    return np.sum(np.sin(x) * x)


@simple
def profiled(x, k):
    with tg.autograd.profiler.profile():
        y = np.sin(x) * 2.0
    return np.sum(y)


@simple
def dual_numbers_inside(x, k):
    with tg.autograd.forward_ad.dual_level():
        dual = tg.autograd.forward_ad.make_dual(x, tg.ones(4))
        y = np.sin(dual) * 2.0
        value, tangent = tg.autograd.forward_ad.unpack_dual(y)
        return np.sum(value * tangent)


@simple
def leaves_a_mode_by_an_error(x, k):
    try:
        with tg.no_grad():
            y = np.sin(x)
            raise ValueError
    except ValueError:
        z = np.cos(x)
    return np.sum(y * z)


@simple
def guard_is_switched_off(x, k):
    a = np.arange(4.0)
    with tg.guard(["off", "copy", "checksum"][k % 3]):
        return np.sum(x * a) * np.sum(a + x)


# ------------------------------------------------------------ derivatives inside


@simple
def compiled_inside_of_compiled(x, k):
    inner = tg.compile(lambda u: np.sum(np.sin(u) * u))
    return sum(inner(x * float(n)) for n in range(1, 4)) * 2.0


@hostile
def compiled_once_and_called_inside():
    inner = tg.compile(lambda u, c: np.sum(np.sin(u) * c) if c < 3.0 else np.sum(u))

    def f(x, k):
        return inner(x, float(k % 5)) + inner(np.exp(x), 2.0) * inner(x[:2], 1.0)

    return f, None


@hostile
def gradient_of_compiled_inside():
    inner = tg.compile(lambda u: np.sum(np.sin(u) * u))

    def f(x, k):
        value, g = inner.value_and_grad(x * 2.0)
        return np.sum(g * x) * value + inner.grad(0.5 + k)

    return f, None


@simple
def gradient_by_a_part(x, k):
    y = x[:2] * 1.0
    z = np.sum(np.sin(y) * x[2:])
    (g,) = tg.grad(z, y, create_graph=True)
    return np.sum(g * g)


@simple
def hessian_inside(x, k):
    h = tg.func.hessian(lambda u: np.sum(u**3) * x[0])(x)
    return np.sum(h) + np.sum(tg.func.hvp(lambda u: np.sum(np.sin(u)))(x, x))


@simple
def jacobian_inside(x, k):
    j = tg.func.jacobian(lambda u: np.sin(u) * x)(x * 2.0)
    return np.sum(j * j)


@simple
def batch_inside(x, k):
    y = tg.func.vmap(lambda v: np.sin(v) * 2.0)(x)
    return np.sum(y * x)


@simple
def newton_steps_inside(x, k):
    y = x[0] * 1.0
    for _ in range(2):
        value, slope = tg.func.value_and_grad(lambda u: u**3 + u - np.sum(x))(y)
        y = y - value / slope
    return y


@simple
def backward_inside(x, k):
    w = tg.tensor([1.0, 2.0], requires_grad=True)
    for _ in range(2):
        np.sum(w * w * float(1 + k)).backward()
    g = w.grad.numpy().copy()
    w.grad = None
    return np.sum(x) * g.sum()


@simple
def backward_to_the_argument(x, k):
    y = np.sum(np.sin(x))
    y.backward(inputs=[x], retain_graph=True)
    return y * 2.0


@simple
def gradient_then_no_use(x, k):
    y = np.sum(np.sin(x) * x)
    tg.grad(y, x, retain_graph=True)
    return y


@simple
def gradient_is_not_possible(x, k):
    y = np.sum(np.sin(x))
    try:
        tg.grad(y.detach(), x)
    except RuntimeError as error:
        return y * float(len(type(error).__name__))
    return y


@hostile
def hook_is_removed():
    seen = []

    def f(x, k):
        y = np.sin(x)
        handle = y.register_hook(lambda g: seen.append(g.numpy().copy()))
        if k % 2:
            handle.remove()
        return np.sum(y)

    return f, seen


@hostile
def hook_on_the_argument():
    seen = []

    def f(x, k):
        x.register_hook(lambda g: seen.append(g.numpy().copy()))
        return np.sum(x * x)

    return f, seen


@hostile
def hook_at_times():
    seen = []

    def f(x, k):
        y = np.exp(x)
        if k % 4 == 3:
            y.register_hook(lambda g: g * 0.5)
        return np.sum(y * x)

    return f, seen


@simple
def gradients_are_retained(x, k):
    y = np.sin(x)
    if k % 2:
        y.retain_grad()
    return np.sum(y * y)


class Both(tg.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.k = k
        ctx.save_for_backward(x)
        return x * x, x * float(k)

    @staticmethod
    def backward(ctx, a, b):
        (x,) = ctx.saved_tensors
        return 2.0 * x * a + b * float(ctx.k), None


@simple
def function_of_two_results(x, k):
    a, b = Both.apply(np.sin(x), k)
    return np.sum(a) + np.sum(b) if k % 3 else np.sum(a)


class Marked(tg.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        x.mul_(2.0)
        return x

    @staticmethod
    def backward(ctx, ct):
        return ct * 2.0


@simple
def function_that_writes(x, k):
    y = np.sin(x)
    z = Marked.apply(y)
    return np.sum(z * x)


@simple
def rule_of_its_own(x, k):
    @tg.func.custom_vjp
    def step(u):
        return np.sum(u * u)

    @step.def_vjp
    def rule(out, args, ct):
        return (ct * args[0] * 2.0,)

    return step(np.sin(x))


@simple
def implicit_functions(x, k):
    root = tg.func.root(lambda y, u: y**3 + y - u, lambda u: np.cbrt(u) * 0.5)
    try:
        return np.sum(root(x))
    except Exception as error:
        return np.sum(x) * float(len(type(error).__name__))


@simple
def checkpointed_at_times(x, k):
    step = lambda u: np.sin(u) * u
    y = tg.autograd.checkpoint(step, x) if k % 3 == 2 else step(x)
    return np.sum(y)


@simple
def loop_with_checkpoints(x, k):
    return np.sum(tg.autograd.checkpoint_loop(lambda u: np.sin(u) + u * 0.1, x, 3 + k % 2, slots=2))


@tg.njit
def summed(x):
    total = 0.0
    for n in range(x.size):
        total += x[n] * x[n]
    return total


@simple
def compiled_loop_inside(x, k):
    return summed(x) * summed(np.sin(x)) + (summed(x * 2.0) if k % 2 else 0.0)


# ------------------------------------------------------------ what is asked of a Tensor


@simple
def attributes_decide(x, k):
    y = np.outer(x, x)[: 1 + k % 2].T
    told = y.ndim + y.size + y.nbytes + len(y) + y.itemsize + y.flags.c_contiguous + y.strides[0]
    return np.sum(y) * told


@simple
def questions_about_history(x, k):
    y, z = np.sin(x), tg.ones(4) * 2.0
    told = [
        y.requires_grad,
        z.requires_grad,
        y.is_leaf,
        z.is_leaf,
        (y * z).requires_grad,
        (z + z).requires_grad,
    ]
    return np.sum(y) * sum(2.0**n * flag for n, flag in enumerate(told))


@simple
def names_of_nodes(x, k):
    y = np.sin(x) * 2.0
    return np.sum(y) * len(type(y.grad_fn).__name__ + y.grad_fn.name())


@simple
def walked_back(x, k):
    y, depth = np.sum(np.sin(x) * 2.0), 0
    node = y.grad_fn
    while node is not None and depth < 10:
        node, depth = node.next_functions[0][0] if node.next_functions else None, depth + 1
    return y * depth


@simple
def types_decide(x, k):
    y = x * 2.0 if k % 2 else x[0] * 2.0
    return np.sum(y) * (2.0 if type(y) is tg.Tensor else 3.0) * (5.0 if isinstance(y, np.ndarray) else 7.0)


@simple
def values_are_taken_out(x, k):
    y = np.sin(x)
    values = [y.tolist(), [y[n].item() for n in range(4)], list(map(float, y.detach())), y.detach().numpy()][
        k % 4
    ]
    return np.sum(y * np.array(values))


@simple
def comparisons_of_all_kinds(x, k):
    y = np.sin(x)
    masks = [y > 0.1, y <= x, y == y, y != 0.5, np.logical_not(y > 0.0), np.isfinite(y), np.isclose(y, x)]
    return np.sum(y * masks[k % 7]) + np.sum(masks[(k + 1) % 7]) * x[0]


@simple
def truth_of_all_kinds(x, k):
    y = x * 2.0
    told = [
        bool(y[0] > 0.5),
        np.any(y > 1.0),
        (y > 0).all(),
        np.allclose(y, y),
        np.array_equal(y, x),
        not y[1],
    ]
    return np.sum(y) * (1.0 + sum(map(bool, told)))


@simple
def methods_of_tensors(x, k):
    y = x.sin() if hasattr(x, "sin") else np.sin(x)
    return (
        y.dot(x)
        + y.clip(-0.5, 0.5).sum()
        + y.cumsum()[2]
        + y.std()
        + y.ravel().max()
        + y.repeat(2).mean()
        + y.abs().sqrt().sum()
        + y.reshape(2, 2).trace()
        + y.take([0, 1]).prod()
        + y.swapaxes(0, 0)[0]
    )


@hostile
def holds_results_of_several_calls():
    kept = []

    def f(x, k):
        kept.append(np.sin(x))
        if len(kept) > 3:
            kept.pop(0)
        return np.sum(kept[-1]) * float(len(kept))

    return f, None


@hostile
def result_of_the_last_call_as_a_constant():
    last = types.SimpleNamespace(y=tg.zeros(4))

    def f(x, k):
        y = np.sin(x) + last.y * 0.5
        last.y = y.detach()
        return np.sum(y * y)

    return f, None


@hostile
def parameter_is_trained_inside():
    w = tg.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)

    def f(x, k):
        (g,) = tg.grad(np.sum((w * x.detach() - 1.0) ** 2), w)
        with tg.no_grad():
            w[...] = w - 0.01 * g
        return np.sum(x * w.detach())

    return f, w


@simple
def error_of_shapes_at_the_end(x, k):
    y = np.sin(x)
    if k % 4 == 3:
        return y @ np.ones(3)
    return np.sum(y)


@simple
def returns_more_than_a_number_at_times(x, k):
    y = np.sin(x)
    return y if k % 4 == 3 else np.sum(y)


@simple
def returns_integers_at_times(x, k):
    return np.sum(x) if k % 3 else np.argmax(x)


@simple
def returns_complex_numbers_at_times(x, k):
    return np.sum(x) if k % 3 else np.sum(x * 1j)


@simple
def returns_nothing_at_times(x, k):
    return np.sum(x) if k % 3 else None


@simple
def returns_an_array_at_times(x, k):
    return np.sum(x) if k % 3 else np.array(2.0)


@simple
def returns_a_constant_tensor_at_times(x, k):
    return np.sum(x) if k % 3 else tg.tensor(float(k))


@simple
def returns_a_detached_one_at_times(x, k):
    y = np.sum(x * x)
    return y if k % 3 else y.detach()
