"""Anomaly mode on random programs: the line at fault, exactly."""

import warnings

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.errors import AnomalyError
from tests.faults import BACKWARD, FORWARD, Program, arguments

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
FAULTS = [*BACKWARD, *FORWARD]


def gradients(run, values):
    x, y, mask = values
    leaves = [tg.tensor(x, requires_grad=True), tg.tensor(y, requires_grad=True)]
    out = run(np, *leaves, mask)
    return out, tg.grad(out, leaves, allow_unused=True)


def check(seed, operations, path):
    """The message of a random program's error, beside the line that is at fault."""
    rng = np.random.default_rng(seed)
    fault = FAULTS[seed % len(FAULTS)]
    program = Program(rng, operations, fault)
    values = arguments(rng)
    run = program.compiled(path)
    with tg.autograd.detect_anomaly(), pytest.raises(AnomalyError) as caught:
        gradients(run, values)
    text = program.text.splitlines()[program.line - 1].strip()
    place = f'File "{path}", line {program.line}, in run: {text}'
    message = str(caught.value)
    if fault in FORWARD:
        message = message[message.index("; ", message.index("forward is at")) :]
        assert f"at {place} made the first value that is not finite" in message, (fault, message)
    else:
        assert f"its forward is at {place}" in message, (fault, message)
        assert "not finite" not in message, (fault, message)


@pytest.mark.parametrize("seed", range(len(FAULTS)))
def test_the_line_at_fault_is_named(seed, tmp_path):
    check(seed, 300, tmp_path / "program.py")


@pytest.mark.parametrize("seed", [3, 8])
def test_the_line_at_fault_is_named_over_many_tapes(seed, tmp_path):
    check(100 + seed, 10_000, tmp_path / "program.py")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100))
def test_the_line_at_fault_is_named_in_a_hundred_programs(seed, tmp_path):
    check(1000 + seed, 10_000, tmp_path / "program.py")


def test_sound_programs_have_no_anomaly_and_the_same_gradients(tmp_path):
    for seed in range(4):
        rng = np.random.default_rng(seed)
        run = Program(rng, 500).compiled(tmp_path / "program.py")
        values = arguments(rng)
        _, plain = gradients(run, values)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with tg.autograd.detect_anomaly():
                _, watched = gradients(run, values)
        for a, b in zip(plain, watched, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                np.testing.assert_array_equal(a.numpy(), b.numpy())
