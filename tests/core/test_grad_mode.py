"""Grad modes: cases F2-1 and F2-2."""

import asyncio
import sys
import threading

import numpy as np
import pytest

import tapegrad as tg

MODES = {
    "no_grad": (tg.no_grad, False),
    "enable_grad": (tg.enable_grad, True),
    "set_grad_enabled(False)": (lambda: tg.set_grad_enabled(False), False),
    "set_grad_enabled(True)": (lambda: tg.set_grad_enabled(True), True),
}
MODE = pytest.mark.parametrize(("make", "inside"), MODES.values(), ids=MODES.keys())
OUTSIDE = pytest.mark.parametrize("outside", [True, False])


@pytest.fixture(autouse=True)
def restored():
    assert tg.is_grad_enabled()
    yield
    left = tg.is_grad_enabled()
    tg.set_grad_enabled(True)
    assert left


def leaf(data=2.0):
    return tg.tensor(data, requires_grad=True)


# ---------------------------------------------------------------- F2-1: what the mode does


def test_F2_1_results_under_no_grad_are_leaves():
    x = leaf()
    with tg.no_grad():
        y = x * x
        z = np.sin(x) * np.ones(2)
    for t in (y, z):
        assert not t.requires_grad
        assert t.is_leaf
    assert y.item() == 4.0
    assert x.requires_grad


def test_F2_1_constructors_honour_requires_grad_under_no_grad():
    with tg.no_grad():
        made = [leaf(), tg.zeros(2, requires_grad=True), tg.ones(1).requires_grad_()]
        y = made[0] * made[0]
    assert all(t.requires_grad and t.is_leaf for t in made)
    assert not y.requires_grad
    (made[0] * made[0]).backward()
    assert made[0].grad.item() == 4.0


def test_F2_1_result_under_no_grad_is_a_constant():
    x = leaf()
    with tg.no_grad():
        c = x * x
    (c * x).backward()
    assert x.grad.item() == 4.0


def test_F2_1_mixed_blocks():
    x = leaf()
    with tg.no_grad():
        a = x * 3.0
        with tg.enable_grad():
            b = x * 5.0
        c = b * 1.0
    assert (a.requires_grad, b.requires_grad, c.requires_grad) == (False, True, False)
    assert tg.grad(b, x)[0].item() == 5.0


@OUTSIDE
@MODE
def test_F2_1_context_manager_sets_and_restores(make, inside, outside):
    with tg.set_grad_enabled(outside):
        with make():
            assert tg.is_grad_enabled() is inside
            assert (leaf() * 2.0).requires_grad is inside
        assert tg.is_grad_enabled() is outside


@OUTSIDE
@MODE
def test_F2_1_restored_on_an_exception(make, inside, outside):
    with tg.set_grad_enabled(outside):
        with pytest.raises(KeyError, match="passed on"), make():
            raise KeyError("passed on")
        assert tg.is_grad_enabled() is outside


def test_F2_1_nesting_to_depth():
    seen = []
    modes = [tg.no_grad, tg.enable_grad, lambda: tg.set_grad_enabled(False)] * 4

    def descend(k):
        if k < len(modes):
            before = tg.is_grad_enabled()
            with modes[k]():
                seen.append(tg.is_grad_enabled())
                descend(k + 1)
            assert tg.is_grad_enabled() is before

    descend(0)
    assert seen == [False, True, False] * 4


@pytest.mark.parametrize("mode", [tg.no_grad, tg.enable_grad, tg.inference_mode])
def test_a_block_does_not_end_again_when_frames_that_a_profiler_held_do(mode):
    frames = []
    sys.setprofile(lambda frame, event, arg: frames.append(frame))
    try:
        with mode():
            pass
    finally:
        sys.setprofile(None)
    with tg.set_grad_enabled(False):
        frames.clear()
        assert not tg.is_grad_enabled()
    assert tg.is_grad_enabled()


def test_F2_1_one_instance_entered_twice():
    mode = tg.no_grad()
    with mode:
        with tg.enable_grad():
            with mode:
                assert not tg.is_grad_enabled()
            assert tg.is_grad_enabled()
        assert not tg.is_grad_enabled()
    assert tg.is_grad_enabled()
    with mode:
        assert not tg.is_grad_enabled()


# ---------------------------------------------------------------- set_grad_enabled as a call


def test_F2_1_call_acts_at_once():
    tg.set_grad_enabled(False)
    assert not tg.is_grad_enabled()
    assert not (leaf() * 2.0).requires_grad
    tg.set_grad_enabled(True)
    assert tg.is_grad_enabled()


def test_F2_1_call_inside_a_block_ends_with_it():
    with tg.no_grad():
        tg.set_grad_enabled(True)
        assert tg.is_grad_enabled()
    assert tg.is_grad_enabled()
    with tg.enable_grad():
        tg.set_grad_enabled(False)
    assert tg.is_grad_enabled()


@pytest.mark.parametrize("value", [True, False])
def test_F2_1_instance_of_set_grad_enabled_restores_what_was_before_the_call(value):
    mode = tg.set_grad_enabled(value)
    assert tg.is_grad_enabled() is value
    with mode:
        assert tg.is_grad_enabled() is value
    assert tg.is_grad_enabled()
    with mode:  # and can be used again
        assert tg.is_grad_enabled() is value
    assert tg.is_grad_enabled()


# ---------------------------------------------------------------- decorators


@MODE
def test_F2_1_decorator(make, inside):
    @make()
    def work(a, /, b, *, c=3):
        """What it does."""
        return a, b, c, tg.is_grad_enabled()

    assert tg.is_grad_enabled()
    assert work(1, b=2) == (1, 2, 3, inside)
    assert work(1, 2, c=5) == (1, 2, 5, inside)
    assert tg.is_grad_enabled()
    assert work.__name__ == "work"
    assert work.__doc__ == "What it does."
    with tg.no_grad():
        assert work(1, 2)[-1] is inside
        assert not tg.is_grad_enabled()


@pytest.mark.parametrize(("mode", "inside"), [(tg.no_grad, False), (tg.enable_grad, True)])
def test_F2_1_decorator_without_parentheses(mode, inside):
    @mode
    def work(x):
        return (x * x).requires_grad, tg.is_grad_enabled()

    with tg.set_grad_enabled(not inside):
        assert work(leaf()) == (inside, inside)
        assert tg.is_grad_enabled() is not inside
    assert work.__name__ == "work"


@MODE
def test_F2_1_decorated_function_that_raises_or_recurses(make, inside):
    @make()
    def work(depth):
        assert tg.is_grad_enabled() is inside
        if depth == 0:
            raise LookupError("at the bottom")
        with tg.set_grad_enabled(not inside):
            work(depth - 1)

    with pytest.raises(LookupError, match="at the bottom"):
        work(5)
    assert tg.is_grad_enabled()


def test_F2_1_decorated_method():
    class Model:
        @tg.no_grad()
        def first(self, x):
            return x * 2.0

        @tg.no_grad
        def second(self, x):
            return x * 2.0

    assert not Model().first(leaf()).requires_grad
    assert not Model().second(leaf()).requires_grad


# ---------------------------------------------------------------- generators


@MODE
def test_F2_1_generator_runs_each_step_in_the_mode(make, inside):
    @make()
    def steps():
        received = []
        while len(received) < 3:
            assert tg.is_grad_enabled() is inside
            received.append((yield len(received)))
        return received

    for outside in (True, False):
        with tg.set_grad_enabled(outside):
            run = steps()
            assert next(run) == 0
            assert tg.is_grad_enabled() is outside
            assert run.send("a") == 1
            assert tg.is_grad_enabled() is outside
            assert run.send("b") == 2
            with pytest.raises(StopIteration) as stop:
                run.send("c")
            assert stop.value.value == ["a", "b", "c"]
            assert tg.is_grad_enabled() is outside


@MODE
def test_F2_1_generator_receives_exceptions_in_the_mode(make, inside):
    seen = []

    @make()
    def steps():
        while True:
            try:
                yield tg.is_grad_enabled()
            except ValueError:
                seen.append(("caught", tg.is_grad_enabled()))
            finally:
                seen.append(("step", tg.is_grad_enabled()))

    run = steps()
    assert next(run) is inside
    assert run.throw(ValueError("in")) is inside
    run.close()
    assert seen == [("caught", inside), ("step", inside), ("step", inside)]
    assert tg.is_grad_enabled()
    run = steps()
    next(run)
    with pytest.raises(KeyError, match="through"):
        run.throw(KeyError("through"))
    assert seen[-1] == ("step", inside)
    assert tg.is_grad_enabled()


def test_F2_1_generator_closed_by_its_owner_cleans_up_in_the_mode():
    seen = []

    @tg.no_grad()
    def steps():
        try:
            yield 1
        finally:
            seen.append(tg.is_grad_enabled())

    for item in steps():
        assert item == 1
        assert tg.is_grad_enabled()
        break
    run = steps()
    next(run)
    del run
    assert seen[-1:] == [False]
    assert tg.is_grad_enabled()


def test_F2_1_generators_interleaved():
    @tg.no_grad
    def off():
        while True:
            yield tg.is_grad_enabled()

    @tg.enable_grad
    def on():
        while True:
            yield tg.is_grad_enabled()

    a, b = off(), on()
    for _ in range(3):
        assert next(a) is False
        assert next(b) is True
    assert tg.is_grad_enabled()


def test_F2_1_generator_may_change_the_mode_within_a_step():
    @tg.no_grad()
    def steps():
        with tg.enable_grad():
            yield tg.is_grad_enabled()
        yield tg.is_grad_enabled()

    assert list(steps()) == [True, False]
    assert tg.is_grad_enabled()


# ---------------------------------------------------------------- threads and tasks


def test_F2_1_a_new_thread_starts_enabled():
    seen = []
    with tg.no_grad():
        thread = threading.Thread(target=lambda: seen.append(tg.is_grad_enabled()))
        thread.start()
        thread.join()
        assert not tg.is_grad_enabled()
    assert seen == [True]


def test_F2_1_threads_do_not_see_each_other():
    ready, proceed, seen = threading.Event(), threading.Event(), []

    def work():
        with tg.no_grad():
            ready.set()
            proceed.wait(60)
            seen.append(tg.is_grad_enabled())
        seen.append(tg.is_grad_enabled())

    thread = threading.Thread(target=work)
    thread.start()
    assert ready.wait(60)
    assert tg.is_grad_enabled()
    with tg.enable_grad():
        proceed.set()
        thread.join()
    assert seen == [False, True]


def test_F2_1_one_decorated_function_in_many_threads():
    barrier, wrong = threading.Barrier(8), []

    @tg.no_grad()
    def quiet():
        barrier.wait(60)
        return tg.is_grad_enabled()

    def work():
        for _ in range(20):
            if quiet() or not tg.is_grad_enabled():
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not wrong
    assert tg.is_grad_enabled()


def test_F2_1_tasks_do_not_see_each_other():
    async def quiet(out):
        with tg.no_grad():
            for _ in range(5):
                await asyncio.sleep(0)
                out.append(tg.is_grad_enabled())
        out.append(tg.is_grad_enabled())

    async def recording(out):
        for _ in range(5):
            await asyncio.sleep(0)
            out.append((leaf() * 2.0).requires_grad)

    async def main():
        off, on = [], []
        await asyncio.gather(quiet(off), recording(on), quiet([]), recording([]))
        return off, on, tg.is_grad_enabled()

    off, on, after = asyncio.run(main())
    assert off == [False] * 5 + [True]
    assert on == [True] * 5
    assert after


def test_F2_1_task_starts_in_the_mode_of_its_creator():
    async def look():
        return tg.is_grad_enabled()

    async def main():
        with tg.no_grad():
            task = asyncio.create_task(look())
        return await task, tg.is_grad_enabled()

    assert asyncio.run(main()) == (False, True)


def test_F2_1_call_of_set_grad_enabled_stays_in_its_task():
    async def change():
        tg.set_grad_enabled(False)
        return tg.is_grad_enabled()

    async def main():
        return await asyncio.create_task(change()), tg.is_grad_enabled()

    assert asyncio.run(main()) == (False, True)


# ---------------------------------------------------------------- F2-2


def test_F2_2_backward_inside_no_grad():
    x = leaf()
    y = x * x * x
    with tg.no_grad():
        y.backward(retain_graph=True)
        (g,) = tg.grad(y, x)
        assert not tg.is_grad_enabled()
    assert x.grad.item() == g.item() == 12.0
    assert not g.requires_grad


def test_F2_2_create_graph_records_inside_no_grad():
    x = leaf()
    y = x * x * x
    with tg.no_grad():
        (g,) = tg.grad(y, x, create_graph=True)
        assert not tg.is_grad_enabled()
        assert g.requires_grad
        (h,) = tg.grad(g, x, create_graph=True)
        y.backward(create_graph=True)
    assert (g.item(), h.item()) == (12.0, 12.0)
    assert tg.grad(h, x)[0].item() == 6.0
    assert x.grad.requires_grad
    assert tg.grad(x.grad, x)[0].item() == 12.0


def test_F2_2_plain_sweeps_record_nothing_with_grad_mode_on():
    x = leaf()
    y = x * x * x
    (g,) = tg.grad(y, x, retain_graph=True)
    y.backward()
    assert g.is_leaf
    assert not g.requires_grad
    assert not x.grad.requires_grad


def test_F2_2_second_accumulation_with_create_graph_inside_no_grad():
    x = leaf()
    y = x * x * x
    with tg.no_grad():
        y.backward(create_graph=True)
        y.backward(create_graph=True)
    assert x.grad.item() == 24.0
    assert tg.grad(x.grad, x)[0].item() == 24.0


# ---------------------------------------------------------------- F2-3: inference_mode


def inferred(data=(1.0, 2.0)):
    with tg.inference_mode():
        return tg.tensor(data) * 1.0


def test_F2_3_results_have_no_history():
    x = leaf()
    with tg.inference_mode():
        assert tg.is_inference_mode_enabled()
        assert not tg.is_grad_enabled()
        y = x * x
        z = np.sum(np.stack([x, x]))[()]
    assert not tg.is_inference_mode_enabled()
    for t in (y, z):
        assert t.is_inference()
        assert not t.requires_grad
        assert t.is_leaf
    assert not x.is_inference()


def test_F2_3_saving_them_later_raises_and_adding_does_not():
    x, y = leaf([1.0, 2.0]), inferred()
    for use in (lambda: x * y, lambda: x @ y, lambda: np.arctan2(x, y)):
        with pytest.raises(tg.errors.GradientError, match="inference_mode"):
            use()
    for z in (x + y, y - x, np.concatenate([x, y])):
        z.sum().backward()
    assert x.grad.tolist() == [1.0, 1.0]
    assert (y * 2.0).tolist() == [2.0, 4.0]


def test_F2_3_writing_to_them():
    y = inferred()
    for write in (lambda: y.add_(1), lambda: y.__setitem__(0, 5.0), lambda: y.__imul__(2.0)):
        with pytest.raises(tg.errors.GradientError, match="clone"):
            write()
    with tg.no_grad(), pytest.raises(tg.errors.GradientError, match="clone"):
        y.add_(1)
    with tg.inference_mode():
        y.add_(1)
    assert y.tolist() == [2.0, 3.0]


@pytest.mark.parametrize("data", [[2.0, 3.0], 2.0])
def test_F2_3_what_is_written_to_keeps_its_history(data):
    x = leaf(data)
    y, constant = x * 2.0, x.detach().clone()
    part = y[...] if y.ndim else y
    with tg.inference_mode():
        y.mul_(3.0)
        y += 1.0
        constant.add_(1.0)
        assert part.requires_grad
    assert (y.requires_grad, y.is_leaf, part.requires_grad) == (True, False, True)
    assert not y.is_inference()
    assert not constant.is_inference()
    np.sum(y * part * constant).backward()
    w = 6.0 * np.asarray(data) + 1.0  # the write is not recorded: the derivative is that of 2 x
    np.testing.assert_array_equal(x.grad.numpy(), 4.0 * w * (np.asarray(data) + 1.0))


def test_F2_3_a_gradient_that_is_added_to_is_normal():
    x = leaf([1.0, 2.0])
    y = (x**3).sum()
    y.backward(retain_graph=True)
    with tg.inference_mode():
        y.backward()
    assert not x.grad.is_inference()
    assert x.grad.tolist() == [6.0, 24.0]


def test_F2_3_requires_grad_and_versions():
    y = inferred()
    with pytest.raises(tg.errors.GradientError, match="clone"):
        y.requires_grad_()
    with pytest.raises(tg.errors.GradientError, match="clone"):
        y.requires_grad = True
    with pytest.raises(tg.errors.GradientError, match="versions"):
        y._version


def test_F2_3_a_clone_is_normal():
    x, y = leaf([3.0, 4.0]), inferred()
    w = y.clone()
    assert not w.is_inference()
    assert w._version == 0
    (w * x).sum().backward()
    assert x.grad.tolist() == [1.0, 2.0]
    assert w.requires_grad_().requires_grad


def test_F2_3_views_are_as_their_bases():
    x, y = leaf([1.0, 2.0]), inferred()
    with tg.inference_mode():
        assert not x[:1].is_inference()
        assert not x.detach().is_inference()
        assert y[:1].is_inference()
        assert y.reshape(2, 1).is_inference()
    assert y[:1].is_inference()


def test_F2_3_enable_grad_inside_does_not_record():
    x = leaf()
    with tg.inference_mode():
        with tg.enable_grad():
            assert not (x * x).requires_grad
            assert not tg.is_grad_enabled()
        with tg.set_grad_enabled(True):
            assert not (x * x).requires_grad
    assert tg.is_grad_enabled()


def test_F2_3_false_leaves_it():
    x = leaf()
    with tg.inference_mode(), tg.inference_mode(False):
        y = x * x
    assert y.requires_grad
    assert not y.is_inference()
    with tg.no_grad(), tg.inference_mode(False):
        assert (x * x).requires_grad
    assert tg.is_grad_enabled()


@pytest.mark.parametrize("decorate", [tg.inference_mode, tg.inference_mode()])
def test_F2_3_decorator(decorate):
    @decorate
    def work(x):
        return x * x

    assert work(leaf()).is_inference()
    assert tg.is_grad_enabled()


def test_F2_3_generators_threads_and_exceptions():
    @tg.inference_mode()
    def steps():
        for _ in range(2):
            yield tg.is_inference_mode_enabled()

    for inside in steps():
        assert inside
        assert not tg.is_inference_mode_enabled()
    seen = []
    with tg.inference_mode():
        thread = threading.Thread(target=lambda: seen.append(tg.is_inference_mode_enabled()))
        thread.start()
        thread.join()
    assert seen == [False]
    with pytest.raises(KeyError), tg.inference_mode():
        raise KeyError
    assert not tg.is_inference_mode_enabled()


def test_F2_3_in_a_function():
    class Square(tg.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g * y, g * x

    x, y = leaf([1.0, 2.0]), inferred()
    with tg.inference_mode():
        assert Square.apply(x, y).is_inference()
    with pytest.raises(tg.errors.GradientError, match="inference_mode"):
        Square.apply(x, y)
    assert not Square.apply(y, y).requires_grad


def test_F2_1_forward_of_a_function():
    """Nothing is recorded in it, whatever the mode around it, unless it says so."""

    class E(tg.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            assert not tg.is_grad_enabled()
            with tg.enable_grad():
                assert (x * 1).requires_grad
            with tg.set_grad_enabled(False):
                assert not (x * 1).requires_grad
            assert not (x * 1).requires_grad
            return x * 1

        @staticmethod
        def backward(ctx, g):
            return g

    for outer in (True, False):
        with tg.set_grad_enabled(outer):
            assert E.apply(leaf()).requires_grad is outer
            assert tg.is_grad_enabled() is outer
