"""Programs here and in torch of dtypes, writes, saved tensors, modes, jvp, gradcheck and checkpoints."""

import importlib
import warnings

import numpy as np
import pytest

import tapegrad as tg

torch = pytest.importorskip("torch")

from .test_against_torch_functions import OursToo, TheirsToo, compare, cube, function  # noqa: E402

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("tape_length")]


class OursMore(OursToo):
    fw, functional, np, single = tg.autograd.forward_ad, tg.autograd.functional, np, np.float32
    gradcheck, gradgradcheck = staticmethod(tg.gradcheck), staticmethod(tg.gradgradcheck)
    checkpoint = staticmethod(tg.autograd.checkpoint)
    cast = staticmethod(lambda x, dtype: x.astype(dtype))
    strides = staticmethod(lambda x: [s // x.detach().numpy().itemsize for s in x.detach().numpy().strides])
    transposed = staticmethod(lambda x: tg.tensor(np.array([[1.0, 2.0], [3.0, 4.0]]).T, requires_grad=True))
    saving = staticmethod(tg.autograd.graph.saved_tensors_hooks)


class TheirsMore(TheirsToo):
    if torch is not None:
        fw, functional, np, single = (
            torch.autograd.forward_ad, torch.autograd.functional, torch, torch.float32,
        )  # fmt: skip
        gradcheck = staticmethod(torch.autograd.gradcheck)
        gradgradcheck = staticmethod(torch.autograd.gradgradcheck)
        saving = staticmethod(torch.autograd.graph.saved_tensors_hooks)
    cast = staticmethod(lambda x, dtype: x.to(dtype))
    strides = staticmethod(lambda x: list(x.stride()))

    @staticmethod
    def checkpoint(f, *args):
        return importlib.import_module("torch.utils.checkpoint").checkpoint(f, *args, use_reentrant=False)

    @staticmethod
    def transposed(x):
        data = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64)
        return data.t().requires_grad_()


PROGRAMS = {}


def program(function):
    PROGRAMS[function.__name__] = function
    return function


def categories(run):
    """The classes of the warnings that a program gives, once each, and its result."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        result = run()
    return sorted({one.category.__name__ for one in found}), result


# ---------------------------------------------------------------- A, C


@program
def A2_complex_root(t, x, z):
    return (x * 1j).sum().backward()


@program
def A2_complex_root_with_a_gradient(t, x, z):
    return t.grad((x * (3 + 2j)).sum(), x, t.cast(t.tensor(1.0, False), complex))[0] if t is OursMore else (
        t.grad((x * (3 + 2j)).sum(), x, torch.tensor(1.0 + 0j, dtype=torch.complex128))[0]
    )  # fmt: skip


@program
def A10_list_of_one_gradient(t, x, z):
    (x * 2).backward(gradient=[z.detach()])
    return x.grad


@program
def A12_complex_gradient_of_a_real_root(t, x, z):
    return t.grad(x * 2, x, z.detach() * 1j)


@program
def A12_gradient_of_another_precision(t, x, z):
    (g,) = t.grad(t.cast(x, t.single) * 2, x, z.detach())
    return g, str(g.dtype).split(".")[-1]


@program
def A13_grad_variables(t, x, z):
    warned, _ = categories(lambda: t.backward((x * 2).sum(), grad_variables=t.tensor(3.0, False)))
    return warned, x.grad


@program
def A13_both(t, x, z):
    return t.backward((x * 2).sum(), t.tensor(1.0, False), grad_variables=t.tensor(3.0, False))


@program
def A15_batch(t, x, z):
    return t.grad(x * x, x, t.tensor([[1.0, 0.0], [0.0, 1.0]], False), is_grads_batched=True)


@program
def A15_with_create_graph(t, x, z):
    seeds = t.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 3.0]], False)
    (g,) = t.grad(x**3, x, seeds, is_grads_batched=True, create_graph=True)
    return g, t.grad(g.sum(), x)


@program
def A15_that_does_not_fit(t, x, z):
    return t.grad(x * x, x, t.tensor([[1.0, 0.0, 0.0]], False), is_grads_batched=True)


@program
def C8_none(t, x, z):
    return t.grad(x.sum(), [x, None])


# ---------------------------------------------------------------- D


@program
def D5_single_and_double(t, x, z):
    w = t.cast(z.detach(), t.single).requires_grad_()
    (w * x).sum().backward()
    return x.grad, w.grad, str(x.grad.dtype).split(".")[-1], str(w.grad.dtype).split(".")[-1]


@program
def D5_through_a_conversion(t, x, z):
    w = t.cast(z.detach(), t.single).requires_grad_()
    (t.cast(w, x.dtype) ** 2).sum().backward()
    return w.grad, str(w.grad.dtype).split(".")[-1]


@program
def D6_transposed_leaf(t, x, z):
    w = t.transposed(x)
    (w * w).sum().backward()
    return w.grad, t.strides(w), t.strides(w.grad)


@program
def D6_repeated(t, x, z):
    x.sum().backward()
    return t.strides(x.grad)


@program
def D11_squared_absolute_value(t, x, z):
    w = (x.detach() + 2j * z.detach()).requires_grad_()
    (abs(w) ** 2).sum().backward()
    return w.grad.real, w.grad.imag


@program
def D11_real_part_of_a_square(t, x, z):
    w = (x.detach() + 2j * z.detach()).requires_grad_()
    (w * w).real.sum().backward()
    return w.grad.real, w.grad.imag


@program
def D11_real_leaf(t, x, z):
    y = x * (1 + 2j)
    return t.grad((y * y).imag.sum(), x)


def stopping(t):
    return function(t, lambda ctx, x: x * 3, lambda ctx, g: None)


@program
def D12_backward(t, x, z):
    y = stopping(t).apply(x)
    y.sum().backward()
    before = x.grad
    (stopping(t).apply(x) + x * x).sum().backward()
    return before, x.grad


@program
def D12_grad(t, x, z):
    return t.grad(stopping(t).apply(x).sum(), x)


@program
def D12_allow_unused(t, x, z):
    return t.grad(stopping(t).apply(x * 2).sum(), x, allow_unused=True)


@program
def D12_zeros(t, x, z):
    return t.grad(stopping(t).apply(x).sum(), x, materialize_grads=True)


# ---------------------------------------------------------------- E


@program
def E4_leaf(t, x, z):
    x.mul_(2)


@program
def E4_view_of_a_leaf(t, x, z):
    x[0] = 3.0


@program
def E4_under_no_grad(t, x, z):
    with t.no_grad():
        x[0] = 3.0
        x.add_(1)
    return x, x._version, x.is_leaf


@program
def E4_versions(t, x, z):
    x.detach().mul_(2)
    y = x * 1
    v = y[:1]
    y.mul_(3)
    return x._version, y._version, v._version, y.clone()._version


@program
def E6_nothing_kept(t, x, z):
    y = x + 1
    y.mul_(2)
    w = x * 1
    w **= 2
    w /= z
    return t.grad((y + w).sum(), [x, z])


@program
def E9_one_of_several(t, x, z):
    first, _ = np.split(x * 1, 2) if t is OursMore else torch.split(x * 1, 1)
    first.mul_(2)


@program
def E9_view_made_under_no_grad(t, x, z):
    y = z * 1
    with t.no_grad():
        v = y[:1]
    v.mul_(2)


@program
def E10_growth(t, x, z):
    (x[:1] * 1).add_(z)


@program
def E10_float_into_integers(t, x, z):
    i = t.cast(z.detach(), int if t is OursMore else torch.int64)
    i += x.detach() * 0.5


@program
def E10_out(t, x, z):
    t.np.exp(x, out=z.detach())


@program
def E11_detached(t, x, z):
    y = x * 2
    d = y.detach()
    d[0] = 7.0
    return y, d.requires_grad, d.is_leaf


@program
def E11_detach_in_place(t, x, z):
    y = x * 2
    y.detach_()
    return y.requires_grad, y.is_leaf


@program
def E11_detach_of_a_view_in_place(t, x, z):
    (x * 2)[:1].detach_()


@program
def E14_no_derivative(t, x, z):
    return (x > z).requires_grad, x.argmax().requires_grad, t.cast(x, bool if t is OursMore else torch.bool)


@program
def E15_deep_copies(t, x, z):
    import copy

    (x * x).sum().backward()
    c = copy.deepcopy(x)
    return c, c.grad, c.requires_grad, c.is_leaf


@program
def E15_deep_copy_of_a_result(t, x, z):
    import copy

    copy.deepcopy(x * 2)


@program
def E16_a_deep_chain(t, x, z):
    y = x
    for _ in range(5000):
        y = y + z
    return t.grad(y.sum(), [x, z])


# ---------------------------------------------------------------- F, F2


@program
def F13_packed_twice(t, x, z):
    packed, unpacked = [], []

    def pack(v):
        packed.append(v)
        return v * 10

    def unpack(v):
        unpacked.append(v)
        return v / 10

    with t.saving(pack, unpack):
        y = x * x
    before = len(unpacked)
    (g,) = t.grad(y.sum(), x)
    return g, len(packed), before, len(unpacked)


@program
def F13_unpack_gives_no_tensor(t, x, z):
    with t.saving(lambda v: v, lambda v: "text"):
        y = x * x
    y.sum().backward()


@program
def F13_pack_writes(t, x, z):
    with t.saving(lambda v: v.mul_(2), lambda v: v):
        return (x * 1) ** 2


@program
def F13_innermost(t, x, z):
    seen = []
    outer = t.saving(lambda v: (seen.append("outer"), v)[1], lambda v: v)
    inner = t.saving(lambda v: (seen.append("inner"), v)[1], lambda v: v)
    with outer, inner:
        y = x**2
    return seen, t.grad(y.sum(), x)


@program
def F13_disabled(t, x, z):
    with t.graph.disable_saved_tensors_hooks("not here"), t.saving(lambda v: v, lambda v: v):
        return x * x


@program
def F2_2_backward_under_no_grad(t, x, z):
    y = (x**3).sum()
    with t.no_grad():
        (g,) = t.grad(y, x, create_graph=True)
    return g.requires_grad, t.grad(g.sum(), x)


@program
def F2_2_plain(t, x, z):
    y = (x**3).sum()
    with t.no_grad():
        y.backward()
    return x.grad, x.grad.requires_grad


@program
def F2_4_a_nan(t, x, z):
    with t.autograd.detect_anomaly():
        (t.np.sqrt(x - x) * 0).sum().backward()


@program
def F2_4_warnings(t, x, z):
    def run():
        with t.autograd.detect_anomaly():
            try:
                (t.np.sqrt(x - x) * 0).sum().backward()
            except RuntimeError:
                return "raised"

    return categories(run)


@program
def F2_4_without_checking(t, x, z):
    with t.autograd.detect_anomaly(check_nan=False):
        (t.np.sqrt(x - x) * 0).sum().backward()
    return t.np.isnan(x.grad)


# ---------------------------------------------------------------- G


def tangent(t, f, x, v):
    with t.fw.dual_level():
        found = t.fw.unpack_dual(f(t.fw.make_dual(x, v)))
        return found.primal, found.tangent


def doubling(t, **others):
    return function(t, lambda ctx, x: x * 2, lambda ctx, g: g * 2, **others)


@program
def G12_jvp(t, x, z):
    E = doubling(t, jvp=lambda ctx, v: v * 7)
    return tangent(t, E.apply, x.detach(), z.detach())


@program
def G12_missing(t, x, z):
    return tangent(t, doubling(t).apply, x.detach(), z.detach())


@program
def G12_no_tangent_is_zeros(t, x, z):
    E = function(t, lambda ctx, x, k, z: x * z, None, jvp=lambda ctx, u, k, v: (u + 1, v, k)[0] + v)
    return tangent(t, lambda d: E.apply(d, 2.0, z.detach()), x.detach(), z.detach())


@program
def G12_several_results(t, x, z):
    def forward(ctx, x, z):
        ctx.x, ctx.z = x, z
        return x * z, x + z

    E = function(t, forward, None, jvp=lambda ctx, u, v: (u * ctx.z + ctx.x * v, u + v))
    with t.fw.dual_level():
        d = t.fw.make_dual(x.detach(), z.detach())
        return [t.fw.unpack_dual(y).tangent for y in E.apply(d, z.detach() * 1)]


@program
def G12_too_many(t, x, z):
    return tangent(t, doubling(t, jvp=lambda ctx, v: (v, v)).apply, x.detach(), z.detach())


@program
def G12_reverse_over_forward(t, x, z):
    def forward(ctx, x):
        ctx.save_for_forward(x)
        return x**3

    E = function(t, forward, None, jvp=lambda ctx, v: 3 * ctx.saved_tensors[0] ** 2 * v)
    if t is OursMore:
        E = function(t, forward, None, jvp=lambda ctx, v: 3 * ctx.saved_for_forward[0] ** 2 * v)
    with t.fw.dual_level():
        v = t.fw.unpack_dual(E.apply(t.fw.make_dual(x, z.detach()))).tangent
        return v, t.grad(v.sum(), x)


@program
def G12_forward_over_reverse(t, x, z):
    with t.fw.dual_level():
        d = t.fw.make_dual(x, z.detach())
        (g,) = t.grad(cube_both_ways(t).apply(d).sum(), d, create_graph=True)
        return t.fw.unpack_dual(g).primal, t.fw.unpack_dual(g).tangent


def cube_both_ways(t):
    def forward(ctx, x):
        ctx.save_for_backward(x)
        ctx.x = x
        return x**3

    return function(
        t, forward, lambda ctx, g: 3 * ctx.saved_tensors[0] ** 2 * g, jvp=lambda ctx, v: 3 * ctx.x**2 * v
    )


@program
def G15_mark_shared_storage(t, x, z):
    def forward(ctx, x):
        ctx.mark_shared_storage((x, x))
        return x * 2

    warned, y = categories(lambda: function(t, forward, lambda ctx, g: g * 2).apply(x))
    return warned, y


# ---------------------------------------------------------------- H


@program
def H5_errors(t, x, z):
    found = []
    for call in (
        lambda: t.grad(x.sum(), z.detach()),
        lambda: t.grad(x.sum(), z),
        lambda: t.grad(x.sum(), [x, "text"]),
        lambda: t.backward([x * 2], [None]),
        lambda: t.backward([x * 2], ["text"]),
    ):
        try:
            call()
        except RuntimeError:
            found.append("RuntimeError")
        except TypeError:
            found.append("TypeError")
    return found


@program
def H9_right(t, x, z):
    return t.gradcheck(cube(t).apply, (x,)), t.gradgradcheck(cube(t).apply, (x,))


@program
def H9_wrong(t, x, z):
    return t.gradcheck(function(t, lambda ctx, x: x**2, lambda ctx, g: g * 5).apply, (x,))


@program
def H9_wrong_without_an_exception(t, x, z):
    E = function(t, lambda ctx, x: x**2, lambda ctx, g: g * 5)
    return t.gradcheck(E.apply, (x,), raise_exception=False)


@program
def H9_no_input(t, x, z):
    return t.gradcheck(lambda x: x * 2, (x.detach(),))


@program
def H9_result_that_does_not_vary(t, x, z):
    return t.gradcheck(lambda x: x.detach() * 0, (x,))


@program
def H10_profile(t, x, z):
    with t.autograd.profiler.profile() as profile:
        y = (x * z).sum()
        t.grad(y, x)
    averages = profile.key_averages()
    names = " ".join(event.key for event in averages)
    counts = {event.count for event in averages if "Mul" not in event.key and "mul" in event.key}
    return "mul" in names, "MulBackward" in names, min(counts) > 0, "mul" in averages.table()


@program
def H12_lower_case(t, x, z):
    t.autograd.variable()


# ---------------------------------------------------------------- I


@program
def I1_vjp_and_jvp(t, x, z):
    found = t.functional.vjp(lambda x: x**3, x, z.detach())
    return found, t.functional.jvp(lambda x: x**3, x, z.detach())


@program
def I1_without_v(t, x, z):
    return t.functional.vjp(lambda x: x**3, x)


@program
def I2_jacobian(t, x, z):
    one = t.functional.jacobian(lambda x: x**3, x)
    return one, t.functional.jacobian(lambda x, z: (x * z).sum(), (x, z)), one.requires_grad


@program
def I2_strict(t, x, z):
    return t.functional.jacobian(lambda x: z * 1, x, strict=True)


@program
def I2_a_list(t, x, z):
    return t.functional.jacobian(lambda x: x, [x])


@program
def I3_hessian(t, x, z):
    def f(x):
        return (x**3).sum() * x[0]

    h = t.functional.hessian(f, x)
    return h, t.functional.hvp(f, x, z.detach()), t.functional.vhp(f, x, z.detach())


@program
def I3_of_several_elements(t, x, z):
    return t.functional.hessian(lambda x: x**3, x)


@program
def I7_checkpoint(t, x, z):
    calls = []

    def f(x, z):
        calls.append(1)
        return t.np.sin(x * z) * x

    y = t.checkpoint(f, x, z).sum()
    (g,) = t.grad(y, x, create_graph=True)
    return len(calls), g, t.grad(g.sum(), [x, z])


@program
def I7_backward_with_inputs(t, x, z):
    t.checkpoint(lambda x, z: x * z * z, x, z).sum().backward(inputs=[z])
    return x.grad, z.grad


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_outcome(name):
    compare(PROGRAMS[name], OursMore, TheirsMore)
