"""Random programs of arrays of any length, as text: slices, writes, masks, products, loops, branches.

A program is a function ``program(x, y)`` of an array of at least 4 elements and a number. The same text runs
on ndarrays, on Tensors and under `tg.njit`. The arrays p and q are plain until something active is put in
their place; v and c are views, or were.
"""

import numpy as np
from hypothesis import strategies as st

# On both sides of 4, 8 and 64 KiB of float64, at which Tensors change ways, and of a block of compiled code.
SIZES = 4, 17, 255, 257, 511, 513, 1023, 1025, 8191, 8200
LONGEST_LOOP = 600  # elements; a program that has a loop over elements is for arrays up to there

VECTORS = ["u", "w", "x", "z", "u[::-1]", "w[::-1]", "(u + w)", "x * s", "np.sin(w)", "np.abs(w)",
           "np.exp(-u * u)"]  # fmt: skip
UNARY = ["np.sin({})", "np.cos({})", "np.tanh({})", "np.arctan({})", "np.abs({})", "-{}", "{} ** 2 * 0.3",
         "{} ** 3 * 0.1", "np.exp(-{0} * {0})", "np.sqrt({0} * {0} + 1.0)", "np.log1p({0} * {0})",
         "1.0 / ({0} * {0} + 1.0)", "np.floor({0}) * 0.1 + {0}", "np.sign({0}) * {0}",
         "np.expm1(np.minimum({}, 0.5))"]  # fmt: skip
BINARY = ["{} + {}", "{} - {}", "{} * {} * 0.5", "{0} / ({1} * {1} + 1.0)", "np.maximum({}, {})",
          "np.minimum({}, {})", "np.hypot({}, {} + 3.0)", "np.arctan2({}, {} + 4.0)", "np.logaddexp({}, {})",
          "np.copysign({}, {} + 0.01)", "np.where({0} > {1}, {0}, {1} * 0.5)",
          "np.where({0} < 0.2, {1}, 1.5)", "({0} > {1}) * {0}",
          "np.where(({0} > 0.1) & ({1} < 0.7), {0} * {1}, {0})"]  # fmt: skip
WINDOWS = {  # what is written to, and what of arrays has its shape
    "1:-1": ["[2:]", "[:-2]", "[1:-1]"], "2:": ["[2:]", "[:-2]"], ":-2": ["[2:]", "[:-2]", "[1:-1]"],
    "1:": ["[1:]", "[:-1]"], ":-1": ["[1:]", "[:-1]"], "::2": ["[::2]"], "1::2": ["[1::2]"],
    "::-1": ["", "[::-1]"],
}  # fmt: skip
MATRICES = [
    "m = np.outer(u[:3], w[:4]) * 0.4", "m[0] = m[1] * s", "m[:, 1] = u[:3]", "m *= w[:4]", "m += m[1]",
    "m = np.sin(m) * m", "m[1:, ::2] -= m[:-1, 1::2]", "m[::-1] = m", "m = m.T.copy().T * 0.5",
    "m = m.reshape((4, 3)).T.copy()", "m = np.maximum(m, 0.1)", "m = np.clip(m, -0.8, 0.8)",
    "m[1] = np.where(m[0] > 0.2, m[0], u[:4])", "m = np.concatenate((m[1:], m[:1]))",
    "m = m - np.sum(m, axis=0) / 3.0", "m = m - np.sum(m, axis=1).reshape((3, 1)) / 4.0",
    "m = (m[:, :3] @ m) * 0.3", "u[:4] = np.sum(m, axis=0)", "u[:3] = np.sum(m, axis=1)", "u[:3] = m @ w[:4]",
    "w[:4] = u[:3] @ m", "u[:4] = np.exp(m).mean(0)", "s = np.sum(m * m) * 0.1", "s = np.mean(m)",
    "s = np.linalg.norm(m[0] + 2.0) * 0.2", "s = np.max(m[0]) * 0.5", "s = np.prod(m[0] + 1.0) * 0.1",
    "t = np.trace(m[:, :3] @ np.ones((3, 3))) * 0.1",
]  # fmt: skip
VIEWS = [
    "v = u[1:]", "v = w[:-1]", "v = u[::-1][1:]", "v = w[1:][::-1]", "v = v * 0.5 + u[1:]", "v *= s",
    "v += w[:-1]", "v[1:] = v[:-1]", "v[:-1] *= v[1:]", "v[::-1] = v", "v[:] = np.where(v > 0.1, v, t)",
    "v[0] = s", "v[-1] += u[0]", "u[:-1] = v", "w[1:] *= v", "u[1:] += v", "s = np.sum(v * w[1:]) / n",
    "t = np.dot(v, u[:-1]) / n", "c = m[:, 1]", "c = m.T[2]", "c = m[::-1, 0]", "c *= s",
    "c[1:] = c[:-1]", "c += u[:3]", "m[:, 2] = c", "m[:, 0] -= c * t", "u[:3] = np.exp(c)",
    "s = np.dot(c, u[:3])", "w[:4] = c @ m", "m[:] = m[:, ::-1]",
]  # fmt: skip
PLAIN = [
    "p[1] = 0.3", "p[:2] = 1.5", "q[:, 1] += 0.2", "q = q * 0.5", "s = np.dot(p, w) / n",
    "u[:3] = m @ p[:4]", "u[:4] = p[:3] @ m", "m = (q[:, :3] @ m) * 0.3 + m * 0.5", "m = m * q",
    "w = np.where(p > 0.5, w, u)", "u *= p",
    "w[:3] = np.linalg.solve(np.eye(3) * 4.0 + q[:, :3] + np.sin(m[:, 1:]), c)",
    "s = np.linalg.det(np.eye(3) * 2.0 + np.sin(m[:, 1:])) * 0.1",
    "u[:3] = np.linalg.inv(np.eye(3) + q[:, 1:]) @ c",
]  # fmt: skip
ACTIVE = [
    "p = p * 0.5 + np.sin(w)", "p = np.maximum(p, u) * s", "p = p * 0.5 + u * w", "q = q * s + m * 0.5",
    "q = (q[:, :3] @ m) * 0.3 + q", "p = np.where(p > 0.4, p, w) * t",
]  # fmt: skip
CALLS = [
    "u[w > 0.3] = s", "u[u > w] = 0.5", "u[chosen] = w[:3] * t", "w[chosen] += u[:3]", "w = u[order]",
    "u[order] = w * s", "s = np.sum(u[w > 0.2]) / n", "u = np.cumsum(w) / n", "u = np.clip(u, -0.9, 0.8)",
    "w = np.concatenate((u[2:], w[:2]))", "w = np.diff(np.concatenate((u, w[:1])))", "w = np.roll(u, 2)",
    "w = np.where(u > 0.0, u, w)", "u = np.flip(w)", "w = u.copy()", "z = z + x * 0.1", "z[1:3] = u[:2]",
]  # fmt: skip
NUMBERS = ["t = np.max(u) * 0.5", "t = np.min(u * w)", "s = np.mean(u * w)", "s = s * t + 0.1"]
LOOPS = ["u[i] = u[i - 1] * 0.5 + w[i] * s", "w[i] = np.sin(w[i]) + u[i - 1]", "u[i] += w[i] * w[i - 1]",
         "s = s * 0.9 + u[i] * 0.1", "z[i] = u[i] * w[n - i]"]  # fmt: skip
CONDITIONS = ["s > t", "u[0] > 0.2", "np.sum(w) > 0.0", "n > 20"]
BEGIN = [
    "n = x.size", "u = x * 0.7", "w = np.cos(x) + 0.1", "z = x * 0.0", "s = x[0] * 1.0", "t = y + 0.5",
    "m = np.outer(x[:3], x[:4])", "chosen = np.array([2, 0, 3])", "order = np.arange(n)[::-1].copy()",
    "p = np.ones(n)", "q = np.full((3, 4), 0.5)", "v = w[1:]", "c = m[:, 2]",
]  # fmt: skip
END = ("return np.sum(u * u) / n + np.sum(w * x) / n + s * t + np.sum(m * m) * 0.1 + np.sum(z * u) / n"
       " + u[1] * w[2] + np.sum(p * w) / n + np.sum(q * m) * 0.1"
       " + np.sum(v * v) / n + c[0] * c[2] * 0.1")  # fmt: skip
KINDS = {"=": 15, "[:] =": 10, "+=": 10, "window": 15, "sum": 10, "number": 3, "dot": 2, "matrix": 12,
         "call": 6, "loop": 7, "block": 10, "view": 12, "plain": 6, "active": 5}  # fmt: skip


def expression(random, vectors=VECTORS):
    a, b = random.choice(vectors), random.choice(vectors)
    text = random.choice(UNARY if random.random() < 0.4 else BINARY).format(a, b)
    if random.random() < 0.4:
        text = f"{random.choice(['s', 't', '0.3', 's * t'])} * ({text}) + {random.choice(vectors)}"
    return text


def write(random):
    """A write to a part of an array, which may overlap what it reads."""
    window = random.choice([*WINDOWS])
    vectors = [name + part for name in "uwx" for part in WINDOWS[window]]
    how = random.choice(["=", "=", "+=", "*=", "-="])
    return f"{random.choice('uw')}[{window}] {how} {expression(random, vectors)}"


def statement(random, depth):
    """The lines of a statement; its blocks have blocks in them as deep as that."""
    kind = random.choices([*KINDS], list(KINDS.values()))[0]
    match kind:
        case "=" | "[:] =":
            return [f"{random.choice('uw')}{kind if kind != '=' else ' ='} {expression(random)}"]
        case "+=":
            return [f"{random.choice('uw')} {random.choice(['+=', '*=', '-='])} {expression(random)}"]
        case "window":
            return [write(random)]
        case "sum":
            rest = random.choice(["s", "t", "u[1]", "w[-1]"])
            return [f"{random.choice('st')} = np.sum({expression(random)}) / n + {rest} * 0.5"]
        case "dot":
            return [f"s = np.dot({random.choice(VECTORS)}, {random.choice(VECTORS)}) / n"]
        case "matrix":
            return [random.choice(MATRICES)]
        case "call":
            return [random.choice(CALLS)]
        case "view":
            return [random.choice(VIEWS)]
        case "plain":
            return [random.choice(PLAIN)]
        case "active":
            return [f"for j{depth} in range({random.randint(0, 3)}):", "    " + random.choice(ACTIVE)]
        case "loop":
            return ["for i in range(1, n):", "    " + random.choice(LOOPS)]
        case "block" if depth:
            inner = indented(lines_of(random, depth - 1, random.randint(1, 3)))
            if random.random() < 0.5:
                return [f"for k{depth} in range({random.randint(1, 3)}):", *inner]
            other = indented(statement(random, depth - 1))
            return [f"if {random.choice(CONDITIONS)}:", *inner, "else:", *other]
    return [random.choice(NUMBERS)]


def lines_of(random, depth, count):
    return [line for _ in range(count) for line in statement(random, depth)]


def indented(lines):
    return ["    " + line for line in lines]


def text_of(random):
    body = lines_of(random, 2, random.randint(3, 8))
    return "\n".join(["def program(x, y):", *indented([*BEGIN, *body, END])])


def programs():
    """Texts of programs."""
    return st.randoms(use_true_random=False).map(text_of)


def function_of(text):
    space = {"np": np}
    exec(text, space)
    return space["program"]


def sizes_for(text):
    """Those of `SIZES` that a program is run with."""
    return [n for n in SIZES if n <= LONGEST_LOOP or "range(1, n)" not in text]


def point(n):
    """Where a program is run: an array and a number; a direction."""
    k = np.arange(n)
    return (np.cos(k * 1.37 + 0.3) + 0.05 * np.sin(k), 0.4), (np.sin(k * 0.7), 0.3)


STEP = 1e-6


def differences(f, args, along):
    """The derivative of a function's results along a direction; where it is smooth there; its size."""

    def slopes(h):
        there, back = (f(*(x + s * v for x, v in zip(args, along, strict=True))) for s in (h, -h))
        return [(np.asarray(a) - b) / (2 * h) for a, b in zip(there, back, strict=True)]

    near, far = slopes(STEP), slopes(2 * STEP)
    size = max(1.0, *(np.abs(a).max() for a in near))
    return near, [np.abs(a - b) < 1e-5 * size for a, b in zip(near, far, strict=True)], size
