"""The programs of `tests.benchmarks.native` beside JAX and torch: value and gradient, second derivatives.

JAX has two forms of each: one as it is first written down (scans, `where` in place of branches, `vmap`), and
the best that was found by hand. torch runs them eagerly, so at a size that it can do in a second. All run in
turns on one thread, best of several; gradients and Hessian-vector products are compared first, and third
derivatives of two programs. JAX and torch are in the extra ``bench``.

    python -m tests.benchmarks.native_peers
"""

from __future__ import annotations

import argparse
import os

os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

import jax
import jax.numpy as jnp
import numpy as np
import torch

import tapegrad as tg

from . import native_programs
from .rounds import difference, in_turns

jax.config.update("jax_enable_x64", True)
jax.config.update("jax_platforms", "cpu")
torch.set_num_threads(1)


# ---------------------------------------------------------------- JAX


def scanned(step, state, xs=None, length=None, checkpoint=False, unroll=1):
    """The last state of a loop, whose body is perhaps computed again by the sweep."""
    body = jax.checkpoint(step) if checkpoint else step
    return jax.lax.scan(lambda s, x: (body(s, x), None), state, xs, length, unroll=unroll)[0]


def lotka_volterra(best):
    def run(p, n):
        a, b, c, d = p[0], p[1], p[2], p[3]
        h = 1e-3

        def rates(x, y):
            return a * x - b * x * y, d * x * y - c * y

        def step(state, _):
            x, y = state
            kx, ky = rates(x, y)
            lx, ly = rates(x + 0.5 * h * kx, y + 0.5 * h * ky)
            mx, my = rates(x + 0.5 * h * lx, y + 0.5 * h * ly)
            nx, ny = rates(x + h * mx, y + h * my)
            return x + h / 6 * (kx + 2 * lx + 2 * mx + nx), y + h / 6 * (ky + 2 * ly + 2 * my + ny)

        x, y = scanned(step, (p[4], p[5]), length=n, checkpoint=best)
        return x * x + y

    return run


def particles(best):
    def run(p, count, steps):
        i, j = np.triu_indices(count, 1)

        def force(x):
            d = x[i] - x[j]
            r = jnp.sqrt(d * d + 1e-4)
            near = (0.5 - r) * 10.0 * d / r
            far = -(r - 0.5) * (1.0 - r) * d
            g = jnp.where(r < 0.5, near, jnp.where(r < 1.0, far, 0.0))
            return jnp.zeros(count).at[i].add(g).at[j].add(-g)

        def step(state, _):
            x, v = state
            v = v + 1e-3 * force(x)
            x = x + 1e-3 * v
            low, high = x < 0.0, x > 4.0
            return jnp.where(low, -x, jnp.where(high, 8.0 - x, x)), jnp.where(low | high, -v, v)

        x, v = scanned(step, (p[:count], p[count:]), length=steps, checkpoint=best)
        return (x * x).sum() + (v * v).sum()

    return run


def gauss_seidel(best):
    def run(p, n, sweeps):
        h2 = 1.0 / ((n + 1.0) * (n + 1.0))

        def sweep(u, _):
            def point(left, row):
                old, right, f = row
                new = (left + right + h2 * f) / (2.0 + h2 * old * old)
                return new, new

            rows = (u, jnp.append(u[1:], 0.0), p)
            return jax.lax.scan(point, 0.0, rows, unroll=2 if best else 1)[1], None

        u = jax.lax.scan(sweep, jnp.zeros(n), None, sweeps)[0]
        return (u * u).sum()

    return run


def call_option(best):
    def run(p, z, paths, steps):
        start, strike, rate, sigma, years = p
        dt = years / steps
        width, drift = sigma * jnp.sqrt(dt), (rate - 0.5 * sigma * sigma) * dt
        z = z.reshape(paths, steps)
        if best:
            s = start * jnp.exp((drift + width * z).sum(1))  # by algebra, an exponential for each path
        else:
            s = jax.vmap(lambda row: scanned(lambda s, x: s * jnp.exp(drift + width * x), start, row))(z)
        return jnp.exp(-rate * years) * jnp.where(s > strike, s - strike, 0.0).sum() / paths

    return run


def planets(best):
    def run(p, bodies, steps):
        x, v = p[: 3 * bodies].reshape(bodies, 3), p[3 * bodies : 6 * bodies].reshape(bodies, 3)
        mass = p[6 * bodies :]
        off = 1.0 - np.eye(bodies)

        def step(state, _):
            x, v = state
            d = x[:, None] - x[None]
            r2 = (d * d).sum(-1) + 0.01
            w = 1e-3 / (r2 * jnp.sqrt(r2)) * off
            v = v - (w * mass[None] @ jnp.ones(bodies))[:, None] * x + (w * mass[None]) @ x
            return x + 1e-3 * v, v

        x, _ = scanned(step, (x, v), length=steps, checkpoint=best)
        return (x * x).sum()

    return run


def volatility(best):
    def run(p, returns):
        mean, base, reaction, memory = p

        def step(state, r):
            variance, total = state
            shock = r - mean
            total = total + jnp.log(variance) + shock * shock / variance
            return base + reaction * shock * shock + memory * variance, total

        def variances(variance, shock):
            return base + reaction * shock * shock + memory * variance, variance

        variance = base / (1.0 - reaction - memory)
        if not best:
            return 0.5 * scanned(step, (variance, 0.0), returns)[1]
        shock = returns - mean  # only what depends on the step before is in the loop
        variance = jax.lax.scan(variances, variance, shock, unroll=4)[1]
        return 0.5 * (jnp.log(variance) + shock * shock / variance).sum()

    return run


JAX = [lotka_volterra, particles, gauss_seidel, call_option, planets, volatility]
SMALL = {  # what torch does in a second or so
    "lotka_volterra": (200,), "particles": (32, 50), "gauss_seidel": (20, 20), "call_option": (None, 50, 50),
    "planets": (5, 50), "volatility": (None,),
}  # fmt: skip


# ---------------------------------------------------------------- torch


def torch_program(name, args):
    """The Python function of the program on torch's Tensors, vectorised where JAX's natural form is."""
    if name in ("lotka_volterra", "volatility"):
        math = type("math", (), {"log": torch.log, "sqrt": torch.sqrt})
        function = getattr(native_programs, name).py_func
        code = type(function)(function.__code__, function.__globals__ | {"math": math})
        return lambda p: code(p, *args)
    if name == "gauss_seidel":

        def run(p):
            n, sweeps = args
            h2 = 1.0 / ((n + 1.0) * (n + 1.0))
            u = [torch.zeros(())] * (n + 2)
            for _ in range(sweeps):
                for i in range(1, n + 1):
                    u[i] = (u[i - 1] + u[i + 1] + h2 * p[i - 1]) / (2.0 + h2 * u[i] * u[i])
            return sum(v * v for v in u)

    elif name == "call_option":

        def run(p):
            z, paths, steps = args
            start, strike, rate, sigma, years = p
            dt = years / steps
            width, drift = sigma * torch.sqrt(dt), (rate - 0.5 * sigma * sigma) * dt
            s = start * torch.ones(paths)
            z = torch.from_numpy(z.reshape(paths, steps))
            for k in range(steps):
                s = s * torch.exp(drift + width * z[:, k])
            return torch.exp(-rate * years) * torch.relu(s - strike).sum() / paths

    elif name == "particles":

        def run(p):
            count, steps = args
            i, j = (torch.from_numpy(k) for k in np.triu_indices(count, 1))
            x, v = p[:count], p[count:]
            for _ in range(steps):
                d = x[i] - x[j]
                r = torch.sqrt(d * d + 1e-4)
                far = torch.where(r < 1.0, -(r - 0.5) * (1.0 - r) * d, 0.0)
                g = torch.where(r < 0.5, (0.5 - r) * 10.0 * d / r, far)
                v = v + 1e-3 * torch.zeros(count).index_add(0, i, g).index_add(0, j, -g)
                x = x + 1e-3 * v
                low, high = x < 0.0, x > 4.0
                x, v = torch.where(low, -x, torch.where(high, 8.0 - x, x)), torch.where(low | high, -v, v)
            return (x * x).sum() + (v * v).sum()

    else:

        def run(p):
            bodies, steps = args
            x, v = p[: 3 * bodies].reshape(bodies, 3), p[3 * bodies : 6 * bodies].reshape(bodies, 3)
            mass, off = p[6 * bodies :], 1.0 - torch.eye(bodies)
            for _ in range(steps):
                d = x[:, None] - x[None]
                r2 = (d * d).sum(-1) + 0.01
                w = 1e-3 / (r2 * torch.sqrt(r2)) * off * mass[None]
                v = v - (w[..., None] * d).sum(1)
                x = x + 1e-3 * v
            return (x * x).sum()

    return run


# ---------------------------------------------------------------- figures


def best_in_turns(ways, repeat):
    """Milliseconds of each at best."""
    return {name: 1e3 * rows.min() for name, rows in in_turns(ways, repeat).items()}


def beside_jax(make, x, args, repeat):
    name = make.__name__
    primal = getattr(native_programs, name)
    ours = tg.func.value_and_grad(primal)
    static = tuple(range(1, 1 + len(args)))
    jitted, u = {}, np.random.default_rng(2).normal(size=x.size) * np.abs(x).mean()
    text = f"{name:15s}"
    hvp = tg.func.hvp(primal)(x, *args, u)
    for form in ("natural", "best"):
        run = make(form == "best")
        whole = [v for v in static if not isinstance(args[v - 1], np.ndarray)]
        jitted[form] = jax.jit(jax.value_and_grad(run), static_argnums=whole)
        wrong = difference(ours(x, *args)[1], np.asarray(jitted[form](x, *args)[1]))
        gradient = jax.grad(lambda p, run=run: run(p, *args))
        second = jax.jit(lambda p, v, g=gradient: jax.jvp(g, (p,), (v,))[1])
        also = difference(hvp, np.asarray(second(x, u)))
        if not wrong < 1e-10 or not also < 1e-9:
            raise AssertionError(f"{name}: {form} JAX differs by {wrong} in gradients, {also} in HVPs")
        text += f" {form}: gradient {wrong:.0e}, HVP {also:.0e}"
    ways = {"ours": lambda: ours(x, *args)}
    ways |= {k: (lambda f=f: jax.block_until_ready(f(x, *args))) for k, f in jitted.items()}
    best = best_in_turns(ways, repeat)
    print(f"{text} | ms: " + ", ".join(
        f"{k} {v:.2f}" + (f" ({v / best['ours']:.1f}x)" if k != "ours" else "") for k, v in best.items()
    ), flush=True)  # fmt: skip


def beside_torch(name, x, args, repeat):
    if name == "call_option":
        args = (args[0][: 50 * 50], 50, 50)
    elif name == "volatility":
        args = (args[0][:500],)
    elif name == "gauss_seidel":
        x, args = x[:20], SMALL[name]
    else:
        args = SMALL[name]
    ours, run = tg.func.value_and_grad(getattr(native_programs, name)), torch_program(name, args)

    def theirs():
        p = torch.tensor(x, requires_grad=True)
        return torch.autograd.grad(run(p), p)[0].numpy()

    wrong = difference(ours(x, *args)[1], theirs())
    if not wrong < 1e-10:
        raise AssertionError(f"{name}: differs from torch by {wrong}")
    best = best_in_turns({"ours": lambda: ours(x, *args), "torch": theirs}, repeat)
    small = ", ".join(str(v) for v in args if not isinstance(v, np.ndarray)) or str(args[0].size)
    print(
        f"{name:15s} ({small}): ours {best['ours']:.3f} ms, torch {best['torch']:.1f} ms "
        f"({best['torch'] / best['ours']:.0f}x)",
        flush=True,
    )


def third(make, x, args):
    """The third derivative along two directions, of a shorter program."""
    u, v = np.linspace(0.1, 1.0, x.size), np.linspace(-1.0, 0.5, x.size) * 1e-2
    function, t = tg.njit(getattr(native_programs, make.__name__)), tg.tensor(x, requires_grad=True)
    (g,) = tg.grad(function(t, *args), t, create_graph=True)
    (h,) = tg.grad((g * u).sum(), t, create_graph=True)
    (found,) = tg.grad((h * v).sum(), t)
    first = jax.grad(lambda p: make(False)(p, *args))
    second = jax.grad(lambda p: (first(p) * u).sum())
    expected = jax.jit(jax.grad(lambda p: (second(p) * v).sum()))(x)
    wrong = difference(found.numpy(), np.asarray(expected))
    if not wrong < 1e-9:
        raise AssertionError(f"{make.__name__}: third derivatives differ by {wrong}")
    print(f"{make.__name__:15s} third derivative: {wrong:.0e} from JAX's")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--only", nargs="*", help="programs by name")
    options = parser.parse_args()
    cases = native_programs.cases()
    chosen = [make for make in JAX if not options.only or make.__name__ in options.only]
    torch.set_default_dtype(torch.float64)
    for make in chosen:
        _, x, args = cases[make.__name__]
        beside_jax(make, x, args, options.repeat)
    for make in chosen:
        _, x, args = cases[make.__name__]
        beside_torch(make.__name__, x, args, options.repeat)
    third(lotka_volterra, cases["lotka_volterra"][1], (100,))
    third(volatility, cases["volatility"][1], (cases["volatility"][2][0][:100],))


if __name__ == "__main__":
    main()
