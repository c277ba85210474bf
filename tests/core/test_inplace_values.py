"""Writing to Tensors: values as NumPy's, derivatives as differences."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.ops.indexing import numbers
from tapegrad.tape import tape as tapes
from tests.tensors import leaf

INDICES = [
    0, -1, slice(None), slice(1, None), slice(None, None, -1), slice(None, None, 2), Ellipsis, (0, 1),
    (1, -1), (slice(None), 0), (slice(None), slice(1, 3)), (Ellipsis, 2), [0, 2], [1, 1],
    (slice(None), [2, 0]), ([0, 1], [1, 2]), None,
]  # fmt: skip
VIEWS = [
    lambda a: a, lambda a: a[1:], lambda a: a.T, lambda a: a[:, ::2], lambda a: a[::-1],
    lambda a: a.reshape(-1)[2:8], lambda a: a[1], lambda a: a.T[1:, ::-1],
    lambda a: a[None, ..., 1:3], lambda a: a.swapaxes(0, 1)[2],
]  # fmt: skip


@pytest.mark.parametrize("n", [3, 40])
@pytest.mark.parametrize("index", INDICES, ids=repr)
def test_an_assignment_is_numpys(n, index):
    shape = (3, n, 4) if n > 3 else (3, 4)
    base = np.linspace(0.5, 1.5, int(np.prod(shape))).reshape(shape)
    new = np.linspace(2.0, 3.0, base[index].size).reshape(base[index].shape)
    x, v = leaf(base), leaf(new)
    y = x * 2.0
    y[index] = v
    plain = base * 2.0
    plain[index] = new
    np.testing.assert_array_equal(y.detach().numpy(), plain)
    kept = np.ones(base.shape)
    kept[index] = 0.0
    (gx,) = tg.grad(np.sum(y * y), x, retain_graph=True)
    np.testing.assert_allclose(gx.numpy(), 8 * base * kept)
    (gv,) = tg.grad(np.sum(y * y), v, create_graph=True)
    last = np.arange(float(new.size)).reshape(new.shape)
    numbers = np.full(base.shape, -1.0)
    numbers[index] = last
    stays = np.isin(last, numbers)
    np.testing.assert_allclose(gv.detach().numpy(), np.where(stays, 2 * new, 0.0))
    if stays.any():
        (h,) = tg.grad(np.sum(gv), v)
        np.testing.assert_allclose(h.numpy(), np.where(stays, 2.0, 0.0))


LINES = [lambda a: a[::-1] if a.ndim else a[None], lambda a: a[-1, ...] if a.ndim else a.T]


def plan(rng, steps):
    """A random program of writes and views, as functions of a list of arrays."""
    found = []
    for _ in range(steps):
        kind = rng.integers(7)
        found.append((kind, int(rng.integers(100)), int(rng.integers(100)), float(rng.uniform(0.5, 1.5))))
    return found


def run(program, x, w, m, keep):
    """Run it on arrays or Tensors: `pool` are views and bases, `sums` what was computed on the way."""
    pool, sums = [x * 1.0], []
    for kind, i, j, number in program:
        a = pool[i % len(pool)]
        if kind == 0:
            pool.append(
                VIEWS[j % len(VIEWS)](a) if a.ndim == 2 else LINES[j % 2](a) if a.ndim < 2 else a[..., 0]
            )
        elif kind == 1:
            a *= number
        elif kind == 2:
            sums.append(m.sum(m.sin(a) * number))
        elif kind == 3:
            a[...] = m.cos(a) * a
        elif kind == 4 and a.ndim and a.shape[0] > 0:
            a[j % a.shape[0]] = w[i % 4] * number
        elif kind == 5:
            pool.append((a if a.ndim else a[None]) * w[j % 4])
        elif kind == 6:
            a += w[i % 4]
        pool = [b for b in pool if b.size][-keep:]
    return sum((m.sum(m.sin(a)) for a in pool), sum(sums, 0.0 * m.sum(x)))


@pytest.mark.parametrize("records", [16, 4096])
@pytest.mark.parametrize("shape", [(3, 4), (30, 40)])
def test_random_programs_of_writes_and_views(monkeypatch, records, shape):
    """Beside complex steps through the same program on NumPy's own arrays."""
    monkeypatch.setattr(tapes, "MAX_RECORDS", records)
    rng = np.random.default_rng(sum(shape) + records)
    for _ in range(60 if shape == (3, 4) else 25):
        program = plan(rng, int(rng.integers(3, 16)))
        at, weights = rng.uniform(0.3, 1.2, shape), rng.uniform(0.5, 1.0, 4)
        x, w = leaf(at), leaf(weights)
        with np.errstate(all="ignore"):
            try:
                value = run(program, at, weights, np, 4)
            except (ValueError, IndexError):  # a view too small for the next
                continue
            loss = run(program, x, w, np, 4)
            assert loss.item() == pytest.approx(value, rel=1e-12)
            gx, gw = tg.grad(loss, (x, w), create_graph=bool(rng.integers(2)), allow_unused=True,
                             materialize_grads=True)  # fmt: skip
            ux, uw = rng.uniform(-1, 1, shape), rng.uniform(-1, 1, 4)
            stepped = run(program, at + 1e-30j * ux, weights + 1e-30j * uw, np, 4)
        wanted = np.imag(stepped) / 1e-30
        found = np.sum(gx.detach().numpy() * ux) + np.sum(gw.detach().numpy() * uw)
        scale = np.sum(np.abs(gx.detach().numpy() * ux)) + np.sum(np.abs(gw.detach().numpy() * uw))
        assert found == pytest.approx(wanted, rel=1e-9, abs=1e-11 * (1 + scale)), program


OVERLAPS = {  # what is written to, and what is read, of n elements
    "every second": lambda n: (np.s_[::2], np.s_[: (n + 1) // 2]),
    "the first half": lambda n: (np.s_[: (n + 1) // 2], np.s_[::2]),
    "behind": lambda n: (np.s_[1:], np.s_[:-1]),
    "ahead": lambda n: (np.s_[:-1], np.s_[1:]),
    "backwards": lambda n: (np.s_[:], np.s_[::-1]),
}
WRITES = {
    "setitem": lambda y, to, of: y.__setitem__(to, y[of]),
    "copyto": lambda y, to, of: np.copyto(y[to], y.reshape(-1)[of]),
    "put": lambda y, to, of: np.put(y, np.arange(y.size)[to], y[of]),
    "copy_": lambda y, to, of: y[to].copy_(y[of]),
}


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("n", [10, 999, 5000])
@pytest.mark.parametrize("how", WRITES)
@pytest.mark.parametrize("name", OVERLAPS)
def test_what_is_written_is_what_was_there_before(name, how, n, requires_grad):
    """NumPy itself writes a[::2] = a[:n] element by element: part of what it reads is gone by then."""
    to, of = OVERLAPS[name](n)
    source, weights = np.arange(n), np.arange(1.0, n + 1)
    source[to] = np.arange(n)[of]
    x = tg.tensor(np.linspace(0.1, 1.0, n), requires_grad=requires_grad)
    y = x * 1.0
    WRITES[how](y, to, of)
    assert y.tolist() == x.detach().numpy()[source].tolist()
    if requires_grad:
        (g,) = tg.grad(y, x, weights)
        assert g.tolist() == np.bincount(source, weights, n).tolist()


@pytest.mark.parametrize("shape", [(7,), (5, 2, 3), (4, 0)])
@pytest.mark.parametrize("dtype", [np.int64, np.int8, np.uint64])
def test_numbers_of_what_an_index_takes(shape, dtype):
    for index in ([3, 0, 3], [[1], [2]], 2, []):
        index = np.array(index, dtype)
        wanted = np.arange(int(np.prod(shape))).reshape(shape)
        np.testing.assert_array_equal(numbers(shape, index), wanted[index])
        if dtype != np.uint64 and index.size:
            np.testing.assert_array_equal(numbers(shape, -index), wanted[-index])


@pytest.mark.parametrize("mask", [True, np.True_, np.array(True), (..., True), None, False, np.array(False)])
def test_a_mask_chooses_the_element_of_a_scalar_or_none(mask):
    expected = np.array(2.0)
    expected[mask] = 5.0
    x, v = tg.tensor(2.0), tg.tensor(5.0, requires_grad=True)
    x[mask] = 5.0
    assert x.item() == expected
    y = v * 0.4
    y[mask] = v
    assert y.item() == expected and tg.grad(y, v)[0].item() == (1.0 if expected == 5 else 0.4)
    with pytest.raises(ValueError, match="shape"):
        x[mask] = [1.0, 2.0]
