"""A program as a user writes it who has mypy --strict: decay rates from counts, in most ways there are.

`test_types` has mypy check it, as a file outside of this repository, and runs it. Nothing is cast or ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import tapegrad as tg
import tapegrad.scipy as ts
from tapegrad import Tensor

Array = NDArray[np.float64]
Params = dict[str, Array]


@dataclass
class Counts:
    """When was counted, and how many."""

    t: Array
    y: Array

    @classmethod
    def drawn(cls, seed: int, size: int = 60) -> Counts:
        rng = np.random.default_rng(seed)
        t = np.linspace(0.0, 6.0, size)
        return cls(t, rng.poisson(40.0 * np.exp(-0.9 * t) + 4.0).astype(float))

    def shards(self, n: int) -> list[Counts]:
        return [Counts(self.t[k::n], self.y[k::n]) for k in range(n)]


def rate(p: Params, t: Array) -> Array:
    shown: Array = np.exp(p["size"] - np.exp(p["decay"]) * t) + np.exp(p["ground"])
    return shown


def misfit(p: Params, data: Counts) -> float:
    """Negative log-likelihood, but for a constant."""
    r = rate(p, data.t)
    total: float = np.sum(r - data.y * np.log(r))
    return total


class Softplus(tg.autograd.Function):
    """log(1 + exp(x)), with a rule of its own."""

    @staticmethod
    def forward(ctx: tg.autograd.function.FunctionCtx, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return (x.exp() + 1.0).log()

    @staticmethod
    def backward(ctx: tg.autograd.function.FunctionCtx, ct: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return ct / (1.0 + (-x).exp())


@tg.njit
def chain(p: Array, steps: int) -> float:
    """Members of a decay chain after some steps."""
    a: float = p[0]
    b: float = p[1]
    for _ in range(steps):
        a, b = a - 0.01 * p[2] * a, b + 0.01 * (p[2] * a - p[3] * b)
    return b


class Descent:
    """Gradient descent with momentum on leaves."""

    def __init__(self, leaves: Sequence[Tensor], pace: float) -> None:
        self.leaves, self.pace = list(leaves), pace
        self.moved = [tg.zeros_like(x) for x in self.leaves]

    def step(self, loss: Callable[[], Tensor]) -> float:
        for x in self.leaves:
            x.grad = None
        value = loss()
        value.backward()
        with tg.no_grad():
            for k, x in enumerate(self.leaves):
                if x.grad is not None:
                    self.moved[k] = 0.5 * self.moved[k] - self.pace * x.grad
                    x += self.moved[k]
        return float(value.item())


def by_functions(data: Counts) -> tuple[float, Params, Array]:
    start: Params = {"size": np.array(3.0), "decay": np.array(-0.3), "ground": np.array(1.0)}
    value, slope = tg.func.value_and_grad(misfit)(start, data)
    total, shared = tg.batch.value_and_grad(misfit)(start, data.shards(4))
    assert abs(total - value) < 1e-9 and abs(shared["decay"] - slope["decay"]) < 1e-9
    names = list(start)

    def flat(x: Array) -> float:
        return misfit({name: x[k] for k, name in enumerate(names)}, data)

    fit = ts.optimize.minimize(flat, np.array([3.0, -0.3, 1.0]), method="trust-exact")
    errors: Array = np.sqrt(np.diag(np.linalg.inv(tg.func.hessian(flat)(fit.x))))
    curved = tg.func.hvp(flat)(fit.x, np.ones(3))
    assert curved.shape == errors.shape
    return float(fit.fun), {name: fit.x[k] for k, name in enumerate(names)}, errors


def by_tensors(data: Counts) -> tuple[float, Tensor]:
    w = tg.tensor([3.0, -0.3, 1.0], requires_grad=True)
    seen: list[Tensor] = []
    handle = w.register_hook(seen.append)

    def loss() -> Tensor:
        r: Tensor = np.exp(w[0] - w[1].exp() * data.t) + Softplus.apply(w[2])
        return (r - data.y * np.log(r)).sum() / data.t.size

    descent = Descent([w], 0.02)
    losses = [descent.step(loss) for _ in range(50)]
    handle.remove()
    assert losses[-1] < losses[0] and len(seen) == 50
    (g,) = tg.grad(loss(), w, create_graph=True)
    (h,) = tg.grad(g @ np.ones(3), w)
    assert h.shape == w.shape and g.requires_grad
    return losses[-1], w.detach()


def of_a_chain() -> tuple[float, Array]:
    p = np.array([1.0, 0.0, 0.8, 0.3])
    value, slope = tg.func.value_and_grad(chain)(p, 200)
    leaf = tg.tensor(p, requires_grad=True)
    y = chain(leaf, 200)
    y.backward()
    assert leaf.grad is not None and np.allclose(leaf.grad, slope)
    return value, slope


def main(folder: Path) -> None:
    data = Counts.drawn(1)
    least, found, errors = by_functions(data)
    for (name, x), error in zip(found.items(), errors, strict=True):
        print(f"{name:8s} {x:.3f} +- {error:.3f}")
    print(f"{least:.3f}", *by_tensors(data), *of_a_chain())
    y = tg.tensor(data.y, requires_grad=True)
    z = ts.special.logsumexp(y) + (y**2).sum()
    picture = tg.diagnostics.Graph(z, {"y": y}).draw()
    picture.save(folder / "graph.svg")
    with tg.report(folder / "run.html", {"y": y}) as run:
        z.backward()
        run.log(z=z)


if __name__ == "__main__":
    main(Path("."))
