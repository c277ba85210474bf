"""Many instances at once: `tg.func.vmap` of functions whose Python may be skipped, beside each alone."""

import threading
import warnings

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.compilation.paths import lanes
from tapegrad.compilation.paths.lanes import FEWEST, LANES
from tapegrad.compilation.rows import table
from tapegrad.errors import ReplayError
from tapegrad.kernels import abi
from tests.tiers import every, thinned

pytestmark = pytest.mark.skipif(not abi.native(), reason="nothing is learned from calls")

random = np.random.default_rng(5)
A, B, C = random.normal(size=(4, 3)), random.normal(size=(3, 3)), random.normal(size=4)


def skipped(compiled):
    return sum(kind.replay.replayed for kind in compiled._kinds.values() if kind.replay)


def compiled_of(f, argnums=0, **how):
    return tg.compile(f, argnums, wait=True, replay=True, **how)


def value(x):
    return x.detach() if isinstance(x, tg.Tensor) else x


# Of an array of three numbers, and of one of three by four.
OF_VECTORS = {
    "elementwise": lambda x: np.sum(np.sin(x) * x + np.exp(-x) / 3.0 - abs(x)),
    "powers": lambda x: np.sum(x**2 + (x * x + 1.0) ** 1.5 + 2.0**x),
    "a row and a column": lambda x: np.sum(np.reshape(x, (3, 1)) * x + A[:3]),
    "stretched": lambda x: np.sum(np.broadcast_to(x, (4, 3)) * A),
    "a matrix times": lambda x: np.sum(np.tanh(A @ x + C)),
    "times a matrix": lambda x: np.sum(np.tanh(x @ B)),
    "a vector times": lambda x: (C[:3] @ x) * np.sum(x),
    "with itself": lambda x: x @ x + np.dot(x, np.cos(x)),
    "largest": lambda x: np.max(x) - np.min(x * 2.0) + np.mean(x),
    "elements": lambda x: x[0] * np.sin(x[1]) + x[-1] ** 2,
    "slices": lambda x: np.sum(x[1:] * x[:-1]) + np.sum(x[::-1] * x) + np.sum(x[None, :, None]),
    "joined": lambda x: np.sum(np.concatenate([x, C, x * 2.0]) ** 2),
    "stacked": lambda x: np.sum(np.stack([x, x * x], 1) @ C[:2]),
    "maximum": lambda x: np.sum(np.maximum(x, 0.1) + np.minimum(x, C[:3])),
    "logsumexp": lambda x: tg.logsumexp(x) + np.log(np.sum(np.exp(x))),
    "a vector times products": lambda x: (C[1:] @ x) * np.prod(x) + np.sum(np.cumprod(x)),
    "taken": lambda x: np.sum(x[[0, 2, 2, 1]] * C) + np.sum(x[np.array([1, 1])]),
    "running sums": lambda x: np.sum(np.cumsum(x) * x),
    "rolled": lambda x: np.sum(np.roll(x, 1) * x),
    "iterated": lambda x: sum(v * v for v in x) * len(x),
    "detached": lambda x: np.sum(x * np.sin(value(x))) + x[1] * value(x[0]),
    "one number": lambda x: np.sum(x) * 2.0,
    "masks": lambda x: np.sum(np.where(x > x[0], x * x, 0.5) * (x < 0.9)) + (x[1] > 0.1) * x[2],
    "steps": lambda x: np.sum(np.floor(x * 3.0) * x + np.sign(x) * np.ones_like(x)) + np.sum(x > 0.1) * x[0],
}  # fmt: skip
OF_MATRICES = {
    "rows": lambda x: np.sum(np.sum(x * x, axis=1) * np.mean(x, axis=-1)) + np.sum(np.max(x, axis=0)),
    "kept axes": lambda x: np.sum(x / np.sum(np.exp(x), axis=0, keepdims=True)),
    "transposed": lambda x: np.sum(x.T * A) + np.sum(np.transpose(x) @ x),
    "reshaped": lambda x: np.sum(np.reshape(x, (2, 6))[1] * np.ravel(x)[:6]),
    "matrix and vector": lambda x: np.sum(np.tanh(x @ C)) + np.sum(C[:3] @ x),
    "matrices": lambda x: np.sum(np.sin(A @ x)) + np.sum((x @ A) ** 2),
    "by its own rows": lambda x: np.sum(x @ x[0]) + np.sum(x[:, 0] @ x),
    "masks of columns": lambda x: np.sum(np.where(x > np.mean(x, axis=0), x, x[0])) + np.sum(x * (x < C)),
    "blocks": lambda x: np.sum(x[1:, ::2] * x[:2, 1::2]) + x[2, 3],
}
CASES = {**{name: (f, (3,)) for name, f in OF_VECTORS.items()},
         **{name: (f, (3, 4)) for name, f in OF_MATRICES.items()}}  # fmt: skip


def check(f, shape, n, dtype=float, tolerance=1e-12):
    compiled, x = compiled_of(f), random.normal(size=(n, *shape)).astype(dtype)
    for call, wanted in (
        (compiled, f),
        (compiled.grad, tg.func.grad(f)),
        (compiled.value_and_grad, tg.func.value_and_grad(f)),
    ):
        for _ in range(3):
            found = tg.func.vmap(call)(x)
        expected = tg.func.vmap(lambda x: wanted(x))(x)
        for one, other in zip(*(y if isinstance(y, tuple) else (y,) for y in (found, expected)), strict=True):
            assert one.dtype == other.dtype
            assert one.shape == other.shape
            assert np.allclose(one, other, rtol=tolerance, atol=tolerance)
    return compiled


@pytest.mark.parametrize("name", every(CASES, 4))
def test_each_operation(name):
    f, shape = CASES[name]
    compiled = check(f, shape, 50)
    assert "no lanes" not in str(compiled.explain())
    assert skipped(compiled) > 400  # all but the first few of nine times fifty


@pytest.mark.parametrize(
    "n", [1, 2, FEWEST - 1, FEWEST, FEWEST + 1, LANES - 1, LANES, LANES + 1, 2 * LANES + 5]
)
def test_numbers_of_instances(n):
    """Blocks end anywhere; what is left over of the last one is nobody's."""
    compiled, x = compiled_of(OF_VECTORS["a matrix times"]), random.normal(size=(n, 3))
    for _ in range(8 if n < FEWEST else 2):
        value, gradient = tg.func.vmap(compiled.value_and_grad)(x)
    y = np.tanh(x @ A.T + C)
    assert np.allclose(value, y.sum(1), rtol=1e-13)
    assert np.allclose(gradient, (1.0 - y * y) @ A, rtol=1e-12, atol=1e-14)
    assert skipped(compiled) >= n


@pytest.mark.parametrize("name", every(CASES, 5))
def test_products_with_hessians(name):
    f, shape = CASES[name]
    compiled, (x, v) = compiled_of(f), random.normal(size=(2, 50, *shape))
    for _ in range(3):
        found = tg.func.vmap(compiled.hvp)(x, v)
    expected = [tg.func.hvp(f)(*pair) for pair in zip(x, v, strict=True)]
    assert np.allclose(found, expected, rtol=1e-11, atol=1e-11)
    assert skipped(compiled) > 90 or "no lanes" in str(compiled.explain())


def test_products_with_hessians_by_two_arguments_along_one_direction():
    def f(x, scale, y):
        return np.sum(np.sin(x * y) * scale * y) * np.exp(x[0])

    compiled, (x, v) = compiled_of(f, (0, 2)), random.normal(size=(2, 40, 3))
    y, w = np.linspace(0.5, 1.0, 40), 0.3
    products = tg.func.vmap(compiled.vhp, (0, None, 0, (None, None)))
    for _ in range(3):
        found = products(x, 2.0, y, (v[0], w))
    expected = [tg.func.hvp(f, (0, 2))(a, 2.0, b, (v[0], w)) for a, b in zip(x, y, strict=True)]
    for one, other in zip(found, zip(*expected, strict=True), strict=True):
        assert np.allclose(one, other, rtol=1e-12)
    assert skipped(compiled) > 70
    with pytest.raises(TypeError, match="tuple of 2 directions"):
        tg.func.vmap(compiled.vhp, (0, None, 0, 0))(x, 2.0, y, v)


def test_hessians_of_which_values_decide_are_called_one_by_one():
    """A power has other derivatives where its exponent is 0; others are linear, or not smooth."""
    for f in (lambda x: np.sum(x ** x[0]), lambda x: np.sum(x) * 2.0, lambda x: np.max(x) * x[0]):
        compiled, x = compiled_of(f), np.abs(random.normal(size=(20, 3)))
        x[3] = 0.0
        for _ in range(3):
            with np.errstate(all="ignore"):
                found = tg.func.vmap(compiled.hvp)(x, x + 1.0)
                expected = [tg.func.hvp(f)(a, a + 1.0) for a in x]
        np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_single_precision():
    check(lambda x: np.sum(np.tanh(x * 1.5) + 2.0), (3,), 40, np.float32, 1e-5)


def test_numbers():
    compiled, x = compiled_of(lambda x: np.sin(x) * x + 2.0), random.normal(size=100)
    for _ in range(2):
        value, slope = tg.func.vmap(compiled.value_and_grad)(x)
    assert np.allclose(value, np.sin(x) * x + 2.0, rtol=1e-14)
    assert np.allclose(slope, np.cos(x) * x + np.sin(x), rtol=1e-13)
    assert skipped(compiled) > 190


def test_results_that_are_arrays():
    compiled, x = compiled_of(lambda x: np.sin(A @ x)), random.normal(size=(100, 3))
    for _ in range(2):
        found = tg.func.vmap(compiled)(x)
    assert np.allclose(found, np.sin(x @ A.T), rtol=1e-12, atol=1e-14)
    assert skipped(compiled) > 190


MATRICES = [  # each transform with each number of calls, in turn
    ([tg.func.jacrev, tg.func.jacfwd, tg.func.jacobian][(i + k) % 3], n)
    for i in range(3) for k, n in enumerate([1, FEWEST, LANES + 3])
]  # fmt: skip


@pytest.mark.parametrize(("transform", "n"), thinned(MATRICES, lambda *row: row in MATRICES[:3]))
def test_jacobians(transform, n):
    """Each row is a lane; results without axes, and of two, too."""
    for f in (
        lambda x: np.tanh(A @ x) * x[1],
        lambda x: np.sin(x) * 2.0,
        lambda x: np.sum(x * x),
        lambda x: np.reshape(x, (3, 1)) * x,
        lambda x: x[1:2] * 3.0,
    ):
        compiled, x = compiled_of(f), random.normal(size=(n, 3))
        for _ in range(8 if n < FEWEST else 2):
            found = tg.func.vmap(transform(compiled))(x)
        wanted = tg.func.vmap(transform(f))(x[-5:])
        assert found.shape == (n, *wanted.shape[1:])
        assert np.allclose(found[-5:], wanted, rtol=1e-12, atol=1e-13)
        assert skipped(compiled) >= n


def test_jacobians_by_several_arguments():
    compiled, x = compiled_of(lambda c, p: (A[:2] @ c["a"]) * p + c["a"][0]), random.normal(size=(50, 3))
    p = random.normal(size=(50, 2))
    mapped = tg.func.vmap(tg.func.jacrev(compiled, (0, 1)), ({"a": 0}, 0))
    for _ in range(2):
        by_c, by_p = mapped({"a": x}, p)
    wanted = tg.func.vmap(tg.func.jacrev(compiled.plain, (0, 1)), ({"a": 0}, 0))({"a": x}, p)
    assert np.allclose(by_c["a"], wanted[0]["a"])
    assert np.allclose(by_p, wanted[1])
    assert skipped(compiled.by((0, 1))) > 40


def test_several_arguments_and_axes():
    compiled = compiled_of(lambda x, p, n: np.sum(x * p["a"] ** n) + p["b"], (0, 1))
    x, a, b = random.normal(size=(3, 40)), random.normal(size=(40, 3)), random.normal(size=40)
    for _ in range(2):
        by_x, by_p = tg.func.vmap(compiled.grad, (1, 0, None))(x, {"a": a, "b": b}, 2)
    assert np.allclose(by_x, a**2)
    assert np.allclose(by_p["a"], 2.0 * x.T * a)
    assert np.array_equal(by_p["b"], np.ones(40))
    assert skipped(compiled) > 70
    shared = compiled_of(lambda x, w: np.sum(np.sin(x * w)), (0, 1))
    w = random.normal(size=3)
    for _ in range(2):
        by_x, by_w = tg.func.vmap(shared.grad, (0, None))(a, w)
    assert np.allclose(by_w, np.cos(a * w) * a)
    assert skipped(shared) > 70
    sliced = compiled_of(lambda x, data: np.sum(x * data))  # an instance's own array: each is called
    assert np.allclose(tg.func.vmap(sliced)(a, a), np.sum(a * a, 1))
    assert skipped(sliced) == 0


def test_other_ways_to_ask():
    compiled, x = compiled_of(lambda x: np.sum(x * x)), random.normal(size=(40, 3))
    for _ in range(2):
        assert np.allclose(tg.func.vmap(tg.func.grad(compiled))(x), 2.0 * x)
    assert skipped(compiled) > 70
    count = skipped(compiled)
    assert np.allclose(tg.func.vmap(compiled.grad, out_axes=1)(x), 2.0 * x.T)  # as ever
    t = tg.tensor(x, requires_grad=True)
    y = np.sum(tg.func.vmap(compiled)(t))
    assert np.allclose(tg.grad(y, t)[0].numpy(), 2.0 * x)
    plain = tg.compile(lambda x: np.sum(x * x), wait=True)  # of which Python is not to be skipped
    assert np.allclose(tg.func.vmap(plain.grad)(x), 2.0 * x)
    assert skipped(compiled) > count


factor, weights = 2.0, np.array([1.0, 2.0, 3.0])


def of_globals(x):
    return np.sum(x * weights) * factor


def test_what_changes_between_calls(monkeypatch):
    compiled, x = compiled_of(of_globals), random.normal(size=(60, 3))
    mapped = tg.func.vmap(compiled.grad)
    for _ in range(2):
        assert np.allclose(mapped(x), weights * 2.0)
    monkeypatch.setitem(globals(), "factor", 3.0)
    for _ in range(3):
        assert np.allclose(mapped(x), weights * 3.0)
    before = weights[1]
    weights[1] = 7.0
    try:
        for _ in range(3):
            assert np.allclose(mapped(x), weights * 3.0)
    finally:
        weights[1] = before
    count = skipped(compiled)
    assert np.allclose(mapped(x), weights * 3.0)
    assert skipped(compiled) > count


def test_what_rules_it_out_is_refused():
    drawn = np.random.default_rng(0)
    compiled = compiled_of(lambda x: np.sum(x) * drawn.normal())
    with pytest.raises(ReplayError, match="Generator"):
        tg.func.vmap(compiled)(np.ones((40, 3)))


def test_without_a_form_with_lanes_each_is_called():
    compiled = compiled_of(lambda x: np.sum(np.linalg.inv(np.reshape(x, (2, 2)) + 3.0 * np.eye(2))))
    x = random.uniform(size=(40, 4))
    for _ in range(2):
        try:
            found = tg.func.vmap(compiled)(x)
        except ReplayError:
            return  # its factors are other ones at each call
    assert np.allclose(found, [compiled.plain(row) for row in x])
    assert "no lanes" in str(compiled.explain())


def test_errors_of_numbers_are_told_by_the_instance():
    compiled, x = compiled_of(lambda x: np.sum(np.log(x))), np.ones((40, 3))
    for _ in range(3):
        tg.func.vmap(compiled)(x)
    x[17, 1] = 0.0
    with pytest.warns(RuntimeWarning, match="divide by zero"):
        found = tg.func.vmap(compiled)(x)
    assert found[17] == -np.inf
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.all(np.delete(found, 17) == 0.0)


@pytest.mark.parametrize("what", ["a value", "a derivative", "one that is nan", "a Jacobian"])
def test_other_results_are_noticed(monkeypatch, what):
    """The first and the last instance are computed alone too, when a program is first used."""
    block = lanes.Lanes.block

    def wrong(self, leaves, pull, told):
        found = [x.copy() for x in block(self, leaves, pull, told)]
        found[0 if what == "a value" else -1][-1] += np.nan if what == "one that is nan" else 1e-3
        return found

    monkeypatch.setattr(lanes.Lanes, "block", wrong)
    compiled, x = compiled_of(lambda x: np.sum(x * x)), random.normal(size=(40, 3))
    for _ in range(3):
        if what == "a Jacobian":
            assert np.allclose(tg.func.vmap(tg.func.jacrev(compiled))(x), 2.0 * x)
            continue
        value, gradient = tg.func.vmap(compiled.value_and_grad)(x)
        assert np.allclose(value, np.sum(x * x, 1))
        assert np.allclose(gradient, 2.0 * x)
    assert "other results" in str(compiled.explain())


def test_blocks_of_large_instances_have_few_lanes(monkeypatch):
    monkeypatch.setattr(lanes, "MOST_BYTES", 1 << 14)
    compiled, x = compiled_of(lambda x: np.sum(np.sin(x) * x)), random.normal(size=(100, 300))
    for _ in range(2):
        assert np.allclose(tg.func.vmap(compiled)(x), np.sum(np.sin(x) * x, 1), rtol=1e-12)
    (replay,) = (kind.replay for kind in compiled._kinds.values())
    assert list(replay._teams[1]) == [(FEWEST, "")]


def test_from_several_threads():
    compiled, x = compiled_of(lambda x: np.sum(np.sin(x) * x)), random.normal(size=(200, 3))
    tg.func.vmap(compiled.grad)(x)
    wrong = []

    def work(k):
        for _ in range(20):
            y = x + k
            if not np.allclose(tg.func.vmap(compiled.grad)(y), np.cos(y) * y + np.sin(y), rtol=1e-12):
                wrong.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def members(compiled):
    return [
        team for kind in compiled._kinds.values() for team in kind.replay._teams[1].values() if len(team) > 1
    ]


@pytest.mark.parametrize("what", ["value", "gradient", "Jacobian"])
@pytest.mark.parametrize("count", [2, 3])
def test_threads_compute_blocks(monkeypatch, what, count):
    """Bits are the same for any number of threads, when programs are fused."""
    monkeypatch.setattr(lanes, "THREAD_BYTES", 1)
    f = OF_VECTORS["a matrix times"] if what != "Jacobian" else lambda x: np.tanh(A @ x) * x[1]
    x, found = random.normal(size=(5 * LANES + 3, 3)), []
    used = set()
    block = lanes.Lanes.block

    def noted(self, *args):
        used.add(threading.get_ident())
        return block(self, *args)

    monkeypatch.setattr(lanes.Lanes, "block", noted)
    for threads in (1, count):
        compiled = compiled_of(f)
        call = {"value": compiled, "gradient": compiled.grad, "Jacobian": tg.func.jacrev(compiled)}[what]
        mapped = tg.func.vmap(call, threads=threads)
        for _ in range(8):
            results = [mapped(y) for y in (x, x + 1.0, x[: LANES + 1])]
        found.append([y.tobytes() for y in results])
        assert (len(used) > 1) is (threads > 1)
        assert [len(team) for team in members(compiled)] == [count] * (threads > 1)
    assert found[0] == found[1]


@pytest.mark.parametrize("n", [LANES, LANES + 1])
@pytest.mark.parametrize("limit", [-1, 0, 1])
def test_few_instances_are_computed_by_one_thread(monkeypatch, n, limit):
    compiled = compiled_of(OF_VECTORS["a matrix times"])
    x = random.normal(size=(2 * LANES, 3))
    tg.func.vmap(compiled)(x)
    (path,) = next(iter(compiled._kinds.values())).matcher.paths
    instance = sum(y.nbytes for y in path.program.values if abi.owner_of(y) is y) + 1
    monkeypatch.setattr(lanes, "THREAD_BYTES", n * instance // 2 + limit)
    assert lanes.count_threads(path, n, "", 2) == (2 if n > LANES and limit < 1 else 1)
    assert np.allclose(tg.func.vmap(compiled, threads=2)(x[:n]), [compiled.plain(row) for row in x[:n]])


def test_errors_in_threads(monkeypatch):
    """What an instance meets is told by its own call, and what a thread raises is raised."""
    monkeypatch.setattr(lanes, "THREAD_BYTES", 1)
    compiled, x = compiled_of(lambda x: np.sum(np.log(x))), np.ones((4 * LANES, 3))
    mapped = tg.func.vmap(compiled, threads=2)
    for _ in range(8):
        mapped(x)
    assert members(compiled)
    x[LANES + 17, 1] = 0.0  # in a block of the second thread
    with pytest.warns(RuntimeWarning, match="divide by zero"):
        found = mapped(x)
    assert found[LANES + 17] == -np.inf
    assert np.all(np.delete(found, LANES + 17) == 0.0)

    def fail(self, *args):
        if threading.current_thread() is not threading.main_thread():
            raise MemoryError("of a thread")
        return block(self, *args)

    block = lanes.Lanes.block
    monkeypatch.setattr(lanes.Lanes, "block", fail)
    x[:] = 1.0
    with pytest.raises(MemoryError, match="of a thread"):
        mapped(x)
    monkeypatch.setattr(lanes.Lanes, "block", block)
    assert np.all(mapped(x) == 0.0)


@pytest.mark.parametrize("extent", [table.LONG - 1, table.LONG, table.LONG + 1])
def test_long_rows_run_without_the_lock(extent):
    """Other threads run meanwhile; the same numbers come of rows that hold it."""
    x = random.normal(size=extent)
    compiled = compiled_of(lambda x: np.sum(np.sin(x) * x))
    turns, done = [0], threading.Event()

    def turn():
        while not done.is_set():
            turns[0] += 1

    other = threading.Thread(target=turn)
    other.start()
    try:
        for _ in range(30):
            value, gradient = compiled.value_and_grad(x)
    finally:
        done.set()
        other.join()
    assert turns[0]
    assert value == pytest.approx(np.sum(np.sin(x) * x), rel=1e-12)
    assert np.allclose(gradient, np.cos(x) * x + np.sin(x), rtol=1e-12, atol=1e-14)


def test_threads_are_at_least_one():
    with pytest.raises(ValueError, match="at least 1"):
        tg.func.vmap(np.sin, threads=0)
    with pytest.raises(TypeError):
        tg.func.vmap(np.sin, threads=1.5)


def test_results_are_of_their_own():
    compiled, x = compiled_of(lambda x: np.sum(x * x)), random.normal(size=(40, 3))
    for _ in range(2):
        first = tg.func.vmap(compiled.grad)(x)
    second = tg.func.vmap(compiled.grad)(x + 1.0)
    assert np.allclose(first, 2.0 * x)
    assert not np.shares_memory(first, second)
    assert first.flags.writeable
