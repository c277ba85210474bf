"""What compiling takes: CPU seconds of new processes until a derivative is there, beside bars.

    python -m tests.benchmarks.compile [--only scalar array ...] [--runs 3]

Each row is a process of its own, best of several; importing is not counted. Caches of the user's functions
are empty, but where a second process is measured; what the library keeps of itself has been compiled before.
All results are compared with differences. Programs of 20 to 60 lines are written at random, alike each time.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAMS = '''
import math
import numpy as np

def scalar(x, y):
    a = math.exp(x) * y
    b = math.sin(a) + x / y
    c = a * b - math.log(y)
    d = math.sqrt(c * c + 1.0)
    return d * a - b

def array(x, a):
    return np.sum(np.sin(x) * a + np.exp(-x * x) / (1.0 + a))

def network(w1, b1, w2, b2, w3, b3, x, y):
    h = np.tanh(x @ w1 + b1)
    h = np.tanh(h @ w2 + b2)
    out = (h @ w3 + b3)[:, 0]
    return np.mean((out - y) ** 2)

def kalman(w, y):
    noise = math.exp(w[0])
    drift = math.exp(w[1])
    level = y[0]
    variance = noise + drift
    total = 0.0
    for t in range(1, y.size):
        surprise = y[t] - level
        spread = variance + noise
        total += math.log(2 * math.pi * spread) + surprise * surprise / spread
        gain = variance / spread
        level = level + gain * surprise
        variance = variance * (1.0 - gain) + drift
    return 0.5 * total

rng = np.random.default_rng(0)
ARGS = {
    "scalar": (0.3, 1.7),
    "array": (np.linspace(0.1, 0.9, 5), np.linspace(1.0, 2.0, 5)),
    "network": (rng.normal(size=(64, 256)) / 8, np.zeros(256), rng.normal(size=(256, 256)) / 16,
                np.zeros(256), rng.normal(size=(256, 1)) / 16, np.zeros(1), rng.normal(size=(8, 64)),
                rng.normal(size=8)),
    "kalman": (np.array([0.3, -0.2]), np.linspace(0.0, 3.0, 20)),
}

def numbers(x):
    """All numbers of a result, one after the other."""
    return np.concatenate([np.ravel(part) for part in (x if isinstance(x, tuple) else (x,))])

def along(f, args, moving, step=1e-5):
    """The derivative of a function of these arguments along a direction, and the direction."""
    rng = np.random.default_rng(1)
    d = [rng.normal(size=np.shape(args[k])) for k in moving]
    sides = []
    for sign in (1, -1):
        moved = list(args)
        for k, v in zip(moving, d):
            moved[k] = moved[k] + sign * step * v
        sides.append(numbers(f(*moved)))
    return (sides[0] - sides[1]) / (2 * step), np.concatenate([v.ravel() for v in d])

def check(f, args, moving, found):
    """Compare a derivative with differences of what it is the derivative of."""
    about, d = along(f, args, moving)
    product = found.reshape(-1, d.size) @ d
    assert np.allclose(product, about, rtol=1e-6, atol=1e-7), (product, about)
'''
ONE = """
import time
import numba, numpy as np, tapegrad as tg
import programs
name, kinds, cache, moving = {name!r}, {kinds!r}, {cache!r}, {moving!r}
args, found = programs.ARGS[name], {{}}
begin = time.process_time()
if kinds:
    f = tg.njit(getattr(programs, name), cache=cache)
    for kind in kinds:
        argnums = (moving if len(moving) > 1 else moving[0],) if kind == "grad" else ()
        found[kind] = getattr(tg.func, kind)(f, *argnums)(*args)
else:
    value = numba.njit(getattr(programs, name), cache=cache)(*args)
end = time.process_time()
plain = getattr(programs, name)
if "grad" in found:
    programs.check(plain, args, moving, programs.numbers(found["grad"]))
if "hessian" in found:
    gradient = tg.func.grad(f)
    programs.check(gradient, args, (0,), programs.numbers(found["hessian"]))
if not kinds:
    assert np.allclose(value, plain(*args), rtol=1e-12)
print(end - begin)
"""
RANDOM = """
import time
import numba, numpy as np, tapegrad as tg
import programs
text, x = {text!r}, np.array([0.37, -0.61, 0.83, 0.21])
plain, compiled = ({{"np": np}} for _ in range(2))
exec(text, plain)
exec(text, compiled)
for name in [name for name in compiled if name.startswith("helper")]:
    compiled[name] = numba.njit(compiled[name])
begin = time.process_time()
found = tg.func.grad(tg.njit(compiled["program"]))(x)
end = time.process_time()
programs.check(plain["program"], (x,), (0,), found)
print(end - begin)
"""


KINDS = ["vector", "vector", "scalar", "scalar", "cell", "slice", "loop", "if", "sum", "product"]


def written(lines, seed):
    """A program of so many lines with helpers, loops and arrays: a function of an array of four numbers."""
    draw = random.Random(seed)
    vectors, scalars = ["x", "u", "v", "w"], ["a", "b", "x[0]", "u[1]", "v[2]"]
    unary = ["np.sin({})", "np.tanh({})", "np.exp(-{0} * {0})", "np.sqrt({0} * {0} + 1.0)", "np.abs({})",
             "np.log1p({0} * {0})", "np.arctan({})"]  # fmt: skip
    binary = ["{} + {}", "{} - {}", "{} * {} * 0.5", "{0} / ({1} * {1} + 1.0)", "np.maximum({}, {})"]

    def expression(names):
        one, other = draw.choice(names), draw.choice(names)
        text = draw.choice(unary + binary).format(one, other)
        return f"{draw.choice(names)} * 0.3 + {text}"

    body = ["u = x * 0.7", "v = np.sin(x) + 0.1", "w = np.zeros(4)", "a = x[0] * x[1]", "b = u.sum()"]
    while len(body) < lines - 13:
        kind = draw.choice(KINDS)
        v, s = draw.choice(vectors[1:]), draw.choice(scalars[:2])
        if kind == "vector":
            called = f"helper1({draw.choice(vectors)}, {s})"
            body.append(f"{v} = {draw.choice([expression(vectors), called])}")
        elif kind == "scalar":
            called = f"helper0({s}, {draw.choice(scalars)})"
            body.append(f"{s} = {draw.choice([expression(scalars), called])}")
        elif kind == "cell":
            body.append(f"{v}[{draw.randrange(4)}] {draw.choice(['=', '+='])} {expression(scalars)}")
        elif kind == "slice":
            body.append(f"{v}[1:] = {draw.choice(vectors)}[:3] * 0.5")
        elif kind == "loop":
            body += ["for i in range(4):", f"    {s} += {v}[i] * 0.25", f"    {v}[i] = {expression(scalars)}"]
        elif kind == "if":
            body += [f"if {s} > {draw.uniform(-1, 1):.4f}:", f"    {s} = {expression(scalars)}"]
        elif kind == "sum":
            body.append(f"{s} = {draw.choice(['np.sum({})', 'np.mean({})', '{}.sum()']).format(v)}")
        else:
            body.append(f"{s} = {draw.choice(vectors)} @ {draw.choice(vectors)} * 0.2")
    body.append("return np.sum(u * v + w) + a - b * 0.5")
    helpers = ["def helper0(a, b):", "    if a > b:", "        return a * b",
               f"    return {expression(['a', 'b'])}", "def helper1(x, a):", "    y = np.zeros(x.size)",
               "    for i in range(x.size):", "        y[i] = x[i] * a + np.cos(x[i])",
               "    return y"]  # fmt: skip
    return "\n".join([*helpers, "def program(x):", *("    " + line for line in body)]) + "\n"


# what is asked of a program, the bar in seconds, and whether that is beyond the program itself by Numba
ROWS = {
    "scalar": ("scalar", ("grad",), 0.5, True),
    "array": ("array", ("grad",), 2.0, False),
    "array_hessian": ("array", ("hessian",), 4.0, False),
    "network": ("network", ("grad",), 8.0, False),
    "example": ("kalman", ("grad", "hessian"), 10.0, False),
}
SECOND = 0.2  # seconds that gradient and Hessian may take in a second process beyond what Numba has cached
LINE = 0.2  # seconds for a line of a program
LINES = (20, 30, 40, 50, 60)


class Processes:
    """New processes that share a folder of the library's cache, and find the programs."""

    def __init__(self, folder, runs):
        self.folder, self.runs = Path(folder), runs
        (self.folder / "programs.py").write_text(PROGRAMS, "utf-8")
        self.environment = os.environ | {
            "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "TAPEGRAD_CACHE": str(self.folder / "cache"),
            "PYTHONPYCACHEPREFIX": str(self.folder / "bytecode"),
        }  # fmt: skip
        self.environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def seconds(self, code):
        """What a process prints; it is run once before that counts."""
        found = []
        for _ in range(self.runs + 1):
            done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", code], cwd=self.folder,
                                  env=self.environment, capture_output=True, text=True)  # fmt: skip
            if done.returncode:  # below 0 the number of a signal, as of a crash
                words = f"{code}\nended with {done.returncode}:\n{done.stdout}{done.stderr}"
                raise RuntimeError(words)
            found.append(float(done.stdout))
        return min(found[1:])

    def of(self, name, kinds, cache=False):
        moving = tuple(range(6)) if name == "network" else (0,)
        return self.seconds(ONE.format(name=name, kinds=kinds, cache=cache, moving=moving))


def told(name, seconds, bar, words=""):
    met = "met" if seconds <= bar else "missed"
    print(f"{name:16s} {seconds:6.2f} s, bar {bar:5.2f} {met}{words}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="*", default=[*ROWS, "second", "random"])
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        processes = Processes(folder, options.runs)
        for name, (program, kinds, bar, beyond) in ROWS.items():
            if name in options.only:
                seconds = processes.of(program, kinds)
                words = ""
                if beyond:
                    value = processes.of(program, ())
                    words = f": {seconds:.2f} beside {value:.2f} for the program itself"
                    seconds -= value
                told(name, seconds, bar, words)
        if "second" in options.only:
            value = processes.of("kalman", (), True)
            seconds = processes.of("kalman", ("grad", "hessian"), True)
            told("second process", seconds - value, SECOND, f": {seconds:.2f} beside {value:.2f} for Numba's")
        if "random" in options.only:
            for lines in LINES:
                text = written(lines, lines)
                count = text.count("\n")
                seconds = processes.seconds(RANDOM.format(text=text))
                told(f"{count} lines", seconds / count, LINE, f" a line: {seconds:.2f} in all")


if __name__ == "__main__":
    main()
