"""From the start of a process to its first gradient, with an empty kernel cache and with a filled one.

    python -m tests.benchmarks.startup [--runs 5]

Each run is a new interpreter that imports NumPy and tapegrad and differentiates a function of ten
operations. Cold runs get a cache directory of their own, warm runs share one that is filled before. On a busy
machine the processor's seconds say more than those that passed.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from statistics import median

BARS = {"cold": 4.0, "warm": 0.9}  # seconds
FIRST_GRADIENT = """
import time
import numpy as np, tapegrad as tg
x = tg.tensor(np.linspace(0.1, 0.9, 10), requires_grad=True)
y = np.sum(np.sin(x) * x + np.exp(-x) / x - np.tanh(x) + 0.5)
(g,) = tg.grad(y, x)
end = time.time(), time.process_time()
v = x.detach().numpy()
by_hand = np.cos(v) * v + np.sin(v) - np.exp(-v) * (1 / v + 1 / v**2) - 1 + np.tanh(v) ** 2
assert np.allclose(g.numpy(), by_hand, rtol=1e-12, atol=0), "the gradient is wrong"
print(*end)
"""


def run(cache):
    """Seconds from before the process exists to when it has its gradient, and those of the processor."""
    environment = {**os.environ, "TAPEGRAD_CACHE": cache}
    begin = time.time()
    done = subprocess.run(
        [sys.executable, "-c", FIRST_GRADIENT], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr)
    end, worked = map(float, done.stdout.split())
    return end - begin, worked


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    times = {"cold": [], "warm": []}
    with tempfile.TemporaryDirectory() as shared:
        run(shared)  # fills the cache, and what the system keeps of files
        for _ in range(runs):
            with tempfile.TemporaryDirectory() as fresh:
                times["cold"].append(run(fresh))
            times["warm"].append(run(shared))
    for kind, found in times.items():
        passed, worked = zip(*found, strict=True)
        met = "met" if median(passed) <= BARS[kind] else "missed"
        print(f"{kind}: median {median(passed):.2f} s, best {min(passed):.2f}, worst {max(passed):.2f} "
              f"of {runs} runs, {min(worked):.2f} of the processor's; bar {BARS[kind]} s {met}")  # fmt: skip


if __name__ == "__main__":
    main()
