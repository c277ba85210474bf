"""Samples of the ops of `scipy.special`: operands by layout and dtype, checked as those of NumPy's functions.

Their oracle is the difference of SciPy's own function; `test_special.py` compares with mpmath.
"""

import functools
import inspect

import numpy as np

from tapegrad.kernels import symbols
from tapegrad.ops.special import RESULTS, SPECIAL
from tapegrad.ops.special.declare import special

from .builders import SHAPES, SIZE1_SHAPES
from .layouts import COMPLEX, INTEGER, MIXED, SIZE1, Case, converted, integers, leaf

# Constants in the place of operands by which no derivative is known.
FIXED = {"n": 3, "k": 2, "tol": 1e-8, "dfn": 3.0, "dfd": 5.0, "df": 3.0, "x": 2.5, "m": 0.6}
FIXED_OF = {
    "bdtr": {"n": 5}, "bdtrc": {"n": 5}, "bdtri": {"n": 5}, "lambertw": {"k": 0},
}  # fmt: skip
WITHOUT = {"elliprd", "riemann_zeta"}  # that have no derivative, for others' sake
OF_COMPLEX_ONLY = {"hurwitz", "wofz"}
FOR_RULES = {"gammainc_by_a", "betainc_by_a", "betainc_by_b"}
INTERVALS = {
    "huber": ((1.3, 1.9), (-1.1, 1.1)), "ellipkinc": ((-1.4, 1.4), (-1.5, 0.8)), "tandg": ((-40.0, 40.0),),
    "ellipeinc": ((-1.4, 1.4), (-1.5, 0.8)), "binom": ((3.2, 4.4), (0.3, 1.8)), "cotdg": ((20.0, 40.0),),
    "xlog1py": ((-1.5, 1.5), (-0.7, 1.5)), "expi": ((0.8, 1.9),),
}  # fmt: skip
SINGULAR = "hankel", "spherical_yn", "spherical_kn"  # at 0, so that differences are wrong near there
NAMES = sorted(set(SPECIAL) - WITHOUT - OF_COMPLEX_ONLY - FOR_RULES)


def function_of(op):
    """What a user calls; of several results the one of the op."""
    if op.functions:
        return op.functions[0]
    for ufunc, ops in RESULTS.items():
        if op in ops:
            return lambda *xs: ufunc(*xs)[ops.index(op)]
    return getattr(special, op.name)


def parameters(op):
    return [p for p in inspect.signature(op.rule.function).parameters if p != "out"]


@functools.cache
def takes_complex(name):
    """Whether SciPy has a loop of complex numbers that comes with a derivative."""
    op = SPECIAL[name]
    ufunc = symbols.FUNCTIONS[op.linked].ufunc
    if not op.holomorphic or {"elliprd"} & set(op.rule.function.__code__.co_names):
        return False
    return any(all(form[k] == "D" for k in range(op.arity) if k not in op.unknown) for form in ufunc.types)


def of_interval(op, k):
    low, high = INTERVALS[op.name][k] if op.name in INTERVALS else op.domain.of(k)
    if op.name not in INTERVALS:
        low, high = max(low, -1.9), (1.9 if high == np.inf else high)
        if low >= high:
            high = low + 2
        margin = 0.2 * (high - low)
        low, high = low + margin * (1 + 2 * op.name.startswith(SINGULAR)), high - margin
    return low, high


def drawn(random, op, k, shape, dtype):
    low, high = of_interval(op, k)
    count = max(int(np.prod(shape)), 1)
    x = low + (high - low) * (np.arange(count) + random.uniform(0.2, 0.8, count)) / count
    x = random.permutation(x)[: int(np.prod(shape))].reshape(shape)
    if dtype in COMPLEX:
        x = x + 1j * random.uniform(0.1, 0.4, shape)
    return x.astype(dtype)


def exists(name, dtype, layout):
    """Whether there are such operands."""
    if dtype in COMPLEX:
        return layout not in (MIXED, INTEGER) and takes_complex(name)
    op = SPECIAL[name]
    moving = [k for k in range(op.arity) if k not in op.unknown]
    if layout == INTEGER and len(moving) > 1 and of_interval(op, moving[1])[1] <= 1:
        return False
    return layout not in (MIXED, INTEGER) or len(moving) > 1


def samples(name, layout, dtype):
    """Cases of an op."""
    op = SPECIAL[name]
    random = np.random.default_rng([sum(map(ord, name)), sum(map(ord, layout)), sum(map(ord, dtype))])
    function, names = function_of(op), parameters(op)
    moving = [k for k in range(op.arity) if k not in op.unknown]
    shape = SHAPES.get(layout, (2, 3))
    operands = []
    for k in range(op.arity):
        if k in op.unknown:
            operands.append(np.asarray({**FIXED, **FIXED_OF.get(name, {})}.get(names[k], 1.5))[()])
            continue
        place = moving.index(k)
        own = SIZE1_SHAPES[place] if layout == SIZE1 and len(moving) > 1 else shape
        array = drawn(random, op, k, own, dtype)
        if layout == MIXED and place == 1:
            array = converted(array, dtype)
        if layout == INTEGER and place == 1:
            operands.append(integers(random, own, dtype, 1, 3))
        else:
            operands.append(leaf(array, layout))
    # Oracles are differences, as of complex operands, since few functions have an analytic extension.
    return [Case(tuple(operands), function, function, function, floor=1.0, complex=True)]
