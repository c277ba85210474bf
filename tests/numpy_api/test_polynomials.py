"""Polynomials as vectors of coefficients."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad import errors

from .rows import POSITIVE, check

V, S, A = (4,), (), (2, 3)
T = np.linspace(-1, 1.2, 6)

ROWS = [
    ("polyval", lambda p, x: np.polyval(p, x), [V, A]),
     ("polyval of 0-d", lambda p, x: np.polyval(p, x), [V, S]),
    ("polyval of numbers", lambda x: np.polyval([1, 2, 3], x) + np.polyval(np.poly1d([1.0, 2.0]), x), [A]),
    ("roots", lambda p: np.abs(np.roots(p * 0.1 + np.array([1.0, 2.0, 0.5, -1.0]))) ** 2, [V]),
    ("polyadd", lambda p, q: np.polyadd(p, q) * np.polyadd(q, p), [V, (2,)]),
    ("polysub", lambda p, q: np.polysub(p, q) * np.polysub(q, p), [V, (2,)]),
    ("polyadd of a number", lambda p: np.polyadd(p, 2.0) + np.polysub(1, p), [V]),
    ("polymul", lambda p, q: np.polymul(p, q), [V, (3,)]),
    ("polydiv", lambda p, q: np.polydiv(p, q), [(5,), (3,)]),
     ("polydiv by one", lambda p, q: np.polydiv(p, q), [V, (1,)]),
    ("polydiv by longer", lambda p, q: np.polydiv(p, q), [(2,), (3,)]),
    ("polyder", lambda p: np.polyder(p) * np.polyder(p, 2)[0], [V]),
     ("polyder, 0", lambda p: np.polyder(p, 0) * 2, [V]),
    ("polyint", lambda p: np.polyint(p), [V]),
     ("polyint, constants", lambda p, k: np.polyint(p, 2, k), [V, (2,)]),
    ("polyint, one constant", lambda p, k: np.polyint(p, m=3, k=k), [V, S]),
    ("poly", lambda z: np.poly(z), [V]),
    ("poly of a matrix that turns", lambda x: np.poly(np.add(x, [[0, 3, 0], [-3, 0, 0], [0, 0, 0]])),
     [(3, 3)]),
    ("poly of pairs", lambda z: np.poly(np.concatenate([z + 1j, z - 1j])), [(2,)]),
    ("polyfit", lambda x, y: np.polyfit(x, y, 2), [("ascending", (6,)), (6,)]),
    ("polyfit, exact", lambda y: np.polyfit(T, y, 5), [(6,)]),
    ("polyfit, weights", lambda y, w: np.polyfit(T, y, 1, w=w), [(6,), (POSITIVE, (6,))]),
    ("polyfit of columns", lambda y, w: np.polyfit(T, y, 1, w=w), [(6, 2), (POSITIVE, (6,))]),
    ("polyfit, cov", lambda x, y: np.polyfit(x, y, 1, cov=True), [("ascending", (5,)), (5,)]),
    ("polyfit of columns, cov", lambda y: np.polyfit(T, y, 1, cov=True), [(6, 2)]),
    ("polyfit, unscaled", lambda y, w: np.polyfit(T, y, 1, cov="unscaled", w=w), [(6,), (POSITIVE, (6,))]),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=[row[0] for row in ROWS])
def test_call(row, random):
    check(*row[1:], random)


@pytest.mark.filterwarnings("ignore:polyfit")
def test_polyfit_of_few_points():
    """As NumPy: the shortest vector of coefficients, and a warning."""
    x, y = np.array([0.0, 1.0, 1.0, 0.0]), np.array([1.0, -2.0, 0.5, 3.0])
    leaf = tg.tensor(y, requires_grad=True)
    with pytest.warns(np.exceptions.RankWarning, match="4 points do not determine 3 coefficients"):
        found = np.polyfit(x, leaf, 2)
    with pytest.warns(np.exceptions.RankWarning):
        np.testing.assert_allclose(found.detach().numpy(), np.polyfit(x, y, 2), rtol=1e-13)
    assert tg.gradcheck(lambda y: np.polyfit(x, y, 2), [leaf])
    assert tg.gradgradcheck(lambda y: np.polyfit(x, y, 2) ** 2, [leaf])
    theirs = np.polyfit(x, y[:, None] * [1, 2], 2, full=True)
    for a, b in zip(np.polyfit(x, leaf[:, None] * [1, 2], 2, full=True), theirs, strict=True):
        np.testing.assert_allclose(a.detach().numpy() if isinstance(a, tg.Tensor) else a, b, atol=1e-13)


def test_polyfit_of_what_is_badly_conditioned():
    """Powers up to the seventh at 100 to 101: the columns' condition number is far above 1e8."""
    x = np.linspace(100, 101, 30)
    y = np.sin(x)
    leaf = tg.tensor(y, requires_grad=True)
    fit = np.polyval(np.polyfit(leaf, y, 1), 0.3), np.polyfit(x - 100, leaf, 7)
    np.testing.assert_allclose(fit[1].detach().numpy(), np.polyfit(x - 100, y, 7), rtol=1e-5)
    (g,) = tg.grad(fit[1][-1], leaf)
    exact = np.linalg.pinv(np.vander(x - 100, 8))[-1]
    np.testing.assert_allclose(g.numpy(), exact, rtol=1e-6, atol=1e-9)


REFUSED = [
    ("polyval", lambda x: np.polyval(x, 1.0), errors.ShapeError, "vector"),
    ("polyadd", lambda x: np.polyadd(x, x), errors.ShapeError, "vector"),
    ("polymul", lambda x: np.polymul(x[0], x), errors.ShapeError, "vector"),
    ("polyder", lambda x: np.polyder(x[0], -1), ValueError, "negative"),
    ("polyder of a number", lambda x: np.polyder(x[0, 0]), errors.ShapeError, "vector"),
    ("polyint of a number", lambda x: np.polyint(x[0, 0]), errors.ShapeError, "vector"),
    ("polyint", lambda x: np.polyint(x[0], -1), ValueError, "negative"),
    ("polyint, constants", lambda x: np.polyint(x[0], 3, [1.0, 2.0]), errors.ShapeError, "2 constants"),
    ("poly", lambda x: np.poly(x), errors.ShapeError, "square"),
    ("polyfit, degree", lambda x: np.polyfit(x[0], x[1], -1), ValueError, "degree"),
    ("polyfit, shapes", lambda x: np.polyfit(x[0], x, 1), errors.ShapeError, "points"),
    ("polyfit, weights", lambda x: np.polyfit(x[0], x[1], 1, w=[1.0]), errors.ShapeError, "weights"),
    ("polyfit, points", lambda x: np.polyfit(x[0], x[1], 3, cov=True), np.linalg.LinAlgError, "determine"),
    ("polyfit, cov", lambda x: np.polyfit(x[0], x[1], 2, cov=True), ValueError, "leave nothing"),
]  # fmt: skip


@pytest.mark.parametrize("row", REFUSED, ids=[row[0] for row in REFUSED])
def test_refusals(row):
    with pytest.raises(row[2], match=row[3]):
        row[1](tg.tensor([[0.5, 2.0, 3.0], [-1.5, 1.0, 0.2]], requires_grad=True))


P = [[1.0, -6.0, 11.0, -6.0], [2.0, 0.0, 1.0], [0.0, 1.0, 3.0, 0.0], [0.0, 0.0], [5.0]]


@pytest.mark.parametrize("p", P)
def test_roots(p):
    x = tg.tensor(p, requires_grad=True)
    found, wanted = np.roots(x), np.roots(np.array(p))
    assert found.shape == wanted.shape
    assert np.allclose(np.sort_complex(found.detach().numpy()), np.sort_complex(wanted), atol=1e-12)
    if found.size and found.requires_grad:
        loss = np.sum(np.real(found * np.conj(found)))
        (g,) = tg.grad(loss, x, create_graph=True)
        kept = [k for k in range(len(p)) if p[k]]
        for k in kept:
            sides = []
            for step in (1e-6, -1e-6):
                moved = np.array(p)
                moved[k] += step
                sides.append(np.sum(np.abs(np.roots(moved)) ** 2))
            assert abs(g[k].item() - (sides[0] - sides[1]) / 2e-6) < 1e-5
