"""An interrupt at any moment of recording or sweeping leaves the next gradient exact.

``python tests/test_interrupts.py KIND COUNT`` interrupts one kind of work that many times and prints how
many interrupts arrived, how many were swallowed (Python drops an exception raised in a ``__del__``), and
how many gradients afterwards were not what they should be.
"""

import os
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.engine import sweep
from tapegrad.tape import tape as tapes

KINDS = ["record", "grad", "backward", "create_graph", "threads_of_tapes"]


def leaf(value):
    return tg.tensor(value, requires_grad=True)


class Interrupts:
    """A timer whose handler raises once, at the first chance after a random delay."""

    def __init__(self):
        self.armed, self.delivered, self.swallowed = False, 0, 0
        self.random = np.random.default_rng(1)
        signal.signal(signal.SIGALRM, self.handle)
        sys.unraisablehook = self.lost

    def handle(self, number, frame):
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt

    def lost(self, found):
        if found.exc_type is not KeyboardInterrupt:
            sys.__unraisablehook__(found)
        self.swallowed += 1
        self.armed = True

    def during(self, work, longest):
        self.armed = True
        try:
            signal.setitimer(signal.ITIMER_REAL, self.random.uniform(1e-5, longest), 0.01)
            while True:
                work()
        except KeyboardInterrupt:
            self.delivered += 1
        finally:
            self.armed = False
            signal.setitimer(signal.ITIMER_REAL, 0)


def chain(x, n=200):
    y = x
    for _ in range(n):
        y = np.sin(y) * x + 0.5
    return np.sum(y)


def bits(g):
    return g.detach().numpy().tobytes()


def measure(kind, count):
    x, w = leaf(np.linspace(0.1, 1.0, 7)), leaf(1.25)
    kept = chain(x, 300)  # swept again and again
    work = {
        "record": lambda: chain(x, 500),
        "grad": lambda: tg.grad([kept], [x], grad_outputs=[1.0], retain_graph=True),
        "backward": lambda: chain(w, 30).backward(),
        "create_graph": lambda: tg.grad(tg.grad(chain(x, 20), x, create_graph=True)[0].sum(), x),
        "threads_of_tapes": lambda: tg.grad(chain(w * w, 100), w),
    }[kind]
    if kind == "threads_of_tapes":
        tapes.MAX_RECORDS = 32

    def probe():
        (g,) = tg.grad(chain(x, 5), x, create_graph=True)
        (h,) = tg.grad(np.sum(g * g), x)
        return bits(g), bits(h), bits(tg.grad(chain(w, 50), w)[0])

    reference, kept_reference = probe(), bits(tg.grad(kept, x, retain_graph=True)[0])
    w.grad = None
    interrupts, wrong, messages = Interrupts(), 0, set()
    start = time.perf_counter()
    for _ in range(5):
        work()
    longest = min((time.perf_counter() - start) / 5, 0.02)
    while interrupts.delivered < count:
        w.grad = None
        try:
            interrupts.during(work, longest)
            w.grad = None
            chain(w, 30).backward()
            right = probe() == reference and bits(tg.grad(kept, x, retain_graph=True)[0]) == kept_reference
            right = right and bits(w.grad) == bits(tg.grad(chain(w, 30), w)[0])
        except Exception as error:
            messages.add("".join(traceback.format_exception(error, limit=-4)))
            right = False
        if not right:
            wrong += 1
            if wrong > 5:
                break
    chain(x)
    stuck = len(sweep._busy) + tapes.local.draining + len(tapes.local.unlinking)
    print(interrupts.delivered, interrupts.swallowed, wrong, stuck)
    for message in messages:
        print(message, file=sys.stderr)


@pytest.mark.parametrize("kind", KINDS)
def test_the_next_gradient_is_exact(kind):
    count = 2000 // len(KINDS)
    environment = os.environ | {"PYTHONPATH": str(Path(tg.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, __file__, kind, str(count)],
        capture_output=True, text=True, timeout=300, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    delivered, swallowed, wrong, stuck = map(int, done.stdout.split())
    print(
        f"{kind}: {delivered} interrupts, {swallowed} swallowed besides, {wrong} wrong, {stuck} left claimed"
    )
    assert wrong == 0, done.stderr[-3000:]
    assert delivered == count
    assert stuck == 0


def interrupted_compile(delay):
    """The first gradient of a process is interrupted while it compiles; the second attempt is right."""
    interrupts = Interrupts()
    x = leaf(0.5)

    def work():
        assert tg.grad(np.tanh(x) * np.log1p(x), x)[0].item() != 0.0

    signal.setitimer(signal.ITIMER_REAL, delay)
    interrupts.armed = True
    try:
        work()
    except KeyboardInterrupt:
        interrupts.delivered += 1
    interrupts.armed = False
    found = tg.grad(np.exp(x) * np.log1p(x), x)[0].item()
    print(interrupts.delivered, found == pytest.approx(np.exp(0.5) * (np.log1p(0.5) + 1 / 1.5), rel=1e-14))


@pytest.mark.parametrize("delay", [0.5, 0.9])
def test_an_interrupt_of_the_first_compilation(delay):
    environment = os.environ | {"PYTHONPATH": str(Path(tg.__file__).parents[1]), "TAPEGRAD_CACHE": "off"}
    done = subprocess.run(
        [sys.executable, __file__, "compile", str(delay)],
        capture_output=True, text=True, timeout=300, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split()[-1] == "True", done.stdout


if __name__ == "__main__":
    if sys.argv[1] == "compile":
        interrupted_compile(float(sys.argv[2]))
    else:
        measure(sys.argv[1], int(sys.argv[2]))
