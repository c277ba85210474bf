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
RARE = [
    "y = y * 1.0; y[1] = s",
    "y = y * 1.0; y += x",
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


def statement(random, depth):
    """Lines of a statement, with others in it where depth allows."""
    if depth and random.random() < 0.3:
        begin, other = random.choice(PATTERNS[: 7 if random.random() < 0.8 else None])
        lines = [*begin.format(condition=random.choice(CONDITIONS)).split("\n"), *inner(random, depth - 1)]
        return [*lines, *([other, *inner(random, depth - 1)] if other else [])]
    kinds = SIMPLE, INDICES, WORLD, EFFECTS, RARE
    return [random.choice(random.choices(kinds, [8, 4, 5, 2, 0.5])[0])]


def inner(random, depth):
    return ["    " + line for _ in range(random.randint(1, 2)) for line in statement(random, depth)]


def text_of(random):
    """The text of a function that makes one."""
    body = [line for _ in range(random.randint(3, 10)) for line in statement(random, 2)]
    begin = ["global g", "nonlocal c", "world.runs += 1", "y, s, m = x * 0.7, x[0] * 1.0, np.outer(x, x)"]
    lines = [*begin, *body, "return np.sum(y * y) + s * 0.1 + np.sum(m) * 0.01"]
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
        exec(text, space)
        return space["make"](world), world

    return make
