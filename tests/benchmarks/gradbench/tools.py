"""The ways in which values and derivatives of a problem are computed: tapegrad's three, and its peers.

A tool gives two calls, for the value and for the derivative, or None where it has none of its own. Both take
variables and data, NumPy's arrays, and give a tuple of NumPy's arrays: making leaves is part of them.
"""

import importlib
from functools import partial

import numpy as np

import tapegrad as tg

from .problem import only


def several(value):
    return value if isinstance(value, tuple) else (value,)


def arrays(value):
    return tuple(np.asarray(v) for v in several(value))


class Eager:
    """tapegrad, on plain NumPy code; the value is NumPy's alone."""

    name = "eager"

    def __init__(self):
        self.namespace = np
        self.array = np.asarray
        self.leaf = partial(tg.tensor, requires_grad=True)
        self.grad = tg.grad

    def function(self, problem):
        return partial(problem.value, self.namespace)

    def value(self, problem):
        function = self.function(problem)

        def call(variables, data):
            variables, data = problem.spread(variables, data)
            return arrays(function(*map(self.array, variables), *map(self.given, data)))

        return call

    def derivative(self, problem):
        function = self.function(problem)

        def call(variables, data):
            variables, data = problem.spread(variables, data)
            leaves, gradients = [self.leaf(v) for v in variables], []
            out = several(function(*leaves, *map(self.given, data)))
            for k, v in enumerate(out, 1):
                ones = self.array(np.ones(v.shape)) if v.ndim else None
                of_one = self.grad(v, leaves, ones, retain_graph=k < len(out))
                gradients.append([np.asarray(g.numpy()) for g in of_one])
            return problem.joined(gradients)

        return call

    def given(self, value):
        """An array of the tool's; a number stays one."""
        return self.array(value) if isinstance(value, np.ndarray) else value


class Torch(Eager):
    """torch, eagerly, on one thread."""

    name = "torch"

    def __init__(self):
        torch = importlib.import_module("torch")
        torch.set_num_threads(1)
        torch.set_default_dtype(torch.float64)
        self.namespace = torch
        self.array = torch.from_numpy
        self.leaf = partial(torch.tensor, requires_grad=True)
        self.grad = torch.autograd.grad


def summed(function, k, *given):
    """Result number k of a function, or the sum of its elements."""
    v = several(function(*given))[k]
    return np.sum(v) if np.ndim(v) else v


class Compile(Eager):
    """tapegrad, on plain NumPy code by `tapegrad.compile`: gradients of numbers and of sums."""

    name = "compile"
    replay = False

    def derivative(self, problem):
        function = self.function(problem)
        variables, data = problem.spread(*problem.inputs(*problem.sizes["tiny"], seed=0))
        where, count = tuple(range(len(variables))), len(several(function(*variables, *data)))
        compiled = [
            tg.compile(partial(summed, function, k), where, wait=True, replay=self.replay)
            for k in range(count)
        ]

        def call(variables, data):
            variables, data = problem.spread(variables, data)
            return problem.joined([arrays(f.grad(*variables, *data)) for f in compiled])

        return call


class Replay(Compile):
    """The same where Python is skipped: of problems without arrays of data, new ones at each call."""

    name = "replay"
    replay = True

    def value(self, problem):
        return None

    def derivative(self, problem):
        _, data = problem.inputs(*problem.sizes["tiny"], seed=0)
        return None if any(isinstance(d, np.ndarray) for d in data) else super().derivative(problem)


class Njit(Eager):
    """tapegrad, on what `tapegrad.njit` compiles: `tapegrad.func.grad` of numbers, else with Tensors."""

    name = "njit"

    def function(self, problem):
        return problem.compiled

    def derivative(self, problem):
        if problem.joined is not only:
            return super().derivative(problem)
        count = len(problem.inputs(*problem.sizes["tiny"], seed=0)[0])
        gradient = tg.func.grad(problem.compiled, tuple(range(count)))
        return lambda variables, data: arrays(gradient(*variables, *data))


class Jax:
    """JAX in double precision, compiled by its jit; free to use all cores."""

    name = "jax"

    def __init__(self):
        self.jax = importlib.import_module("jax")
        self.jax.config.update("jax_enable_x64", True)
        self.jax.config.update("jax_platforms", "cpu")

    def compiled(self, function):
        """The function of variables and data, numbers among the data being fixed."""
        forms = {}

        def call(variables, data):
            fixed = tuple(None if isinstance(d, np.ndarray) else d for d in data)
            if fixed not in forms:

                def form(variables, given):
                    rest = iter(given)
                    return function(variables, [next(rest) if d is None else d for d in fixed])

                forms[fixed] = self.jax.jit(form)
            return forms[fixed](variables, [d for d in data if isinstance(d, np.ndarray)])

        return call

    def outcome(self, problem, variables, data):
        if problem.scanned:
            return several(problem.scanned(self.jax, *variables, *data))
        return several(problem.value(self.jax.numpy, *variables, *data))

    def value(self, problem):
        run = self.compiled(lambda variables, data: self.outcome(problem, *problem.spread(variables, data)))
        return lambda variables, data: arrays(run(variables, data))

    def derivative(self, problem):
        m = self.jax.numpy

        def gradients(variables, data):
            variables, data = problem.spread(variables, data)
            out, sweep = self.jax.vjp(lambda *v: self.outcome(problem, v, data), *variables)
            return [sweep(tuple(m.full(v.shape, 1.0 * (v is one)) for v in out)) for one in out]

        run = self.compiled(gradients)
        return lambda variables, data: problem.joined([arrays(g) for g in run(variables, data)])


class Autograd:
    """HIPS autograd, on its wrapped NumPy."""

    name = "autograd"

    def __init__(self):
        self.namespace = importlib.import_module("autograd.numpy")
        self.make_vjp = importlib.import_module("autograd").make_vjp
        self.tuple = importlib.import_module("autograd.builtins").tuple

    def value(self, problem):
        def call(variables, data):
            variables, data = problem.spread(variables, data)
            return arrays(problem.value(self.namespace, *variables, *data))

        return call

    def derivative(self, problem):
        def call(variables, data):
            variables, data = problem.spread(variables, data)

            def outcome(variables):
                return self.tuple(several(problem.value(self.namespace, *variables, *data)))

            sweep, out = self.make_vjp(outcome)(variables)
            seeds = [tuple(np.full(np.shape(v), 1.0 * (v is one)) for v in out) for one in out]
            return problem.joined([sweep(seed) for seed in seeds])

        return call


OURS = Eager, Compile, Replay, Njit
PEERS = {kind.name: kind for kind in (Torch, Jax, Autograd)}
