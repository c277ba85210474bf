"""What a gradient of one operation costs beside torch: every call of `op_table`, recorded and swept back.

    python -m tests.benchmarks.ops [--n 10 100] [--dtypes float64 float32] [--only NAME ...] [--json FILE]

Operands are ``x * 1.0`` of leaves, made anew in each call, so that the operation is recorded on a history;
then its gradients by the leaves are taken with a cotangent of the result's shape. The multiplications are
in the times of both. Results and gradients are compared with torch's first. Then each round calls both in
turn, on one thread. What is taken is the thread's time on the processor, which a busy machine disturbs
least. Printed are best times in microseconds per call, ratios of ours to torch's, that of the best times
and the median of the rounds'; and geometric means of both, for elementwise operations apart from all
others.
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import argparse
import importlib
import json
import warnings
from functools import partial
from time import thread_time

import numpy as np

import tapegrad as tg

from .op_table import ELEMENTWISE, OTHERS
from .rounds import difference, in_turns, ratios

SLOWER = 1.1  # ours to torch's: rows above are named
TURN, LONGEST_TURN = 2e-3, 100  # seconds of a tool's turn in a round, and calls at most
ROUNDS = 15
TOLERANCE = {"float64": 1e-9, "float32": 2e-3}


class Tapegrad:
    """tapegrad, on NumPy; constants are plain arrays."""

    name, namespace = "ours", np
    constant = staticmethod(np.asarray)
    tensor, grad = staticmethod(tg.tensor), staticmethod(tg.grad)

    def operand(self, letter, array):
        """What makes an operand of each call, and the leaf if it has one."""
        if letter.islower():
            constant = self.constant(array)
            return lambda: constant, None
        leaf = self.tensor(array, requires_grad=True)
        return lambda: leaf * 1.0, leaf

    def calls(self, row, arrays):
        """Functions that compute a row's result, and its gradients by a cotangent."""
        _, letters, *functions = row
        function = functions[self.name == "torch" and len(functions) > 1]
        made = [self.operand(letter, arrays[letter.lower()]) for letter in letters]
        makers, leaves = [make for make, _ in made], [leaf for _, leaf in made if leaf is not None]
        namespace, grad = self.namespace, self.grad

        def value():
            return function(namespace, *[make() for make in makers])

        def gradients(cotangent):
            return grad(function(namespace, *[make() for make in makers]), leaves, cotangent)

        return value, gradients


class Torch(Tapegrad):
    """torch, on one thread."""

    name = "torch"

    def __init__(self):
        self.namespace = torch = importlib.import_module("torch")
        torch.set_num_threads(1)
        self.constant = self.tensor = torch.tensor
        self.grad = torch.autograd.grad


def operands(n, dtype):
    """Arrays by the letters of the table."""
    random = np.random.default_rng(0)
    basis = np.linalg.qr(random.normal(size=(n, n)))[0]

    def numbers(*shape):
        return random.uniform(0.2, 1.0, shape)

    found = {
        "v": numbers(n), "w": numbers(n), "u": 1 + numbers(n), "m": numbers(n, n), "n": numbers(n, n),
        "d": (basis * np.arange(1.0, n + 1)) @ basis.T, "r": numbers(2 * n, n), "p": numbers(n, 3),
        "g": np.diag(np.arange(1.0, n + 1)) + numbers(n, n) / n / 10, "q": numbers(n, 3),
        "t": numbers(n // 5, 5, 5) + 5 * np.eye(5), "s": numbers(), "h": numbers(n),
        "x": (np.eye(6) + numbers(6, 6) / 10).reshape(2, 3, 3, 2),
    }  # fmt: skip
    found["h"][::3] = np.nan
    return {letter: a.astype(dtype) for letter, a in found.items()} | {
        "c": (numbers(n) + 1j * numbers(n)).astype(np.result_type(dtype, np.complex64)),
        "i": random.integers(0, n, n), "j": random.integers(0, 3, n), "k": random.permutation(n),
        "b": random.uniform(size=n) > 0.5,
    }  # fmt: skip


def array(result):
    """A Tensor's values."""
    return np.asarray(result.detach().resolve_conj() if hasattr(result, "resolve_conj") else result.detach())


def compared(row, tools, arrays, dtype):
    """Calls to be timed, by tool, after results and gradients were found to be the same."""
    calls = {tool.name: tool.calls(row, arrays) for tool in tools}
    values = {name: value() for name, (value, _) in calls.items()}
    ours, theirs = map(array, values.values())
    random = np.random.default_rng(1)
    cotangent = random.uniform(0.5, 1.0, ours.shape)
    if np.iscomplexobj(ours) and np.iscomplexobj(theirs):
        cotangent = cotangent + 1j * random.uniform(0.5, 1.0, ours.shape)
    ready = {}
    for tool, given in zip(tools, (ours, theirs), strict=True):
        ready[tool.name] = partial(calls[tool.name][1], tool.tensor(cotangent.astype(given.dtype)))
    found = [[value, *map(array, call())] for value, call in zip((ours, theirs), ready.values(), strict=True)]
    for one, another in zip(*found, strict=True):
        assert one.shape == another.shape, f"{row[0]}: shapes {one.shape} and torch's {another.shape}"
        holes = np.isnan(one)
        np.testing.assert_array_equal(holes, np.isnan(another), err_msg=row[0])
        if np.any(another[~holes]):
            apart = difference(one[~holes], another[~holes])
            assert apart <= TOLERANCE[dtype], f"{row[0]}: {apart:.1e} from torch's"
        else:
            assert not np.any(one[~holes]), f"{row[0]}: torch's are zero"
    return ready


def measured(row, tools, arrays, dtype):
    """Best seconds of both, and the ratios of ours to torch's: of the best and the median."""
    calls = compared(row, tools, arrays, dtype)
    once = in_turns(calls, 2, clock=thread_time)
    inner = {name: int(np.clip(TURN / rows.min(), 1, LONGEST_TURN)) for name, rows in once.items()}
    ours, theirs = in_turns(calls, ROUNDS, inner, clock=thread_time).values()
    median, best = ratios(ours, theirs)[:, 0]
    return ours.min(), theirs.min(), best, median


def summary(title, rows):
    """Geometric means, and the rows that are slower."""
    logs = np.log([row[-2:] for row in rows])
    slower = sorted((row for row in rows if row[3] > SLOWER), key=lambda row: -row[3])
    best, median = np.exp(logs.mean(axis=0))
    print(f"{title}: geometric mean of {len(rows)} rows {best:.2f}, of medians {median:.2f}; ", end="")
    print(f"{len(slower)} above {SLOWER}" + "".join(f"\n    {row[3]:5.2f}  {row[0]}" for row in slower))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n", type=int, nargs="+", default=[10, 100], help="elements of vectors")
    parser.add_argument("--dtypes", nargs="+", default=list(TOLERANCE), choices=list(TOLERANCE))
    parser.add_argument("--only", nargs="+", metavar="NAME", help="names of rows, or up to the comma")
    parser.add_argument("--json", metavar="FILE", help="write all figures there")
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # torch's, of names that will change
    tools, kept = [Tapegrad(), Torch()], []
    for n in args.n:
        for dtype in args.dtypes:
            arrays = operands(n, dtype)
            print(f"\nn = {n}, {dtype}\n{'':32s}{'ours':>10s}{'torch':>10s}   best, median", flush=True)
            for title, table in (("elementwise", ELEMENTWISE), ("others", OTHERS)):
                rows = []
                for row in table:
                    if args.only and not {row[0], row[0].split(",")[0]} & set(args.only):
                        continue
                    ours, theirs, best, median = figures = measured(row, tools, arrays, dtype)
                    rows.append((row[0], *figures))
                    times = f"{1e6 * ours:10.1f}{1e6 * theirs:10.1f}"
                    print(f"{row[0]:32s}{times}{best:7.2f}{median:8.2f}", flush=True)
                if rows:
                    summary(title, rows)
                names = "name", "ours", "torch", "best", "median"
                of_all = {"n": n, "dtype": dtype, "kind": title}
                kept += [of_all | dict(zip(names, row, strict=True)) for row in rows]
    if args.json:
        with open(args.json, "w") as file:
            json.dump(kept, file, indent=1)


if __name__ == "__main__":
    main()
