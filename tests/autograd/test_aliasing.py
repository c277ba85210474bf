"""Gradients share memory with nothing (D-4) and are laid out as what they belong to (D-6)."""

from itertools import combinations

import numpy as np
import pytest

import tapegrad as tg

pytestmark = pytest.mark.usefixtures("tape_length")


def leaf(data=(1.0, 2.0), dtype=float):
    return tg.tensor(data, dtype=dtype, requires_grad=True)


def memory(t):
    return t if isinstance(t, np.ndarray) else np.asarray(t.detach().numpy())


def assert_apart(**named):
    """No two of these are one object or share memory."""
    for (a, x), (b, y) in combinations(named.items(), 2):
        assert x is not y, f"{a} is {b}"
        if memory(x).ndim and memory(y).ndim:
            assert not np.shares_memory(memory(x), memory(y)), f"{a} shares memory with {b}"


GIVEN = {
    "Tensor": lambda: tg.tensor([3.0, 4.0]),
    "ndarray": lambda: np.array([3.0, 4.0]),
    "shared": lambda: tg.from_numpy(np.array([3.0, 4.0])),
    "requiring grad": lambda: leaf((3.0, 4.0)),
}

# each passes the cotangent on unchanged
ROUTES = {
    "leaf": lambda x: x,
    "times one": lambda x: x * 1,
    "plus": lambda x: x + 1.0,
    "reshape": lambda x: x.reshape(2),
    "reshape twice": lambda x: x.reshape(2, 1).reshape(-1),
    "ravel": lambda x: x.ravel(),
    "slice": lambda x: x[:],
    "ellipsis": lambda x: x[...],
    "transpose": lambda x: x.T,
    "squeeze": lambda x: np.squeeze(x),
    "expand and index": lambda x: x[None][0],
    "concatenate": lambda x: np.concatenate([x]),
    "stack": lambda x: np.stack([x])[0],
    "astype": lambda x: x.astype(float),
    "broadcast_to": lambda x: np.broadcast_to(x, (2,)),
    "positive": lambda x: +x,
    "clone": lambda x: x.clone(),
    "sum of one": lambda x: x.reshape(2, 1).sum(1),
    "flip twice": lambda x: x[::-1][::-1],
    "where": lambda x: np.where(True, x, 0.0),
}

GRAPH = pytest.mark.parametrize("create_graph", [False, True])


@GRAPH
@pytest.mark.parametrize("given", GIVEN)
@pytest.mark.parametrize("route", ROUTES)
def test_D4_gradient_given_and_gradient_found(route, given, create_graph):
    x, s = leaf(), GIVEN[given]()
    y = ROUTES[route](x)
    y.backward(s, create_graph=create_graph, retain_graph=True)
    (g,) = tg.grad(y, x, s, create_graph=create_graph, retain_graph=True)
    (h,) = tg.grad(y, x, s, create_graph=create_graph)
    assert_apart(x=x, s=s, grad=x.grad, g=g, h=h)
    assert x.grad.tolist() == g.tolist() == h.tolist() == [3.0, 4.0]
    (x * 10.0).sum().backward()  # adds to .grad, in place where it can
    assert x.grad.tolist() == [13.0, 14.0]
    assert g.tolist() == h.tolist() == memory(s).tolist() == [3.0, 4.0]
    assert x.tolist() == [1.0, 2.0]


@GRAPH
@pytest.mark.parametrize("route", ROUTES)
def test_D4_writes_to_the_array_given_change_nothing(route, create_graph):
    for wrapped in (False, True):
        x, s = leaf(), np.array([3.0, 4.0])
        given = tg.from_numpy(s) if wrapped else s
        y = ROUTES[route](x)
        y.backward(given, create_graph=create_graph, retain_graph=True)
        (g,) = tg.grad(y, x, given, create_graph=create_graph)
        s[:] = -1.0
        assert x.grad.tolist() == g.tolist() == [3.0, 4.0]


@GRAPH
@pytest.mark.parametrize("given", GIVEN)
def test_D4_operands_of_a_sum(given, create_graph):
    a, b, s = leaf(), leaf(), GIVEN[given]()
    y = a + b
    y.retain_grad()
    y.backward(s, create_graph=create_graph)
    assert_apart(a=a.grad, b=b.grad, y=y.grad, s=s, value=y)
    (10.0 * a).sum().backward()
    assert a.grad.tolist() == [13.0, 14.0]
    assert b.grad.tolist() == y.grad.tolist() == memory(s).tolist() == [3.0, 4.0]
    (10.0 * b).sum().backward()
    assert a.grad.tolist() == b.grad.tolist() == [13.0, 14.0]


@GRAPH
def test_D4_scalars(create_graph):
    a, b, s = leaf(1.0), leaf(2.0), tg.tensor(3.0)
    y = a + b
    y.retain_grad()
    y.backward(s, create_graph=create_graph)
    assert_apart(a=a.grad, b=b.grad, y=y.grad, s=s)
    (10.0 * a).backward()
    assert (a.grad.item(), b.grad.item(), y.grad.item(), s.item()) == (13.0, 3.0, 3.0, 3.0)


@GRAPH
def test_D4_results_of_one_call(create_graph):
    a, b = leaf(), leaf()
    y = a + b
    z = y.reshape(2, 1)
    s = np.array([[3.0], [4.0]])
    found = tg.grad(z, [a, b, a, y, z, y], s, create_graph=create_graph)
    assert_apart(**{f"result {k}": g for k, g in enumerate(found)}, s=s)
    assert [g.ravel().tolist() for g in found] == [[3.0, 4.0]] * 6


@GRAPH
def test_D4_one_result_assigned_as_grad_is_accumulated_alone(create_graph):
    a, b = leaf(), leaf()
    a.grad, b.grad = tg.grad((a + b).sum(), [a, b], create_graph=create_graph)
    (5.0 * a).sum().backward()
    assert a.grad.tolist() == [6.0, 6.0]
    assert b.grad.tolist() == [1.0, 1.0]


@GRAPH
@pytest.mark.parametrize(
    "use",
    [lambda g: g.clone(), lambda g: g + 0.0, lambda g: np.array(g.tolist())],
    ids=["clone", "sum", "tolist"],
)
def test_D4_copies_taken_of_a_gradient_stay(use, create_graph):
    x = leaf()
    (x * x).sum().backward(create_graph=create_graph)
    kept = use(x.grad)
    (x * x).sum().backward()
    assert x.grad.tolist() == [4.0, 8.0]
    assert kept.tolist() == [2.0, 4.0]


@GRAPH
@pytest.mark.parametrize("n", [3, 20_000])
def test_D4_gradients_and_values(n, create_graph):
    """Cotangents that pass through untouched must not be buffers of values, nor of the next sweep."""
    x, z = leaf(np.arange(1.0, n + 1)), leaf(np.full(n, 2.0))
    y = np.exp(x * 0.0) * z  # the cotangent of z is the value of exp
    e = np.exp(x * 0.0)
    (e * z + y).sum().backward(create_graph=create_graph)
    w = x * z
    (g,) = tg.grad(w.sum(), x, create_graph=create_graph)  # the value of z, as it is
    assert_apart(x=x, z=z, y=y, e=e, xg=x.grad, zg=z.grad, g=g, w=w)
    before = [t.tolist() for t in (y, e, z.grad, g, w)]
    for _ in range(3):
        u = leaf(np.ones(n))
        (np.exp(u) * u + np.sin(u)).sum().backward()
    assert [t.tolist() for t in (y, e, z.grad, g, w)] == before
    assert g.tolist() == [2.0] * n


def test_D4_held_values_survive_the_reuse_of_buffers():
    n = 40_000
    x = leaf(np.linspace(0.0, 1.0, n))
    a = np.exp(x)
    b = np.sin(a) * a
    part, turned, plain = b.detach()[10:20], a.reshape(200, 200).T.detach(), b.detach().numpy()
    wanted = part.tolist(), turned[0].tolist(), plain[:5].tolist()
    b.sum().backward()
    del a, b
    for _ in range(4):
        u = leaf(np.ones(n))
        (np.exp(u) * u).sum().backward()
    assert (part.tolist(), turned[0].tolist(), plain[:5].tolist()) == wanted


# ---------------------------------------------------------------- D-6: layouts

BASE = np.arange(1.0, 25.0)
LAYOUTS = {
    "transposed": (lambda: BASE[:8].reshape(2, 4).T, (8, 32)),
    "fortran": (lambda: np.asfortranarray(BASE[:6].reshape(2, 3)), (8, 16)),
    "permuted": (lambda: BASE.reshape(2, 3, 4).transpose(1, 2, 0), (32, 8, 96)),
    "contiguous": (lambda: BASE[:6].reshape(2, 3), (24, 8)),
    "gaps": (lambda: BASE.reshape(4, 6)[:, ::2], (24, 8)),
    "rows with gaps": (lambda: BASE.reshape(4, 6)[::2, :2], (16, 8)),
    "every second": (lambda: BASE[::2], (8,)),
    "repeated": (lambda: np.broadcast_to(BASE[:3], (2, 3)), (24, 8)),
}


@GRAPH
@pytest.mark.parametrize("name", LAYOUTS)
def test_D6_gradient_is_laid_out_as_its_leaf(name, create_graph):
    make, strides = LAYOUTS[name]
    data = make()
    x = tg.from_numpy(data).requires_grad_()
    assert x.strides == data.strides
    for times in (1, 2, 3):
        (x * x).sum().backward(create_graph=create_graph)
        assert x.grad.strides == strides
        assert x.grad.tolist() == (2.0 * times * data).tolist()


@GRAPH
@pytest.mark.parametrize("name", ["transposed", "permuted"])
def test_D6_leaf_as_root(name, create_graph):
    make, strides = LAYOUTS[name]
    data = make()
    x = tg.from_numpy(data).requires_grad_()
    x.backward(np.ones(data.shape), create_graph=create_graph)
    assert x.grad.strides == strides


@GRAPH
@pytest.mark.parametrize(
    "reduce",
    [
        lambda x: x.sum(),
        lambda x: x.mean() * x.size,
        lambda x: x.sum(0).sum(),
        lambda x: np.broadcast_to(x, (4, 2, 3)).sum() / 4.0,
    ],
)
def test_D6_repeated_gradients_are_written_out(reduce, create_graph):
    x = leaf(np.ones((2, 3)))
    reduce(x).backward(create_graph=create_graph)
    assert x.grad.strides == (24, 8)
    assert x.grad.tolist() == [[1.0] * 3] * 2
    (g,) = tg.grad(reduce(x), x, create_graph=create_graph)
    assert 0 not in g.strides


@GRAPH
def test_D6_gradient_of_a_shared_leaf_is_not_read_only_nor_shared(create_graph):
    data = BASE[:4].reshape(2, 2).copy()
    x = tg.from_numpy(data.T).requires_grad_()
    x.sum().backward(create_graph=create_graph)
    assert not np.shares_memory(memory(x.grad), data)
    (x * 2.0).sum().backward()
    assert x.grad.tolist() == [[3.0, 3.0], [3.0, 3.0]]
    assert data.tolist() == [[1.0, 2.0], [3.0, 4.0]]
