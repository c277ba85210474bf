"""Random programs of numbers in loops: branches, powers, choices, writes, 0-d views, errors, kept Tensors.

Loops are rolled from few rows on, their turns change between calls, and some arguments are nan, infinite,
subnormal or signed zeros. ``python -m tests.compilation.random_loops 2000 2300`` calls the programs of these
seeds, each 20 times, as `tg.compile` and as recording have them: some three CPU seconds each.
"""

import math
import random
import sys
import types

import numpy as np

import tapegrad as tg
from tapegrad.compilation.plans import rolling

from .test_hostile import array_of, outcome

CALLS = 20
WAYS = {"wait": {"wait": True}, "background": {}, "replay": {"wait": True, "replay": True}}
SPECIAL = [np.nan, np.inf, -np.inf, -0.0, 0.0, 5e-324, -1e-310, 1e200, -1e200, 1e-200, 1e308]

NUMBERS = ["p", "q", "t", "x[i % n]", "x[-1]", "x[k % n]"]
CONSTANTS = [*"30", "0.9", "-0.3", "2.0", "0.01", "world.g", "G", "c", "np.float64(0.7)", "math.sin(0.1 * i)"]
UNARY = ["sin", "cos", "tanh", "exp", "log", "sqrt", "abs", "sign", "floor", "square", "cbrt", "arcsin"]
BINARY = ["maximum", "minimum", "hypot", "arctan2", "logaddexp", "fmod", "copysign"]
EXPRESSIONS = [
    *["({} + {})", "({} - {})", "({} * {})", "({} / {})"] * 4,
    *(f"np.{name}({{}})" for name in UNARY),
    *(f"np.{name}({{}}, {{}})" for name in BINARY),
    *["np.exp(-np.abs({}))", "np.log(np.abs({}) + 0.1)", "-({})", "abs({})", "np.clip({}, -2.0, 2.0)"] * 2,
    *["np.where({} > {}, {}, {})", "({} * ({} < {}))"] * 2,
    "np.where(np.isfinite({}) & ({} > 0), {}, {})",
]
OPERATOR = ["({})**2", "({})**3", "np.abs({})**1.5", "({})**-1", "2.0 ** ({})", "np.abs({})**q"]
FUNCTION = ["np.power({}, 2)", "np.power(np.abs({}), 0.7)", "np.power(1.5, {})", "np.power(np.abs({}), q)"]
TURNS = ["world.turns", "20", "16 + k % 3", "14 if k < 9 else 19", "8", "9", "1", "12", "n", "60"]
STEPS = [
    *["{v} = {e}"] * 6,
    *["{v} = {v} * 0.9 + 0.1 * {e}"] * 3,
    *["{v} += {e}", "{v} *= {e}", "p, q = q, p", "p, q = q, p + {e}"],
    *["if {e} > {e}: {v} = {e}", "if i % 3 == 1: {v} = {e}", "if abs({v}) > 50.0: break"],
    *["if i == world.at: {v} = {e}", "if i == i_last: world.kept.append({v})", "found.append({v})"],
    "world.seen.append(float({v}.detach()) if isinstance({v}, tg.Tensor) else {v})",
    "with np.errstate(all='ignore'): {v} = {e}",
    "try: {v} = {v} * 1.0 if i != world.at else world.nothing\nexcept AttributeError: {v} = {e}",
    "with np.errstate(all='raise'):\n    try: {v} = {e}\n    except FloatingPointError: {v} = 0.5",
    *["u[i % n] = {e}", "{v} = u[i % n] + {v}"],
    "{v} = {v} + 0.1 * np.sin({e} * p).detach()",
    "with tg.no_grad(): r = {e} * {v}\n{v} = {v} * 0.9 + 0.1 * r",
]
ARRAYS = [
    *["{y} = np.where({y} > {v}, {y} * {y}, {y})", "{y} = {y} * {y} + {v}", "{y} = np.abs({y}) * 0.7"],
    *["{y} = np.sort({y})", "{y} = np.maximum({y}, {y})", "{y} = np.cumsum({y}) * 0.3", "{v} = np.max({y})"],
    *["{v} = np.sum({y} * {y})", "{v} = np.mean({y}) - np.min({y})", "{y} = {y}.copy()"],
    "{y} = {y} + world.b",
    *["{y} = {y} * 0.9 + 0.1 * {y}.detach()", "with tg.no_grad(): z = np.tanh({y})\n{y} = {y} * z"],
]
WRITES = [
    *["u[k % n] = {e}", "u[0] += {e}", "u += {y}", "u *= 0.7", "u[::2] -= q", "u[u > 0.3] = 0.1"],
    *["u[1:] = u[:-1]", "y = u", "np.add.at(u, [0, 0], p)", "x[0] = p"],
    "world.seen.append(np.asarray(u.detach()).copy())",
]
VIEWS = [
    *["s = u[k % n, ...]", "s = np.squeeze(u[:1])", "s += {e}", "s[...] = {e}", "p = s * q + s", "u[0] = s"],
    *["s = s[...]", "s = s * 1.0", "if s > 0.2: s *= -1.0", "world.kept.append(s)", "s = u[-1:]"],
]


def expression(chance, depth, powers):
    if depth == 0 or chance.random() < 0.2:
        return chance.choice(NUMBERS + NUMBERS + CONSTANTS)
    form = chance.choice(EXPRESSIONS + 4 * powers)
    return form.format(*(expression(chance, depth - 1, powers) for _ in range(form.count("{}"))))


def statement(chance, kinds, powers):
    form = chance.choice(kinds)
    parts = {"v": chance.choice("pqt"), "y": chance.choice("yzu")}
    pieces = form.split("{e}")
    given = (expression(chance, chance.choice([1, 1, 2, 3]), powers) + x for x in pieces[1:])
    filled = pieces[0] + "".join(given)
    return filled.replace("{v}", parts["v"]).replace("{y}", parts["y"])


def text_of(chance):
    """The text of a function that makes one."""
    powers = chance.choice([[], [], OPERATOR, FUNCTION])
    lines = []
    for _ in range(chance.choice([1, 2, 2, 3, 4])):
        kinds = chance.choices([STEPS, ARRAYS, WRITES, VIEWS], [5, 2, 1, 1])[0]
        if kinds is STEPS:
            turns = chance.choice(TURNS)
            body = [statement(chance, STEPS, powers) for _ in range(chance.choice([1, 2, 2, 3, 4]))]
            lines += [f"i_last = {turns} - 1", f"for i in range({turns}):"]
            lines += ["    " + line for step in body for line in step.split("\n")]
        else:
            steps = [statement(chance, kinds, powers) for _ in range(chance.randint(1, 4))]
            lines += [line for step in steps for line in step.split("\n")]
    lines += ["c = c * 1.01", "G = G + 0.1", "world.b[0] += 0.1", ""][chance.randrange(4) :][:1]
    begin = ["global G", "nonlocal c", "world.runs += 1", "i, n, found = 0, len(x), []",
             "p, q, t = x[0] * 1.0, x[-1] * 0.5 + 0.1, 0.3",
             "y, z, u, s = x * 0.7, np.sin(x), x * 1.0, x[0] * 1.0"]  # fmt: skip
    end = "return p + q * 0.5 + t * 0.25 + np.sum(y * z) + np.sum(u * u) + np.sum(s) + sum(found)"
    inside = "\n".join("        " + line for line in (*begin, *lines, end))
    return f"def make(world):\n    c = 0.8\n    def program(x, k):\n{inside}\n    return program\n"


def made(text, n):
    """The function, its world, and its globals."""
    world = types.SimpleNamespace(g=0.97, b=np.linspace(0.1, 0.2, n), seen=[], kept=[], runs=0)
    world.turns, world.at = 15, 4
    space = {"np": np, "tg": tg, "math": math, "G": 0.3}
    exec(text, space)
    return space["make"](world), world, space


def arguments(numbers, k, n, special):
    x = numbers.normal(size=n) * 0.8 + 0.1
    if special and k > 4 and k % 5 in (3, 4):
        x[numbers.integers(n)] = SPECIAL[numbers.integers(len(SPECIAL))]
    return -x if k % 6 == 5 else x


def shown(x):
    """What tells values bit by bit, but for which nan one is, and whether Tensors have histories."""
    if isinstance(x, (tg.Tensor, np.ndarray)):
        return getattr(x, "requires_grad", None), repr(x.tolist())
    if isinstance(x, types.SimpleNamespace):
        return {name: shown(value) for name, value in vars(x).items()}
    return [shown(value) for value in x] if isinstance(x, list) else repr(x)


def told(found):
    """Warnings, in whatever order and of numbers as of arrays."""
    return sorted((kind.__name__, words.replace("in scalar ", "in ")) for kind, words in found)


def difference(found, known, loosely):
    """What differs in values bit by bit, and in derivatives but for rounding; empty if nothing does.

    Powers of numbers have, where Python applies the operator, other last bits.
    """
    if isinstance(found[0], type) or isinstance(known[0], type):
        errors = [(x[0], x[1].partition(":")[2]) if isinstance(x[0], type) else x for x in (found, known)]
        return "" if errors[0] == errors[1] else f"{found} for {known}"
    (value, gradient), (wanted, expected) = (map(np.asarray, map(array_of, x)) for x in (found, known))
    alike = np.isclose(value, wanted, 1e-12 * loosely, 0, True)
    scale = max(1.0, np.max(np.abs(expected[np.isfinite(expected)]), initial=0))
    alike &= value != 0 or np.signbit(value) == np.signbit(wanted)
    alike &= np.allclose(gradient, expected, 1e-9, 1e-9 * scale, True)
    return "" if alike else f"{found} for {known}"


def compare(seed, way):
    """What differs in calls of a program, and its text; None where nothing does."""
    chance, numbers = random.Random(seed), np.random.default_rng(seed)
    text, n = text_of(chance), chance.choice([1, 2, 3, 4, 5, 7, 16, 40])
    (f, world, space), (g, other, others) = made(text, n), made(text, n)
    compiled, recorded = tg.compile(f, **WAYS[way]), tg.func.value_and_grad(g)
    special = chance.random() < 0.4
    changes = {chance.randint(3, 16): chance.choice([9, 12, 29]) for _ in range(2)}
    for k in range(CALLS):
        x = arguments(numbers, k, n, special)
        for each, names in ((world, space), (other, others)):
            each.turns, each.at = changes.get(k, each.turns), changes.get(k, each.at) % 11
            names["G"] = 0.77 if k in changes else names["G"]
            del each.kept[:-3], each.seen[:-9]
        mine, theirs = x.copy(), x.copy()
        found, warned, *_ = outcome(lambda c, x=mine, k=k: c.value_and_grad(x, k), compiled, None, [0])
        known, expected, *_ = outcome(lambda c, x=theirs, k=k: c(x, k), recorded, None, [0])
        if found[0] is tg.errors.ReplayError:
            return None
        what = difference(found, known, "**" in text)
        if way != "replay":  # which repeats no effects, nor tells of errors twice
            pairs = (told(warned), told(expected)), (shown(world), shown(other)), (shown(mine), shown(theirs))
            what = what or next((f"{a} for {b}" for a, b in pairs if a != b), "")
        if what:
            return f"{text}\ncall {k} of {x}: {what}"
    return None


def main(begin, end):
    rolling.FEWEST_ROWS, rolling.MOST_LEFT = 24, 1
    differing = 0
    for seed in range(begin, end):
        for way in WAYS:
            found = compare(seed, way)
            if found is not None:
                differing += 1
                print(f"seed {seed}, {way}\n{found}\n")
    print(f"{end - begin} programs, {differing} differ")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
