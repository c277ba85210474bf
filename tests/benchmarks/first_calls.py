"""The first calls of functions compiled by `tapegrad.compile`, over those of `tapegrad.func.value_and_grad`.

    python -m tests.benchmarks.first_calls [OPERATIONS ...]
    taskset -c 0 python -m tests.benchmarks.first_calls

Chains of so many operations on numbers ("of 1") and on arrays: fresh functions in turns with recorded ones,
with a pause behind each call or none. Shown are the median of recorded calls; of some of the first calls the
medians over recorded ones at that place; and how many calls, but for the first two, took over a millisecond
more than recorded ones do, of both.
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import sys
from time import sleep

import numpy as np

import tapegrad as tg
from tapegrad.compilation import background
from tests.benchmarks.learning import timed

SIZES, ELEMENTS, PAUSES = (15, 50, 300), (1, 100), (0.0, 0.01)
CALLS, ROUNDS, SHOWN = 30, 20, (0, 1, 2, 3, 5, 9, 19, 29)


def chain(operations):
    def f(x):
        y = x
        for _ in range((operations - 1) // 3):
            y = np.sin(y) * x + 0.1
        return np.sum(y) if np.ndim(y) else y

    return f


def measure(operations, x, pause):
    """Print a row."""
    usual, recorded, compiled = tg.func.value_and_grad(chain(operations)), [], []
    for _ in range(ROUNDS * (1 if pause else 4)):
        for times, of in ((recorded, tg.func.value_and_grad), (compiled, tg.compile)):
            timed(usual, x, CALLS)
            f = of(chain(operations))
            times.append(timed(getattr(f, "value_and_grad", f), x, CALLS, pause))
        del f
        while background.waiting():
            sleep(0.01)
    theirs, mine = np.array(recorded), np.array(compiled)
    ratios = (np.median(mine, 0) / np.median(theirs, 0))[list(SHOWN)]
    late = (100 * np.mean(times[:, 2:] > np.median(theirs) + 1e-3) for times in (mine, theirs))
    print(
        f"{operations:4d} of {np.size(x):3d}{1e3 * pause:9.0f}{1e6 * np.median(theirs):10.0f}",
        *(f"{ratio:6.2f}" for ratio in ratios),
        *(f"{share:9.2f}" for share in late),
        flush=True,
    )


def main():
    other, x = tg.compile(chain(15)), np.linspace(0.1, 1.0, ELEMENTS[-1])
    while "kernel" not in other.explain() or background.waiting():  # code of the library's own is loaded
        other.value_and_grad(x)
    columns = (f"{'call ' * (k == 0) + str(k + 1):>6s}" for k in SHOWN)
    print(f"{'':11s}{'pause ms':>9s}{'us':>9s}", *columns, f"{'late, %':>10s}{'recorded':>9s}")
    for operations in [int(size) for size in sys.argv[1:]] or SIZES:
        for elements in ELEMENTS:
            for pause in PAUSES:
                measure(operations, np.linspace(0.1, 1.0, elements) if elements > 1 else 0.7, pause)


if __name__ == "__main__":
    main()
