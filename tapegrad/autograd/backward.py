"""`backward` and `grad`: arguments checked as a whole, one sweep, results committed at the end."""

from __future__ import annotations

import functools
import time
import warnings
import weakref
from typing import Any, Literal, overload

import numpy as np

from tapegrad.autograd import graph, hooks
from tapegrad.autograd.sweeps import Border, inputs_of, keys_of, listed, quietly, roots_of, run, told, total
from tapegrad.autograd.variables import Variable
from tapegrad.core import compiled_methods as shared
from tapegrad.core.base import extra, former, retain, settle, wrap
from tapegrad.core.dispatch import noted
from tapegrad.core.grad_mode import (
    Mode,
    _enabled,
    enable_grad,
    in_force,
)
from tapegrad.core.inplace import accumulate, write
from tapegrad.core.storage import OPEN, STALE
from tapegrad.engine.at_once import at_once
from tapegrad.engine.sweep import Key
from tapegrad.errors import GradientError, ShapeError, UnusedInputError
from tapegrad.kernels import machine, table
from tapegrad.kernels.replay import layout
from tapegrad.kernels.state import State
from tapegrad.tape.record import Place
from tapegrad.tape.tape import local
from tapegrad.tensor import Tensor

__all__ = ["backward", "grad"]


class _Turn:
    """One commit to ``.grad`` at a time; a turn that an interrupt cut off ends with its owner."""

    def wait(self) -> None:
        """Return when it is this one's turn."""
        mine, end = weakref.ref(self), time.monotonic() + 5.0
        while (found := _turns.setdefault(0, mine)) is not mine and time.monotonic() < end:
            if found() is None and _turns.get(0) is found:
                _turns.pop(0, None)
            else:
                time.sleep(1e-5)

    def end(self) -> None:
        """Let others have theirs."""
        found = _turns.get(0)
        if found is not None and found() is self:
            _turns.pop(0, None)


float64 = np.float64
_turns: dict[int, weakref.ref[_Turn]] = {}


def gradients_natively(root: Any, seed: Any, inputs: Any, retain: bool) -> tuple[Tensor | None, ...] | None:
    """The gradients of a result on the open tape, by compiled code; None where Python is to find them."""
    return None


def backward_natively(root: Any, seed: Any, retain: bool) -> bool | None:
    """As `gradients_natively`, to the ``.grad`` of all leaves; whether that is done."""
    return None


def _find_gradients_natively(enter: machine.Enter) -> None:
    """Let compiled code find gradients, where objects are laid out as it knows them."""
    global gradients_natively, backward_natively
    if shared.words:
        for place, x in ((layout.TURNS, _turns), (layout.ADD_GRADS, _add_found)):
            shared.words[place] = id(x)
        make = functools.partial(shared.builtin, flags=shared.METH_FASTCALL)
        gradients_natively = make("gradients_of", at=enter(layout.GRADIENTS, 0, 0, 0))
        backward_natively = make("backward_from", at=enter(layout.BACKWARD, 0, 0, 0))


_workspace: list[State] = []  # of the sweeps of compiled code


def _make_room(n: int) -> None:
    """Let compiled code sweep tapes of n records with all that is compiled now."""
    if not shared.words:
        return
    if not _workspace:
        _workspace.append(State())
    (state,) = _workspace
    if n > state.n or state.known is not table.version[0]:
        state.fit(n)
    for place, word in (
        (layout.OPEN_STATE, state.at),
        (layout.OPEN_RECORDS, state.n),
        (layout.OPEN_UNFREED, state.unfreed_at),
        (layout.KNOWN_VERSION, id(state.known)),
    ):
        shared.words[place] = word


@overload
def grad(
    outputs: Any,
    inputs: dict[Any, Any],
    grad_outputs: Any = ...,
    retain_graph: bool | None = ...,
    create_graph: bool | None = ...,
    only_inputs: bool = ...,
    allow_unused: bool | None = ...,
    is_grads_batched: bool = ...,
    materialize_grads: bool = ...,
) -> dict[Any, Any]: ...


@overload
def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = ...,
    retain_graph: bool | None = ...,
    create_graph: bool | None = ...,
    only_inputs: bool = ...,
    allow_unused: Literal[False] | None = ...,
    is_grads_batched: bool = ...,
    materialize_grads: bool = ...,
) -> tuple[Tensor, ...]: ...


@overload
def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = ...,
    retain_graph: bool | None = ...,
    create_graph: bool | None = ...,
    only_inputs: bool = ...,
    allow_unused: bool | None = ...,
    is_grads_batched: bool = ...,
    materialize_grads: bool = ...,
) -> tuple[Tensor | None, ...]: ...


def grad(
    outputs: Any,
    inputs: Any,
    grad_outputs: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool | None = None,
    only_inputs: bool = True,
    allow_unused: bool | None = None,
    is_grads_batched: bool = False,
    materialize_grads: bool = False,
) -> tuple[Tensor | None, ...] | dict[Any, Any]:
    """Return the gradients of outputs with respect to inputs; leaves' ``.grad`` stays as it is.

    Parameters
    ----------
    outputs : Tensor or sequence of Tensor
        What is differentiated.
    inputs : Tensor, sequence of Tensor or dict of Tensor
        With respect to what: leaves or results on the way.
    grad_outputs : Tensor, ndarray, number or sequence of them, optional
        Cotangent of each output, of its shape; may be left out for outputs of one element.
    retain_graph : bool, optional
        Keep what the sweep reads, for another one; by default as `create_graph`.
    create_graph : bool, optional
        Record the sweep, so that the results can be differentiated again. None means False.
    only_inputs : bool, optional
        False: besides, add the gradients of all other leaves to their ``.grad``.
    allow_unused : bool, optional
        Return None for inputs that no output depends on, instead of an error.
    is_grads_batched : bool, optional
        Each of `grad_outputs` holds several cotangents along an axis in front of the output's, all as many,
        and the results so many gradients. One sweep computes them together.
    materialize_grads : bool, optional
        Return zeros for such inputs.

    Returns
    -------
    tuple of Tensor
        One per input, of its shape and dtype; a dict if `inputs` is one.

    Raises
    ------
    GradientError
        An output or an input does not require grad, or a gradient is missing.
    UnusedInputError
        An input does not take part.
    GraphFreedError
        An earlier sweep released what this one needs.
    ShapeError, DTypeError, TypeError, ValueError
        An argument does not fit.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> x = tg.tensor(2.0, requires_grad=True)
    >>> (g,) = tg.grad(x**3, x, create_graph=True)
    >>> g
    tensor(12., grad_fn=<MulBackward>)
    >>> tg.grad(g, x)
    (tensor(12.),)
    """
    if not create_graph and not materialize_grads and only_inputs and not is_grads_batched:
        quick = gradients_natively(outputs, grad_outputs, inputs, bool(retain_graph))
        if quick is not None:
            return quick
        quick = _at_once(outputs, inputs, grad_outputs, retain_graph, allow_unused)
        if quick is not None:
            return quick if in_force("forward") is None else tuple(told(g, [outputs], False) for g in quick)
    if isinstance(inputs, dict) and type(inputs) is not dict:
        raise TypeError(f"inputs takes a dict itself, found {type(inputs).__name__}")
    if materialize_grads and allow_unused is False:
        raise ValueError(
            "materialize_grads=True gives zeros for unused inputs; allow_unused=False forbids it"
        )
    names = list(inputs) if type(inputs) is dict else None
    targets = inputs_of(list(inputs.values()) if names is not None else inputs, "inputs")
    recording = _recording(create_graph, grad_outputs)
    retain = recording if retain_graph is None else bool(retain_graph)
    lanes = _lanes(grad_outputs) if is_grads_batched else None
    pairs = roots_of(listed(outputs, "outputs"), grad_outputs, recording, lanes)
    keys = [keys_of(x) for x in targets]
    optional = bool(allow_unused) or materialize_grads

    def check(reached: set[Key]) -> None:
        for k, mine in enumerate(keys):
            if reached.isdisjoint(mine):
                raise UnusedInputError(
                    f"input {k} (shape {targets[k].shape}) does not take part in computing the outputs; "
                    "pass allow_unused=True to get None for it, or materialize_grads=True for zeros"
                )

    if not pairs and not optional:
        check(set())
    sinks = [key for mine in keys for key in mine]
    likes = targets
    if lanes is not None:
        likes = [wrap(np.broadcast_to(np.zeros((), x.dtype), (lanes, *x.shape))) for x in targets]
    border = Border(pairs, {key: x for mine, x in zip(keys, likes, strict=True) for key in mine})
    checked = None if optional else check
    every = not only_inputs
    found = run(pairs, sinks, every, retain, recording, border.settle, checked, lanes) if pairs else {}
    results: list[Tensor | None] = []
    with enable_grad():  # of arrays there is nothing to record
        for mine, x in zip(keys, likes, strict=True):
            parts = [found[key] for key in mine if key in found]
            if not parts:
                _missing(len(results), x, optional)
            if not parts:
                results.append(_zeros(x, recording) if materialize_grads else None)
            else:
                results.append(told(border.result(total(parts), x), pairs, recording))
    if every:
        rest = {key: value for key, value in found.items() if key not in sinks}
        _commit(rest, {}, border, pairs, recording)
    return dict(zip(names, results, strict=True)) if names is not None else tuple(results)


def _missing(k: int, x: Tensor, optional: bool | None) -> Tensor | None:
    """What stands for a gradient that there is not, on ways that lead to an input."""
    if not optional:
        raise UnusedInputError(
            f"input {k} (shape {x.shape}) has no gradient: on every way to it a backward returned None; pass "
            "allow_unused=True to get None, or materialize_grads=True for zeros"
        )
    return None


def _at_once(
    output: Any, inputs: Any, seed: Any, retain_graph: bool | None, optional: bool | None
) -> tuple[Tensor | None, ...] | None:
    """The common case, of a result just computed: one compiled call. None: to be done the general way."""
    if type(output) is not Tensor:
        return None
    tape = output._tape
    if OPEN or tape is None or tape is not local.tape or tape.links or tape.freed is not None:
        return None
    mode = _enabled.get()
    lines = profile = None
    if type(mode) is Mode:
        if not mode.plain:
            return None
        lines, profile = mode.lines, mode.profile
    if tape.watches or tape.packed:
        return None
    if seed is not None:
        value = output._v
        if type(seed) is Tensor:
            seed = seed._v
        elif type(seed) is not np.ndarray:
            return None
        elif seed.ndim == 0:
            seed = seed[()]
        if type(seed) is not type(value) or seed.dtype is not value.dtype or seed.shape != value.shape:
            return None
        if not (seed.flags.c_contiguous and seed.flags.aligned):
            return None
    if type(inputs) is Tensor:
        inputs = (inputs,)
    elif type(inputs) is not tuple and type(inputs) is not list:
        return None
    sinks, likes = [], []
    for x in inputs:
        if type(x) is not Tensor or former(x):
            return None
        if x._tape is None and x._at is not None and x._at.watch is not None:
            return None
        at = x._at if x._tape is tape else tape.leaves.get(x._at)
        value = x._v
        if at is None or at in sinks or not (type(value) is float64 or value.flags.c_contiguous):
            return None
        sinks.append(at)
        likes.append(value)
    if not sinks:
        return None
    begin, records = 0 if profile is None else profile.now(), len(tape.log) >> 2
    found = at_once(tape, output._at, seed, sinks, likes, bool(retain_graph), lines, profile)
    if found is None:
        return None
    _make_room(records)
    if profile is not None:
        profile.tell(begin, "backward", (output,), True)
    gradients = [None if value is None else wrap(value) for value in found]
    for k, g in enumerate(gradients):
        if g is None:
            _missing(k, inputs[k], optional)
    return tuple(gradients)


def _lanes(gradients: Any) -> int:
    """How many cotangents a batch has in each of the gradients."""
    several = gradients if isinstance(gradients, (list, tuple)) else [gradients]
    first = next((np.shape(x) for x in several if x is not None), ())
    if not first:
        raise ShapeError("is_grads_batched=True takes gradients with an axis of lanes in front, found none")
    return int(first[0])


def _zeros(x: Tensor, requires_grad: bool) -> Tensor:
    out: Tensor = wrap(np.zeros(x.shape, x.dtype)[()] if x.ndim == 0 else np.zeros(x.shape, x.dtype))
    return out.requires_grad_(requires_grad)


def backward(
    tensors: Any,
    grad_tensors: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool | None = None,
    inputs: Any = None,
    *,
    retain_variables: bool | None = None,
    grad_variables: Any = None,
) -> None:
    """Add the gradients of tensors to ``.grad`` of the leaves they depend on.

    All ``.grad`` are updated at the end, or none.

    Parameters
    ----------
    tensors : Tensor or sequence of Tensor
        What is differentiated.
    grad_tensors : Tensor, ndarray, number or sequence of them, optional
        Cotangent of each, of its shape; may be left out for tensors of one element.
    retain_graph : bool, optional
        Keep what the sweep reads, for another one; by default as `create_graph`.
    create_graph : bool, optional
        Record the sweep: ``.grad`` can then be differentiated. None means False.
    inputs : Tensor or sequence of Tensor, optional
        Fill ``.grad`` of these only; results on the way are allowed.
    retain_variables : bool, optional
        The name of `retain_graph` in torch 0.2; do not use it.
    grad_variables : optional
        The name of `grad_tensors` in torch 0.2; do not use it.

    Raises
    ------
    GradientError
        A tensor does not require grad, or a gradient is missing.
    GraphFreedError
        An earlier sweep released what this one needs.
    ShapeError, DTypeError, TypeError
        An argument does not fit.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> x = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> tg.backward((x * x).sum())
    >>> x.grad
    tensor([2., 4.])
    """
    grad_tensors = _renamed("grad_variables", grad_variables, "grad_tensors", grad_tensors, GradientError)
    recording = _recording(create_graph, grad_tensors)
    retain_graph = _renamed("retain_variables", retain_variables, "retain_graph", retain_graph, ValueError)
    retain = recording if retain_graph is None else bool(retain_graph)
    if isinstance(inputs, dict):
        if type(inputs) is not dict:
            raise TypeError(f"inputs takes a dict itself, found {type(inputs).__name__}")
        inputs = list(inputs.values())
    if inputs is None and not recording and _backward_at_once(tensors, grad_tensors, retain):
        return
    targets = None if inputs is None else inputs_of(inputs, "inputs")
    pairs = roots_of(listed(tensors, "tensors"), grad_tensors, recording)
    if not pairs:
        return
    handles: dict[Key, Any] = {}
    if targets is not None:
        for x in targets:
            if not x.is_leaf:
                x.retain_grad()
            for key in keys_of(x):
                handles[key] = x
    retained = _retained(pairs)
    handles.update(retained)
    sinks = list(handles)
    border = Border(pairs, handles)
    found = run(pairs, sinks, targets is None, retain, recording, border.settle, None)
    _commit(found, handles, border, pairs, recording)


def _backward_at_once(tensors: Any, gradients: Any, retain: bool) -> bool:
    """As `_at_once`, by all leaves of the open tape, whose ``.grad`` it adds to; whether it could be done."""
    root, seed = (x[0] if type(x) is list and len(x) == 1 else x for x in (tensors, gradients))
    tape = root._tape if type(root) is Tensor else None
    if tape is None or tape is not local.tape or tape.retained or len(tape.imports) != len(tape.leaves):
        return False
    leaves = [cell.handle() for cell in tape.leaves]
    if any(x is None or x._tape is not None or x._at not in tape.leaves for x in leaves):
        return False
    found = _at_once(root, leaves, seed, retain, True) if leaves else None
    if found is None:
        return False
    _add([(x, g) for x, g in zip(leaves, found, strict=True) if g is not None], False)
    return True


def _commit(
    found: dict[Key, Any], handles: dict[Key, Any], border: Border, pairs: Any, recording: bool
) -> None:
    """Add gradients to the ``.grad`` of what they are of, all or none, then call what waits for that."""
    parts: dict[int, tuple[Any, list[Any]]] = {}
    for key, value in found.items():
        handle = handles.get(key)
        if handle is None:
            handle = key[0].retained.get(key[1]) if isinstance(key, tuple) else key.handle
            handle = None if handle is None else handle()
        if handle is not None and handle.requires_grad:
            parts.setdefault(id(handle), (handle, []))[1].append(value)
    with enable_grad():  # of arrays there is nothing to record
        ready = [
            (handle, told(border.result(total(values), handle), pairs, recording))
            for handle, values in parts.values()
        ]
    _add(ready, recording)


def _add(ready: list[tuple[Any, Any]], recording: bool) -> None:
    """Add to the ``.grad`` of Tensors, then call what waits for that."""
    turn = _Turn()
    turn.wait()
    try:
        for handle, value in ready:
            _accumulate(handle, value, recording)
    finally:
        turn.end()
    for handle, _ in ready:
        if handle._tape is None and handle._at.watch is not None:
            handle._at.watch.settled(handle)


def _add_found(leaves: tuple[Any, ...], found: tuple[Any, ...]) -> None:
    """Add what compiled code has found to the ``.grad`` of leaves."""
    _add(list(zip(leaves, found, strict=True)), False)


def _renamed(old: str, given: Any, new: str, value: Any, error: type[Exception]) -> Any:
    """The value of an argument that may be given by its name in torch 0.2."""
    if given is None:
        return value
    if value is not None:
        raise error(f"{old} is the older name of {new}: both are given; use {new}")
    warnings.warn(f"{old} is called {new}", FutureWarning, stacklevel=4)
    return given


def _recording(create_graph: bool | None, gradients: Any) -> bool:
    """Whether a sweep is recorded; where that is not said, a Variable among the gradients says so."""
    if create_graph is not None:
        return bool(create_graph)
    several = gradients if isinstance(gradients, (list, tuple)) else [gradients]
    return any(isinstance(x, Variable) and not x.volatile for x in several)


def _retained(pairs: list[tuple[Tensor, Any]]) -> dict[Key, Tensor]:
    """Results whose gradient is kept, on any tape the roots lead to."""
    todo = [root._tape for root, _ in pairs if root._tape is not None]
    seen: set[int] = set()
    found: dict[Key, Tensor] = {}
    while todo:
        tape = todo.pop()
        if tape.serial in seen:
            continue
        seen.add(tape.serial)
        for k, reference in tape.retained.copy().items():
            handle = reference()
            if handle is not None:
                found[(tape, k)] = handle
        todo += [source[0] for source in list(tape.imports.values()) if type(source) is Place]
    return found


def _accumulate(handle: Tensor, value: Tensor, recorded: bool) -> None:
    """Add to ``.grad``: in place where nothing else holds its buffer."""
    state = extra(handle)
    if state.grad is None:
        state.grad = value
    else:
        _sum_up(state, handle, state.grad, value, recorded)
    noted(state.grad, (value,))


@quietly
def _sum_up(state: Any, handle: Tensor, before: Tensor, value: Tensor, recorded: bool) -> None:
    if recorded or handle._tape is not None:
        with enable_grad():
            state.grad = before + value
    elif before._tape is not None or value._tape is not None:  # the same object goes on from the sum
        with enable_grad():
            write(before, Ellipsis, before + value, "accumulation", True)
    else:
        accumulate(before, value._v)


def _backward_method(
    self: Tensor,
    gradient: Any = None,
    retain_graph: bool | None = None,
    create_graph: bool | None = None,
    inputs: Any = None,
    *,
    retain_variables: bool | None = None,
) -> None:
    """Add the gradient of this Tensor to ``.grad`` of the leaves; see `tapegrad.backward`."""
    plain = not create_graph and inputs is retain_variables is None
    if plain and backward_natively(self, gradient, bool(retain_graph)):
        return
    backward([self], gradient, retain_graph, create_graph, inputs, retain_variables=retain_variables)


def _retain_grad(self: Tensor) -> None:
    """Keep the gradient of this result in ``.grad``, as a leaf does."""
    if not self.requires_grad:
        raise GradientError("retain_grad on a Tensor that does not require grad")
    if self._tape is STALE:
        settle(self)
    if not self.is_leaf and not self.retains_grad:
        extra(self).retains_grad = True
        retain(self)


def install() -> None:
    """Give Tensor the methods that need this floor, and let compiled code find gradients."""
    graph.install()
    hooks.install()
    machine.when_loaded.append(_find_gradients_natively)
    Tensor.backward = _backward_method  # type: ignore[method-assign]
    Tensor.retain_grad = _retain_grad  # type: ignore[method-assign]
