"""Products, systems and factors of matrices that are large enough to be blocks: beside Tensors."""

import contextlib
import gc
import resource
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.native import segment
from tapegrad.native.library.linear import ELIMINATED
from tapegrad.native.tapes.tape import SLOTS
from tapegrad.ops.triangles import BLOCK
from tests.native.test_expressions import once

RANDOM = np.random.default_rng(5)
N = 13
SQUARE = RANDOM.normal(size=(N, N)) + 5 * np.eye(N)
SPD = SQUARE @ SQUARE.T / N
W = RANDOM.normal(size=(N, 40))


def products(a, w):
    b, c = w[:, :20] * a[0, 1], np.exp(0.1 * a) @ w[:, 0].copy()
    d = np.dot(w.T[:, ::2].copy(), a[::2])
    return np.sum((a @ b) * (a.T[::-1] @ w[:, 20:].copy())) + (c @ a) @ c + np.sum(d**2)


def written_to_later(a, w):
    b = w[:, :N] * 1.0
    c = a @ b
    b[0, 0] = 7.0
    d = a * 2.0
    e = d @ c
    d[...] = 0.0
    return np.sum(c * e) + np.sum(d @ b)


def recursive(a, w):
    x = a @ w[:, 0].copy()
    for _ in range(3):
        x = 0.1 * (a @ x) + np.sin(x)
    return np.sum(x * x)


def solve(a, w):
    x = np.linalg.solve(a, w[:, :3].copy())
    return np.sum(np.linalg.solve(a.T, a[1]) ** 2) + np.sum(x * x) + np.linalg.solve(SQUARE, a[:, 0])[1] ** 2


def inv(a, w):
    return np.sum(np.linalg.inv(a) ** 2 * w[:, :N])


def cholesky(a, w):
    return np.sum(np.linalg.cholesky(a) ** 2 * w[:, :N])


def eigh(a, w):
    values, vectors = np.linalg.eigh(a)
    return np.sum(values * w[0, :N]) + np.sum(vectors**2 * w[:, :N]) + np.linalg.eigvalsh(a)[3] ** 2


def slogdet(a, w):
    sign, log = np.linalg.slogdet(a)
    return sign * log * w[0, 0] + np.linalg.slogdet(a[::-1])[0]


def det(a, w):
    """Of a matrix, one that is nearly singular, and one that is."""
    near, singular = a / 5.0, a / 5.0
    near[0] = near[1] + 1e-9 * w[0, :N]
    singular[0] = 0.0 * a[1]
    return np.linalg.det(a / 5.0) + np.linalg.det(near) + np.linalg.det(singular)


def qr(a, w):
    q, r = np.linalg.qr(a)
    return np.sum(q * w.T[: q.shape[0], : q.shape[1]]) + np.sum(r * r * w[: r.shape[0], : r.shape[1]])


CASES = [(products, SQUARE), (slogdet, -SQUARE)]
SLOW = [
    (inv, SQUARE),
    (eigh, SPD),
    (written_to_later, SQUARE),
    (recursive, SQUARE),
    (solve, SQUARE),
    (slogdet, SQUARE),
    (det, SQUARE),
]
SLOW += [(cholesky, SPD), (qr, SQUARE), (qr, W[:, :17]), (qr, W.T[:17])]
ROWS = [pytest.param(*case, 1) for case in CASES] + [
    pytest.param(*case, order, marks=pytest.mark.slow)
    for cases, order in ((SLOW, 1), (CASES, 3), (SLOW, 3))
    for case in cases
]


@pytest.mark.parametrize(("function", "a", "order"), ROWS, ids=lambda v: getattr(v, "__name__", ""))
def test_derivatives_are_those_of_tensors(function, a, order):
    """Tangents of tangents are corrected once for each level."""
    u, results = RANDOM.normal(size=a.shape), []
    u = u + u.T if a is SPD else u
    for run in (tg.njit(function), function):
        t = tg.tensor(a, requires_grad=True)
        y, found = run(t, W), []
        found.append(y.detach().numpy())
        for _ in range(order):
            (g,) = tg.grad(y, t, create_graph=True)
            found.append(g.detach().numpy())
            y = (g * u).sum()
        results.append(found)
    for found, expected in zip(*results, strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-11 * abs(expected).max())


def values_and_a_vector(a):
    values, vectors = np.linalg.eigh(a)
    return np.sum(values) + vectors[0, N - 1]


def test_equal_eigenvalues_do_no_harm_to_others():
    """A vector beside equal values has a derivative, a vector of an equal value has none."""
    basis = np.linalg.qr(SQUARE)[0]
    a = basis @ np.diag([*[1.0] * (N - 1), 3.0]) @ basis.T
    run = tg.func.grad(tg.njit(values_and_a_vector))
    a = (a + a.T) / 2
    v = np.linalg.eigh(a)[1][:, -1]
    turned = np.outer(np.eye(N)[0] - v[0] * v, v) / 4.0
    np.testing.assert_allclose(run(a), np.eye(N) + turned + turned.T, atol=1e-12)
    assert not np.isfinite(run(np.eye(N))).all()


def shapes(a, b):
    return np.sum(a @ b)


def test_sizes_at_which_products_change_ways():
    run = tg.func.value_and_grad(tg.njit(shapes), (0, 1))
    for m, k, n in ((6, 7, 7), (6, 7, 8), (1, 400, 1), (300, 1, 2), (0, 50, 50), (50, 0, 50)):
        a, b = RANDOM.normal(size=(m, k)), RANDOM.normal(size=(k, n))
        value, (of_a, of_b) = run(a, b)
        np.testing.assert_allclose(value, np.sum(a @ b), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(of_a, np.ones((m, n)) @ b.T, rtol=1e-13, atol=1e-13)
        np.testing.assert_allclose(of_b, a.T @ np.ones((m, n)), rtol=1e-13, atol=1e-13)


def test_what_raises_leaves_the_tape_as_it_was():
    def singular(a):
        return np.sum(np.linalg.inv(a @ a))

    run, unfit = tg.func.grad(tg.njit(singular)), tg.func.grad(tg.njit(lambda a: np.sum(a @ a[1:])))
    for _ in range(20):
        with pytest.raises(np.linalg.LinAlgError):
            run(np.zeros((N, N)))
        with pytest.raises(ValueError, match="sizes do not fit"):
            unfit(SQUARE)
    t = tg.tensor(SQUARE, requires_grad=True)
    np.testing.assert_allclose(run(SQUARE), tg.grad(singular(t), t)[0], rtol=1e-10)


def of_itself(a, v):
    """A matrix twice, turned, in parts, in either order, and with a plain array that is written to."""
    f, plain = a.T.copy().T, v.copy()
    s = np.sum((a @ a) * (a.T @ f)) + np.sum(np.linalg.solve(f[::-1], a[:, ::-1]))
    c = a @ plain
    plain[...] = 0.0
    d = np.linalg.solve(a, v) + np.linalg.inv(a[::-1, ::-1])
    return s + np.sum(c * d) + np.sum((v[:1] @ a) @ (a @ v[:, :1]))


@pytest.mark.slow
@pytest.mark.parametrize("active", [0, 1, (0, 1)])
def test_either_operand_may_be_active(active):
    v = W[:, :N].copy()
    found = tg.func.value_and_grad(tg.njit(of_itself), active)(SQUARE, v)
    expected = tg.func.value_and_grad(of_itself, active)(SQUARE, v)
    for x, y in zip(found, expected, strict=True):
        np.testing.assert_allclose(np.stack([x]), np.stack([y]), rtol=1e-10, atol=1e-12)


def second(a, v):
    return np.sum(np.linalg.solve(a, v) * (a @ v))


@pytest.mark.parametrize("active", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_second_derivatives_by_one_operand(active):
    pair, u = [SQUARE, W[:, :N].copy()], RANDOM.normal(size=(N, N))
    results = []
    for run in (tg.njit(second), second):
        args = [tg.tensor(x, requires_grad=k == active) for k, x in enumerate(pair)]
        (g,) = tg.grad(run(*args), args[active], create_graph=True)
        results.append(tg.grad((g * u).sum(), args[active])[0].numpy())
    np.testing.assert_allclose(*results, rtol=1e-9, atol=1e-11 * abs(results[1]).max())


def triangle_of(a):
    return np.linalg.cholesky(a)[-1, 0] + np.linalg.eigvalsh(a)[0] + np.linalg.slogdet(a)[1]


def test_sizes_at_which_factors_change_ways():
    run = tg.func.value_and_grad(tg.njit(triangle_of))
    for n in (ELIMINATED, ELIMINATED + 1):
        a = RANDOM.normal(size=(n, n))
        a = a @ a.T + np.eye(n)
        (value, found), (wanted, expected) = run(a), tg.func.value_and_grad(triangle_of)(a)
        np.testing.assert_allclose(value, wanted, rtol=1e-12)
        np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-13)


M, SHORT = RANDOM.normal(size=(12, 11)), RANDOM.normal(size=11)  # products that are a record each


def both_ways(a, x):
    """Arguments that products and expressions alone read, and what is computed of them."""
    y = np.tanh(a @ x) + 0.1
    z = np.dot(y, a) * x
    return np.sum((z @ a.T + a @ z) * y) + np.sum(a @ np.ones(11)) + np.sum(np.ones((4, 12)) @ y)


def changed_between(a, x):
    """A product keeps the matrix that it found."""
    b = a.copy()
    y = b @ x
    b[1, 2] = x[0] * 3.0
    z = b @ x
    b[1, 2] = 0.5
    b[3] *= x[1]
    return np.sum(y * z * (b @ x)) + np.sum(b)


def of_any_order(a, x):
    """Elements whose statements do not follow each other, that are one, and that are on no tape."""
    b, v = np.zeros_like(a), np.zeros_like(a[:, 0])
    b[::2] = a[1::2]
    v[:] = x[3]
    v[2] = 1.5
    w = x[::-1].copy()
    w[5] = 2.0
    c = a[:, ::-1]
    return np.sum((b @ w) * v) + np.sum((v @ b) * w) + np.sum(c @ w) + np.sum((c.T @ v) * x)


def chosen(a, x):
    """Nothing comes to some results, and to one product."""
    y = a @ x
    _ = a @ np.exp(x)
    return y[3] * y[4]


def of_vectors(a, x):
    return x @ x + np.sum(np.dot(x, x) * a)


SMALL = [both_ways, changed_between, of_any_order, chosen, of_vectors]
ONE_MOVES = [  # which of the arguments is a Tensor, the other being plain
    pytest.param(f, k, marks=() if (i + k) % 2 == 0 else pytest.mark.slow, id=f"{f.__name__}-{k}")
    for k in range(2)
    for i, f in enumerate(SMALL)
]


@pytest.mark.parametrize(("f", "k"), ONE_MOVES)
def test_small_products_with_vectors(f, k):
    compiled = once(f)
    found, expected = (tg.func.value_and_grad(g, (0, 1))(M, SHORT) for g in (compiled, f))
    np.testing.assert_allclose(found[0], expected[0], rtol=1e-12)
    for one, other in zip(found[1], expected[1], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-12 * abs(other).max())
    args = [tg.tensor(v, requires_grad=True) if q == k else v for q, v in enumerate((M, SHORT))]
    np.testing.assert_allclose(tg.grad(compiled(*args), args[k])[0].numpy(), expected[1][k], rtol=1e-9)
    np.testing.assert_allclose(tg.func.grad(compiled, 1 - k)(M, SHORT), found[1][1 - k], rtol=1e-12)
    assert M.flags.writeable and SHORT.flags.writeable


def test_small_products_in_second_derivatives():
    compiled, v = once(both_ways), RANDOM.normal(size=11)
    found, expected = (tg.func.hvp(f, 1)(M, SHORT, v) for f in (compiled, both_ways))
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    np.testing.assert_allclose(
        tg.func.jvp(compiled, 1)(M, SHORT, v)[1], tg.func.jvp(both_ways, 1)(M, SHORT, v)[1], rtol=1e-9
    )


def test_small_products_of_an_argument_whose_memory_is_written_to_by_another_name():
    """What a product keeps of an argument is what was there when it was computed."""

    @tg.njit
    def f(a, x, w):
        y = a @ x
        w[0, 0] = 100.0
        return np.sum(y * y)

    a = M.copy()
    expected = 2 * np.outer(M @ SHORT, SHORT)
    np.testing.assert_allclose(tg.func.grad(f)(a, SHORT, a), expected, rtol=1e-12)


def test_small_products_of_other_sizes():
    f = tg.njit(lambda a, x: np.sum(np.exp(a @ x)) + np.sum(a))
    for m, n in ((0, 3), (3, 0), (1, 1), (1, 5), (5, 1), (2, 3), (10, 9), (10, 10)):
        a, x = RANDOM.normal(size=(m, n)), RANDOM.normal(size=n)
        ga, gx = tg.func.grad(f, (0, 1))(a, x)
        np.testing.assert_allclose(ga, np.outer(np.exp(a @ x), x) + 1.0, rtol=1e-12)
        np.testing.assert_allclose(gx, np.exp(a @ x) @ a, rtol=1e-11, atol=1e-13)
    for a, x in ((np.ones((2, 3)), np.ones(4)), (np.ones((20, 30)), np.ones(20))):
        with pytest.raises(ValueError, match="fit"):
            tg.func.grad(f)(a, x)


def test_small_products_of_infinite_partials():
    """What nothing came to is not multiplied by infinity; what a 0 came to is."""
    f = tg.njit(lambda a, x: (a @ x)[0])
    a = np.full((11, 11), np.inf)
    for b in (a, np.ones((11, 11))):
        found = tg.func.grad(f, 1)(b, np.ones(11))
        expected = tg.grad((tg.tensor(b) @ (x := tg.tensor(np.ones(11), requires_grad=True)))[0], x)[0]
        np.testing.assert_array_equal(found, expected.numpy())


def test_small_products_of_active_numbers_many_times():
    """Gradients are the same however the tape grew, and memory is used again."""

    @tg.njit
    def f(x, a, n):
        for _ in range(n):
            x = np.tanh(a @ x)
        return np.sum(x)

    run, x = tg.func.value_and_grad(f, (0, 1)), np.linspace(0, 1, 11)
    a = np.eye(11)[::-1].copy() * 0.9
    for n in (1, 20_000, 3):
        value, (gx, ga) = run(x, a, n)
        y, states = x, [x]
        for _ in range(n):
            y = np.tanh(a @ y)
            states.append(y)
        ct, gradient = np.ones(11), np.zeros((11, 11))
        for k in range(n, 0, -1):
            ct = ct * (1 - states[k] ** 2)
            gradient += np.outer(ct, states[k - 1])
            ct = ct @ a
        np.testing.assert_allclose(value, y.sum(), rtol=1e-11)
        np.testing.assert_allclose(ga, gradient, rtol=1e-8, atol=1e-12)
        np.testing.assert_allclose(gx, ct, rtol=1e-8, atol=1e-12)


@tg.njit(nogil=True)
def several(a, w):
    b = np.linalg.solve(a, a @ w)
    return np.sum(b * w) + np.sum(np.linalg.cholesky(a @ a.T))


def fails(a, w):
    """By a statement, or in a block."""
    b = a * 2.0
    if w[0] == 0.0:
        raise ValueError("as asked")
    if w[0] == 1.0:
        return np.sum(np.linalg.solve(b, w))
    return np.sum(np.linalg.cholesky(b))


def alive(run, times, error=()):
    """How many pieces of memory of Numba's there are afterwards that were not there before, for each call."""
    from numba.core.runtime import rtsys

    counts = []
    for n in (1, times):
        for _ in range(n):
            with pytest.raises(error) if error else contextlib.nullcontext():
                run()
        gc.collect()
        found = rtsys.get_allocation_stats()
        counts.append(found.alloc - found.free)
    return (counts[1] - counts[0]) / times


@pytest.mark.parametrize("what", ["value", "grad", pytest.param("hvp", marks=pytest.mark.slow)])
def test_memory_is_given_back(what):
    pytest.importorskip("numba.core.runtime._nrt_python").memsys_enable_stats()
    w, rest = W[:, :3].copy(), [SQUARE] if what == "hvp" else []
    run = several if what == "value" else getattr(tg.func, what)(several)
    assert alive(lambda: run(SPD, w, *rest), 1000) == 0


def test_a_block_that_raises_keeps_no_memory():
    """Numba keeps what the functions in between have made, as here `b`, and no argument."""
    pytest.importorskip("numba.core.runtime._nrt_python").memsys_enable_stats()
    run, w = tg.func.grad(tg.njit(fails)), np.zeros(N)
    assert alive(lambda: run(SQUARE, w), 100, ValueError) == 0
    for w[0], a in ((1.0, 0.0 * SQUARE), (2.0, -SPD)):
        assert alive(lambda a=a: run(a, w), 100, np.linalg.LinAlgError) <= 2


def test_threads_have_tapes_of_their_own():
    run, w = tg.func.grad(several), W[:, :3].copy()
    matrices = [SPD + k * np.eye(N) for k in range(2)]
    expected, found = [run(a, w) for a in matrices], [[], []]

    def repeat(k):
        found[k] += [run(matrices[k], w) for _ in range(200)]

    threads = [threading.Thread(target=repeat, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for k in range(2):
        np.testing.assert_array_equal(found[k], [expected[k]] * 200)


@pytest.mark.slow
def test_memory_of_blocks_is_used_again():
    """Some 16 MB of several chunks a call."""
    run, sizes = tg.func.grad(tg.njit(powers)), []
    for _ in range(40):
        np.testing.assert_allclose(run(np.eye(N), 3000), 3001 * np.ones((N, N)))
        sizes.append(int(Path("/proc/self/statm").read_text("utf-8").split()[1]) * resource.getpagesize())
    assert sizes[-1] - sizes[4] < 20 << 20


def powers(a, n):
    b = a
    for _ in range(n):
        b = a @ b
    return np.sum(b)


def test_plain_matrices_that_are_written_to_between_products():
    """A copy is used again for the same bytes alone; of matrices in turns, views, negative zeros."""

    def chain(x, a, b):
        y = a @ x
        for k in range(6):
            y = a[::-1] @ (b @ y) + a[1:].T @ y[1:]
            a[k, 0] = 2.0 - a[k, 0] if k % 2 else -a[k, 1]
            y = np.sin(a @ y) + b @ y
            if k == 3:
                b[:] = a
        a[:] = np.nan
        return np.sum(y * y)

    compiled, x = tg.njit(chain), np.linspace(0.1, 1.0, 20)
    a, b = 0.2 * np.cos(np.arange(800.0)).reshape(2, 20, 20)
    a[0, :] = 0.0
    found = [tg.func.grad(compiled)(x, a.copy(), b.copy()) for _ in range(2)]
    t = tg.tensor(x, requires_grad=True)
    y, m, n = t * 1.0, a.copy(), b.copy()
    with tg.guard("copy"):
        (expected,) = tg.grad(chain(y, m, n), t)
    for one in found:
        np.testing.assert_allclose(one, expected.numpy(), rtol=1e-12)


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs timers")
def test_an_interrupt_stops_a_loop_of_blocks():
    def ring(*_):
        raise KeyboardInterrupt

    run = tg.func.grad(tg.njit(powers))
    run(SQUARE, 1)
    before = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(KeyboardInterrupt):
            run(SQUARE, 1_000_000)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    np.testing.assert_allclose(run(np.eye(N), 1), 2 * np.ones((N, N)))


def test_a_product_is_the_first_on_a_tape():
    """On one without memory as yet: all slots of the pool are taken."""
    held = [segment.Recording(1) for _ in range(SLOTS)]
    x = np.linspace(-1, 1, 900).reshape((30, 30))
    f = tg.njit(lambda x: np.sum(np.tanh(x @ x)))
    t = tg.tensor(x, requires_grad=True)
    (wanted,) = tg.grad(np.sum(np.tanh(t @ t)), t)
    np.testing.assert_allclose(tg.func.grad(f)(x), wanted.numpy(), rtol=1e-12, atol=1e-14)
    assert len(held) == SLOTS


@tg.njit
def weighted_factor(a, w):
    return np.sum(np.linalg.cholesky(a) * w)


@tg.njit
def determinants(a, w):
    return np.linalg.det(a) * w[0, 0] + np.linalg.slogdet(a[::-1] @ a)[1] * w[0, 1]


@tg.njit
def least_squares(a, w):
    """Also with more rows than columns, of one right side and of several."""
    x, left = np.linalg.lstsq(a[:, :-2], a[:, -2:], -1.0)[:2]
    total = np.sum(x * w[2:, :2]) + np.sum(left * w[0, :2])
    return total + np.sum(np.linalg.lstsq(a, w[0], 1e-9)[0] * w[1])


@pytest.mark.parametrize("n", [BLOCK - 1, BLOCK, BLOCK + 1, 4 * BLOCK + 1])
@pytest.mark.parametrize("function", [weighted_factor, determinants, least_squares])
def test_cotangents_of_factors_by_pieces(function, n):
    x, w = np.random.default_rng(n).normal(size=(2, n, n))
    a = x @ x.T / n + np.eye(n)
    found, wanted = (tg.func.grad(f)(a, w) for f in (function, function.py_func))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-12 * np.abs(wanted).max())
