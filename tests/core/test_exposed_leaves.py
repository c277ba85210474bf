"""Leaves whose memory others can write to, as what `numpy()` gave out lives: each use has its own values."""

import itertools
import os
import sys
import threading

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.core import base
from tapegrad.core.dispatch import COPIED
from tapegrad.core.storage import sharing
from tapegrad.errors import MutationError
from tapegrad.kernels import abi, machine
from tapegrad.kernels.replay import layout
from tapegrad.tape import tape as tapes
from tapegrad.tape.tape import LARGE
from tests.core.test_recording_any_op import frames


@pytest.fixture(autouse=True)
def compiled():
    machine.load()


def backward(w, x, **given):
    w.backward(**given)
    return x.grad


SWEEPS = {
    "grad": lambda w, x: tg.grad(w, x)[0],
    "recorded": lambda w, x: tg.grad(w, x, create_graph=True)[0],
    "inputs": lambda w, x: backward(w, x, inputs=[x]),
    "backward": backward,
    "recorded backward": lambda w, x: backward(w, x, create_graph=True),
}


def leaf(n=3, dtype=float):
    return tg.tensor(np.linspace(1.0, 2.0, n).astype(dtype), requires_grad=True)


@pytest.mark.parametrize("sweep", SWEEPS)
def test_a_leaf_that_is_nobody_elses_any_more(sweep):
    """What came by each of its imports is its gradient."""
    x = leaf()
    given_out = x.detach().numpy()
    y = x * x
    del given_out
    found = SWEEPS[sweep](np.sum(y + x * x), x)
    assert found.tolist() == (4 * x).tolist()


@pytest.mark.parametrize("sweep", SWEEPS)
@pytest.mark.parametrize("lent", list(itertools.product([False, True], repeat=3)))
def test_a_leaf_that_is_given_out_and_not_by_turns(sweep, lent):
    """To tapes it is another leaf each time."""
    x, w, given_out = leaf(), 0.0, None
    for now in lent:
        del given_out
        given_out = x.detach().numpy() if now else None
        w = w + np.sum(x * x * x) + np.sum(x * 3.0)
    del given_out
    found = SWEEPS[sweep](w, x)
    np.testing.assert_allclose(found.detach().numpy(), 9.0 * x.detach().numpy() ** 2 + 9.0, rtol=1e-14)


def give_out(x):
    x.detach().numpy()


def write(x):
    with tg.no_grad():
        x += 0.0


def let_be_a_constant(x):
    x.requires_grad_(False)
    x.requires_grad_(True)


@pytest.mark.parametrize("sweep", SWEEPS)
@pytest.mark.parametrize("change", [give_out, write, let_be_a_constant])
def test_a_leaf_that_an_older_tape_knew_as_another_one(sweep, change, monkeypatch):
    monkeypatch.setattr(tapes, "MAX_RECORDS", 64)
    tapes.close(tapes.current())
    for _ in range(3):  # what is compiled for the first sweep the others go on with
        x, w = leaf(), leaf()
        y = np.sum(x * x)
        for _ in range(70):
            w = w * 1.0
        change(x)
        z = np.sum(x * 3.0) + y
        assert z._tape is not y._tape
        assert SWEEPS[sweep](z, x).tolist() == (2 * x + 3).tolist()


@pytest.mark.parametrize("sweep", SWEEPS)
def test_a_leaf_that_another_thread_is_about_to_renew(sweep):
    """Tapes know it by one cell, which is noted already as a previous one, by two threads."""
    x = leaf()
    y = np.sum(x * x)
    for _ in range(2):
        base.note_cell(base.extra(x), x._at)
    assert SWEEPS[sweep](y, x).tolist() == (2 * x).tolist()


def test_threads_that_are_given_out_one_memory_share_it():
    """And with it the leaf, which each uses by a value that nobody else writes to."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        for _ in range(40):
            x, found, go = leaf(300), [], threading.Barrier(4)

            def work(x=x, found=found, go=go):
                go.wait(60)
                y = np.sum(x * x)
                given_out = x.detach().numpy()
                found.append((given_out, *tg.grad(y + np.sum(x * 3.0), x)))

            threads = [threading.Thread(target=work, daemon=True) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(60)
            assert len(found) == 4
            for given_out, g in found:
                assert np.shares_memory(given_out, x.detach().numpy())
                np.testing.assert_allclose(g.numpy(), (2 * x + 3).detach().numpy(), rtol=1e-14)
    finally:
        sys.setswitchinterval(before)


def part_written(x):
    y = 1.0 * x
    y[1:] = x[1:]
    return y


USED_MEANWHILE = {
    "function": lambda x: np.sin(x) * 1.0, "number": lambda x: 3.0 * x, "element": lambda x: x[1] * x[0],
    "slices": lambda x: x[:-1] * x[1:], "joined": lambda x: np.concatenate([x, x[1:]]), "sum": np.sum,
    "write": part_written, "checkpoint": lambda x: tg.autograd.checkpoint(np.exp, x),
}  # fmt: skip


@pytest.mark.parametrize("n", [5, LARGE // 8 + 1])
@pytest.mark.parametrize("lent", [False, True])
@pytest.mark.parametrize("use", USED_MEANWHILE)
def test_a_leaf_that_another_thread_gives_out_while_it_is_recorded(use, lent, n):
    """Wherever a use calls Python; what nothing refers to any more is filled with no numbers."""
    wanted = given_out_at(use, n, lent, 0)
    for place in itertools.count(1):
        found = given_out_at(use, n, lent, place)
        if found is None:
            break
        assert found == wanted, place
    assert place > 1


def given_out_at(use, n, lent, place):
    """The gradient of a use of a leaf that is given out by its call of Python of this number, or None."""
    x, given_out, others = leaf(n), [], []
    tapes.close(tapes.current())
    if lent:
        given_out.append(x.detach().numpy())

    def give_out():
        value = x._v
        given_out.clear()
        with tg.no_grad():
            given_out.append(x.numpy())
        if value is not x._v and sys.getrefcount(value) < abi.IN_A_LIST:
            value[...] = np.nan
        del value
        others.extend(leaf(n) for _ in range(3))  # where what is gone was

    y = interrupted(USED_MEANWHILE[use], x, place, give_out)
    if place and not others:
        return None
    return tg.grad(np.sum(y * 1.0) + np.sum(x * 3.0), x)[0].tolist()


def interrupted(use, x, place, call):
    """What a use gives at whose call of Python of this number, if there is one, another thread does this."""
    entered = itertools.count(1)

    def look(frame, event, _):
        ours = frame.f_code.co_filename.startswith(os.path.dirname(tg.__file__))
        if event == "call" and ours and not sharing()._is_owned() and next(entered) == place:
            thread = threading.Thread(target=call)
            thread.start()
            thread.join(60)

    before = sys.getprofile()
    sys.setprofile(look)
    try:
        return use(x)
    finally:
        sys.setprofile(before)


def square_written(x):
    y = 1.0 * x
    y[1:] = x[1:]
    return y * y


def inverse(x):
    return 1.0 / x


OWN_VALUES = {  # a use, and what its gradient is by its result
    "exp": (np.exp, lambda y: y),
    "log": (np.log, lambda y: np.exp(-y)),
    "inverse": (inverse, lambda y: -y * y),
    "square": (lambda x: x * x, lambda y: 2.0 * np.sqrt(y)),
    "part": (lambda x: x[:] ** 2, lambda y: 2.0 * np.sqrt(y)),
    "write": (square_written, lambda y: 2.0 * np.sqrt(y)),
}


def write(given_out, now):
    """Change what a thread was given, unless there is a view with a history: then it is read-only."""
    if now and given_out[0].flags.writeable:
        given_out[0][...] *= 0.5


@pytest.mark.parametrize("n", [5, COPIED // 8 + 1])
@pytest.mark.parametrize("soon", [False, True])
@pytest.mark.parametrize("name", OWN_VALUES)
def test_a_leaf_that_another_thread_gives_out_and_writes_to_while_it_is_recorded(name, soon, n):
    """Soon, or when the use is recorded: it has its own values, or is refused."""
    use, wanted = OWN_VALUES[name]
    for place in itertools.count(1):
        x, given_out = leaf(n), []
        tapes.close(tapes.current())

        def give_out(x=x, given_out=given_out):
            given_out.append(lent(x))
            write(given_out, soon)

        y = interrupted(use, x, place, give_out)
        if not given_out:
            break
        write(given_out, True)
        try:
            found = tg.grad(np.sum(y), x)[0]._v
        except MutationError:
            continue
        np.testing.assert_allclose(found, wanted(y._v), rtol=1e-12, err_msg=str(place))
    assert place > 1


def lent(x):
    with tg.no_grad():
        return x.numpy()


def test_a_view_that_another_thread_records_while_its_leaf_is_given_out():
    """Nobody else can write to it."""
    for place in itertools.count(1):
        x, parts = leaf(LARGE // 8 + 1), []
        given_out = interrupted(lent, x, place, lambda x=x, parts=parts: parts.append(x[:]))
        if not parts:
            break
        write([given_out], True)
        y = parts[0] * parts[0]
        write([given_out], True)
        assert tg.grad(np.sum(y), x)[0].tolist() == (2.0 * np.sqrt(y._v)).tolist(), place
    assert place > 1


@pytest.mark.parametrize("sweep", SWEEPS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("nbytes", [8, LARGE - 8, LARGE, LARGE + 8, COPIED - 8, COPIED, COPIED + 8])
def test_each_use_has_its_own_values(sweep, dtype, nbytes):
    """Up to what is copied; more is written to by nobody here."""
    x = leaf(nbytes // np.dtype(dtype).itemsize, dtype)
    at = x.detach().numpy()
    first = at.copy()
    y = x * x + np.sin(x) * x
    if nbytes <= COPIED:
        at *= 2.0
    second = at.copy()
    z = y + x * x * x
    found = SWEEPS[sweep](np.sum(z), x)
    wanted = 2 * first + np.cos(first) * first + np.sin(first) + 3 * second**2
    np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-5 if dtype == "float32" else 1e-13)


@pytest.mark.parametrize("sweep", SWEEPS)
def test_what_is_too_large_for_a_copy_is_checked(sweep):
    x = leaf(10_000)
    at = x.detach().numpy()
    w = np.sum(x * x)
    at[-1] += 1.0
    with pytest.raises(MutationError):
        SWEEPS[sweep](w, x)


@pytest.mark.parametrize("sweep", SWEEPS)
@pytest.mark.parametrize("n", [10, 10_000])
def test_the_same_memory_as_a_leaf_and_as_a_constant(sweep, n):
    for first in (True, False):
        x = leaf(n)
        at = x.detach().numpy()
        other = tg.from_numpy(at).requires_grad_()
        w = np.sum(x * at + at * x + at * other * x)
        found = SWEEPS[sweep](w, x if first else other)
        np.testing.assert_allclose(found.detach().numpy(), 2 * at * first + at * at, rtol=1e-14)


@pytest.mark.parametrize("sweep", SWEEPS)
def test_parts_are_results(sweep):
    """Of values of their own."""
    x = leaf(10)
    at = x.detach().numpy()
    part = x[2:5]
    y = np.sum(part * x[:3] + x.reshape(2, 5)[0, :3])
    at[:] = 0.0
    assert part.tolist() == np.linspace(1.0, 2.0, 10)[2:5].tolist()
    z = SWEEPS[sweep](y + np.sum(np.exp(x)), x)
    v = np.linspace(1.0, 2.0, 10)
    wanted = np.ones(10)
    wanted[2:5] += v[:3]
    wanted[:3] += v[2:5] + 1
    np.testing.assert_allclose(z.detach().numpy(), wanted, rtol=1e-14)


USES = {  # what NumPy makes views for, and what it does not
    "slice": lambda x: x[1:-1], "reversed": lambda x: x[::-2], "new axis": lambda x: x[None, 2:],
    "element": lambda x: x[3], "all of it": lambda x: x[...], "reshape": lambda x: x.reshape(2, -1),
    "transpose": lambda x: x.reshape(2, -1).T, "expand_dims": lambda x: np.expand_dims(x, 1),
    "broadcast_to": lambda x: np.broadcast_to(x, (2, len(x))), "ravel": lambda x: x.ravel(),
    "gather": lambda x: x[[0, 2, 0]], "sum": lambda x: np.sum(x), "max": lambda x: np.max(x),
    "product": lambda x: x @ x, "with an array": lambda x: np.concatenate([x, np.ones(2, x.dtype)]),
}  # fmt: skip


@pytest.mark.parametrize("sweep", SWEEPS)
@pytest.mark.parametrize("dtype", ["float32", "complex128"])
@pytest.mark.parametrize("use", USES)
def test_each_function_makes_results_of_their_own(use, dtype, sweep):
    """Nobody's writes reach them."""
    if use != "max" or dtype != "complex128":
        for nbytes in (160, LARGE, LARGE + 32, COPIED, COPIED + 32):
            compare_with_a_leaf_of_nobody_elses(use, nbytes, dtype, sweep)


def compare_with_a_leaf_of_nobody_elses(use, nbytes, dtype, sweep):
    """What is too large for a copy is not written to before the sweep."""
    mine = leaf(nbytes // np.dtype(dtype).itemsize, dtype)
    x = tg.tensor(mine.detach().numpy().copy(), requires_grad=True)
    at = x.detach().numpy()
    results = USES[use](x), USES[use](mine)
    given_out = results[0].detach().numpy().copy()
    twice = np.sum(results[0] * results[0] * USES[use](x)), np.sum(results[1] * results[1] * USES[use](mine))
    before = at.copy()
    if nbytes <= COPIED:
        at[:] = 0.0
    assert np.array_equal(results[0].detach().numpy(), given_out)
    found, wanted = (
        SWEEPS[sweep](np.real(w), leaf_).detach().numpy() for w, leaf_ in zip(twice, (x, mine), strict=True)
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-6 if dtype == "float32" else 1e-14)
    at[:] = before
    at += 1.0
    assert np.array_equal(results[0].detach().numpy(), given_out)


@pytest.mark.parametrize("sweep", SWEEPS)
@pytest.mark.parametrize("order", ["read first", "read last"])
def test_uses_whose_values_no_derivative_reads(sweep, order):
    x = leaf(LARGE // 8 + 1)
    at = x.detach().numpy()
    first = at.copy()
    y = x * x if order == "read first" else x + 1.0
    at[0] = 5.0
    y = y + 2.0 * x + (x * 3.0 if order == "read first" else x * x)
    found = SWEEPS[sweep](np.sum(y), x)
    wanted = 2 * first + 5 if order == "read first" else 2 * at + 3
    np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-14)


@pytest.mark.skipif(not abi.native() or bool(layout.BOUNDS), reason="compiled code records")
@pytest.mark.parametrize("n", [10, 2_000, 10_000])
def test_frames_of_python(n):
    """Only those which tell whether somebody still has the memory, and which find memory."""
    x = leaf(n)
    at = x.detach().numpy()
    y = np.sin(x) * x + x * x  # on a tape that is open from then on
    use = lambda: (np.sin(x) * x + x * y, x[1:] * x[:-1] * x[3])
    use()  # makes what stands for values of these shapes
    entered = frames(use)
    memory = {"empty_like", "empty", "_used_again", "location", "shadow", "shadow_of"}
    assert {*entered} <= {"exposed"} | memory
    assert x.tolist() == at.tolist()
