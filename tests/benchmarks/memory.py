"""Peak memory of a gradient beside torch's: each program in a process of its own.

    python -m tests.benchmarks.memory [--quick]
    python -m tests.benchmarks.memory --calls lstm:S ode:S

Programs are the same in both. Printed is how much the resident memory rose above what the process had after
a small gradient (which loads and compiles everything), in MiB: up to the backward, and at its highest; and
the ratio of tapegrad's peak to torch's. The exit status is 1 where that is above 1.1.

Of calls, of GradBench's problems by name and size, it is how much the memory rose above what the process had
after calls of the tiny size: at its highest in the first calls, while `tapegrad.compile` learns and plans,
and in the last ones; recorded, compiled while calls wait for that and while they do not, and by torch. Of all
alike the files of libraries are in memory by then as a whole, and what the C library has free is given back:
else calls that come to other code are counted its pages, and calls that find free memory are not counted it.
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import ctypes
import gc
import importlib
import subprocess
import sys
from time import perf_counter, sleep

import numpy as np

BAR = 1.1


class Tapegrad:
    """tapegrad, on plain NumPy code."""

    def __init__(self):
        tg = importlib.import_module("tapegrad")
        self.namespace = np
        self.leaf = lambda a: tg.tensor(a, requires_grad=True)
        self.constant = tg.tensor


class Torch:
    """torch, on its own namespace."""

    def __init__(self):
        torch = importlib.import_module("torch")
        torch.set_num_threads(1)
        self.namespace = torch
        self.leaf = lambda a: torch.tensor(a, requires_grad=True)
        self.constant = torch.tensor


TOOLS = {"tapegrad": Tapegrad, "torch": Torch}


def perceptron(tool, batch=256, width=1024, layers=4):
    """A perceptron of equal layers, tanh after each, and the mean square of what it gives."""
    random = np.random.default_rng(0)
    x = tool.constant(random.normal(size=(batch, width)))
    weights = [tool.leaf(random.normal(size=(width, width)) / width**0.5) for _ in range(layers)]
    biases = [tool.leaf(np.zeros(width)) for _ in range(layers)]

    def loss():
        h = x
        for w, b in zip(weights, biases, strict=True):
            h = tool.namespace.tanh(h @ w + b)
        return (h * h).mean()

    return loss, [*weights, *biases]


def euler(tool, steps=100_000, size=400):
    """Euler steps of y' = a sin(y), a vector each."""
    y0, a = tool.leaf(np.linspace(0.1, 3.0, size)), tool.leaf(np.full(size, 0.5))

    def loss():
        y = y0
        for _ in range(steps):
            y = y + 1e-4 * (a * tool.namespace.sin(y))
        return y.sum()

    return loss, [y0, a]


PROGRAMS = {
    "MLP": (perceptron, {}, {"batch": 4, "width": 8}),
    "ODE": (euler, {}, {"steps": 3}),
}
QUICK = {"MLP": {"batch": 64, "width": 256}, "ODE": {"steps": 5000}}


def resident():
    """MiB now."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20


def reset_highest():
    """Let the highest be what is resident now."""
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def peak():
    """MiB at the highest since it was reset (Linux)."""
    with open("/proc/self/status") as file:
        words = file.read().split()
    return int(words[words.index("VmHWM:") + 1]) / 2**10


POPULATE_READ = 22  # MADV_POPULATE_READ, of Linux 5.14


def settle():
    """Give back what is free, and have in memory what is read of files."""
    gc.collect()
    library = ctypes.CDLL(None)
    library.madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    with open("/proc/self/maps") as file:
        mapped = [line.split() for line in file]
    for span, mode, _, _, inode, *_ in mapped:
        if inode != "0" and mode.startswith("r"):
            begin, end = (int(x, 16) for x in span.split("-"))
            library.madvise(begin, end - begin, POPULATE_READ)
    library.malloc_trim(0)


def measure(tool, program, quick):
    """Recording's and the gradient's highest rise in MiB, and a checksum of the gradients."""
    build, full, small = PROGRAMS[program]
    tool = TOOLS[tool]()
    loss, leaves = build(tool, **small)
    loss().backward()
    loss, leaves = build(tool, **(QUICK[program] if quick else full))
    reset_highest()
    before = resident()
    value = loss()
    recorded = peak() - before
    value.backward()
    rise = peak() - before
    total = sum(float(np.abs(np.asarray(x.grad.detach().numpy())).sum()) for x in leaves)
    return recorded, rise, total


def run(tool, program, quick):
    """As `measure`, in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.memory", "--one", tool, program]
    command += ["--quick"] * quick
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [float(x) for x in done.stdout.split()]


WAYS = "eager", "wait", "compile", "torch"
FIRST, LAST = {"wait": 8, "compile": 8}, 2  # calls: those that learn, 1 otherwise, and those behind them
SECONDS = 300.0  # that a thread may take for what a call has asked for


def measure_calls(way, name, size):
    """The highest rise in MiB of the first calls of a problem's derivative, and of the last ones."""
    tools = importlib.import_module("tests.benchmarks.gradbench.tools")
    problem = importlib.import_module("tests.benchmarks.gradbench.problems").PROBLEMS[name]
    background = importlib.import_module("tapegrad.compilation.background")
    kinds = {"eager": tools.Eager, "torch": tools.Torch}
    if way == "compile":
        make = tools.tg.compile
        tools.tg.compile = lambda f, where, **options: make(f, where, **options | {"wait": False})
    tool, first, rises = kinds.get(way, tools.Compile)(), FIRST.get(way, 1), []
    for one in ("tiny", size):
        call = tool.derivative(problem)
        variables, data = problem.inputs(*problem.sizes[one], seed=0)
        settle()
        reset_highest()
        before = resident()
        for k in range(first + LAST):
            if k == first:
                rises = [peak() - before]
                reset_highest()
            call([x * (1 + 1e-8 * k) for x in variables], data)
            begin = perf_counter()
            while k < first and background.waiting() and perf_counter() - begin < SECONDS:
                sleep(0.01)
    return *rises, peak() - before


def print_calls(problems):
    """Print the rows of problems, each way in a process of its own."""
    print(f"{'MiB, first (last)':18s}" + "".join(f"{way:>18s}" for way in WAYS))
    for problem in problems:
        line = f"{problem:18s}"
        for way in WAYS:
            command = [sys.executable, "-m", "tests.benchmarks.memory", "--call", way, *problem.split(":")]
            done = subprocess.run(command, check=True, capture_output=True, text=True)
            first, last = map(float, done.stdout.split())
            both = f"{first:.1f} ({last:.1f})"
            line += f"{both:>18s}"
        print(line, flush=True)


def main(argv):
    """Print the table; 1 where a ratio is above the bar."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small programs")
    parser.add_argument("--one", nargs=2, metavar=("TOOL", "PROGRAM"), help="measure in this process")
    parser.add_argument("--calls", nargs="+", metavar="PROBLEM:SIZE", help="of GradBench, in all ways")
    parser.add_argument("--call", nargs=3, metavar=("WAY", "PROBLEM", "SIZE"), help="one, in this process")
    args = parser.parse_args(argv)
    if args.call:
        print(*measure_calls(*args.call))
        return 0
    if args.calls:
        print_calls(args.calls)
        return 0
    if args.one:
        print(*measure(*args.one, args.quick))
        return 0
    missed = 0
    for program in PROGRAMS:
        ours, theirs = (run(tool, program, args.quick) for tool in TOOLS)
        np.testing.assert_allclose(ours[2], theirs[2], rtol=1e-10)
        ratio = ours[1] / theirs[1]
        missed += ratio > BAR
        print(
            f"{program}: tapegrad {ours[0]:.1f} recorded, {ours[1]:.1f} peak; torch {theirs[0]:.1f}, "
            f"{theirs[1]:.1f}; ratio {ratio:.2f} {'met' if ratio <= BAR else 'MISSED'}"
        )
    return int(missed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
