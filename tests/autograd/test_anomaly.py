"""Anomaly mode: F2-4, and where it points."""

import gc
import threading
import warnings
import weakref

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.errors import AnomalyError

pytestmark = pytest.mark.filterwarnings("ignore:anomaly mode is on:UserWarning", "ignore::RuntimeWarning")


def sqrt_of_zero(x):
    return np.sqrt(x) * 0.0  # the marked line


def line_of(function, text):
    first = function.__code__.co_firstlineno
    with open(function.__code__.co_filename, encoding="utf-8") as file:
        lines = file.read().splitlines()
    return next(k + 1 for k in range(first - 1, len(lines)) if text in lines[k])


@pytest.mark.parametrize("create_graph", [False, True])
def test_F2_4_a_nan_names_the_line_of_the_forward(create_graph):
    with tg.autograd.detect_anomaly():
        x = tg.tensor(0.0, requires_grad=True)
        y = sqrt_of_zero(x)
        with (
            pytest.warns(UserWarning, match="sqrt is nan"),
            pytest.raises(RuntimeError, match="SqrtBackward") as caught,
        ):
            y.backward(create_graph=create_graph)
    assert isinstance(caught.value, AnomalyError)
    assert f"line {line_of(sqrt_of_zero, 'the marked line')}, in sqrt_of_zero" in str(caught.value)
    assert __file__ in str(caught.value)


def test_F2_4_turning_it_on_warns():
    with pytest.warns(UserWarning, match="anomaly mode is on"):
        tg.autograd.detect_anomaly()


def test_F2_4_check_nan_false_suppresses():
    with tg.autograd.detect_anomaly(check_nan=False):
        x = tg.tensor(0.0, requires_grad=True)
        sqrt_of_zero(x).backward()
    assert np.isnan(x.grad.item())


def test_F2_4_an_exception_warns_with_the_line_and_goes_on_unchanged():
    class Fails(tg.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            raise KeyError("mine")

    with tg.autograd.detect_anomaly():
        x = tg.tensor(1.0, requires_grad=True)
        y = Fails.apply(x)  # here
        with pytest.warns(UserWarning, match="Fails.apply"), pytest.raises(KeyError, match="mine"):
            y.backward()
    (x * x).backward()
    assert x.grad.item() == 2.0


def test_forward_mode_inside_is_as_without_it():
    """Duals are on no tape of which lines could be noted."""

    def f(x, looking):
        with tg.autograd.set_detect_anomaly(looking):
            return np.sum(np.sin(x) * x) + (-x)[0] * x[1] / 2.0

    tg.func.grad(f)(np.ones(3), False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(2):
            found, wanted = (tg.func.jvp(f)(np.ones(3), looking, np.arange(3.0)) for looking in (True, False))
            assert found == pytest.approx(wanted, rel=1e-14)


def test_the_first_value_that_is_not_finite_is_named():
    with tg.autograd.detect_anomaly():
        x = tg.tensor([1.0, 0.0], requires_grad=True)
        y = np.log(x)  # makes -inf
        z = np.exp(y) * y
        1.0 / x  # makes another, of operands that are finite
        with (
            pytest.warns(UserWarning, match="is nan"),
            pytest.raises(AnomalyError, match=r"log at .*not finite") as caught,
        ):
            z.sum().backward()
    assert "multiply" not in str(caught.value)


def test_a_forward_outside_is_said_to_be_unknown():
    x = tg.tensor(0.0, requires_grad=True)
    y = sqrt_of_zero(x)
    with (
        tg.autograd.detect_anomaly(),
        pytest.warns(UserWarning, match="is nan"),
        pytest.raises(AnomalyError, match="not run in anomaly mode"),
    ):
        y.backward()


def test_right_gradients_are_the_same():
    def f(x):
        y = x * 1.0
        y[0] = np.sin(x[1]) * x[2]
        return np.sum(np.linalg.solve(np.outer(y, y) + 3 * np.eye(3), x) ** 2)

    x = tg.tensor([0.3, 1.2, -0.4], requires_grad=True)
    plain = tg.grad(f(x), x)[0].numpy()
    with tg.autograd.detect_anomaly():
        np.testing.assert_allclose(tg.grad(f(x), x)[0].numpy(), plain, rtol=1e-14)
        (g,) = tg.grad(f(x), x, create_graph=True)
        np.testing.assert_allclose(g.detach().numpy(), plain, rtol=1e-14)


def test_it_is_off_after_the_block_also_by_an_exception():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with tg.autograd.set_detect_anomaly(True):
            assert tg.autograd.is_anomaly_enabled()
        assert not tg.autograd.is_anomaly_enabled()
    with pytest.raises(KeyError), tg.autograd.detect_anomaly():
        raise KeyError
    assert not tg.autograd.is_anomaly_enabled()
    before = tg.autograd.set_detect_anomaly(True)
    assert tg.autograd.is_anomaly_enabled()
    before.__exit__()
    assert not tg.autograd.is_anomaly_enabled()
    x = tg.tensor(0.0, requires_grad=True)
    y = sqrt_of_zero(x)
    with (
        tg.autograd.set_detect_anomaly(True),
        pytest.warns(UserWarning, match="is nan"),
        pytest.raises(AnomalyError, match="not run in anomaly mode"),
    ):
        y.backward(retain_graph=True)
    y.backward()


def caught_in(function, *leaves, **options):
    """The message, and the warning's text, of the anomaly in the gradients of a function's result."""
    with tg.autograd.detect_anomaly():
        out = function(*leaves)
        with pytest.warns(UserWarning, match="nan") as told, pytest.raises(AnomalyError) as caught:
            tg.grad(out, leaves, **options)
    return str(caught.value), str(told[-1].message)


def test_the_warning_has_all_frames_of_the_users_code():
    def inner(x):
        return np.sqrt(x)  # innermost

    def outer(x, again=0):
        y = inner(x) * 0.0 if again else outer(x, 1)
        return y + 1.0

    message, trace = caught_in(outer, tg.tensor(0.0, requires_grad=True))
    assert f"line {line_of(inner, 'innermost')}, in inner" in message
    names = [line.split(", in ")[1] for line in trace.splitlines() if line.startswith('  File "')]
    assert names[-4:] == ["caught_in", "outer", "outer", "inner"]
    assert "test_the_warning_has_all_frames_of_the_users_code" in names
    assert names.count("outer") == 2


def test_calls_from_different_lines_are_told_apart():
    def root(x):
        return np.sqrt(x)

    def twice(x):
        a = root(x + 1.0)  # sound
        b = root(x) * 0.0  # at fault
        return a + b

    _, trace = caught_in(twice, tg.tensor(0.0, requires_grad=True))
    assert f"line {line_of(twice, 'at fault')}, in twice" in trace
    assert f"line {line_of(twice, 'sound')}, in twice" not in trace


@pytest.mark.parametrize("depth", [5, 200])
def test_the_line_is_known_at_any_depth(depth):
    def down(x, n):
        return np.sqrt(x) * 0.0 if n == 0 else down(x + 0.0, n - 1)  # the line

    message, _ = caught_in(lambda x: down(x, depth), tg.tensor(0.0, requires_grad=True))
    assert f"line {line_of(down, 'the line')}, in down" in message


def test_no_frame_is_kept():
    class Mine:
        pass

    def step(x):
        mine = Mine()
        notes.append(weakref.ref(mine))
        return np.sin(x) * x

    notes = []
    gc.disable()
    try:
        with tg.autograd.detect_anomaly():
            x = tg.tensor(0.5, requires_grad=True)
            y = step(x)
            assert notes[0]() is None
            y.backward()
    finally:
        gc.enable()


FORMS = {  # what passes cotangents on, each of a root's result
    "element": lambda y: y[3],
    "window": lambda y: np.sum(y[2:5]),
    "take": lambda y: np.sum(y[[3, 3]]),
    "reshape": lambda y: np.sum(y.reshape(2, 4)),
    "concatenate": lambda y: np.sum(np.concatenate([y, y])),
    "broadcast": lambda y: np.sum(y + np.zeros((2, 8))),
    "scan": lambda y: np.sum(np.cumsum(y)),
    "matmul": lambda y: y @ np.ones(8),
    "reduce": lambda y: np.max(y) + np.mean(y),
    "single": lambda y: np.sum(y.astype(np.float32)),
    "complex": lambda y: np.sum((y * (1.0 + 1.0j)).real),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", [float, np.float32])
def test_nan_is_seen_whatever_it_goes_through(form, dtype):
    mask = np.ones(8, dtype)
    mask[3] = 0.0

    def program(x):
        root = np.sqrt(x * mask)  # the root
        return FORMS[form](root * mask)

    message, _ = caught_in(program, tg.tensor(np.ones(8, dtype), requires_grad=True))
    assert message.startswith("SqrtBackward returned nan as gradient 0")
    assert f"line {line_of(program, 'the root')}, in program" in message


@pytest.mark.parametrize("form", FORMS)
def test_nan_that_is_given_is_seen_whatever_it_goes_through(form):
    def program(x):
        return FORMS[form](x * 1.0)

    x = tg.tensor(np.linspace(0.1, 0.8, 8), requires_grad=True)
    message, _ = caught_in(program, x, grad_outputs=np.full(np.shape(program(x)), np.nan))
    assert "returned nan as gradient" in message


def test_writes_are_followed():
    def program(x):
        y = x * 0.0
        y[2] = np.sqrt(x[2] * 0.0)  # written
        y[1] = 3.0
        return np.sum(y * np.array([1.0, 1.0, 0.0]))

    message, _ = caught_in(program, tg.tensor([1.0, 2.0, 3.0], requires_grad=True))
    assert f"line {line_of(program, 'written')}, in program" in message


def test_infinities_that_meet_are_told_as_what_they_are():
    def program(x):
        return np.sqrt(x) - np.sqrt(x)

    message, _ = caught_in(program, tg.tensor(0.0, requires_grad=True))
    assert "adds up to nan" in message
    assert "in program" in message


@pytest.mark.parametrize("dtype", [float, np.float32])
def test_the_first_that_is_not_finite_in_any_layout(dtype):
    for lay in (lambda x: x, lambda x: np.asfortranarray(x), lambda x: x[::2, ::2], lambda x: x.T):
        values = np.ones((4, 6), dtype)
        values[2, 2] = -1.0
        with tg.autograd.detect_anomaly():
            x = tg.tensor(lay(values), requires_grad=True)
            y = x * dtype(2.0)
            z = np.log(y)  # the logarithm
            with pytest.raises(AnomalyError) as caught, pytest.warns(UserWarning, match="nan"):
                np.sum(np.sqrt(z)).backward()
        line = line_of(test_the_first_that_is_not_finite_in_any_layout, "the logarithm")
        assert f"log at File \"{__file__}\", line {line}," in str(caught.value)


def test_what_is_not_finite_from_the_start_is_not_made():
    with tg.autograd.detect_anomaly():
        x = tg.tensor([np.inf, 1.0], requires_grad=True)
        y = (x + 1.0) * 2.0
        with pytest.raises(AnomalyError) as caught, pytest.warns(UserWarning, match="nan"):
            np.sum(np.sin(y) * 0.0).backward()
    assert "SinBackward returned nan" in str(caught.value)
    assert "not finite" not in str(caught.value)


def test_blocks_within_blocks_and_threads_keep_to_themselves():
    def outer(x):
        a = np.sqrt(x)
        with tg.autograd.detect_anomaly():
            b = np.sqrt(x)
        found.append((a, b))
        return a

    found = []
    x = tg.tensor(0.0, requires_grad=True)
    with tg.autograd.detect_anomaly():
        outer(x)
        outer(x)
        other = threading.Thread(target=lambda: found.append(tg.autograd.is_anomaly_enabled()))
        other.start()
        other.join()
        for pair in found[:2]:
            for y in pair:
                with pytest.raises(AnomalyError, match="in outer"), pytest.warns(UserWarning, match="nan"):
                    (y * 0.0).backward()
    assert found[2] is False


def test_lines_die_with_the_tape():
    class Mine:
        pass

    space = {"np": np}
    exec(compile("def f(x):\n    return np.sin(x)", "<mine>", "exec"), space)
    code = weakref.ref(space["f"].__code__)
    with tg.autograd.detect_anomaly():
        x = tg.tensor(0.5, requires_grad=True)
        y = space.pop("f")(x)
        assert code() is not None
        tg.grad(y, x)
    del y
    x * 2  # another tape
    gc.collect()
    assert code() is None


def test_a_warning_that_is_an_error_is_one_here_too():
    with tg.autograd.detect_anomaly(), warnings.catch_warnings():
        x = tg.tensor(np.zeros(3), requires_grad=True) * 1.0
        warnings.simplefilter("error")
        with pytest.raises(RuntimeWarning):
            np.log(x)
        assert tg.autograd.is_anomaly_enabled()
        np.sum(np.sin(x)).backward()
