"""What is checked of one cell of the op suite, and the oracles it is checked against.

The oracle of a derivative is the complex step: of f extended to complex operands, the imaginary part of
f(x + i h e) / h is the derivative along e without cancellation. Second derivatives take in addition
central differences of fourth order along a real direction. Of complex operands, which leave no room for
such a step, both are differences of sixth order along real and imaginary parts. All are evaluated in double
precision at the very operands, also for single precision.
"""

import functools
from typing import Any

import numpy as np

import tapegrad as tg
from tapegrad.autograd import forward_ad as fw
from tapegrad.ops import BY_OPCODE, REGISTRY

from .layouts import INTEGER, Absent, Case, Reason
from .samples import SAMPLES

ORDERS = ("value", "vjp", "second order", "jvp", "kernel = rule")
TINY = 1e-30
STEP = 2.0**-11  # of the differences: truncation and rounding are both below 1e-10
WEIGHTS = ((-2, 1 / 12), (-1, -2 / 3), (1, 2 / 3), (2, -1 / 12))

# Units of eps of the sum of the absolute terms of each component: rounding of the values a rule reads, of
# the functions it calls and of the sums. Second derivatives: rules of rules, and the differences' error.
FIRST, SECOND = 16.0, 24.0
DIFFERENCES = 1e-10
# Complex operands: steps and weights, errors by the scale of all terms.
FAR, NEAR = 2.0**-7, 2.0**-9
SIXTH = ((-3, -1 / 60), (-2, 3 / 20), (-1, -3 / 4), (1, 3 / 4), (2, -3 / 20), (3, 1 / 60))
SIXTH_AGAIN = ((-3, 1 / 90), (-2, -3 / 20), (-1, 3 / 2), (1, 3 / 2), (2, -3 / 20), (3, 1 / 90))
FIRST_DIFFERENCE, SECOND_DIFFERENCE = 1e-9, 1e-6


def sample(name: str, layout: str, dtype: str) -> Any:
    """Return the cases of a cell, or why there are none."""
    return _sample(SAMPLES[name], name, layout, dtype)


@functools.lru_cache(maxsize=16)
def _sample(build: Any, name: str, layout: str, dtype: str) -> Any:
    seed = [sum(map(ord, name)), sum(map(ord, layout)), sum(map(ord, dtype))]
    return build(REGISTRY[name], layout, dtype, np.random.default_rng(seed))


def is_complex(case: Case) -> bool:
    if case.complex is None:
        case.complex = any(np.iscomplexobj(x) for x in case.values)
    return case.complex


# ---------------------------------------------------------------- oracles


def numbers(x: Any) -> Any:
    """All elements as real numbers in double precision, of a complex one its parts."""
    x = np.asarray(x)
    return np.ravel(x).astype(complex).view(float) if x.dtype.kind == "c" else np.ravel(x).astype(float)


def widened(case: Case) -> list[Any]:
    """Operands in double precision: complex those that move."""
    kinds = [np.complex128 if k in case.moves else None for k in range(len(case.operands))]
    return [np.array(v, kind) if kind else v for v, kind in zip(case.values, kinds, strict=True)]


def jacobians(case: Case) -> dict[int, Any]:
    """Derivatives (elements of the result, elements of the operand); of complex numbers by each part."""
    if case.jacobians is None:
        case.jacobians = differences(case) if is_complex(case) else by_complex_step(case)
    return case.jacobians


def units(x: Any) -> Any:
    """A one for each element, and if it is complex an i."""
    for j in range(x.size):
        for one in (1, 1j) if x.dtype.kind == "c" else (1,):
            unit = np.zeros(x.shape, x.dtype)
            unit.reshape(-1)[j] = one
            yield unit


def doubled(case: Case) -> list[Any]:
    """Operands in double precision."""
    return [np.array(v, np.result_type(np.asarray(v), float)) if k in case.moves else v
            for k, v in enumerate(case.values)]  # fmt: skip


def differences(case: Case, along: Any = None) -> dict[int, Any]:
    """Derivatives by differences; those of the derivative along a direction if there is one."""
    operands, found = doubled(case), {}
    function = case.function or case.reference

    def value(t, s, k, unit):
        moved = [x + s * along[q] if s and q in along else x for q, x in enumerate(operands)]
        moved[k] = moved[k] + t * unit
        return numbers(function(*moved))

    for k in case.moves:
        rows = numbers(case.reference(*operands)).size
        columns = []
        for unit in units(operands[k]):
            if along is None:
                steps = [weight * value(place * NEAR, 0, k, unit) for place, weight in SIXTH]
                columns.append(sum(steps) / NEAR)
            else:  # of the sum of two directions less that of their difference: what stands at 0 drops out
                pairs = [(place * FAR, weight) for place, weight in SIXTH_AGAIN]
                steps = [weight * (value(h, h, k, unit) - value(h, -h, k, unit)) for h, weight in pairs]
                columns.append(sum(steps) / FAR**2 / 4)
        found[k] = np.array(columns).reshape(len(columns), rows).T
    return found


def by_complex_step(case: Case) -> dict[int, Any]:
    operands, found = widened(case), {}
    for k in case.moves:
        columns = []
        for j in range(operands[k].size):
            moved = operands[k].copy()
            moved.reshape(-1)[j] += 1j * TINY
            columns.append(np.ravel(case.smooth(*operands[:k], moved, *operands[k + 1 :])).imag / TINY)
        found[k] = _columns(case, operands[k].size, columns)
    return found


def _columns(case: Case, size: int, columns: list[Any]) -> Any:
    """Derivatives, of a result of a complex type that is real perhaps those of the real parts."""
    rows = numbers(case.reference(*case.values)).size
    columns = [x if x.size == rows else numbers(x.astype(complex)) for x in columns]
    return np.array(columns).reshape(size, rows).T


def second(case: Case, directions: dict[int, Any]) -> dict[int, Any]:
    """Derivatives of the derivative along `directions`, shaped as by `jacobians`."""
    if is_complex(case):
        return differences(case, directions)
    operands, found = widened(case), {}
    for k in case.moves:
        columns = []
        for j in range(operands[k].size):
            total = 0.0
            for place, weight in WEIGHTS:
                moved = [
                    x + place * STEP * directions[q] if q in directions else x for q, x in enumerate(operands)
                ]
                moved[k] = np.array(moved[k])
                moved[k].reshape(-1)[j] += 1j * TINY
                total = total + weight * np.ravel(case.smooth(*moved)).imag
            columns.append(total / TINY / STEP)
        found[k] = _columns(case, operands[k].size, columns)
    return found


# ---------------------------------------------------------------- what tapegrad computes


def recorded(case: Case, name: str) -> Any:
    """The result, from a call on a tape that knows the operands, recorded as the op in question."""
    case.call(*case.operands)
    out = case.call(*case.operands)
    if case.moves:
        assert BY_OPCODE[opcode(out)].name == name, f"{name} was recorded as {out!r}"
    return out


def compiled(out: Any, inputs: list[Any], ct: Any) -> list[Any]:
    """Cotangents of the inputs, by the compiled sweep."""
    return [plain(g) for g in tg.grad(out, inputs, ct, retain_graph=True)]


def by_rule(out: Any, inputs: list[Any], ct: Any) -> list[Any]:
    """Cotangents of the inputs, by the op's rule run on Tensors."""
    return list(tg.grad(out, inputs, ct, create_graph=True))


def attributes(out: Any) -> dict[str, Any]:
    """The attributes that a result was recorded with."""
    return out._tape.attrs.get((out._at >> 2) - 1, {})


def opcode(out: Any) -> int:
    return out._tape.log[4 * ((out._at >> 2) - 1)]


def plain(x: Any) -> Any:
    return np.asarray(x.detach().numpy() if isinstance(x, tg.Tensor) else x)


# ---------------------------------------------------------------- comparisons


def same_kind(found: Any, like: Any, what: str) -> None:
    assert np.shape(found) == np.shape(like), f"{what}: shape {np.shape(found)}, not {np.shape(like)}"
    assert found.dtype == like.dtype, f"{what}: dtype {found.dtype}, not {like.dtype}"


def within(found: Any, wanted: Any, bound: Any, what: str) -> int:
    """Compare elements against a bound each; returns how many there are, at least 1."""
    found, wanted = (numbers(x) if np.iscomplexobj(x) else np.asarray(x, float) for x in (found, wanted))
    error = np.abs(found - wanted)
    assert np.all(error <= bound), f"{what}:\nfound {found}\nwanted {wanted}\nerror {error}\nbound {bound}"
    return max(found.size, 1)


def inexact(case: Case, terms: Any, error: float) -> Any:
    """What differences of complex operands are off by: each component by the scale of all."""
    return error * np.max(terms, initial=1) if is_complex(case) else 0.0


def eps_of(out: Any, x: Any) -> float:
    """Rounding unit of a cotangent: the coarser of its own dtype and the result's."""
    return float(max(np.finfo(out.dtype).eps, np.finfo(x.dtype).eps))


def direction(random: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Random numbers that are exact in the dtype, none near 0."""
    if np.dtype(dtype).kind == "c":
        real = np.finfo(dtype).dtype
        return direction(random, shape, real) + 1j * direction(random, shape, real)
    found = random.uniform(0.3, 1.0, shape) * np.where(random.uniform(size=shape) < 0.5, -1, 1)
    return np.asarray(found).astype(dtype)


def inner(out: Any, ct: Any) -> Any:
    """Real product of a result, recorded, with a cotangent."""
    return np.sum(np.real(out * np.conj(ct)) if np.iscomplexobj(ct) else out * ct)


def cotangent(case: Case, out: Any) -> Any:
    return direction(np.random.default_rng(len(case.operands)), out.shape, out.dtype)


def tangents(case: Case) -> dict[int, Any]:
    random = np.random.default_rng(7)
    return {k: direction(random, case.operands[k].shape, case.operands[k].dtype) for k in case.moves}


# ---------------------------------------------------------------- one check per order


def check_value(name: str, case: Case) -> int:
    """Value, shape and dtype are NumPy's, recorded or not; Python numbers count as float64."""
    out, wanted = recorded(case, name), np.asarray(case.reference(*case.values))
    same_kind(plain(out), wanted, "value")
    ulps = case.ulps or is_complex(case)  # NumPy rounds complex scalars and arrays differently
    bound = ulps * np.finfo(wanted.dtype).eps * np.maximum(np.abs(numbers(wanted)), 1) if ulps else 0
    count = within(numbers(plain(out)), numbers(wanted), bound, "value")
    with tg.no_grad():
        unrecorded = case.call(*case.operands)
    assert not unrecorded.requires_grad
    assert out.requires_grad == bool(case.moves)
    same_kind(plain(unrecorded), wanted, "value under no_grad")
    return count + within(numbers(plain(unrecorded)), numbers(wanted), bound, "value under no_grad")


def check_vjp(name: str, case: Case) -> int:
    """The compiled sweep against the complex step.

    From the result; from two results, whose cotangents add up in the operands; from a scalar computed
    from the result, on a tape still open; and with operands that are results themselves, by these, by
    the leaves below and by the result.
    """
    out, again = recorded(case, name), case.call(*case.operands)
    ct, inputs = cotangent(case, out), [case.operands[k] for k in case.moves]
    count, flat, jacobian = 0, numbers(ct), jacobians(case)
    ways = [
        ("cotangent", 1, compiled(out, inputs, ct)),
        ("sum of two cotangents", 2, compiled([out, again], inputs, [ct, ct])),
        ("gradient of a scalar", 1, compiled(inner(case.call(*case.operands), ct), inputs, None)),
    ]
    results = {k: case.operands[k] * 1.0 for k in case.moves}
    late = case.call(*(results.get(k, x) for k, x in enumerate(case.operands)))
    itself, *found = compiled(late, [late, *results.values(), *inputs], ct)
    count += within(itself, ct, 0, "gradient of the result by itself")
    ways += [("by results", 1, found[: len(inputs)]), ("below results", 1, found[len(inputs) :])]
    for what, times, found in ways:
        for k, g in zip(case.moves, found, strict=True):
            same_kind(g, case.operands[k], f"{what}, operand {k}")
            wanted = times * flat @ jacobian[k]
            terms = np.maximum(np.abs(flat) @ np.abs(jacobian[k]), case.floor)
            bound = times * FIRST * eps_of(out, g) * terms + inexact(case, terms, FIRST_DIFFERENCE)
            count += within(numbers(g), wanted, bound, f"{what}, operand {k}")
    return count


def check_second(name: str, case: Case) -> int:
    """Gradients of <w, vjp(v)> by the operands and by v against second derivatives of the function."""
    out = recorded(case, name)
    inputs, along = [case.operands[k] for k in case.moves], tangents(case)
    ct = tg.tensor(cotangent(case, out), requires_grad=True)
    firsts = by_rule(out, inputs, ct)
    total = 0.0
    for k, first in zip(case.moves, firsts, strict=True):
        same_kind(plain(first), case.operands[k], f"recorded cotangent of operand {k}")
        total = total + inner(first, along[k])
    *by_inputs, by_ct = tg.grad(total, [*inputs, ct], materialize_grads=True)
    flat = numbers(plain(ct))
    jacobian, curved, count = jacobians(case), second(case, along), 0
    moved = sum(jacobian[k] @ numbers(along[k]) for k in case.moves)
    terms = sum(np.abs(jacobian[k]) @ np.abs(numbers(along[k])) for k in case.moves)
    terms = np.maximum(terms, case.floor)
    same_kind(plain(by_ct), plain(ct), "gradient by the cotangent")
    bound = FIRST * eps_of(out, ct) * terms + inexact(case, terms, FIRST_DIFFERENCE)
    count += within(numbers(plain(by_ct)), moved, bound, "gradient by the cotangent")
    scale = np.abs(flat) @ terms
    for k, found in zip(case.moves, by_inputs, strict=True):
        same_kind(plain(found), case.operands[k], f"second derivative by operand {k}")
        terms_k, eps = np.maximum(np.abs(flat) @ np.abs(curved[k]), case.floor), eps_of(out, found)
        bound = SECOND * eps * terms_k + (DIFFERENCES + eps) * (terms_k + scale)
        bound = bound + inexact(case, terms_k + scale, SECOND_DIFFERENCE)
        wanted = flat @ curved[k]
        count += within(numbers(plain(found)), wanted, bound, f"second derivative by operand {k}")
    return count


def check_jvp(name: str, case: Case) -> int:
    """Tangents through duals and as declared, all operands moving and one at a time; <v, Ju> = <J'v, u>."""
    out = recorded(case, name)
    op, attrs, along, eps = BY_OPCODE[opcode(out)], attributes(out), tangents(case), eps_of(out, out)
    values = [np.asarray(v)[()] if np.ndim(v) == 0 else np.asarray(v) for v in case.values]
    ct, inputs = cotangent(case, out), [case.operands[k] for k in case.moves]
    jacobian, pulled = jacobians(case), dict(zip(case.moves, compiled(out, inputs, ct), strict=True))
    count, flat = 0, numbers(ct)
    value = plain(out)[()]
    for moving in ["duals", case.moves, *([k] for k in case.moves)]:
        if moving == "duals":
            moving, pushed = case.moves, through_duals(case, along)
        else:
            given = [along[k] if k in moving else None for k in range(len(values))]
            pushed = op.jvp(given, value, values, attrs)
        same_kind(pushed, out, "tangent")
        steps = [(jacobian[k], numbers(along[k])) for k in moving]
        wanted, terms = sum(j @ u for j, u in steps), sum(np.abs(j) @ np.abs(u) for j, u in steps)
        terms = np.maximum(terms, case.floor)
        bound = FIRST * eps * terms + inexact(case, terms, FIRST_DIFFERENCE)
        count += within(numbers(pushed), wanted, bound, f"tangent, operands {moving} moving")
        forward = flat @ numbers(pushed)
        backward = sum(numbers(pulled[k]) @ numbers(along[k]) for k in moving)
        coarse = max(eps_of(out, case.operands[k]) for k in moving)
        bound = 2 * FIRST * coarse * (np.abs(flat) @ terms)
        count += within(forward, backward, bound, "<v, Ju> = <J'v, u>")
    return count


def through_duals(case: Case, along: dict[int, Any]) -> Any:
    """The tangent of a result in forward mode, that is by the rule run on Tensors."""
    with fw.dual_level():
        given = [
            fw.make_dual(x.detach(), tg.tensor(along[k])) if k in along else x
            for k, x in enumerate(case.operands)
        ]
        primal, tangent = fw.unpack_dual(case.call(*given))
        assert not primal.requires_grad and not tangent.requires_grad
        return plain(tangent)


ULPS = 6  # libm and vector forms differ by an ulp, and the rule of arctan2 divides twice by such a value


def check_kernel(name: str, case: Case) -> int:
    """Compiled against interpreted rule, within a few ulp.

    The ulp is that of the sum of the absolute terms of each component, |J|^T |v|: of the value itself
    where the op is elementwise and nothing is broadcast, and otherwise the scale on which sums taken in
    another order differ.
    """
    out = recorded(case, name)
    ct, inputs = cotangent(case, out), [case.operands[k] for k in case.moves]
    rule = [plain(g) for g in by_rule(out, inputs, tg.tensor(ct))]
    jacobian, count = jacobians(case), 0
    for k, found, wanted in zip(case.moves, compiled(out, inputs, ct), rule, strict=True):
        terms = np.maximum(np.abs(numbers(ct)) @ np.abs(jacobian[k]), np.abs(numbers(wanted)))
        terms = np.maximum(terms, case.floor)
        bound = ULPS * np.spacing(terms.astype(wanted.real.dtype))
        count += within(numbers(found), numbers(wanted), bound, f"operand {k}: kernel against rule")
    return count


CHECKS = dict(zip(ORDERS, (check_value, check_vjp, check_second, check_jvp, check_kernel), strict=True))


def outcome(name: str, dtype: str, layout: str, order: str) -> int | Reason:
    """Check a cell; returns the number of comparisons made, or the reason why the cell cannot exist."""
    cases = sample(name, layout, dtype)
    if isinstance(cases, Absent):
        assert cases.shown(), f"{name}, {layout}: not so: {cases.reason.value}"
        return cases.reason
    found: list[int] = []
    for case in cases:
        if case.moves or order == "value":
            found.append(CHECKS[order](name, case))
        else:
            assert layout == INTEGER
            assert not case.call(*case.operands).requires_grad
    return sum(found) if found or not cases else Reason.INTEGER_ONLY
