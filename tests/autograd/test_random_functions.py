"""G-14 at random: wherever a Function's backward takes values from, the second derivative is right or raises.

A Function is a chain of steps ``u -> step(u, y)``; backward multiplies the derivatives of the steps, each
computed from the value before or after the step, and takes every such value from a source drawn at random.
"""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import Function, once_differentiable
from tapegrad.errors import GradcheckError, GradientError

# the value; its derivatives by u and by y, of (u, value, y)
STEPS = {
    "sin": (lambda u, y: np.sin(u), lambda u, r, y: np.cos(u), None),
    "exp": (lambda u, y: np.exp(0.3 * u), lambda u, r, y: 0.3 * r, None),
    "tanh": (lambda u, y: np.tanh(u), lambda u, r, y: 1 - r * r, None),
    "square": (lambda u, y: u * u, lambda u, r, y: 2 * u, None),
    "times": (lambda u, y: u * y, lambda u, r, y: y, lambda u, r, y: u),
    "plus": (lambda u, y: u + y * y, lambda u, r, y: np.ones_like(u), lambda u, r, y: 2 * y),
    "reciprocal": (lambda u, y: 1 / (2 + u * u), lambda u, r, y: -2 * u * r * r, None),
}
HISTORIES = ["recomputed", "recorded"]
HIDDEN = ["saved", "attribute", "container", "closure", "detached", "buffer", "view", "copied", "clone"]
TAKEN = ["numpy", "item", "tolist", "asarray", "restarted"]


class Drawn:
    """A Function, and whether its second derivative can be right."""

    def __init__(self, seed):
        random = np.random.default_rng(seed)
        steps = [STEPS[name] for name in random.choice(list(STEPS), random.integers(1, 5))]
        exact = random.random() < 0.4
        sources = HISTORIES if exact else [*HISTORIES, *HIDDEN, *TAKEN]
        how = [str(random.choice(sources)) for _ in steps]  # of the value after each step
        last = str(random.choice(["result", "attribute of ctx", how[-1]]))  # of the result
        once = not exact and random.random() < 0.1
        self.exact = exact or not (once or {*how[:-1], last} & {*HIDDEN, *TAKEN})
        closure = {}

        def chain(x, y):
            values = [x]
            for value, _, _ in steps:
                values.append(value(values[-1], y))
            return values

        def forward(ctx, x, y):
            values = chain(x, y)
            ctx.kept, saved = {}, []
            for k, u in enumerate(values[1:], 1):
                source = last if k == len(steps) else how[k - 1]
                keep(ctx, k, u, source, saved, chain, x, y)
            if last == "attribute of ctx":
                ctx.result = values[-1]
            ctx.save_for_backward(x, y, values[-1], *saved)
            return values[-1]

        def keep(ctx, k, u, source, saved, chain, x, y):
            if source == "saved":
                ctx.kept[k] = ("saved", len(saved))
                saved.append(u if k < len(steps) else u.clone())
            elif source == "closure":
                closure[id(ctx), k] = u * 1.0
            elif source == "recorded":
                with tg.enable_grad():
                    ctx.kept[k] = chain(x, y)[k]
            elif source == "restarted":
                with tg.enable_grad():
                    ctx.kept[k] = tg.tensor(u, requires_grad=True) * 1.0
            elif source == "buffer":
                ctx.kept[k] = tg.zeros(u.shape)
                ctx.kept[k][...] = u
            elif source == "view":
                ctx.kept[k] = np.stack([u, u])[1]
            elif source in MAKE:
                ctx.kept[k] = MAKE[source](u)

        def value(ctx, k, values):
            x, y, result, *saved = ctx.saved_tensors
            if k == 0:
                return x
            source = last if k == len(steps) else how[k - 1]
            if source == "result":
                return result
            if source == "attribute of ctx":
                return ctx.result
            if source == "recomputed":
                return chain(x, y)[k]
            if source == "saved":
                return saved[ctx.kept[k][1]]
            if source == "closure":
                return closure[id(ctx), k]
            found = ctx.kept[k]
            found = found[0] if isinstance(found, tuple) else found
            return tg.tensor(found) if isinstance(found, (list, float, np.ndarray)) else found

        def backward(ctx, g):
            y = ctx.saved_tensors[1]
            gy = 0 * y
            for k in range(len(steps), 0, -1):
                _, by_u, by_y = steps[k - 1]
                u, r = value(ctx, k - 1, None), value(ctx, k, None)
                if by_y is not None:
                    gy = gy + g * by_y(u, r, y)
                g = g * by_u(u, r, y)
            return g, gy

        methods = {"forward": forward, "backward": once_differentiable(backward) if once else backward}
        self.apply = type("E", (Function,), {k: staticmethod(v) for k, v in methods.items()}).apply
        shape = [(), (2,)][random.integers(2)]
        self.inputs = [tg.tensor(random.uniform(0.3, 1.2, shape), requires_grad=True) for _ in range(2)]
        self.about = f"steps {steps}, values {how}, result {last}, once {once}"


MAKE = {
    "attribute": lambda u: u * 1.0,
    "container": lambda u: (u + 0.0,),
    "detached": lambda u: u.detach(),
    "copied": lambda u: np.copy(u),
    "clone": lambda u: u.clone(),
    "numpy": lambda u: u.numpy(),
    "item": lambda u: u.item() if u.ndim == 0 else [e.item() for e in u],
    "tolist": lambda u: u.tolist(),
    "asarray": lambda u: np.array(u),
}


def check(seeds):
    exact = refused = unneeded = 0
    for seed in seeds:
        drawn = Drawn(seed)
        assert tg.gradcheck(drawn.apply, drawn.inputs), f"{seed}: {drawn.about}"
        try:
            assert tg.gradgradcheck(drawn.apply, drawn.inputs), f"{seed}: {drawn.about}"
        except GradcheckError:
            raise AssertionError(f"seed {seed}: a second derivative is wrong; {drawn.about}") from None
        except GradientError:
            assert not drawn.exact, f"seed {seed}: what has a history was refused; {drawn.about}"
            refused += 1
        else:
            exact += drawn.exact
            unneeded += not drawn.exact
    print(f"{exact} right, {refused} refused, {unneeded} right without what was hidden")
    return exact, refused


def test_G14_random_functions():
    exact, refused = check(range(40))
    assert exact > 8
    assert refused > 8


@pytest.mark.slow
def test_G14_200_random_functions():
    """``pytest -m slow -s tests/autograd/test_random_functions.py``."""
    check(range(1000, 1200))
