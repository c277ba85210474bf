"""Tapes with many values that the user keeps: looked at again and again, pruned when one was let go of."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.kernels import abi
from tapegrad.tape import tape as tapes


@pytest.fixture
def prunings(monkeypatch):
    if tapes.local.tape is not None:  # another test's records
        tapes.close(tapes.local.tape)
    found, prune = [], tapes.Tape.prune

    def noted(self, mine=None):
        found.append(self.serial)
        return prune(self, mine)

    monkeypatch.setattr(tapes.Tape, "prune", noted)
    return found


def close_some(count):
    """Close tapes that live on, as age does its work when one is closed."""
    kept = []
    for _ in range(count):
        kept.append(tg.tensor(1.0, requires_grad=True) * 2.0)
        tapes.close(tapes.local.tape)
    return kept


@pytest.mark.skipif(not abi.native(), reason="reference counts are read in compiled code")
@pytest.mark.parametrize("shape", [(), (3,)])
def test_a_tape_whose_handles_all_live_is_pruned_once(prunings, shape):
    x = tg.tensor(np.full(shape, 0.5), requires_grad=True)
    values = [x * x for _ in range(200)]
    tape = values[0]._tape
    tapes.close(tape)
    rest = close_some(40)
    assert prunings.count(tape.serial) == 1
    assert len(tape.held) == 200
    del values[::2]
    rest += close_some(100)
    assert prunings.count(tape.serial) == 2
    assert len(tape.held) == 100
    (g,) = tg.grad(np.sum(values[0]), x)
    np.testing.assert_array_equal(g.numpy(), np.full(shape, 1.0))


@pytest.mark.parametrize("gone", [1, 100, 199])
def test_values_let_go_of_leave_the_tape(gone):
    """Few or many: those that a derivative reads stay."""
    x = tg.tensor(0.5, requires_grad=True)
    values = [np.sin(x * float(k)) for k in range(200)]
    tape = values[0]._tape
    tapes.close(tape)
    kept = values[gone:]
    del values
    tape.prune()
    there = sum(value is not None for value in tape.columns.values)
    tape.prune()
    assert there == sum(value is not None for value in tape.columns.values)
    assert len(tape.held) == len(kept)
    total = kept[0]
    for value in kept[1:]:
        total = total + value
    (g,) = tg.grad(total, x)
    assert g.item() == pytest.approx(sum(k * np.cos(0.5 * k) for k in range(gone, 200)), rel=1e-12)


VIEWS = {"transposed": lambda x: x.T, "sliced": lambda x: x[1:], "reshaped": lambda x: x.reshape(-1)}


@pytest.mark.parametrize("name", VIEWS)
def test_views_of_leaves_weigh_nothing(name):
    """They lie in memory that the leaf has; a value of the tape's own ends it when so much is kept."""
    n = int((tapes.MAX_BYTES / 8) ** 0.5) + 2
    x = tg.tensor(np.linspace(-1, 1, n * n).reshape(n, n), requires_grad=True)
    for own in (False, True):
        tg.tensor(1.0, requires_grad=True) * 2.0
        tapes.close(tapes.local.tape)
        part = VIEWS[name](x * 1.5 if own else x)
        y = np.sum(part * part)
        assert (y._tape.limit <= 0 or len(y._tape.older) > 0) == own
        (g,) = tg.grad(y, x)
        wanted = x.detach().numpy() * (4.5 if own else 2.0)
        wanted[: name == "sliced"] = 0
        np.testing.assert_allclose(g.numpy(), wanted, rtol=1e-14)
