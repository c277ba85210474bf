"""Hooks that pack what is saved, files, and computing again: semantics F-13 and I-7."""

import gc
import os

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd.graph import disable_saved_tensors_hooks, save_on_disk, saved_tensors_hooks
from tapegrad.errors import GradientError, GraphFreedError


def leaf(*values):
    return tg.tensor(values, requires_grad=True, dtype=float)


def identity():
    return saved_tensors_hooks(lambda x: x, lambda x: x)


def programs():
    """Functions of two vectors, of every kind of op and of memory."""
    yield lambda x, w: np.sum(x * w)
    yield lambda x, w: np.sum(np.sin(x * w) * np.exp(x) / w)
    yield lambda x, w: np.sum(np.outer(x, w) @ np.linalg.solve(np.outer(w, w) + 2 * np.eye(3), x))
    yield lambda x, w: np.prod(x) * np.linalg.norm(w) + np.max(x * w) + np.sum(np.cumsum(x) ** 2 * w)
    yield lambda x, w: np.sum(np.stack([x, w, x * w])[1:, ::-1] ** 3) + np.sum(np.fft.rfft(x * w).real ** 2)
    yield lambda x, w: sum(x[i] * w[2 - i] ** 2 for i in range(3)) + np.sum(np.where(x > 1, x, w) * 2.0)
    yield lambda x, w: written(x, w)


def written(x, w):
    y = x * 1.0
    y[1] = w[0] * x[2]
    y *= w
    return np.sum(y * y)


def derivatives(f, x, w):
    first = tg.grad(f(x, w), [x, w], create_graph=True)
    second = tg.grad(np.sum(first[0] * w) + np.sum(first[1] ** 2), [x, w])
    return [np.array(g.tolist()) for g in (*first, *second)]


@pytest.mark.parametrize("n", [22, 23])
def test_what_is_unpacked_for_two_records_is_another_array_each(n):
    """Of more than 4 KiB, where a tape keeps what derivatives read."""
    value, found = np.random.default_rng(n).uniform(0.5, 1.5, (n, n)), []
    for hooks in (saved_tensors_hooks(lambda x: x.detach().numpy().copy(), tg.tensor), identity()):
        x = tg.tensor(value, requires_grad=True)
        with hooks:
            out = np.sum(np.stack([np.sin(x), x * x])[0]) + np.sum(np.roll(np.sin(x), 1) * x)
        tg.grad(out, x, retain_graph=True)
        (g,) = tg.grad(out, x, create_graph=True)
        found.append(tg.grad(np.sum(g * g), x)[0].numpy())
    x = tg.tensor(value, requires_grad=True)
    out = np.sum(np.sin(x)) + np.sum(np.roll(np.sin(x), 1) * x)
    (g,) = tg.grad(out, x, create_graph=True)
    (expected,) = tg.grad(np.sum(g * g), x)
    for second in found:
        np.testing.assert_allclose(second, expected.numpy(), rtol=1e-13)


@pytest.mark.parametrize("keep", [identity, save_on_disk])
@pytest.mark.parametrize("f", list(programs()))
def test_F13_derivatives_are_those_without(keep, f):
    x, w = leaf(1.5, 0.4, 2.0), leaf(0.7, 1.1, -0.6)

    def kept(x, w):
        with keep():
            return f(x, w)

    for a, b in zip(derivatives(kept, x, w), derivatives(f, x, w), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("f", list(programs()))
def test_I7_derivatives_of_what_is_checkpointed_are_the_same(f):
    x, w = leaf(1.5, 0.4, 2.0), leaf(0.7, 1.1, -0.6)

    def again(x, w):
        return tg.autograd.checkpoint(lambda a: f(a * 1.0, w), x)  # w is no argument

    for a, b in zip(derivatives(again, x, w), derivatives(f, x, w), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-13, atol=1e-13)


def test_F13_a_value_saved_twice_is_packed_twice_and_unpacked_in_the_sweep():
    x, packed, unpacked = leaf(1.0, 2.0), [], []
    with saved_tensors_hooks(
        lambda v: packed.append(v.tolist()) or v, lambda v: unpacked.append(v.tolist()) or v
    ):
        y = x * x
        z = y + 1.0
    assert packed == [[1.0, 2.0]] * 2
    assert unpacked == []
    z.sum().backward()
    assert unpacked == packed
    assert x.grad.tolist() == [2.0, 4.0]


def test_F13_scalars_are_packed_too():
    x, packed = tg.tensor(3.0, requires_grad=True), []
    with saved_tensors_hooks(lambda v: packed.append(v.item()) or v, lambda v: v):
        y = np.exp(x) * x
    assert packed == [np.exp(3.0), np.exp(3.0), 3.0]
    assert tg.grad(y, x)[0].item() == pytest.approx(4 * np.exp(3.0))


def test_F13_what_unpack_returns_is_what_the_rule_reads():
    x = leaf(1.0, 2.0)
    with saved_tensors_hooks(lambda v: v.tolist(), lambda v: tg.tensor(v) * 10):
        y = np.sum(x**2)
    assert tg.grad(y, x)[0].tolist() == [20.0, 40.0]


def test_F13_unpack_returns_a_tensor():
    x = leaf(1.0)
    with saved_tensors_hooks(lambda v: v, lambda v: 3.0):
        y = np.sum(x * x)
    with pytest.raises(TypeError, match="unpack"):
        y.backward()


def test_F13_pack_does_not_write():
    x = leaf(1.0)
    with (
        saved_tensors_hooks(lambda v: v.mul_(2), lambda v: v),
        pytest.raises(RuntimeError, match="read-only"),
    ):
        x * x
    y = x * x
    y.backward(np.ones(1))
    assert x.grad.tolist() == [2.0]


def test_F13_an_exception_of_pack_or_unpack_leaves_all_usable():
    x = leaf(1.0, 2.0)

    def fail(v):
        raise KeyError("mine")

    with saved_tensors_hooks(fail, lambda v: v), pytest.raises(KeyError, match="mine"):
        x * x
    with saved_tensors_hooks(lambda v: v, fail):
        y = np.sum(x * x)
    for _ in range(2):
        with pytest.raises(KeyError, match="mine"):
            y.backward()
    np.sum(x * x).backward()
    assert x.grad.tolist() == [2.0, 4.0]


def test_F13_the_innermost_pair_only():
    x, seen = leaf(1.0), []

    def pair(name):
        return saved_tensors_hooks(lambda v: seen.append(name) or v, lambda v: v)

    with pair("outer"):
        with pair("inner"):
            np.exp(x)
        np.exp(x)
    np.exp(x)
    assert seen == ["inner", "outer"]


def test_F13_disabled_hooks_raise_the_message():
    with (
        disable_saved_tensors_hooks("not in here"),
        pytest.raises(RuntimeError, match="not in here"),
        identity(),
    ):
        pass
    with (
        identity(),
        pytest.raises(RuntimeError, match="not in here"),
        disable_saved_tensors_hooks("not in here"),
    ):
        pass
    with identity():
        pass


def test_F13_nothing_is_packed_where_nothing_is_recorded():
    x, seen = leaf(1.0), []
    with saved_tensors_hooks(lambda v: seen.append(1) or v, lambda v: v), tg.no_grad():
        x * x
    assert seen == []


def test_F13_tensors_a_function_saves_are_packed():
    class Square(tg.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            y = x * x
            ctx.save_for_backward(x, y)
            return y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return 2 * x * g + 0 * y

    x, packed = leaf(1.0, 3.0), []
    with saved_tensors_hooks(lambda v: packed.append(v.tolist()) or v, lambda v: v):
        y = Square.apply(x)
    assert packed == [[1.0, 3.0], [1.0, 9.0]]
    (g,) = tg.grad(y.sum(), x, create_graph=True)
    assert g.tolist() == [2.0, 6.0]
    assert tg.grad(g.sum(), x)[0].tolist() == [2.0, 2.0]


def test_freed_values_are_not_unpacked_again():
    x = leaf(1.0, 2.0)
    with identity():
        y = np.sum(np.exp(x))
    y.backward(retain_graph=True)
    y.backward()
    with pytest.raises(GraphFreedError):
        y.backward()


def test_files_are_removed_with_what_they_hold(tmp_path):
    x = leaf(1.0, 2.0)
    with save_on_disk(tmp_path):
        y = np.sum(np.exp(x) * x)
    assert len(list(tmp_path.iterdir())) == 3
    y.backward()
    assert not list(tmp_path.iterdir())
    with save_on_disk(tmp_path):
        y = np.sum(np.exp(x) * x)
    del y
    tg.autograd.grad(np.sum(x * x), x)
    gc.collect()
    assert len(list(tmp_path.iterdir())) <= 3


def test_packed_results_hold_no_memory():
    """Of a chain of large arrays only the last is there."""
    x = tg.tensor(np.ones(200_000), requires_grad=True)
    kept = []
    with saved_tensors_hooks(lambda v: kept.append(None), lambda v: v):
        y = x * 1.0
        for _ in range(50):
            y = np.sin(y)
    arrays = [v for v in gc.get_objects() if type(v) is tg.Tensor]
    assert len(kept) == 50
    held = sum(v._v.nbytes for v in arrays if type(v._v) is np.ndarray and v._v.nbytes > 1e6)
    assert held <= 3 * x.nbytes
    del arrays


def test_F13_what_pack_computes_of_tensors_that_require_grad_is_not_recorded():
    x, scale = leaf(1.0, 2.0), leaf(3.0, 4.0)
    with saved_tensors_hooks(lambda saved: saved * scale, lambda kept: kept / scale):
        y = np.sum(np.exp(x) * np.sin(x))
        (slope,) = tg.grad(y, x, create_graph=True)
    (g,) = tg.grad(np.sum(slope), x)
    assert np.allclose(slope.detach(), np.exp([1, 2]) * (np.sin([1, 2]) + np.cos([1, 2])))
    assert np.allclose(g, 2 * np.exp([1, 2]) * np.cos([1, 2]))


# ---------------------------------------------------------------- checkpoint


def test_I7_the_function_runs_once_more_in_each_sweep():
    runs = []

    def f(x):
        runs.append(1)
        return np.sin(x) * np.exp(x)

    x = leaf(0.5, 1.0)
    y = tg.autograd.checkpoint(f, x).sum()
    assert len(runs) == 1
    y.backward(retain_graph=True)
    assert len(runs) == 2
    y.backward(inputs=[x])
    assert len(runs) == 3
    (g,) = tg.grad(f(x).sum(), x)
    np.testing.assert_allclose(x.grad.tolist(), 2 * g.numpy())


def test_checkpoint_takes_any_arguments_and_returns_any_results():
    def f(x, n, *, scale):
        return {"a": x * scale, "b": [np.exp(x * n)]}

    x = leaf(0.5, 1.0)
    found = tg.autograd.checkpoint(f, x, 2, scale=3.0)
    (g,) = tg.grad(found["a"].sum() + found["b"][0].sum(), x)
    np.testing.assert_allclose(g.numpy(), 3.0 + 2 * np.exp([1.0, 2.0]))


def test_a_function_may_write_to_its_argument():
    def f(x):
        x *= 2.0
        return np.sin(x) * x

    x = leaf(0.5, 1.0)
    (plain,) = tg.grad(f(x * 1.0).sum(), x)
    y = tg.autograd.checkpoint(f, x * 1.0).sum()
    for _ in range(2):
        np.testing.assert_allclose(tg.grad(y, x, retain_graph=True)[0].tolist(), plain.tolist(), rtol=1e-14)


def test_checkpoints_nest():
    x, w = leaf(0.5, 1.0), leaf(2.0, 3.0)

    def inner(x):
        return np.sin(x * w)

    def outer(x):
        return tg.autograd.checkpoint(inner, tg.autograd.checkpoint(inner, x) * x)

    plain = np.sum(inner(inner(x) * x))
    found = np.sum(tg.autograd.checkpoint(outer, x))
    for a, b in zip(tg.grad(found, [x, w]), tg.grad(plain, [x, w]), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-14)


def test_random_numbers_are_those_of_the_first_run():
    def f(x):
        return np.sum(x * np.random.standard_normal(3) * np.exp(x))  # noqa: NPY002

    x = leaf(0.1, 0.2, 0.3)
    np.random.seed(7)  # noqa: NPY002
    (a,) = tg.grad(f(x), x)
    np.random.seed(7)  # noqa: NPY002
    y = tg.autograd.checkpoint(f, x)
    after = np.random.standard_normal()  # noqa: NPY002
    np.random.seed(7)  # noqa: NPY002
    f(x)
    assert np.random.standard_normal() == after  # noqa: NPY002
    (b,) = tg.grad(y, x)
    np.testing.assert_array_equal(a.numpy(), b.numpy())


def test_a_function_that_does_something_else_the_second_time_is_an_error():
    calls = []

    def f(x):
        calls.append(1)
        return np.sin(x).sum() if len(calls) == 1 else x.sum()

    x = leaf(1.0, 2.0)
    with pytest.raises(GradientError, match="must do the same"):
        tg.autograd.checkpoint(f, x).backward()
    calls.clear()

    def g(x):
        calls.append(1)
        return np.sum(x[: 3 - len(calls)] ** 2)

    with pytest.raises(GradientError, match="shape"):
        tg.autograd.checkpoint(g, x).backward()
    np.sum(x * x).backward()
    assert x.grad.tolist() == [2.0, 4.0]


def overwrite(scope):
    with tg.no_grad():
        scope["leaf"] *= 2.0


CHANGES = {
    "leaf": overwrite,
    "array": lambda scope: scope["array"].__imul__(2.0),
    "number": lambda scope: scope.update(number=3.0),
    "random": lambda scope: None,
}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("n", [2, 5000])
def test_what_a_function_uses_besides_its_arguments_must_not_change(n, name):
    rng = np.random.default_rng(0)
    scope = {"leaf": leaf(*np.linspace(1.0, 2.0, n)), "array": np.linspace(1.0, 2.0, n), "number": 2.0}

    def f(x):
        return np.sum(np.sin(x + (rng.random(n) if name == "random" else scope[name])))

    x = leaf(*np.linspace(0.0, 1.0, n))
    y = tg.autograd.checkpoint(f, x)
    CHANGES[name](scope)
    with pytest.raises(GradientError, match=r"add in a checkpointed function was given other numbers"):
        tg.grad(y, x)
    y = tg.autograd.checkpoint(lambda x, w: np.sum(np.sin(x + w)), x, scope["leaf"])
    at = np.cos(np.array((x + scope["leaf"]).tolist()))
    overwrite(scope)  # an argument may
    np.testing.assert_allclose(tg.grad(y, x)[0].numpy(), at, rtol=1e-14)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning")
def test_files_are_their_maker_s(tmp_path):
    """A child that lets go of what was saved, or ends, leaves the parent's files where they are."""
    x = leaf(0.1, 0.2, 0.3)
    with tg.autograd.graph.save_on_disk(tmp_path):
        y = np.sum(np.exp(x) * x)
    files = sorted(tmp_path.iterdir())
    assert files
    child = os.fork()
    if child == 0:
        del y
        os._exit(sorted(tmp_path.iterdir()) != files)
    assert os.waitpid(child, 0)[1] == 0
    (g,) = tg.grad(y, x)
    np.testing.assert_allclose(g.numpy(), np.exp(x.detach().numpy()) * (1.0 + x.detach().numpy()), rtol=1e-14)
    del y
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "checkpointed",
    [
        lambda f, x: tg.autograd.checkpoint(f, x),
        lambda f, x: tg.autograd.checkpoint(lambda: f(x)),
        lambda f, x: tg.autograd.checkpoint(lambda x: 2 * tg.autograd.checkpoint(f, x) / 2, x),
    ],
    ids=["argument", "closure", "nested"],
)
@pytest.mark.parametrize(
    "tangent",
    [
        lambda f, x: tg.func.jvp(f)(x, np.array([1.0, 2.0, 0.5]))[1],
        lambda f, x: tg.func.jacfwd(f)(x),
        lambda f, x: tg.func.taylor(f, 3)(x, np.array([1.0, 2.0, 0.5]))[2],
        lambda f, x: tg.func.grad(lambda x: np.sum(tg.func.jvp(f)(x, x * 1.0)[1]))(x),
    ],
    ids=["jvp", "jacfwd", "taylor", "grad of jvp"],
)
def test_gradients_of_tangents_of_what_is_checkpointed(checkpointed, tangent):
    """What a sweep computes again it computes with the tangents of levels that have ended."""
    x = np.array([0.3, 0.7, 1.1])

    def f(x):
        return np.sin(x) * np.exp(x)

    found = tg.func.grad(lambda x: np.sum(tangent(lambda x: checkpointed(f, x), x)))(x)
    assert np.allclose(found, tg.func.grad(lambda x: np.sum(tangent(f, x)))(x), rtol=1e-12)


@pytest.mark.parametrize("moving", [False, True])
def test_checkpointed_functions_may_take_tangents_of_gradients(moving):
    """Sweeps inside of it compute it again while its levels of forward mode are open."""
    x = leaf(0.3, 0.5) if moving else np.array([0.3, 0.5])

    def f(x):
        return tg.func.jvp(tg.func.grad(lambda x: np.sum(x**4)))(x, np.ones(2))[1]

    found = tg.autograd.checkpoint(f, x)
    assert np.allclose(found.detach() if moving else found, 12 * np.array([0.3, 0.5]) ** 2)
    if moving:
        assert np.allclose(tg.grad(np.sum(found), x)[0], 24 * np.array([0.3, 0.5]))


def test_reentrant_checkpoints_are_not_offered():
    with pytest.raises(ValueError, match="use_reentrant"):
        tg.autograd.checkpoint(np.sin, leaf(1.0), use_reentrant=True)
