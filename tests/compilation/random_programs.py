"""Random functions with branches, indices, closures, globals, attributes, random numbers, errors, effects."""

import types

import numpy as np

import tapegrad as tg

SIMPLE = [
    "y = np.sin(y) * 1.1",
    "y = y * x - 0.2",
    "y = np.exp(-y * y)",
    "y = np.maximum(y, 0.1 * x)",
    "y = np.tanh(y + x)",
    "y = np.where(y > 0.2, y, y * s)",
    "y = np.abs(y) ** 1.5 + 0.1",
    "s = np.sum(y) * 0.3",
    "s = s * 0.5 + y[1]",
    "s = np.max(y) - np.mean(x)",
    "s = s * s - np.linalg.norm(y + 2.0)",
    "y = np.cumsum(y) * 0.5",
    "y = y / (1.0 + s * s)",
    "m = np.outer(y, x)",
    "y = m @ y * 0.2",
    "y = np.sum(m, axis=k % 2)",
    "m = m.T * s",
    "s = np.trace(m)",
    "y = m[k % 4]",
    "s = np.var(y, ddof=k % 2) + s",
    "y = np.std(m, axis=k % 2) + x",
    "y = np.gradient(y) + np.ptp(m, 0) * s",
    "s = s * np.average(y) + np.diff(m, axis=k % 2)[1, 1]",
    "m = np.cov(m + np.outer(x, x))",
]
INDICES = [
    "y = y[::-1]",
    "y = y[[k % 4, 1, 2, 3]]",
    "y = np.roll(y, k % 3)",
    "s = s + y[k % 4]",
    "y = y[world.order]",
    "y = np.concatenate([y[k % 3 :], y[: k % 3]])",
    "y = np.where(world.mask, y, x)",
    "s = s + np.sum(y[y > 0.1])",
    "s = s + y[int(np.argmax(np.asarray(y.detach())))]",
    "y = np.sort(y)",
    "y = np.stack([y, x])[k % 2]",
    "world.order[:2] = world.order[1::-1]",
    "world.mask[k % 4] ^= True",
]
WORLD = [
    "y = y * c",
    "c = c * -1.02",
    "y = y + g",
    "g = g * 0.97 + 0.01",
    "y = y * world.scale",
    "world.scale = 1.0 + k % 3",
    "y = y * world.a",
    "world.a[k % 4] += 0.1",
    "y = y + world.table.get(k % 3, 0.5)",
    "world.table[k % 3] = 0.1 * k",
    "y = world.step(y)",
    "world.step = [np.sin, np.cos, abs][k % 3]",
    "y = y * [1, 1.0, np.float64(1.5), True][k % 4]",
    "y = y + world.random.normal(size=4)",
    "s = s * world.random.random()",
    "y = y * (k % 3)",
    "y = y - np.arange(4.0)[:: 1 - 2 * (k % 2)]",
    "y = y + world.large[:4] * np.sum(world.large * 1e-4)",
]
EFFECTS = [
    "world.seen.append(k)",
    "world.seen.append(y[1].item())",
    "world.seen.append(len(world.seen))",
    "world.kept = y",
    "y = y + plain(world.kept) * 0.1",
    "world.seen.append((y.shape, y.dtype.name, y.ndim))",
    "world.seen.append(f'{s.item():.3f}')",
    "world.out[k % 4] = np.sum(y.detach()).item()",
    "world.seen.append(np.array(y.tolist()))",
]
WRITES = [
    "y = y * 1.0",
    "y = y.copy()",
    "m = m.copy()",
    "y[1] = s",
    "y[k % 4] = 0.3 * k",
    "y += x",
    "y *= 1.1",
    "y /= 1.0 + s * s",
    "y **= 2",
    "y[1:3] += s",
    "y[::2] -= x[::2]",
    "y[[0, 2]] = x[:2]",
    "y[y > 0.2] = 0.1",
    "y[:] = x",
    "y[1:] = y[:-1]",
    "y[...] = np.cos(y[::-1])",
    "m[1] = y",
    "m[:, k % 4] += y",
    "m *= s",
    "m[k % 4, 1:] = y[0]",
    "s += y[0]",
    "s *= 0.9",
    "b = y",
    "b[1] *= 0.5",
    "b -= 0.1",
    "b = b * s",
    "v = y[1:]",
    "v = m[2]",
    "v = y.reshape(2, 2)[1]",
    "v *= 0.5",
    "v[0] = s",
    "y = v.copy() if v.shape == (4,) else y",
    "y = np.zeros_like(y); y[0] = x[k % 4]",
    "y = np.zeros_like(y); y[1:3] = 2.0; y = y * x",
    "y = tg.zeros(4); y[:2] = x[1:3]",
    "y = y + x if k % 3 else y.__iadd__(x)",
    "np.add.at(y, [1, 1], s)",
    "y.fill_(0.5)",
    "world.kept = y; y += 1.0",
    "with tg.no_grad(): y[2] = 0.4",
    "world.seen.append(np.asarray(y.detach()).copy()); y[3] += 1.0",
    "y[0] = 1.0 if y[1] > 0.1 else x[1]",
    "for q in range(3): y[q + 1] = y[q] * 0.5 + x[q]",
]
UNRECORDED = [
    "y = y + 0.3 * y.detach()",
    "y = y * np.max(np.abs(y.detach())) * 0.5",
    "y = np.clip(y.detach(), -0.5, 0.5) * y + x.detach()",
    "y = np.sin(y) - (np.cos(y) - 0.5).detach()[::-1]",
    "t = y[1:].detach(); y = y * np.sum(t) + t[0]",
    "t = m.detach().T; y = t @ y * 0.2",
    "s = s + 0.2 * y[k % 4].detach()",
    "s = s * 0.5 + float(s.detach()) * y[2]",
    "t = y.detach() * 0.5; t[1] = 2.0; y = y * t",
    "t = y.detach(); t[k % 4] = 0.5",
    "t = y.detach(); y[2] = 0.7; s = s + t[2] * x[0]",
    "t = y.detach(); y = y + t; world.seen.append((t.requires_grad, t.is_leaf))",
    "t = (y.data * 2.0).requires_grad_(); y = y + t",
    "world.seen.append(y.detach().numpy().copy())",
    "world.seen.append(y.detach().numpy().flags.writeable)",
    "world.seen.append(np.sum(np.asarray(y.detach() * 2.0)))",
    "world.kept = y.detach()",
    "world.kept = 0.9 * tg.tensor(plain(world.kept)) + 0.1 * y.detach()",
    "world.out[...] = 0.5 * world.out + 0.5 * plain(np.mean(y.detach()))",
    "world.seen.append(y.detach())",
    "world.seen.append(s.detach())",
    "t = scaled(y); y = y * t",
    "t = scaled(y[::2]); s = s + t[1] * s",
]
BLOCKS = [
    "with tg.no_grad():",
    "with tg.no_grad(), tg.enable_grad():",
    "with tg.set_grad_enabled(k % 3 > 0):",
    "with tg.inference_mode():",
    "with tg.enable_grad():",
]
COMPUTED = [
    "t = np.sin(y) * 0.5",
    "t = y * x - y[::-1]",
    "t = y[:] * s",
    "t = y",
    "t = y[1:]",
    "t = np.tanh(m @ y)",
    "t = np.cumsum(y)",
    "t = y.copy()",
    "t[0] = 0.5",
    "t = np.where(t > 0.1, y, x)",
    "s = s * 1.0 if float(np.sum(y)) > 0.5 else s * 0.9",
    "world.seen.append(float(np.max(y)))",
    "world.seen.append(np.sum(y))",
    "world.out += plain(y * 0.1)",
    "c = c + 0.1 if y[1] > 0.2 else c",
    "with tg.enable_grad(): t = y * 0.3",
]
BEHIND_BLOCKS = ["y = y + t * 0.2", "y = y * np.sum(t)", "s = s + t[0]", "world.kept = t", "pass"]
RARE = [
    "y = y.detach() * x",
    "y = y.astype(np.float32).astype(float)",
    "y.requires_grad and world.seen.append('history')",
    "y = tg.func.grad(lambda u: np.sum(np.sin(u) * 0.5))(y) + x",
    "y = helper(y) + x",
    "if k % 6 == 4: raise RuntimeError(str(k))",
    "return s if k % 4 == 3 else np.sum(y) * s",
]
CONDITIONS = [
    "k % 2",
    "y[0] > 0.1",
    "s > np.mean(y)",
    "world.random.random() < 0.5",
    "len(world.seen) % 3 == 1",
    "k > 5",
    "np.any(y > 0.9)",
    "world.scale == 2",
    "y[1].item() > y[2].item()",
]
PATTERNS = [
    ("if {condition}:", "else:"),
    ("for i in range(k % 3):", None),
    ("for i in range(2):", None),
    ("for _ in range(4):\n    if s < 0.5: break\n    s = s * 0.5", None),
    ("try:\n    y = y @ np.ones((3, 3))", "except ValueError:"),
    ("try:\n    if k % 3 == 1: raise KeyError(k)", "except KeyError:"),
    ("with np.errstate(all='ignore'):", None),
    ("try:", "finally:"),
    ("with tg.no_grad():", None),
]


def statement(random, depth, writes, apart):
    """Lines of a statement, with others in it where depth allows.

    How many, about, write to arrays, and compute what has no history.
    """
    if depth and random.random() < 0.3:
        begin, other = random.choice(PATTERNS[: 7 if random.random() < 0.8 else None])
        lines = begin.format(condition=random.choice(CONDITIONS)).split("\n")
        lines += inner(random, depth - 1, writes, apart)
        return [*lines, *([other, *inner(random, depth - 1, writes, apart)] if other else [])]
    if random.random() < 0.04 * apart:
        lines = [random.choice(COMPUTED) for _ in range(random.randint(1, 3))]
        lines = ["    " + line for line in ["t = y * 0.9", *lines]]
        return [random.choice(BLOCKS), *lines, random.choice(BEHIND_BLOCKS)]
    kinds = SIMPLE, INDICES, WORLD, EFFECTS, WRITES, RARE, UNRECORDED
    return [random.choice(random.choices(kinds, [8, 4, 5, 2, writes, 0.5, apart])[0])]


def inner(random, depth, *weights):
    lines = [line for _ in range(random.randint(1, 2)) for line in statement(random, depth, *weights)]
    return ["    " + line for line in lines]


def text_of(random):
    """The text of a function that makes one."""
    writes, apart = random.choice([0, 0, 2, 20]), random.choice([0, 1, 8])
    body = [line for _ in range(random.randint(3, 10)) for line in statement(random, 2, writes, apart)]
    begin = ["global g", "nonlocal c", "world.runs += 1", "y, s, m = x * 0.7, x[0] * 1.0, np.outer(x, x)"]
    seen = " + np.sum(b * b) - np.sum(v)" if writes else ""
    begin += ["b = v = y"] if writes else []
    lines = [*begin, *body, f"return np.sum(y * y) + s * 0.1 + np.sum(m) * 0.01{seen}"]
    return "\n".join(
        [
            "def make(world):",
            "    c = 0.9",
            "    def program(x, k):",
            *("        " + line for line in lines),
            "    return program",
        ]
    )


class World(types.SimpleNamespace):
    """What a function reads and changes."""


def plain(x):
    return x.detach().numpy() if isinstance(x, tg.Tensor) else x


def maker(text):
    """A function that makes the function anew, with a world of its own."""

    def make():
        world = World(
            scale=1.0,
            a=np.array([1.0, -0.5, 2.0, 0.3]),
            table={},
            seen=[],
            out=np.zeros(4),
            kept=np.ones(4),
            runs=0,
            step=np.sin,
            order=np.array([2, 0, 3, 1]),
            mask=np.array([True, False, True, True]),
            random=np.random.default_rng(7),
            large=np.linspace(0.0, 1.0, 5000),
        )
        space = {"np": np, "tg": tg, "plain": plain, "g": 0.1, "helper": tg.compile(lambda u: np.cos(u) * u)}
        space["scaled"] = tg.no_grad()(lambda y: y / (1.0 + np.sum(y * y)))
        exec(text, space)
        return space["make"](world), world

    return make
