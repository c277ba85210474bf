"""Rules as programs for shapes: which have one, and that none is used where a rule goes by values."""

import collections
import sys

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import recorded_rules, traced_rules
from tapegrad.core import compiled_methods
from tapegrad.kernels import abi, machine
from tapegrad.kernels.replay import layout
from tapegrad.ops import REGISTRY
from tapegrad.ops.matrix_functions import declare
from tapegrad.tape import tape as tapes
from tests.ops import checks
from tests.ops.layouts import PLAIN, Absent
from tests.ops.samples import REAL_ONLY
from tests.tiers import every, thinned

pytestmark = pytest.mark.skipif(
    not abi.native() or bool(layout.BOUNDS), reason="only the native layout has compiled methods"
)
at_once = sys.modules["tapegrad.autograd.at_once"]
# Rules that run in Python, at least for some samples, as what they do depends on values.
BY_VALUES = {
    "det": "of a matrix of four rows or more that is not far from singular",
    "pinv": "of one triangle of a Hermitian matrix, or where singular values are left out",
    "scatter": "by places, of which the last of equal ones counts",
}


@pytest.fixture(autouse=True)
def compiled():
    machine.load()


@pytest.fixture
def in_python():
    """How often a rule of each op has been run in Python by a recorded sweep."""
    counts = collections.Counter()

    def spy(op, *args):
        counts[op.name] += 1
        return recorded_rules.record_rule(op, *args)

    compiled_methods.share({layout.RECORD_RULE: spy})
    yield counts
    compiled_methods.share({layout.RECORD_RULE: recorded_rules.record_rule})


def recorded(function, *arrays):
    """The gradients of a result by all arrays, recorded, and those of their squares."""
    xs = [tg.tensor(a, requires_grad=True) for a in arrays]
    y = function(*xs)
    found = tg.grad(y, xs, np.ones(y.shape, y.dtype), create_graph=True)
    again = tg.grad(sum(np.sum(np.real(g * np.conj(g))) for g in found), xs, materialize_grads=True)
    return [g.detach().numpy() for g in (*found, *again)]


def compare(function, *sets, in_python=None):
    """Compare what programs made for the first arrays give of others with what Python records."""
    found = [recorded(function, *arrays) for arrays in (sets[0], sets[0], *sets)]
    if in_python is not None:
        in_python.clear()
        recorded(function, *sets[0])
        assert not in_python, in_python
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(at_once, "rerecord", lambda *_: None)
        patch.setattr(at_once, "rerecord_sealed", lambda *_: None)
        wanted = [recorded(function, *arrays) for arrays in (sets[0], sets[0], *sets)]
    for mine, other in zip(found, wanted, strict=True):
        for a, b in zip(mine, other, strict=True):
            assert a.dtype == b.dtype
            np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", every(sorted(REGISTRY), 4))
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_only_where_values_decide_a_rule_runs_in_python(in_python, name, dtype):
    if dtype == "complex128" and name in REAL_ONLY:
        return
    cases = checks.sample(name, PLAIN, dtype)
    for case in () if isinstance(cases, Absent) else cases:
        for _ in range(3):
            in_python.clear()
            y = case.call(*case.operands)
            xs = [case.operands[k] for k in case.moves]
            if not xs:
                continue
            tg.grad(y, xs, np.ones(y.shape, y.dtype), create_graph=True, allow_unused=True)
        assert name in BY_VALUES or not in_python


MATRIX = np.random.default_rng(0).normal(size=(6, 4, 4)) + 3.0 * np.eye(4)
OF_MATRICES = {
    "inv": np.linalg.inv,
    "solve": lambda a: np.linalg.solve(a, a @ np.ones(4)),
    "det": np.linalg.det,
    "slogdet": lambda a: np.linalg.slogdet(a)[1],
    "cholesky": lambda a: np.linalg.cholesky(a @ a.T),
    "eigh": lambda a: np.linalg.eigh(a + a.T)[0] * np.linalg.eigh(a + a.T)[1] ** 2,
    "qr": lambda a: np.linalg.qr(a)[0] @ np.linalg.qr(a)[1] ** 2,
    "svd": lambda a: np.linalg.svd(a)[0] ** 2 * np.linalg.svd(a)[1],
    "eig": lambda a: np.abs(np.linalg.eig(a)[1]) ** 2 * np.linalg.eig(a)[0],
    "pinv": lambda a: np.linalg.pinv(a[:, :3]),
    "lstsq": lambda a: np.linalg.lstsq(a[:, :3], a[:, 3])[0],
    "max": lambda a: np.max(a, axis=0) * np.min(a, axis=1),
    "ties": lambda a: np.max(np.stack([a, a, a[::-1]]), axis=0) * a,
    "norm": lambda a: np.linalg.norm(a, axis=0) * np.abs(a) * np.hypot(a, a[0]),
    "einsum": lambda a: np.einsum("ij,ik,i->jk", a, a, a[0]) + np.einsum("ii->i", a),
    "prod": lambda a: np.prod(a, axis=1) + np.cumprod(a, axis=0),
    "i0": lambda a: np.i0(a) + np.convolve(a[0], a[1], "same"),
    "complex powers": lambda a: (a + 0.5j) ** 3 + (a + 1j) ** (0.1 * a) + np.maximum(a + 1j, 2.0),
    "logsumexp": lambda a: REGISTRY["logsumexp"](a, axis=1),
}


# of factors of matrices, whose rules compile for seconds, two kinds are quick
LONG = {"complex powers", "svd", "lstsq", "qr", "eig"}


@pytest.mark.parametrize("name", thinned(OF_MATRICES, lambda name: name not in LONG))
def test_programs_are_for_all_values(in_python, name):
    compare(OF_MATRICES[name], *([a] for a in MATRIX), in_python=in_python)


def test_a_large_matrix_keeps_its_factors():
    """The program of a solve takes those of each record."""
    random = np.random.default_rng(1)
    sets = [(random.normal(size=(40, 40)) + 9 * np.eye(40), random.normal(size=40)) for _ in range(3)]
    compare(np.linalg.solve, *sets)


def test_factors_that_are_released_are_those_of_one_record():
    """A graph recorded from factors lives on where a sweep has let go of those of the first record."""
    random = np.random.default_rng(2)
    a, weights = random.normal(size=(100, 100)), random.normal(size=100)
    found = []
    for _ in range(4):
        x = tg.tensor(a + a.T, requires_grad=True)
        y = np.sum(np.linalg.eigvalsh(x) * weights)
        (g,) = tg.grad(y, x, create_graph=True)
        y.backward()
        found.append(tg.grad(np.sum(g * a), x)[0].numpy())
    for h in found[1:]:
        np.testing.assert_allclose(h, found[0], atol=1e-12 * np.max(np.abs(h)))


@pytest.mark.parametrize("function", [
    lambda x: np.abs(x) ** 2, lambda x: np.hypot(x, 2.0 * x) ** 2, lambda x: np.linalg.norm(x) ** 2,
], ids=["abs", "hypot", "norm"])  # fmt: skip
def test_a_kink_at_0_is_seen_each_time(function):
    """The square is smooth there; the program of the length is for results that are not 0."""
    compare(function, [np.array([1.0, -2.0])], [np.array([0.0, 3.0])], [np.array([0.0, 0.0])])


def test_singular_matrices_come_after_others():
    random = np.random.default_rng(3)
    regular = random.normal(size=(4, 4))
    compare(np.linalg.det, [regular], [np.outer(regular[0], regular[1])], [np.zeros((4, 4))], [regular.T])


def test_a_rule_that_takes_values_out_has_no_program():
    """As constants of a first run they would be those of all."""

    @declare(lambda x: x * x, 1)
    class square_by_value:
        reads = (0b1,)

        def vjp(ct, out, inputs, wanted):
            return {0: ct * (2.0 * getattr(inputs[0], "_v", inputs[0]))}

        def jvp(tangents, out, inputs):
            raise NotImplementedError

    for value in (1.0, 2.0, 3.0, 4.0):
        x = tg.tensor([value, -value], requires_grad=True)
        (g,) = tg.grad(square_by_value(x) * x, x, np.ones(2), create_graph=True)
        np.testing.assert_allclose(g.tolist(), [3 * value**2, 3 * value**2])


def test_a_rule_that_asks_has_no_program(in_python):
    @declare(lambda x: np.where(x.sum() > 0, x * x, x), 1)
    class square_or_not:
        reads = (0b1,)

        def vjp(ct, out, inputs, wanted):
            (x,) = inputs
            return {0: 2.0 * ct * x if np.sum(x) > 0 else ct}

        def jvp(tangents, out, inputs):
            raise NotImplementedError

    for value, wanted in ((1.0, 2.0), (2.0, 4.0), (3.0, 6.0), (-4.0, 1.0)):
        x = tg.tensor([value, value], requires_grad=True)
        (g,) = tg.grad(square_or_not(x), x, np.ones(2), create_graph=True)
        assert g.tolist() == [wanted, wanted]
    assert in_python["square_or_not"] == 4


def test_programs_are_forgotten():
    x = tg.tensor([[1.0, 2.0], [3.0, 5.0]], requires_grad=True)
    for _ in range(3):
        tg.grad(np.linalg.inv(x), x, np.ones((2, 2)), create_graph=True)
    assert traced_rules._programs
    traced_rules.forget()
    assert not traced_rules._programs
    assert not any(traced_rules.TRACED)


# ---------------------------------------------------------------- backward


def steps(use):
    """Gradients that two recorded backwards and a plain one add to .grad, of a graph on one tape."""
    tapes.close(tapes.current())
    x, w = (tg.tensor(np.linspace(a, a + 1.0, 3), requires_grad=True) for a in (0.4, 1.0))
    unused = tg.tensor(2.0, requires_grad=True)
    kept = unused * 2.0
    y = np.sum(np.sin(x) * w + np.abs(x) * np.max(w))
    use(y, x, w)
    z = np.sum(x.grad * w) + np.sum(w.grad) if w.grad is not None else np.sum(x.grad * w)
    use(z, x, w)
    found = [x.grad, w.grad, unused.grad]
    np.sum(x.grad * x.grad).backward()
    assert kept.requires_grad
    return [None if g is None else g.detach().numpy() for g in (*found, x.grad, w.grad)]


WAYS = {
    "all leaves": lambda y, x, w: y.backward(create_graph=True),
    "one of them": lambda y, x, w: y.backward(create_graph=True, inputs=[x]),
    "several roots": lambda y, x, w: tg.backward([y, y * y], [None, 2.0], create_graph=True),
    "a cotangent with a history": lambda y, x, w: y.backward(x[0] * 1.0, create_graph=True),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_recorded_backward_as_the_engine_does(way, monkeypatch):
    taken = []
    once = at_once.rerecord
    monkeypatch.setattr(at_once, "rerecord", lambda *args: taken.append(once(*args)) or taken[-1])
    found = steps(WAYS[way])
    assert all(each is not None for each in taken[:2])
    monkeypatch.setattr(at_once, "rerecord", lambda *_: None)
    for mine, other in zip(found, steps(WAYS[way]), strict=True):
        assert (mine is None) == (other is None)
        if mine is not None:
            np.testing.assert_allclose(mine, other, rtol=1e-14)


def test_a_recorded_backward_adds_to_grad():
    x = tg.tensor([1.0, 2.0], requires_grad=True)
    for k in range(1, 4):
        np.sum(x * x).backward(create_graph=True)
        assert x.grad.tolist() == [2.0 * k, 4.0 * k]
        assert x.grad.requires_grad
    x.grad = None


def test_a_recorded_backward_past_leaves_that_are_gone():
    """Which lie on the same tape."""
    for k in range(20):
        x = tg.tensor([1.0, float(k)], requires_grad=True)
        np.sum(x * x).backward(create_graph=True)
        assert x.grad.tolist() == [2.0, 2.0 * k]
        x.grad = None


def test_hooks_of_leaves_see_a_recorded_backward():
    x, seen = tg.tensor([1.0, 2.0], requires_grad=True), []
    x.register_hook(lambda g: seen.append(g) or g * 2.0)
    np.sum(x * x).backward(create_graph=True)
    assert x.grad.tolist() == [4.0, 8.0]
    assert len(seen) == 1
    x.grad = None


def test_a_recorded_backward_shares_no_memory():
    """Where both leaves get the same, and one is given what another Tensor has."""
    x, w = (tg.tensor([1.0, 2.0], requires_grad=True) for _ in range(2))
    ct = tg.tensor([3.0, 4.0], requires_grad=True)
    (x + w).backward(ct, create_graph=True)
    assert x.grad.tolist() == w.grad.tolist() == [3.0, 4.0]
    assert not np.shares_memory(x.grad.detach().numpy(), w.grad.detach().numpy())
    assert not np.shares_memory(x.grad.detach().numpy(), ct.detach().numpy())
