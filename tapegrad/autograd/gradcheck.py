"""Analytical derivatives against central differences."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from tapegrad.autograd.apply import as_tensor, holds_numbers
from tapegrad.autograd.backward import grad
from tapegrad.autograd.forward_ad import dual_level, make_dual, unpack_dual
from tapegrad.core.base import has_tangent
from tapegrad.core.dispatch import as_tape_value
from tapegrad.core.grad_mode import enable_grad, no_grad
from tapegrad.errors import GradcheckError
from tapegrad.tensor import Operand, Tensor, TensorOrArray, tensor, without_history, wrap

__all__ = ["gradcheck", "gradgradcheck"]

LANES = 2  # seeds of a batch


def gradcheck(
    func: Callable[..., Any],
    inputs: Any,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
    masked: bool | None = None,
    order: int = 1,
) -> bool:
    """Compare the derivatives of a function with central differences; complex numbers by both parts.

    Parameters
    ----------
    func : callable
        Takes Tensors, returns a Tensor or a tuple of them.
    inputs : Tensor or sequence of Tensor
        Where to check; those that require grad are varied.
    eps, atol, rtol : float, optional
        Step of the differences; allowed is ``atol + rtol * abs(numerical)``.
    raise_exception : bool, optional
        Raise on a mismatch, or return False.
    nondet_tol : float, optional
        Allowed difference between two sweeps over the same inputs.
    check_undefined_grad : bool, optional
        See that an output without a gradient counts as one with a gradient of zero, and in forward mode an
        input without a tangent.
    check_grad_dtypes : bool, optional
        See that gradients have their inputs' dtypes, and tangents their outputs'.
    check_batched_grad, check_batched_forward_grad : bool, optional
        See that several gradients, or tangents, at once are what they are one after the other.
    check_forward_ad, check_backward_ad : bool, optional
        Which modes to check; one of them at least.
    fast_mode : bool, optional
        Compare along one random direction, which takes three calls of the function for each output and
        input, instead of two for each of their elements.
    masked : bool, optional
        Accepted as torch accepts it; without sparse Tensors there is nothing to mask.
    order : int, optional
        Check derivatives up to this order: those of derivatives along random directions.

    Returns
    -------
    bool

    Raises
    ------
    GradcheckError
        A derivative differs.
    ValueError
        No input requires grad, or the options contradict each other.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> x = tg.tensor([0.5, 1.5], requires_grad=True)
    >>> tg.gradcheck(np.sin, x, check_forward_ad=True, order=3)
    True
    """
    given = _inputs("gradcheck", func, inputs)
    if order < 1:
        raise ValueError(f"gradcheck: order is 1 or more, found {order}")
    if not check_backward_ad and not check_forward_ad:
        raise ValueError("gradcheck: nothing to check; set check_backward_ad or check_forward_ad")
    if check_batched_grad and not check_backward_ad:
        raise ValueError("gradcheck: check_batched_grad=True needs check_backward_ad=True")
    if check_batched_forward_grad and not check_forward_ad:
        raise ValueError("gradcheck: check_batched_forward_grad=True needs check_forward_ad=True")
    varied = _varied(given, "gradcheck")
    for k in varied:
        if given[k].dtype.char not in "dD":
            warnings.warn(
                f"gradcheck: input {k} has dtype {given[k].dtype}; differences need float64",
                UserWarning,
                stacklevel=2,
            )
        if given[k].size and any(
            s == 0 and n > 1 for s, n in zip(given[k].strides, given[k].shape, strict=True)
        ):
            raise GradcheckError(f"gradcheck: input {k} repeats elements of its memory; pass a copy")
    try:
        for turn in range(order):
            if turn:
                func, given = _derivative(func, given, varied, None, False)
                varied = _varied(given, "gradcheck")
            check = _Check(
                func, given, varied, eps, atol, rtol, nondet_tol, check_undefined_grad, check_grad_dtypes,
                check_batched_grad, check_batched_forward_grad, check_forward_ad, check_backward_ad,
            )  # fmt: skip
            check.run(fast_mode)
    except GradcheckError as error:
        if raise_exception:
            if turn:
                raise GradcheckError(f"order {turn + 1}: {error}") from error
            raise
        return False
    return True


def _outputs(result: Any) -> tuple[Tensor, ...]:
    """The outputs of a function: its Tensors, and arrays and numbers, which have lost their derivative."""
    several = isinstance(result, (tuple, list))
    outputs = [as_tensor(x) for x in (result if several else (result,))]
    for x in outputs:
        if not isinstance(x, Tensor) and (holds_numbers(x) or not several):
            raise TypeError(
                f"gradcheck: func returned {'None' if x is None else 'a ' + type(x).__name__}"
                f"{' among others' * several}, of which nothing can be compared; let it return a Tensor or a "
                "tuple of Tensors"
            )
    return tuple(x for x in outputs if isinstance(x, Tensor))


def _listed(inputs: Any) -> list[Any]:
    return [inputs] if isinstance(inputs, Tensor) else list(inputs)


def _inputs(what: str, func: Callable[..., Any], inputs: Any) -> list[Any]:
    """Inputs as a list, of what is seen to be a function."""
    if not callable(func):
        raise TypeError(f"{what} takes a function, found {type(func).__name__}: tg.{what}(f, inputs)")
    return _listed(inputs)


def _varied(given: list[Any], what: str) -> list[int]:
    """Positions of the inputs that require grad; one given twice becomes two."""
    varied = [k for k, x in enumerate(given) if isinstance(x, Tensor) and x.requires_grad]
    if not varied:
        raise ValueError(f"{what}: no input requires grad; make one by tg.tensor(a, requires_grad=True)")
    for k in varied:
        if any(given[k] is given[j] for j in range(k)):  # each place is varied by itself
            given[k] = given[k].detach().requires_grad_()
    return varied


@dataclass
class _Check:
    """A function at a point, and what is asked of its derivatives."""

    func: Callable[..., Any]
    given: list[Any]
    varied: list[int]
    eps: float
    atol: float
    rtol: float
    nondet_tol: float
    undefined: bool
    dtypes: bool
    batched: bool
    batched_forward: bool
    forward: bool
    backward: bool

    def run(self, fast: bool) -> None:
        outputs = self.outputs()
        known = [k for k, y in enumerate(outputs) if y.dtype.kind in "fc"]
        for place in known:
            if fast:
                self.along(place)
            else:
                self.element_by_element(place)
            if self.backward and outputs[place].requires_grad:
                self.sweeps(outputs, place)
        if self.backward and self.undefined:
            self.missing_gradients([outputs[k] for k in known if outputs[k].requires_grad])
        if self.forward:
            self.tangents(outputs, known)

    @property
    def targets(self) -> list[Tensor]:
        return [self.given[k] for k in self.varied]

    def outputs(self, args: Sequence[Operand] | None = None) -> tuple[Tensor, ...]:
        return _outputs(self.func(*(self.given if args is None else args)))

    # ------------------------------------------------------------ each element

    def element_by_element(self, place: int) -> None:
        """Compare whole Jacobians of an output."""
        output = self.outputs()[place]
        numerical = [self.differences(k, place) for k in self.varied]
        if self.backward:
            if output.requires_grad:
                analytical = self.rows(output)
                for k, a, b in zip(self.varied, analytical, self.rows(output), strict=True):
                    if not np.allclose(a, b, rtol=0, atol=self.nondet_tol, equal_nan=True):
                        raise GradcheckError(f"gradcheck: two sweeps differ for input {k}, output {place}")
            else:
                analytical = [np.zeros(x.shape) for x in numerical]
            self.compare("derivative", place, analytical, numerical)
        if self.forward:
            self.compare("tangent", place, [self.columns(k, place) for k in self.varied], numerical)

    def compare(
        self, what: str, place: int, analytical: list[np.ndarray], numerical: list[np.ndarray]
    ) -> None:
        for k, a, n in zip(self.varied, analytical, numerical, strict=True):
            wrong = ~(np.abs(a - n) <= self.atol + self.rtol * np.abs(n))
            if wrong.any():
                at = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
                raise GradcheckError(
                    f"gradcheck: {what} of output {place}, element {int(at[0])}, by input {k}, element "
                    f"{int(at[1])}, is {a[at]}, by differences {n[at]}"
                )

    def differences(self, k: int, place: int) -> np.ndarray:
        """The Jacobian by central differences: (numbers of output, numbers of input)."""
        size = _numbers(self.given[k]).size
        columns = [self.difference(k, place, unit) for unit in np.eye(size)]
        rows = _numbers(self.outputs()[place]).size
        return np.array(columns).T.reshape(rows, size)

    def difference(self, k: int, place: int, direction: np.ndarray) -> Any:
        """The derivative of an output along a direction in an input's numbers."""
        base, sides = np.array(_value(self.given[k])), []
        for sign in (1, -1):
            moved = base.copy()
            _parts(moved)[...] += sign * self.eps * direction
            args = list(self.given)
            args[k] = tensor(moved).requires_grad_()
            with no_grad():
                sides.append(_numbers(self.outputs(args)[place]).astype(float))
        return (sides[0] - sides[1]) / (2 * self.eps)

    def rows(self, output: Tensor) -> list[np.ndarray]:
        """The Jacobians backward, a sweep per number of the output."""
        rows: list[list[np.ndarray]] = [[] for _ in self.varied]
        seed = np.zeros(output.size, output.dtype)
        for i in range(_parts(seed).size):
            seed[:] = 0
            _parts(seed)[i] = 1
            for row, g in zip(rows, self.pulled(output, seed.reshape(output.shape)), strict=True):
                row.append(g)
        count = _parts(seed).size
        return [
            np.array(row).reshape(count, _numbers(x).size) for row, x in zip(rows, self.targets, strict=True)
        ]

    def columns(self, k: int, place: int) -> np.ndarray:
        """The Jacobian forward, a pass per number of an input."""
        x, columns = self.given[k], []
        for unit in np.eye(_numbers(x).size):
            columns.append(_numbers(self.pushed({k: _shaped(unit, x)})[place]))
        rows = _numbers(self.outputs()[place]).size
        return np.array(columns).T.reshape(rows, _numbers(x).size)

    # ------------------------------------------------------------ along a direction

    def along(self, place: int) -> None:
        """Compare products of the Jacobians with random vectors on both sides."""
        output = self.outputs()[place]
        random = np.random.default_rng(place)
        left = _unit(random, _numbers(output).size)
        for q, k in enumerate(self.varied):
            x = self.given[k]
            right = _unit(random, _numbers(x).size)
            numerical = float(left @ self.difference(k, place, right))
            room = self.atol * np.abs(left).sum() * np.abs(right).sum() + self.rtol * abs(numerical)
            found = []
            if self.backward:
                seed, pulled, again = _shaped(left, output), 0 * right, 0 * right
                if output.requires_grad:
                    pulled, again = (self.pulled(output, seed)[q] for _ in range(2))
                if not np.allclose(pulled, again, rtol=0, atol=self.nondet_tol, equal_nan=True):
                    raise GradcheckError(f"gradcheck: two sweeps differ for input {k}, output {place}")
                found.append(("derivative", float(pulled @ right)))
            if self.forward:
                pushed = self.pushed({k: _shaped(right, x)})[place]
                found.append(("tangent", float(left @ _numbers(pushed))))
            for what, value in found:
                if not abs(value - numerical) <= room:
                    self.element_by_element(place)  # says which element it is
                    raise GradcheckError(
                        f"gradcheck: {what} of output {place} by input {k}, along random directions, is "
                        f"{value!r}, by differences {numerical!r}"
                    )

    # ------------------------------------------------------------ further conditions

    def sweeps(self, outputs: Sequence[Tensor], place: int) -> None:
        """What is asked of the gradient of one output, besides its value."""
        output = outputs[place]
        for g in self.pulled(output, np.zeros(output.shape, output.dtype)):
            if np.any(np.nan_to_num(g) != 0):
                raise GradcheckError(
                    f"gradcheck: a zero gradient of output {place} gives one that is not zero"
                )
        random = np.random.default_rng(place)
        if self.dtypes:
            seed = _direction(random, output)
            for k, g in zip(self.varied, self.gradients([output], [seed]), strict=True):
                if g is not None and g.dtype != self.given[k].dtype:
                    raise GradcheckError(
                        f"gradcheck: the gradient of output {place} by input {k} has dtype {g.dtype}, the "
                        f"input {self.given[k].dtype}"
                    )
        if self.batched:
            seeds = np.stack([_direction(random, output) for _ in range(LANES)])
            with _failing(f"a batch of gradients of output {place}"):
                found = self.gradients([output], [seeds], is_grads_batched=True)
            for lane in range(LANES):
                single = self.pulled(output, seeds[lane])
                for k, g, wanted in zip(self.varied, found, single, strict=True):
                    part = wanted * 0 if g is None else _parts(np.array(_value(g)[lane]).reshape(-1))
                    self.agree(f"gradient {lane} of a batch, of output {place} by input {k},", part, wanted)

    def missing_gradients(self, outputs: list[Tensor]) -> None:
        """An output that has no gradient counts as one with a gradient of zero."""
        if len(outputs) < 2:
            return
        random = np.random.default_rng(0)
        for place, output in enumerate(outputs):
            seed = _direction(random, output)
            seeds = [seed if y is output else np.zeros(y.shape, y.dtype) for y in outputs]
            with _failing(f"a gradient of output {place} alone"):
                alone = self.gradients([output], [seed])
            for k, a, b in zip(self.varied, alone, self.gradients(outputs, seeds), strict=True):
                zero = np.zeros(_numbers(self.given[k]).size)
                parts = [zero if g is None else _numbers(g) for g in (a, b)]
                self.agree(f"the gradient of output {place} alone by input {k}", *parts)

    def tangents(self, outputs: Sequence[Tensor], known: list[int]) -> None:
        """What is asked of tangents, besides their values."""
        random = np.random.default_rng(0)
        along = {k: _direction(random, self.given[k]) for k in self.varied}
        together = self.pushed(along)
        for place in known if self.dtypes else ():
            if together[place].dtype != outputs[place].dtype:
                raise GradcheckError(
                    f"gradcheck: the tangent of output {place} has dtype {together[place].dtype}, the output "
                    f"{outputs[place].dtype}"
                )
        if self.undefined and len(along) > 1:
            with _failing("an input without a tangent"):
                single = [self.pushed({k: direction}) for k, direction in along.items()]
            for place in known:
                total = np.sum([_numbers(found[place]) for found in single], axis=0)
                self.agree(
                    f"the tangent of output {place}, input by input,", total, _numbers(together[place])
                )
        if self.batched_forward:
            lanes = [{k: _direction(random, self.given[k]) for k in along} for _ in range(LANES)]
            with _failing("a batch of tangents"):
                found = self.pushed({k: np.stack([one[k] for one in lanes]) for k in along}, LANES)
            for lane, one in enumerate(lanes):
                single_lane = self.pushed(one)
                for place in known:
                    part = _parts(np.array(found[place][lane]).reshape(-1))
                    wanted = _numbers(single_lane[place])
                    self.agree(f"tangent {lane} of a batch, of output {place},", part, wanted)

    def agree(self, what: str, found: np.ndarray, wanted: np.ndarray) -> None:
        """Both were computed analytically."""
        if not np.allclose(found, wanted, rtol=1e-7, atol=1e-9 * (1 + np.abs(wanted).max(initial=0)),
                           equal_nan=True):  # fmt: skip
            raise GradcheckError(f"gradcheck: {what} is {found!r}, and otherwise {wanted!r}")

    # ------------------------------------------------------------ derivatives

    def gradients(self, outputs: Sequence[Tensor], seeds: Sequence[TensorOrArray], **rest: bool) -> Any:
        return grad(list(outputs), self.targets, list(seeds), retain_graph=True, allow_unused=True, **rest)

    def pulled(self, output: Tensor, seed: TensorOrArray) -> list[np.ndarray]:
        """The numbers of an output's gradients."""
        found = self.gradients([output], [seed])
        return [
            np.zeros(_numbers(x).size) if g is None else _numbers(g)
            for g, x in zip(found, self.targets, strict=True)
        ]

    def pushed(self, directions: Mapping[int, TensorOrArray], lanes: int | None = None) -> list[np.ndarray]:
        """The tangents of all outputs, as arrays."""
        with dual_level(lanes):
            args = list(self.given)
            for k, direction in directions.items():
                args[k] = make_dual(args[k], wrap(as_tape_value(direction)))
            found = []
            for y in self.outputs(args):
                tangent = unpack_dual(y).tangent if y.dtype.kind in "fc" else None
                shape = y.shape if lanes is None else (lanes, *y.shape)
                found.append(np.zeros(shape, y.dtype) if tangent is None else np.asarray(_value(tangent)))
        return found


@contextmanager
def _failing(what: str) -> Iterator[None]:
    """Name what failed, if it fails."""
    try:
        yield
    except GradcheckError:
        raise
    except Exception as error:
        raise GradcheckError(f"gradcheck: {what} fails with {type(error).__name__}: {error}") from error


def _value(x: TensorOrArray) -> np.ndarray:
    """The value of a Tensor, without its history and its tangents; an array itself."""
    if not isinstance(x, Tensor):
        return x
    return without_history(x)._v if has_tangent(x) else np.asarray(x._v)


def _parts(array: np.ndarray) -> np.ndarray:
    """The elements as real numbers: of a complex one its parts."""
    return array.reshape(-1).view(array.real.dtype)


def _numbers(x: TensorOrArray) -> np.ndarray:
    """A copy of the elements of a Tensor or an array, as real numbers."""
    return _parts(np.array(_value(x)))


def _shaped(numbers: np.ndarray, like: Tensor) -> np.ndarray:
    """Real numbers as elements of an array like a Tensor."""
    found = np.zeros(like.shape, like.dtype)
    _parts(found)[...] = numbers
    return found


def _unit(random: np.random.Generator, size: int) -> np.ndarray:
    """A random vector of length 1."""
    found = random.normal(size=size)
    return found / np.linalg.norm(found) if size else found


def _direction(random: np.random.Generator, output: Tensor) -> np.ndarray:
    found = random.normal(size=output.shape)
    if output.dtype.kind == "c":
        found = found + 1j * random.normal(size=output.shape)
    return np.asarray(found).astype(output.dtype)


# ---------------------------------------------------------------- second derivatives


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Operand,
    grad_outputs: Operand | None = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_fwd_over_rev: bool = False,
    check_rev_over_rev: bool = True,
    fast_mode: bool = False,
    masked: bool = False,
) -> bool:
    """Compare second derivatives with central differences of the first.

    Parameters
    ----------
    func, inputs
        As for `gradcheck`.
    grad_outputs : Tensor or sequence of Tensor, optional
        Cotangents of the outputs; random ones by default. They are varied too.
    gen_non_contig_grad_outputs : bool, optional
        Let the random ones lie in memory with gaps.
    check_fwd_over_rev, check_rev_over_rev : bool, optional
        Differentiate the gradients forward, backward or both.
    eps, atol, rtol, raise_exception, nondet_tol, check_undefined_grad, check_grad_dtypes, \
check_batched_grad, fast_mode, masked
        As for `gradcheck`, of the gradients.

    Returns
    -------
    bool

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> x = tg.tensor([0.5, 1.5], requires_grad=True)
    >>> tg.gradgradcheck(np.sin, x, check_fwd_over_rev=True)
    True
    """
    given = _inputs("gradgradcheck", func, inputs)
    varied = _varied(given, "gradgradcheck")
    first, everything = _derivative(func, given, varied, grad_outputs, gen_non_contig_grad_outputs)
    return gradcheck(
        first, everything, eps=eps, atol=atol, rtol=rtol, raise_exception=raise_exception,
        nondet_tol=nondet_tol, check_undefined_grad=check_undefined_grad,
        check_grad_dtypes=check_grad_dtypes, check_batched_grad=check_batched_grad,
        check_forward_ad=check_fwd_over_rev, check_backward_ad=check_rev_over_rev,
        fast_mode=fast_mode, masked=masked,
    )  # fmt: skip


def _derivative(
    func: Callable[..., Any], given: list[Operand], varied: list[int], grad_outputs: Any, gaps: bool
) -> tuple[Callable[..., Any], list[Operand]]:
    """The function of inputs and cotangents that gives a function's gradients, and where to check it."""

    def differentiable(args: list[Operand]) -> list[Tensor]:
        return [x for x in _outputs(func(*args)) if x.requires_grad]

    outputs = differentiable(given)
    if grad_outputs is None:
        random = np.random.default_rng(len(given))
        cotangents = [tensor(_direction(random, y), requires_grad=not gaps) for y in outputs]
        if gaps:
            cotangents = [_with_gaps(c).requires_grad_() for c in cotangents]
    else:
        cotangents = _listed(grad_outputs)
        for c in cotangents:
            if not isinstance(c, Tensor):
                raise TypeError(f"gradgradcheck: grad_outputs takes Tensors, found {type(c).__name__}")
        cotangents = [c if c.requires_grad else c.detach().requires_grad_() for c in cotangents]

    def first(*args: Operand) -> tuple[Tensor, ...]:
        with enable_grad():
            mine = list(args[: len(given)])
            targets = [mine[k] for k in varied]
            seeds = list(args[len(given) :])
            parts = grad(differentiable(mine), targets, seeds, create_graph=True, allow_unused=True)
        return tuple(p for p in parts if p is not None)

    return first, [*given, *cotangents]


def _with_gaps(x: Tensor) -> Tensor:
    """The same values in every second place of a memory."""
    if x.ndim == 0:
        return x
    wide = tensor(np.repeat(_value(x), 2, axis=-1))
    return wide[..., ::2].detach()
