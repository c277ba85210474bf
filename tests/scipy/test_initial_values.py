"""`solve_ivp`: SciPy's steps, times and values; derivatives against differences and closed forms."""

import numpy as np
import pytest
import scipy.integrate

import tapegrad as tg
import tapegrad.scipy as ts
from tapegrad.autograd import gradcheck, gradgradcheck
from tapegrad.errors import GradientError, UnsupportedOpError
from tests.tensors import leaf
from tests.tiers import every


def volterra(t, y, a, b):
    return np.stack([a * y[0] - y[0] * y[1], b * y[0] * y[1] - y[1]])


def plain_volterra(t, y, a, b):
    return np.array([a * y[0] - y[0] * y[1], b * y[0] * y[1] - y[1]])


@pytest.mark.full
@pytest.mark.parametrize("method", ["RK45", "RK23", "DOP853"])
@pytest.mark.parametrize("t_eval", [None, (0.0, 0.4, 1.9, 2.0), (2.0,)])
def test_steps_are_scipys(method, t_eval):
    options = {"method": method, "rtol": 1e-6, "atol": 1e-8, "t_eval": t_eval}
    y0, a, b = leaf([1.0, 0.5]), leaf(0.9), leaf(0.6)
    found = ts.integrate.solve_ivp(volterra, (0.0, 2.0), y0, args=(a, b), **options)
    wanted = scipy.integrate.solve_ivp(plain_volterra, (0.0, 2.0), [1.0, 0.5], args=(0.9, 0.6), **options)
    np.testing.assert_array_equal(found.t, wanted.t)
    np.testing.assert_allclose(found.y.detach().numpy(), wanted.y, rtol=1e-13)
    assert (found.status, found.success, found.message) == (wanted.status, wanted.success, wanted.message)
    grads = tg.grad(found.y[:, -1].sum(), [y0, a, b])
    exact = {"method": "DOP853", "rtol": 1e-12, "atol": 1e-13}

    def end(y0, a, b):
        return scipy.integrate.solve_ivp(plain_volterra, (0.0, 2.0), y0, args=(a, b), **exact).y[:, -1].sum()

    h = 1e-4
    wanted = [
        (end([1 + h, 0.5], 0.9, 0.6) - end([1 - h, 0.5], 0.9, 0.6)) / (2 * h),
        (end([1.0, 0.5], 0.9 + h, 0.6) - end([1.0, 0.5], 0.9 - h, 0.6)) / (2 * h),
        (end([1.0, 0.5], 0.9, 0.6 + h) - end([1.0, 0.5], 0.9, 0.6 - h)) / (2 * h),
    ]
    np.testing.assert_allclose([grads[0].numpy()[0], grads[1].item(), grads[2].item()], wanted, rtol=2e-4)


def test_decay():
    """y' = -k y from a list, k from outside; backwards in time too."""
    k = leaf(0.5)
    for end in (2.0, -1.0):
        found = ts.integrate.solve_ivp(
            lambda t, y: [-k * y[0]], (0.0, end), [1.0], t_eval=[end], rtol=1e-9, atol=1e-12
        )
        np.testing.assert_allclose(tg.grad(found.y[0, 0], k)[0].item(), -end * np.exp(-0.5 * end), rtol=1e-7)


@pytest.mark.full
def test_second_derivatives_and_forward_mode_of_a_solution():
    def f(k, y0, t_eval=(0.5, 2.0)):
        found = ts.integrate.solve_ivp(
            lambda t, y: -k * y, (0.0, 2.0), np.reshape(y0, (1,)), t_eval=t_eval, rtol=1e-9, atol=1e-12
        )
        return found.y[0]

    inputs = [leaf(0.5), leaf(1.5)]
    assert gradcheck(f, inputs, check_forward_ad=True, rtol=1e-4)
    assert gradgradcheck(f, inputs, rtol=1e-3)
    (g,) = tg.grad(f(*inputs)[1], inputs[0], create_graph=True)
    (h,) = tg.grad(g, inputs[0])
    np.testing.assert_allclose(h.item(), 1.5 * 4 * np.exp(-1.0), rtol=1e-6)


@pytest.mark.full
def test_plain_problems_are_scipys():
    def event(t, y, k):
        return y[0] - 0.5

    event.terminal = True
    arguments = (lambda t, y, k: -k * y, (0.0, 5.0), [1.0])
    mine = ts.integrate.solve_ivp(*arguments, args=(0.5,), events=event, dense_output=True, method="LSODA")
    theirs = scipy.integrate.solve_ivp(
        *arguments, args=(0.5,), events=event, dense_output=True, method="LSODA"
    )
    assert mine.status == theirs.status == 1
    np.testing.assert_array_equal(mine.t_events[0], theirs.t_events[0])
    np.testing.assert_array_equal(mine.sol(0.3), theirs.sol(0.3))


METHODS = ("RK45", "RK23", "DOP853", "Radau")
EXACT = {"method": "DOP853", "rtol": 1e-12, "atol": 1e-13}


def difference(f, x, h=1e-5):
    """Central differences of a function of a vector."""
    x = np.asarray(x, float)
    return np.stack([(f(x + h * e) - f(x - h * e)) / (2 * h) for e in np.eye(x.size)], axis=-1)


def equal(mine, theirs):
    """What `solve_ivp` returned, with Tensors and without."""
    for name in ("t", "y"):
        np.testing.assert_allclose(tg.tensor(mine[name]).numpy(), theirs[name], rtol=1e-12, atol=1e-14)
    assert (mine.status, mine.success, mine.message) == (theirs.status, theirs.success, theirs.message)
    if theirs.t_events is None:
        assert mine.t_events is None and mine.y_events is None
        return
    assert len(mine.t_events) == len(theirs.t_events)
    for a, b in zip((*mine.t_events, *mine.y_events), (*theirs.t_events, *theirs.y_events), strict=True):
        assert np.shape(a) == np.shape(b)
        np.testing.assert_allclose(tg.tensor(a).numpy(), b, rtol=1e-12, atol=1e-14)


# ---------------------------------------------------------------- between steps


@pytest.mark.full
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("end", [2.0, -2.0])
@pytest.mark.parametrize("t_eval", [None, (0.0, 0.4, 1.9)])
def test_dense_output_is_scipys(method, end, t_eval):
    wanted_at = None if t_eval is None else np.sign(end) * np.array(t_eval)
    options = {"method": method, "rtol": 1e-6, "atol": 1e-8, "t_eval": wanted_at, "dense_output": True}
    if method == "Radau":  # the same Jacobian, so the same iterations
        options["jac"] = lambda t, y, a, b: np.array([[a - y[1], -y[0]], [b * y[1], b * y[0] - 1]])
    y0, a, b = leaf([1.0, 0.5]), leaf(0.9), leaf(0.6)
    found = ts.integrate.solve_ivp(volterra, (0.0, end), y0, args=(a, b), **options)
    wanted = scipy.integrate.solve_ivp(plain_volterra, (0.0, end), [1.0, 0.5], args=(0.9, 0.6), **options)
    equal(found, wanted)
    np.testing.assert_array_equal(found.sol.ts, wanted.sol.ts)
    assert (found.sol.t_min, found.sol.t_max) == (wanted.sol.t_min, wanted.sol.t_max)
    places = np.concatenate([np.sign(end) * np.array([1.7, 0.1, 0.9, 2.1, -0.1, 0.1]), wanted.sol.ts])
    np.testing.assert_allclose(found.sol(places).detach().numpy(), wanted.sol(places), rtol=1e-11)
    for t in (*places[:2], wanted.sol.ts[1]):
        np.testing.assert_allclose(found.sol(t).detach().numpy(), wanted.sol(t), rtol=1e-11)


@pytest.mark.parametrize("method", every(METHODS, 2))
def test_dense_output_by_time_start_and_arguments(method):
    def f(t, y0, a, b):
        options = {"rtol": 1e-4, "first_step": 0.1, "max_step": 0.1, "dense_output": True, "method": method}
        return ts.integrate.solve_ivp(volterra, (0.0, 0.5), y0, args=(a, b), **options).sol(t)

    inputs = [leaf([0.33, 0.12, 0.47]), leaf([1.0, 0.5]), leaf(0.9), leaf(0.6)]
    # Radau's stages are SciPy's, which solve their equations to its tolerance
    tolerance = {"rtol": 1e-4, "atol": 1e-4} if method == "Radau" else {}
    assert gradcheck(f, inputs, check_forward_ad=True, **tolerance)
    t = leaf(0.33)
    slope = tg.grad(f(t, *inputs[1:])[0], t)[0].item()
    y = f(t, *inputs[1:]).detach().numpy()
    np.testing.assert_allclose(slope, plain_volterra(0, y, 0.9, 0.6)[0], rtol=1e-3)


@pytest.mark.full
def test_second_derivatives_of_dense_output():
    def f(t, y0, a, method="RK45"):
        options = {"rtol": 1e-4, "first_step": 0.1, "max_step": 0.1, "dense_output": True, "method": method}
        return ts.integrate.solve_ivp(volterra, (0.0, 0.3), y0, args=(a, 0.6), **options).sol(t)

    inputs = [leaf([0.25, 0.12]), leaf([1.0, 0.5]), leaf(0.9)]
    assert gradgradcheck(f, inputs)
    assert gradgradcheck(lambda *xs: f(*xs, method="Radau"), inputs, rtol=1e-3, atol=1e-4)


def test_times_asked_for_have_derivatives():
    t = leaf([0.5, 1.0, 2.0])
    found = ts.integrate.solve_ivp(lambda t, y: -0.5 * y, (0.0, 2.0), [1.0], t_eval=t, rtol=1e-9, atol=1e-12)
    assert found.t is not None and tg.grad(found.t.sum(), t)[0].tolist() == [1.0, 1.0, 1.0]
    wanted = -0.5 * np.exp(-0.5 * np.array([0.5, 1.0, 2.0]))
    np.testing.assert_allclose(tg.grad(found.y.sum(), t)[0].numpy(), wanted, rtol=1e-5)


@pytest.mark.full
def test_an_interval_of_no_length():
    y0 = leaf([1.0, 2.0])
    for method in METHODS:
        options = {"method": method, "dense_output": True, "args": (0.9, 0.6)}
        found = ts.integrate.solve_ivp(volterra, (1.0, 1.0), y0, **options)
        assert tg.grad(found.y.sum() + found.sol(1.0).sum(), y0)[0].tolist() == [3.0, 3.0]


# ---------------------------------------------------------------- events


def fall(t, y, g, drag):
    return np.stack([y[1], -g - drag * y[1]])


def ground(t, y, g, drag):
    return y[0]


def top(t, y, g, drag):
    return y[1]


@pytest.mark.full
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("terminal", [False, True, 2])
@pytest.mark.parametrize("direction", [0, -1, 1])
@pytest.mark.parametrize("more", [{}, {"t_eval": (0.0, 0.3, 1.0, 3.0)}, {"dense_output": True}], ids=str)
def test_events_are_scipys(method, terminal, direction, more):
    def crossed(t, y, k):
        return y[0] - 0.5

    def never(t, y, k):
        return 1.0 + t

    crossed.terminal, crossed.direction = terminal, direction
    for span in ((0.0, 7.0), (0.0, -7.0)):
        times = np.sign(span[1]) * np.array(more["t_eval"]) if "t_eval" in more else None
        options = {**more, "method": method, "events": [crossed, never], "t_eval": times, "rtol": 1e-6}
        if method == "Radau":
            options["jac"] = lambda t, y, k: np.array([[0.0, 1.0], [-k, 0.0]])
        k = leaf(1.3)
        found = ts.integrate.solve_ivp(
            lambda t, y, k: np.stack([y[1], -k * y[0]]), span, [0.0, 1.0], args=(k,), **options
        )
        wanted = scipy.integrate.solve_ivp(
            lambda t, y, k: np.array([y[1], -k * y[0]]), span, [0.0, 1.0], args=(1.3,), **options
        )
        equal(found, wanted)


@pytest.mark.parametrize("method", METHODS)
def test_a_ball_comes_to_the_ground(method):
    """By height, speed, gravity and drag: the time, the speed there, and the last values."""
    ground.terminal, ground.direction = True, -1
    start = np.array([1.0, 2.0, 9.81, 0.3])

    def run(p, module, **options):
        y0 = np.stack([p[0], p[1]])
        flow = fall if module is ts else lambda *x: np.array(fall(*x))
        options |= {"args": (p[2], p[3]), "events": [top, ground]}
        return module.integrate.solve_ivp(flow, (0, 5), y0, **options)

    wanted = difference(
        lambda p: np.array([(r := run(p, scipy, **EXACT)).t_events[1][0], r.y_events[1][0][1]]), start
    )
    highest = difference(lambda p: run(p, scipy, **EXACT).y_events[0][0], start)
    p = leaf(start)
    found = run(p, ts, method=method, rtol=1e-8, atol=1e-10)
    assert found.status == 1 and found.t[-1].item() == found.t_events[1][0].item()
    for time, y in ((found.t_events[1][0], found.y_events[1][0]), (found.t[-1], found.y[:, -1])):
        np.testing.assert_allclose(tg.grad(time, p, retain_graph=True)[0].numpy(), wanted[0], rtol=1e-5)
        np.testing.assert_allclose(tg.grad(y[1], p, retain_graph=True)[0].numpy(), wanted[1], rtol=1e-5)
        assert np.abs(tg.grad(y[0], p, retain_graph=True)[0].numpy()).max() < 1e-9  # it is on the ground
    np.testing.assert_allclose(
        tg.grad(found.y_events[0][0][0], p, retain_graph=True)[0].numpy(), highest[0], rtol=1e-5
    )


@pytest.mark.full
@pytest.mark.parametrize("method", METHODS)
def test_second_derivatives_of_events(method):
    """The time of the fall is sqrt(2 y / g) without drag."""
    y, g = leaf(1.0), leaf(9.81)
    found = ts.integrate.solve_ivp(
        fall, (0.0, 1.0), np.stack([y, 0.0 * y]), args=(g, 0.0), events=ground, method=method, rtol=1e-6
    )
    time = found.t_events[0][0]
    exact = np.sqrt(2 / 9.81)
    np.testing.assert_allclose(time.item(), exact, rtol=1e-10)
    first = tg.grad(time, [y, g], create_graph=True)
    np.testing.assert_allclose([x.item() for x in first], [exact / 2, -exact / 2 / 9.81], rtol=1e-9)
    second = [tg.grad(x, [y, g], retain_graph=True) for x in first]
    wanted = [[-exact / 4, -exact / 4 / 9.81], [-exact / 4 / 9.81, exact * 3 / 4 / 9.81**2]]
    np.testing.assert_allclose([[x.item() for x in row] for row in second], wanted, rtol=1e-8)


@pytest.mark.full
def test_events_by_what_is_used_outside():
    k, level = leaf(0.5), leaf(0.5)
    flow = lambda t, y, *args: -k * y
    found = ts.integrate.solve_ivp(flow, (0.0, 2.0), [1.0], events=lambda t, y: y[0] - 0.5, rtol=1e-9)
    np.testing.assert_allclose(tg.grad(found.t_events[0][0], k)[0].item(), -np.log(2) / 0.25, rtol=1e-5)
    for event, args in ((lambda t, y: y[0] - level, ()), (lambda t, y, level: y[0] - level, (level,))):
        found = ts.integrate.solve_ivp(flow, (0.0, 2.0), [1.0], events=event, args=args, rtol=1e-9)
        np.testing.assert_allclose(tg.grad(found.t_events[0][0], level)[0].item(), -4.0, rtol=1e-5)
    found = ts.integrate.solve_ivp(flow, (0.0, 2.0), [1.0], method="Radau", rtol=1e-9)
    np.testing.assert_allclose(tg.grad(found.y[0, -1], k)[0].item(), -2 * np.exp(-1.0), rtol=1e-5)


# ---------------------------------------------------------------- stiff


def robertson(t, y, k):
    slow, fast = k[0] * y[0], k[1] * y[1] ** 2
    back = k[2] * y[1] * y[2]
    return np.stack([back - slow, slow - back - fast, fast])


@pytest.mark.full
def test_robertson_by_rates():
    """Three rates from 0.04 to 3e7, to t = 1000."""
    rates = np.array([0.04, 3e7, 1e4])
    k, y0 = leaf(rates), leaf([1.0, 0.0, 0.0])
    found = ts.integrate.solve_ivp(
        robertson, (0.0, 1e3), y0, "Radau", t_eval=[1.0, 1e3], args=(k,), rtol=1e-7, atol=1e-11
    )

    def end(scale):
        tight = {"method": "Radau", "rtol": 1e-11, "atol": 1e-14, "t_eval": [1.0, 1e3]}
        flow = lambda t, y: np.array(robertson(t, y, rates * scale))
        return scipy.integrate.solve_ivp(flow, (0.0, 1e3), [1.0, 0.0, 0.0], **tight).y

    wanted = difference(end, np.ones(3), 1e-4)
    for i, j in ((0, 0), (1, 1), (2, 1)):
        mine = tg.grad(found.y[i, j], k, retain_graph=True)[0].numpy() * rates
        np.testing.assert_allclose(mine, wanted[i, j], rtol=2e-4)
    total = tg.grad(found.y[:, 1].sum(), [k, y0])
    assert np.abs(total[0].numpy() * rates).max() < 1e-9  # the sum of all is kept
    np.testing.assert_allclose(total[1].numpy(), 1.0, rtol=1e-9)


@pytest.mark.full
def test_van_der_pol_by_its_stiffness():
    """Through a jump of the relaxation oscillation; and the time when y is 0 there."""

    def flow(t, y, mu):
        return np.stack([y[1], mu * (1 - y[0] ** 2) * y[1] - y[0]])

    def jump(t, y, mu):
        return y[0]

    def run(mu, module, **options):
        f = flow if module is ts else lambda *x: np.array(flow(*x))
        options |= {"args": (mu,), "events": jump, "method": "Radau", "t_eval": [50.0, 120.0]}
        return module.integrate.solve_ivp(f, (0.0, 120.0), [2.0, 0.0], **options)

    def exact(p):
        r = run(p[0], scipy, rtol=1e-11, atol=1e-12)
        return np.array([*r.y[0], r.t_events[0][0]])

    mu = leaf(100.0)
    found = run(mu, ts, rtol=1e-7, atol=1e-9)
    wanted = difference(exact, [100.0], 1e-2)[:, 0]
    mine = [
        tg.grad(x, mu, retain_graph=True)[0].item() for x in (*found.y[0], found.t_events[0][0])
    ]  # fmt: skip
    np.testing.assert_allclose(mine, wanted, rtol=1e-3)


@pytest.mark.full
def test_many_steps_of_radau_between_times():
    """Steps kept by checkpoints, by more than are asked for."""
    k = leaf(50.0)
    options = {"method": "Radau", "t_eval": [1.0], "rtol": 1e-8, "atol": 1e-10}
    found = ts.integrate.solve_ivp(
        lambda t, y, k: -k * (y - np.cos(t)), (0.0, 1.0), [0.0], args=(k,), **options
    )
    exact = lambda k: (k**2 * np.cos(1.0) + k * np.sin(1.0) - k**2 * np.exp(-k)) / (k**2 + 1)
    wanted = (exact(50.001) - exact(49.999)) / 0.002
    np.testing.assert_allclose(tg.grad(found.y[0, 0], k)[0].item(), wanted, rtol=1e-4)


# ---------------------------------------------------------------- what is refused


@pytest.mark.full
def test_what_solve_ivp_refuses():
    k = leaf(0.5)
    for method in ("BDF", "LSODA"):
        with pytest.raises(UnsupportedOpError, match=f"method='{method}' has no derivative"):
            ts.integrate.solve_ivp(lambda t, y: -k * y, (0.0, 1.0), [1.0], method=method)
    with pytest.raises(UnsupportedOpError, match="complex"):
        ts.integrate.solve_ivp(lambda t, y, k: -k * y, (0.0, 1.0), [1j], args=(k,), method="Radau")
    with pytest.raises(UnsupportedOpError, match="by t_span"):
        ts.integrate.solve_ivp(lambda t, y: -y, (0.0, k), [1.0])
    found = ts.integrate.solve_ivp(
        lambda t, y, k: -k * y, (0.0, 1.0), [-1.0], args=(k,), events=lambda t, y, k: np.maximum(y[0], 0.0)
    )
    with pytest.raises(GradientError, match="singular"):
        tg.grad(found.t_events[0][0], k)


# ---------------------------------------------------------------- odeint


def hares(y, t, a, b):
    return [a * y[0] - y[0] * y[1], b * y[0] * y[1] * t - y[1]]


def test_odeint_has_the_values_of_scipy_and_the_derivatives_of_the_solution():
    times = np.linspace(0.0, 3.0, 7)

    def total(p, solve=ts.integrate.odeint):
        rows = solve(hares, [p[2], 0.5], p[3] * times, args=(p[0], p[1]), rtol=1e-11, atol=1e-11)
        return np.sum(rows**2)

    p = np.array([0.9, 0.6, 1.0, 1.1])
    x = leaf(p)
    assert total(x).item() == total(p) == total(p, scipy.integrate.odeint)
    near = [total(p + d) - total(p - d) for d in 1e-5 * np.eye(4)]
    gradient = tg.func.grad(total)
    np.testing.assert_allclose(gradient(p), np.array(near) / 2e-5, rtol=1e-7)
    np.testing.assert_allclose(tg.func.jacfwd(total)(p), gradient(p), rtol=1e-12)
    near = [gradient(p + d) - gradient(p - d) for d in 1e-5 * np.eye(4)]
    np.testing.assert_allclose(tg.func.hessian(total)(p), np.array(near) / 2e-5, rtol=1e-6)


@pytest.mark.parametrize(
    "times", [(0.0, 0.0, 1.0, 1.0, 2.0), (2.0, 1.0, 1.0, 0.5), (0.5, 1.0, 2.0), (1.5,), (0.3, 0.3)]
)
def test_odeint_moves_with_its_times(times):
    """y' = cos(t) y: y is y0 exp(sin(t) - sin(t0)), for times that repeat and go back."""
    k, t = leaf(2.0), leaf(times)
    y = ts.integrate.odeint(lambda y, t: np.cos(t) * y, k, t, rtol=1e-11, atol=1e-11)[:, 0]
    by_k, by_t = tg.grad(np.sum(y**2), [k, t])
    exact = 2.0 * np.exp(np.sin(times) - np.sin(times[0]))
    np.testing.assert_allclose(by_k.item(), np.sum(exact**2), rtol=1e-9)
    own = 2 * exact**2 * np.cos(times)
    own[0] -= np.sum(2 * exact**2) * np.cos(times[0])
    np.testing.assert_allclose(by_t.numpy(), own, rtol=1e-6, atol=1e-9)
    by_k_alone = tg.grad(np.sum(ts.integrate.odeint(lambda y, t: np.cos(t) * y, k, times) ** 2), k)
    np.testing.assert_allclose(by_k_alone[0].item(), np.sum(exact**2), rtol=1e-6)


def test_odeint_of_a_stiff_problem():
    def reaction(y, t, k):
        there, back = 1e4 * y[1] * y[2], 3e7 * y[1] ** 2
        return [there - k * y[0], k * y[0] - there - back, back]

    def end(k):
        options = {"rtol": 1e-9, "atol": 1e-13, "mxstep": 5000}
        return ts.integrate.odeint(reaction, [1.0, 0.0, 0.0], [0.0, 40.0], args=(k,), **options)[1, 0]

    near = (end(0.04 + 1e-5) - end(0.04 - 1e-5)) / 2e-5
    np.testing.assert_allclose(tg.func.grad(end)(0.04), near, rtol=1e-4)
    k = leaf(1e4)
    y = ts.integrate.odeint(lambda y, t: -k * (y - np.cos(t)), 0.0, [0.0, 1.0], rtol=1e-9)[1, 0]
    np.testing.assert_allclose(tg.grad(y, k)[0].item(), -np.sin(1.0) / 1e8, rtol=1e-3)


@pytest.mark.full
def test_odeint_of_an_oscillation_that_lsoda_takes_some_stiff_steps_of():
    """It was refused, as a call of solve_ivp with Radau that the program has not made."""
    t, w = np.linspace(0.0, 2.0, 7), leaf(1.2)
    options = {"rtol": 1e-10, "atol": 1e-12, "full_output": True}
    found, notes = ts.integrate.odeint(lambda y, t: [w * y[1], -0.7 * y[0]], [1.0, 0.5], t, **options)
    assert sorted(set(notes["mused"])) == [1, 2]
    passed, _ = ts.integrate.odeint(
        lambda y, t, w: [w * y[1], -0.7 * y[0]], [1.0, 0.5], t, args=(w,), **options
    )
    for row in (2, -1):
        rate = np.sqrt(0.7 * w)
        exact = np.cos(rate * t[row]) + 0.5 * w / rate * np.sin(rate * t[row])
        by_closure, by_args, wanted = (
            tg.grad(y, w, retain_graph=True)[0].item() for y in (found[row, 0], passed[row, 0], exact)
        )
        assert [by_closure, by_args] == pytest.approx([wanted, wanted], rel=1e-7)


def test_odeint_takes_what_scipys_takes():
    k = leaf(0.7)
    decay = np.exp(-0.7)
    found, notes = ts.integrate.odeint(lambda t, y: -k * y, 1.0, [0.0, 1.0], tfirst=True, full_output=True)
    assert notes["message"] == "Integration successful."
    np.testing.assert_allclose(tg.grad(found[1, 0], k)[0].item(), -decay, rtol=1e-7)
    options = {"Dfun": lambda y, t, k: [[-k]], "hmax": 0.1}
    one = ts.integrate.odeint(lambda y, t, k: -k * y, 1.0, [0.0, 1.0], k, **options)
    np.testing.assert_allclose(tg.grad(one[1, 0], k)[0].item(), -decay, rtol=1e-7)
    parts = ts.integrate.odeint(lambda y, t, q: -q["k"] * y, 1.0, [0.0, 1.0], args=({"k": k},))
    np.testing.assert_allclose(tg.grad(parts[1, 0], k)[0].item(), -decay, rtol=1e-7)
    assert type(ts.integrate.odeint(lambda y, t: -y, 1.0, [0.0, 1.0])) is np.ndarray
    with pytest.raises(ValueError, match="monotonically"):
        ts.integrate.odeint(lambda y, t: -k * y, 1.0, [0.0, 2.0, 1.0])


def test_odeint_that_stops_on_the_way_has_no_derivative():
    with (
        pytest.warns(scipy.integrate.ODEintWarning, match="Excess work"),
        pytest.raises(UnsupportedOpError, match=r"odeint.*where it stopped .Excess work"),
    ):
        ts.integrate.odeint(lambda y, t: y**2, leaf([1.0]), [0.0, 0.5, 2.0])
