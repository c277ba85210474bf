"""G-12, G-14 at random: wherever a Function's rules take values from, second derivatives are right or raise.

A Function is a chain of steps ``u -> step(u, y)``; its rules multiply the derivatives of the steps, each
computed from the value before or after the step, and takes every such value from a source drawn at random.
"""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import Function, once_differentiable
from tapegrad.autograd import forward_ad as fw
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

        def jvp(ctx, t, ty):
            y = ctx.saved_tensors[1]
            for k, (_, by_u, by_y) in enumerate(steps, 1):
                u, r = value(ctx, k - 1, None), value(ctx, k, None)
                t = t * by_u(u, r, y)
                if by_y is not None:
                    t = t + ty * by_y(u, r, y)
            return t

        self.plain = lambda x, y: chain(x, y)[-1]
        # what forward recorded has a history, but not the tangents
        self.moves = self.exact and "recorded" not in (*how[:-1], last)
        methods = {"forward": forward, "jvp": jvp}
        methods["backward"] = once_differentiable(backward) if once else backward
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


def slope(f, *inputs):
    """The derivative of a function in the direction of ones."""
    with fw.dual_level():
        out = f(*[fw.make_dual(x, tg.ones(x.shape)) for x in inputs])
        tangents = [fw.unpack_dual(x).tangent for x in (out if isinstance(out, tuple) else (out,))]
    found = [tg.zeros(inputs[0].shape) if t is None else t for t in tangents]
    return found[0] if len(found) == 1 else np.stack(found)


def gradient(f, *inputs):
    return tg.grad(f(*inputs).sum(), inputs, materialize_grads=True)


WAYS = {
    "forward": lambda f, x, y: slope(f, x, y),
    "forward over forward": lambda f, x, y: slope(lambda *z: slope(f, *z), x.detach(), y.detach()),
    "forward over reverse": lambda f, x, y: slope(lambda *z: gradient(f, *z), x, y),
    "reverse over forward": lambda f, x, y: np.stack(gradient(lambda *z: slope(f, *z) + z[0] + z[1], x, y)),
}


def check_moving(seeds):
    exact = refused = 0
    for seed in seeds:
        drawn = Drawn(seed)
        for name, way in WAYS.items():
            try:
                found = way(drawn.apply, *drawn.inputs).tolist()
            except GradientError:
                allowed = name != "forward" and not drawn.moves
                assert allowed, f"seed {seed}, {name}: what has all it needs was refused; {drawn.about}"
                refused += 1
            else:
                expected = way(drawn.plain, *drawn.inputs).tolist()
                message = f"seed {seed}, {name}: a derivative is wrong; {drawn.about}"
                np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12, err_msg=message)
                exact += name != "forward"
    print(f"{exact} right, {refused} refused")
    return exact, refused


def test_G12_random_functions():
    exact, refused = check_moving(range(60))
    assert exact > 30
    assert refused > 30


@pytest.mark.slow
def test_G12_1000_random_functions():
    """``pytest -m slow -s tests/autograd/test_random_functions.py``."""
    check_moving(range(1000, 2000))


@pytest.mark.slow
def test_G14_200_random_functions():
    """``pytest -m slow -s tests/autograd/test_random_functions.py``."""
    check(range(1000, 1200))
