"""Sparse Jacobians and Hessians: patterns by structure, values by colours, plans that notice a change."""

import pickle
import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy import sparse

import tapegrad as tg
from tapegrad.autograd import forward_ad, functional
from tapegrad.func import colouring, elements, patterns
from tapegrad.ops.primitive import REGISTRY, Elementwise

rng = np.random.default_rng(0)


def dense_jacobian(f, x):
    return functional.jacobian(f, tg.tensor(x)).numpy().reshape(-1, x.size)


def dense_hessian(f, x):
    return functional.hessian(f, tg.tensor(x)).numpy().reshape(x.size, x.size)


def rosenbrock(x):
    return np.sum(100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2)


def rosenbrock_by_elements(x):
    total = 0.0
    for i in range(len(x) - 1):
        total += 100 * (x[i + 1] - x[i] ** 2) ** 2 + (1 - x[i]) ** 2
    return total


def ones(*pairs, n=4, m=None):
    """A pattern by its pairs."""
    out = np.zeros((m or n, n), bool)
    for row, column in pairs:
        out[row, column] = True
    return out


BAND = np.abs(np.subtract.outer(np.arange(4), np.arange(4))) <= 1
UPPER = np.eye(3, 4) + np.eye(3, 4, 1) > 0
BLOCKS = np.kron(np.eye(2), np.ones((2, 2))) > 0
NONE = np.zeros((4, 4)) > 0


def written(x):
    y = x.copy()
    y[2] = x[0] * x[1]
    y[3:] += x[:1]
    return y


def written_through_a_view(x):
    y = x * 1.0
    other, column = y[:], y.reshape(2, 2)[:, 1]
    column *= x[0]
    return other  # a view that has not been looked at since


PATTERNS = {
    "banded": (lambda x: np.concatenate([x[1:], x[:1] * 0]) * x, ones(*[(i, i) for i in range(4)],
                (0, 1), (1, 2), (2, 3), (3, 0))),
    "arrow": (lambda x: np.concatenate([np.sum(x)[None], x[1:] * x[0]]),
              ones(*[(0, i) for i in range(4)], *[(i, 0) for i in range(4)], (1, 1), (2, 2), (3, 3))),
    "blocks": (lambda x: np.einsum("bij,bj->bi", np.ones((2, 2, 2)), np.exp(x.reshape(2, 2))),
               BLOCKS),
    "where counts both": (lambda x: np.where(x > 100, x, x[::-1]), np.eye(4) + np.eye(4)[::-1] > 0),
    "maximum counts both": (lambda x: np.maximum(x[:2], x[2:]), ones((0, 0), (0, 2), (1, 1), (1, 3), m=2)),
    "max of all": (lambda x: np.max(x.reshape(2, 2), axis=1), ones((0, 0), (0, 1), (1, 2), (1, 3), m=2)),
    "indices": (lambda x: x[[0, 0, 3]] * x[[1, 2, 3]], ones((0, 0), (0, 1), (1, 0), (1, 2), (2, 3), m=3)),
    "times 0": (lambda x: x * 0, np.eye(4) > 0),
    "times an array of 0": (lambda x: np.zeros((1, 4)) @ x, np.ones((1, 4)) > 0),
    "sum of equals": (lambda x: x - x, np.eye(4) > 0),
    "sign has no derivative": (lambda x: np.sign(x) * x[::-1], np.eye(4)[::-1] > 0),
    "written": (written, ones((0, 0), (1, 1), (2, 0), (2, 1), (3, 3), (3, 0))),
    "written through a view": (written_through_a_view, ones((0, 0), (1, 0), (1, 1), (2, 2), (3, 0), (3, 3))),
    "by elements": (lambda x: np.stack([x[i] * x[i + 1] for i in range(3)]), UPPER),
    "running sum": (np.cumsum, np.tri(4) > 0),
    "running product": (np.cumprod, np.tri(4) > 0),
    "convolution": (lambda x: np.convolve(x, [1.0, 2.0], "valid"), UPPER),
    "product of matrices": (lambda x: np.diag([1.0, 2.0]) @ x.reshape(2, 2), np.tile(np.eye(2), (2, 2)) > 0),
    "transform": (lambda x: np.abs(np.fft.fft(x.reshape(2, 2)))[:, 0], np.kron(np.eye(2), np.ones(2)) > 0),
    "inverse": (lambda x: np.linalg.inv(x.reshape(2, 2)), np.ones((4, 4)) > 0),
    "a constant": (lambda x: np.ones(3), np.zeros((3, 4)) > 0),
    "the argument": (lambda x: x, np.eye(4) > 0),
    "a number": (lambda x: np.sum(x[1:]) * 2, np.arange(4)[None] > 0),
    "detached": (lambda x: x[:2] * x[2:].detach(), ones((0, 0), (1, 1), m=2)),
}  # fmt: skip


@pytest.mark.parametrize("name", PATTERNS)
def test_the_pattern_of_a_jacobian_is_its_structure(name):
    f, expected = PATTERNS[name]
    x = np.array([0.3, -1.2, 2.0, 0.7])
    plan = tg.func.sparse_jacobian(f)
    matrix = plan(x)
    np.testing.assert_array_equal(plan.pattern.toarray(), expected)
    reference = np.zeros((3, 4)) if name == "a constant" else dense_jacobian(f, x)
    np.testing.assert_allclose(matrix.toarray(), reference, rtol=1e-12, atol=1e-14)
    np.testing.assert_array_equal(plan(x).toarray(), matrix.toarray())


SECOND = {
    "banded": (rosenbrock, BAND),
    "by elements": (rosenbrock_by_elements, BAND),
    "linear": (lambda x: np.sum(np.cumsum(x) * 3) + np.mean(np.fft.rfft(x).real), NONE),
    "a product has no squares":
        (lambda x: x[0] * x[1] + np.prod(x[2:]), ones((0, 1), (1, 0), (2, 3), (3, 2))),
    "a quotient": (lambda x: x[0] / x[1], ones((0, 1), (1, 0), (1, 1))),
    "max has none": (lambda x: np.max(x) + np.sum(np.abs(x)) + np.sum(np.maximum(x, 0)), NONE),
    "max squared": (lambda x: np.max(x) ** 2, np.ones((4, 4)) > 0),
    "where": (lambda x: np.where(x[0] > 9, x[1] ** 2, x[2] * x[3]), ones((1, 1), (2, 3), (3, 2))),
    "arrow": (lambda x: np.sum(x[0] * x[1:]),
              ones(*[(0, i) for i in (1, 2, 3)], *[(i, 0) for i in (1, 2, 3)])),
    "blocks": (lambda x: np.sum(np.sum(x.reshape(2, 2), axis=1) ** 3), BLOCKS),
    "what is left out": (lambda x: (x**2)[1] + 0 * np.sin(x[0]), ones((0, 0), (1, 1))),
    "what leads nowhere":
        (lambda x: (x**2)[1] + (x**3)[:2][0] * 0 + (np.exp(x)[2:], 0)[1],
         ones((0, 0), (1, 1))),
    "a quadratic form": (lambda x: x @ np.ones((4, 4)) @ x, np.ones((4, 4)) > 0),
    "a norm of parts": (lambda x: np.linalg.norm(x[:2]) + np.linalg.norm(x[2:]), BLOCKS),
    "a solution": (lambda x: np.sum(np.linalg.solve(np.eye(4) * 2, x)), NONE),
    "convolution of two": (lambda x: np.convolve(x[:2], x[2:])[0], ones((0, 2), (2, 0))),
    "an odd function": (lambda x: np.sum(np.i0(x)), np.eye(4) > 0),
    "by complex numbers": (lambda x: np.abs(x[0] + 1j * x[1]), ones((0, 0), (0, 1), (1, 0), (1, 1))),
    "a number": (lambda x: 3.0, NONE),
}  # fmt: skip


@pytest.mark.parametrize("name", SECOND)
def test_the_pattern_of_a_hessian_is_its_structure(name):
    f, expected = SECOND[name]
    x = np.array([0.3, -1.2, 2.0, 0.7])
    plan = tg.func.sparse_hessian(f)
    matrix = plan(x)
    np.testing.assert_array_equal(plan.pattern.toarray(), expected)
    reference = np.zeros((4, 4)) if name == "a number" else dense_hessian(f, x)
    np.testing.assert_allclose(matrix.toarray(), reference, rtol=1e-11, atol=1e-12)


STEPS = (
    lambda x, y: x[1:] * y[:-1],
    lambda x, y: np.where(x > y, x, y * 2),
    lambda x, y: np.concatenate([x[:2], y[::-1]]),
    lambda x, y: np.sin(x) + y[0],
    lambda x, y: np.cumsum(x) - y,
    lambda x, y: x / (2 + y**2),
    lambda x, y: np.stack([x, y], axis=1).reshape(-1)[: x.size],
    lambda x, y: np.outer(x[:2], y[:3]).reshape(-1),
    lambda x, y: np.maximum(x, y[::-1]),
    lambda x, y: x[np.arange(x.size) // 2] * 3 + 1,
    lambda x, y: np.roll(x, 2) * np.max(y),
    lambda x, y: np.dot(x, y) + x,
)  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(st.integers(0, len(STEPS) - 1), st.integers(0, 9), st.integers(0, 9)), max_size=5))
def test_random_programs_have_no_derivative_outside_of_their_pattern(steps):
    def f(x):
        values = [x]
        for number, a, b in steps:
            a, b = values[a % len(values)], values[b % len(values)]
            n = min(a.size, b.size)
            if n > 3:
                values.append(STEPS[number](a[:n], b[:n]))
        return values[-1]

    x = np.random.default_rng(len(steps)).uniform(-1, 1, 7)
    plan = tg.func.sparse_jacobian(f)
    reference = dense_jacobian(f, x)
    np.testing.assert_allclose(plan(x).toarray(), reference, rtol=1e-9, atol=1e-12)
    assert not reference[~plan.pattern.toarray()].any()

    def number(x):
        return np.sum(f(x) ** 2)

    plan = tg.func.sparse_hessian(number)
    reference = dense_hessian(number, x)
    np.testing.assert_allclose(plan(x).toarray(), reference, rtol=1e-8, atol=1e-10)
    assert not reference[~plan.pattern.toarray()].any()


def elementwise_ops():
    """Ops on each element that take no attributes, and where they are differentiable."""
    for op in REGISTRY.values():
        if isinstance(op, Elementwise) and op.name not in ("astype", "broadcast_to"):
            yield op


def test_each_elementwise_op_bends_by_no_other_operands():
    seen = 0
    for op in elementwise_ops():
        random = np.random.default_rng(7)
        for _ in range(3):
            x = np.empty(op.arity)
            for q in range(op.arity):
                low, high = op.domain.of(q)
                x[q] = random.uniform(max(low, -3) + 0.1, min(high, 3) - 0.1)
            reference = dense_hessian(lambda x: op(*x), x)
            pattern = np.zeros((op.arity, op.arity), bool)
            for a, b in patterns.bends(op, op.arity, False):
                pattern[a, b] = pattern[b, a] = True
            assert not reference[~pattern].any(), op
            seen += bool(reference.any())
    assert seen > 80


# ---------------------------------------------------------------- colours


def recovered(pattern, values):
    """A symmetric matrix as its products with the colours give it, and how many there are."""
    colours, across = colouring.symmetric(pattern)
    seeds = np.eye(colours.max() + 1)[colours]
    products = values @ seeds
    rows, columns = np.repeat(np.arange(len(colours)), np.diff(pattern.indptr)), pattern.indices
    found = np.where(across, products[columns, colours[rows]], products[rows, colours[columns]])
    return sparse.csr_array((found, pattern.indices, pattern.indptr), pattern.shape).toarray(), len(seeds.T)


@pytest.mark.parametrize("seed", range(20))
def test_star_colours_recover_each_element(seed):
    random = np.random.default_rng(seed)
    n = int(random.integers(1, 40))
    half = random.random((n, n)) < random.uniform(0, 0.4)
    pattern = sparse.csr_array(half | half.T)
    values = random.standard_normal((n, n))
    values = (values + values.T) * pattern.toarray()
    found, _ = recovered(pattern, values)
    np.testing.assert_allclose(found, values, rtol=1e-10, atol=1e-12)


def arrow(n, at):
    whole = sparse.lil_array((n, n), dtype=bool)
    whole.setdiag(True)
    whole[at, :] = True
    whole[:, at] = True
    return whole.tocsr()


@pytest.mark.parametrize(("pattern", "count"), [
    (sparse.diags_array([np.ones(50)] * 3, offsets=[-1, 0, 1], shape=(50, 50)).tocsr(), 3),
    (sparse.diags_array([np.ones(50)] * 5, offsets=range(-2, 3), shape=(50, 50)).tocsr(), 5),
    (arrow(50, 0), 2),
    (arrow(50, 49), 2),
    (sparse.csr_array(np.kron(np.eye(9), np.ones((4, 4)))), 4),
    (sparse.csr_array(np.ones((20, 20))), 20),
    (sparse.eye_array(30).tocsr(), 1),
])  # fmt: skip
def test_known_patterns_take_few_colours(pattern, count):
    values = rng.standard_normal(pattern.shape)
    values = (values + values.T) * pattern.toarray()
    found, colours = recovered(pattern, values)
    np.testing.assert_allclose(found, values, rtol=1e-10, atol=1e-12)
    assert colours == count


@pytest.mark.parametrize("seed", range(10))
def test_columns_of_one_colour_share_no_row(seed):
    random = np.random.default_rng(seed)
    pattern = sparse.csr_array(random.random((15, 90)) < random.uniform(0, 0.2))
    colours = colouring.columns_of(pattern)
    assert (pattern.astype(int) @ np.eye(colours.max() + 1, dtype=int)[colours]).max() <= 1


def test_fewer_lanes_of_rows_or_columns_are_taken():
    wide = tg.func.sparse_jacobian(lambda x: np.sum(x.reshape(10, 20), axis=1) * 2)
    assert wide(np.ones(200)).shape == (10, 200) and wide.lanes == 1
    tall = tg.func.sparse_jacobian(lambda x: np.outer(x, np.ones(20)) ** 2)
    x = np.arange(10.0)
    np.testing.assert_array_equal(
        tall(x).toarray(), dense_jacobian(lambda x: np.outer(x, np.ones(20)) ** 2, x)
    )
    assert tall.lanes == 1


# ---------------------------------------------------------------- plans


def test_another_branch_is_noticed_before_a_wrong_colour_is_used():
    def f(x, way):
        if way == "longer":
            return np.sum(x[1:] ** 2 * x[:-1]) + x[0] * x[5]
        if way == "index":
            return np.sum(x[1:] ** 2 * x[-2::-1])
        return np.sum(x[1:] * 2 * x[:-1]) if way == "op" else np.sum(x[1:] ** 2 * x[:-1])

    x = np.arange(1.0, 8.0)
    for way, words in (("longer", "lead"), ("index", "getitem .* with index"), ("op", "is multiply")):
        plan = tg.func.sparse_hessian(f)
        plan(x, "")
        with pytest.raises(tg.errors.GradientError, match=words):
            plan(x, way)
        np.testing.assert_allclose(plan(x, "").toarray(), dense_hessian(lambda x: f(x, ""), x))
        plan.replan(x, way)
        np.testing.assert_allclose(plan(x, way).toarray(), dense_hessian(lambda x: f(x, way), x))
        willing = tg.func.sparse_hessian(f, on_change="replan")
        for other in ("", way, "", way):
            reference = dense_hessian(lambda x: f(x, other), x)
            np.testing.assert_allclose(willing(x, other).toarray(), reference)


def test_a_place_that_depends_on_values_is_noticed():
    plan = tg.func.sparse_jacobian(lambda x: x[int(np.argmax(x.detach().numpy()))] * x)
    plan(np.array([1.0, 2.0, 0.0]))
    with pytest.raises(tg.errors.GradientError, match="element"):
        plan(np.array([3.0, 2.0, 0.0]))
    plan = tg.func.sparse_jacobian(np.sort)
    plan(np.array([1.0, 2.0, 0.0]))
    with pytest.raises(tg.errors.GradientError, match="rearrange of the argument"):
        plan(np.array([2.0, 1.0, 0.0]))


def test_values_that_change_are_no_change():
    def f(x, scale, table):
        return np.sum(x[1:] ** 2 * x[:-1] * scale + 2.0) * table[0]

    plan = tg.func.sparse_hessian(f)
    for scale in (3.0, 2.0, 0.0, 2.0):  # one is a number that is there already
        x, table = rng.standard_normal(6), rng.standard_normal(2)
        found = plan(x, scale, table).toarray()
        np.testing.assert_allclose(found, dense_hessian(lambda x: f(x, scale, table), x), rtol=1e-12)


def test_what_stands_on_the_tape_before_is_nothing_to_a_plan():
    plan = tg.func.sparse_hessian(rosenbrock)
    x = rng.standard_normal(5)
    first = plan(x).toarray()
    before = tg.tensor(2.0, requires_grad=True) * 3
    np.testing.assert_array_equal(plan(x).toarray(), first)
    for mode in (tg.no_grad, tg.inference_mode):
        with mode():
            np.testing.assert_array_equal(plan(x).toarray(), first)
            np.testing.assert_array_equal(tg.func.sparse_hessian(rosenbrock)(x).toarray(), first)
    before.backward()
    scaled = tg.func.sparse_hessian(lambda x: rosenbrock(x) * before)
    np.testing.assert_allclose(scaled(x).toarray(), first * 6)
    np.testing.assert_allclose(scaled(x).toarray(), first * 6)


def test_a_long_program_over_several_tapes():
    x = rng.standard_normal(700)  # some 7,000 records
    plan = tg.func.sparse_hessian(rosenbrock_by_elements)
    array = tg.func.sparse_hessian(rosenbrock)
    plan._planned(x, (), plan._recorded(x, ()))
    call = plan._recorded(x, ())
    found = plan._planned(x, (), call)
    assert call.value._tape.serial > call.since
    assert found.program.difference(*plan._recorded(x + 1, ())) is None
    array(x)
    np.testing.assert_array_equal(found.pattern.indices, array.pattern.indices)


def test_a_shape_that_changes():
    plan = tg.func.sparse_hessian(rosenbrock)
    plan(np.ones(5))
    with pytest.raises(tg.errors.GradientError, match=r"shape \(6,\), and had \(5,\)"):
        plan(np.ones(6))
    plan = tg.func.sparse_hessian(rosenbrock, on_change="replan")
    assert [plan(np.ones(n)).shape[0] for n in (5, 6, 5)] == [5, 6, 5]


def test_a_pattern_that_is_given():
    x = rng.standard_normal(6)
    band = sparse.diags_array([np.ones(6)] * 3, offsets=[-1, 0, 1], shape=(6, 6))
    reference = dense_hessian(rosenbrock, x)
    for pattern in (band, band.toarray(), band.tocoo(), band.toarray().astype(bool)):
        plan = tg.func.sparse_hessian(rosenbrock, pattern)
        np.testing.assert_allclose(plan(x).toarray(), reference, rtol=1e-12)
        assert plan.pattern.nnz == 16 and plan.lanes == 3
    with pytest.raises(tg.errors.GradientError, match="elements outside"):
        tg.func.sparse_hessian(rosenbrock, np.eye(6))(x)
    trusting = tg.func.sparse_hessian(rosenbrock, np.eye(6), check=False)
    assert trusting(x).nnz == 6
    with pytest.raises(tg.errors.ShapeError, match=r"\(5, 5\)"):
        tg.func.sparse_hessian(rosenbrock, np.eye(5))(x)
    with pytest.raises(ValueError, match="symmetric"):
        tg.func.sparse_hessian(rosenbrock, np.tri(6))(x)
    with pytest.raises(tg.errors.ShapeError, match="two axes"):
        tg.func.sparse_hessian(rosenbrock, np.ones(6))
    plan = tg.func.sparse_jacobian(lambda x: x[1:] * x[:-1], np.eye(5, 6) + np.eye(5, 6, 1))
    np.testing.assert_allclose(plan(x).toarray(), dense_jacobian(lambda x: x[1:] * x[:-1], x))
    with pytest.raises(tg.errors.GradientError, match="elements outside"):
        tg.func.sparse_jacobian(lambda x: x[1:] * x[:-1], np.eye(5, 6))(x)
    willing = tg.func.sparse_jacobian(lambda x: x[1:] * x[:-1], np.eye(5, 6), on_change="replan")
    with pytest.raises(tg.errors.GradientError, match="elements outside"):
        willing(x)


def test_results_share_nothing():
    plan = tg.func.sparse_hessian(rosenbrock)
    first, second = plan(np.ones(5)), plan(np.ones(5))
    expected = second.toarray()
    first.data[:] = 0
    first.eliminate_zeros()
    np.testing.assert_array_equal(second.toarray(), expected)
    np.testing.assert_array_equal(plan(np.ones(5)).toarray(), expected)


def test_a_plan_is_pickled_with_what_it_found():
    plan = tg.func.sparse_hessian(rosenbrock)
    x = rng.standard_normal(6)
    expected = plan(x)
    again = pickle.loads(pickle.dumps(plan))
    assert again.lanes == 3 and again.pattern.nnz == 16
    np.testing.assert_array_equal(again(x).toarray(), expected.toarray())
    with pytest.raises(tg.errors.GradientError, match="shape"):
        again(np.ones(9))


def test_threads_share_a_plan():
    plan = tg.func.sparse_hessian(rosenbrock)
    inputs = [rng.standard_normal(30) for _ in range(8)]
    found = [None] * 8

    def work(k):
        for _ in range(5):
            found[k] = plan(inputs[k]).toarray()

    threads = [threading.Thread(target=work, args=(k,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for x, matrix in zip(inputs, found, strict=True):
        np.testing.assert_allclose(matrix, dense_hessian(rosenbrock, x), rtol=1e-10)


@pytest.mark.parametrize("dtype", [np.float32, np.longdouble])
def test_other_precisions(dtype):
    x = rng.standard_normal(6).astype(dtype)
    for made, f in (
        (tg.func.sparse_hessian, rosenbrock),
        (tg.func.sparse_jacobian, lambda x: x[1:] * x[:-1]),
    ):
        matrix = made(f)(x)
        assert matrix.dtype == dtype
        reference = made(f)(x.astype(float))
        np.testing.assert_allclose(matrix.toarray(), reference.toarray(), rtol=1e-4)


def test_arguments_of_several_axes_and_whole_numbers():
    x = rng.standard_normal((3, 4))
    plan = tg.func.sparse_jacobian(lambda x: np.sum(x**2, axis=0))
    np.testing.assert_allclose(plan(x).toarray(), dense_jacobian(lambda x: np.sum(x**2, axis=0), x))
    assert tg.func.sparse_hessian(rosenbrock)(np.arange(4)).dtype == float
    assert tg.func.sparse_hessian(lambda x: x**3)(2.0).toarray().tolist() == [[12.0]]
    assert tg.func.sparse_jacobian(lambda x: x[:0])(np.ones(3)).shape == (0, 3)
    assert tg.func.sparse_jacobian(lambda x: x * 2)(np.ones(0)).shape == (0, 0)


def test_mistakes_are_named():
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    plan = tg.func.sparse_jacobian(lambda x, *rest: x * 2)
    for args, where in (((x,), "argument 0"), ((np.ones(2), x), "argument 1")):
        with pytest.raises(tg.errors.BorderError, match=f"{where} requires grad"):
            plan(*args)
    np.testing.assert_array_equal(plan(x.detach()).toarray(), 2 * np.eye(2))
    with forward_ad.dual_level():
        moving = forward_ad.make_dual(tg.tensor(2.0), tg.tensor(1.0))
        with pytest.raises(tg.errors.BorderError, match="tangent"):
            tg.func.sparse_jacobian(lambda x: x * moving)(np.ones(2))
    with pytest.raises(tg.errors.DTypeError, match="complex"):
        plan(np.ones(2) * 1j)
    with pytest.raises(tg.errors.ShapeError, match=r"one number, found shape \(2,\)"):
        tg.func.sparse_hessian(lambda x: x * 2)(np.ones(2))
    with pytest.raises(TypeError, match="one array, found tuple"):
        tg.func.sparse_jacobian(lambda x: (x, x))(np.ones(2))
    with pytest.raises(TypeError, match="takes a function, found int"):
        tg.func.sparse_jacobian(3)
    with pytest.raises(ValueError, match="on_change takes"):
        tg.func.sparse_hessian(rosenbrock, on_change="ignore")


def test_a_large_banded_matrix():
    n = 100_000
    x = rng.standard_normal(n)
    plan = tg.func.sparse_hessian(rosenbrock)
    matrix = plan(x)
    assert matrix.nnz == 3 * n - 2 and plan.lanes == 3
    diagonal = np.zeros(n)
    diagonal[:-1] += 1200 * x[:-1] ** 2 - 400 * x[1:] + 2
    diagonal[1:] += 200
    np.testing.assert_allclose(matrix.diagonal(), diagonal, rtol=1e-10, atol=1e-8)
    np.testing.assert_allclose(matrix.diagonal(1), -400 * x[:-1], rtol=1e-12)
    np.testing.assert_allclose(matrix.diagonal(-1), -400 * x[:-1], rtol=1e-12)


def test_a_large_arrow():
    n = 20_000
    x = rng.standard_normal(n)
    plan = tg.func.sparse_hessian(lambda x: np.sum(x[0] * x[1:] ** 2) + x[0] ** 3)
    matrix = plan(x)
    assert plan.lanes == 2 and matrix.nnz == 3 * n - 2
    np.testing.assert_allclose(
        matrix.toarray()[0, 1:] if n < 100 else matrix[[0]].toarray()[0, 1:], 2 * x[1:]
    )


def test_what_is_not_sparse_is_refused_before_memory_is_full(monkeypatch):
    monkeypatch.setattr(elements, "room", lambda: 500)
    for n, fits in ((20, True), (30, False)):
        for plan in (
            tg.func.sparse_jacobian(lambda x: np.cumsum(x) * np.sum(x)),
            tg.func.sparse_hessian(lambda x: np.sum(x) ** 2),
        ):
            if fits:
                assert plan(np.ones(n)).nnz == n * n
            else:
                with pytest.raises(tg.errors.GradientError, match="not sparse"):
                    plan(np.ones(n))


def test_a_pattern_that_leaves_out_what_rounding_makes():
    x = 1 + rng.random(6) / 3

    def f(x):
        return np.sum(x[2:] ** 4) + 0.1 * (3 * x[0] * x[1]) - 0.3 * x[0] * x[1]

    assert dense_hessian(f, x)[0, 1] != 0
    found = tg.func.sparse_hessian(f, np.eye(6))(x)
    np.testing.assert_allclose(found.diagonal()[2:], 12 * x[2:] ** 2)


# ---------------------------------------------------------------- compiled functions


@tg.njit
def compiled_rosenbrock(x):
    total = 0.0
    for i in range(len(x) - 1):
        total += 100 * (x[i + 1] - x[i] ** 2) ** 2 + (1 - x[i]) ** 2
    return total


@tg.njit
def compiled_branch(x, way):
    if way > 0:
        return x[0] * x[1] * x[2]
    return x[0] * x[1]


@tg.njit
def compiled_products(x):
    return x[1:] * x[:-1] ** 2


@pytest.mark.full
def test_compiled_functions_give_the_same():
    x = rng.standard_normal(12)
    plan = tg.func.sparse_hessian(compiled_rosenbrock)
    np.testing.assert_allclose(plan(x).toarray(), dense_hessian(rosenbrock, x), rtol=1e-11, atol=1e-10)
    assert plan.lanes == 3 and plan.pattern.nnz == 34
    again = pickle.loads(pickle.dumps(plan))
    np.testing.assert_array_equal(again(x).toarray(), plan(x).toarray())
    plan = tg.func.sparse_jacobian(compiled_products)
    np.testing.assert_allclose(
        plan(x).toarray(), dense_jacobian(lambda x: x[1:] * x[:-1] ** 2, x), rtol=1e-12, atol=1e-14
    )
    assert plan.lanes == 2
    for dtype in (np.float32, int):
        assert plan(np.ones(12, dtype)).dtype == float


@pytest.mark.full
def test_compiled_functions_of_other_arguments():
    x = rng.standard_normal((3, 4))
    f = tg.njit(lambda x, scale: np.sum(x[:, 1:] ** 2 * x[:, :-1]) * scale)
    plan = tg.func.sparse_hessian(f)
    np.testing.assert_allclose(
        plan(x, 2.0).toarray(), dense_hessian(lambda x: f.py_func(x, 2.0), x), rtol=1e-11, atol=1e-12
    )
    np.testing.assert_allclose(plan(x, 3.0).toarray(), 1.5 * plan(x, 2.0).toarray(), rtol=1e-12)
    assert tg.func.sparse_hessian(tg.njit(lambda x: x**3))(2.0).toarray().tolist() == [[12.0]]
    many = tg.func.sparse_hessian(tg.njit(lambda x: np.sum(x) ** 2))
    np.testing.assert_allclose(many(np.ones(9)).toarray(), np.full((9, 9), 2.0))
    given = tg.func.sparse_jacobian(compiled_products, np.ones((4, 5)))
    y = rng.standard_normal(5)
    np.testing.assert_allclose(given(y).toarray(), tg.func.jacobian(compiled_products)(y))
    with pytest.raises(tg.errors.GradientError, match="elements outside"):
        tg.func.sparse_jacobian(compiled_products, np.eye(4, 5))(y)


@pytest.mark.full
def test_another_branch_of_a_compiled_function_is_noticed():
    x = np.array([1.0, 2.0, 3.0])
    plan = tg.func.sparse_hessian(compiled_branch)
    for _ in range(2):
        assert plan(x, 0).nnz == 2
        with pytest.raises(tg.errors.GradientError, match="elements outside"):
            plan(x, 1)
    willing = tg.func.sparse_hessian(compiled_branch, on_change="replan")
    for way in (0, 1, 0, 1):
        reference = dense_hessian(lambda x: compiled_branch.py_func(x, way), x)
        np.testing.assert_allclose(willing(x, way).toarray(), reference)
