"""`backward` and `grad`: arguments checked as a whole, one sweep, results committed at the end."""

from __future__ import annotations

import functools
import time
import warnings
import weakref
from collections.abc import Mapping, Sequence
from typing import Any, Literal, overload

import numpy as np

from tapegrad.autograd import at_once, graph, hooks
from tapegrad.autograd.sweeps import (
    Border,
    inputs_of,
    keys_of,
    listed,
    quietly,
    roots_of,
    run,
    total,
    track_gradient,
)
from tapegrad.autograd.variables import Variable
from tapegrad.core import compiled_methods as compiled
from tapegrad.core.base import extra, refresh_history, retain
from tapegrad.core.dispatch import with_metadata
from tapegrad.core.grad_mode import enable_grad, within
from tapegrad.core.inplace import accumulate, write
from tapegrad.core.storage import STALE
from tapegrad.engine.plan import Key, Result
from tapegrad.engine.watched import attached
from tapegrad.errors import GradientError, ShapeError, UnusedInputError
from tapegrad.kernels import machine
from tapegrad.kernels.replay import layout
from tapegrad.tensor import Operand, Tensor, TensorOrArray, wrap

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


_turns: dict[int, weakref.ref[_Turn]] = {}


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
    inputs: Any = None,
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
        Return zeros for inputs that no output depends on.

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
    if create_graph is True and retain_graph is not False and only_inputs and not is_grads_batched:
        recorded = _recorded_at_once(outputs, grad_outputs, inputs)
        if recorded is not None:
            return recorded
    elif not create_graph and not materialize_grads and only_inputs and not is_grads_batched:
        if type(outputs) is Tensor and outputs._tape is STALE:
            refresh_history(outputs)
        quick = at_once.gradients(outputs, grad_outputs, inputs, bool(retain_graph))
        if quick is not None:
            for k, found in enumerate(quick):
                if found is None:
                    _missing(k, (inputs,) if type(inputs) is Tensor else inputs, allow_unused)
            return quick
    _refuse_misuse(outputs, inputs, materialize_grads and allow_unused is False)
    names = list(inputs) if type(inputs) is dict else None
    targets = inputs_of(list(inputs.values()) if names is not None else inputs, "inputs")
    recording = _recording(create_graph, grad_outputs)
    retain = recording if retain_graph is None else bool(retain_graph)
    lanes = _lanes(grad_outputs) if is_grads_batched else None
    pairs = roots_of(listed(outputs, "outputs"), grad_outputs, recording, lanes)
    if recording and retain and lanes is None and only_inputs:
        machine.load()  # a first gradient has the bits of those that follow
        roots, cotangents = zip(*pairs, strict=True) if pairs else ((), ())
        with enable_grad():
            recorded = _recorded_at_once(roots, cotangents, targets)
        if recorded is not None:
            return _by_name(names, [track_gradient(g, pairs, True) for g in recorded])
    keys = [keys_of(x) for x in targets]
    optional = bool(allow_unused) or materialize_grads
    if not recording and lanes is None and only_inputs:
        quick = _found_at_once(pairs, targets, retain)
        if quick is not None:
            return _by_name(names, _completed(quick, targets, optional, materialize_grads, False))
    check = functools.partial(_refuse_unused, targets, keys)
    if not pairs and not optional:
        check(set())
    sinks = [key for mine in keys for key in mine]
    likes = targets
    if lanes is not None:
        likes = [wrap(np.broadcast_to(np.zeros((), x.dtype), (lanes, *x.shape))) for x in targets]
    border = Border(pairs, {key: x for mine, x in zip(keys, likes, strict=True) for key in mine})
    checked = None if optional else check
    every = not only_inputs
    swept = run(pairs, sinks, every, retain, recording, border.finish, checked, lanes) if pairs else {}
    results: list[Tensor | None] = []
    with enable_grad():  # of arrays there is nothing to record
        for mine, x in zip(keys, likes, strict=True):
            parts = [swept[key] for key in mine if key in swept]
            g = track_gradient(border.result(total(parts), x), pairs, recording) if parts else None
            results.append(g)
    results = _completed(results, likes, optional, materialize_grads, recording)
    if every:
        rest = {key: value for key, value in swept.items() if key not in sinks}
        _commit(rest, {}, border, pairs, recording)
    return _by_name(names, results)


def _completed(
    found: Sequence[Tensor | None], likes: list[Tensor], optional: bool, materialize: bool, recording: bool
) -> list[Tensor | None]:
    """Gradients with zeros for those that are missing, where these are wanted."""
    for k, g in enumerate(found):
        if g is None:
            _missing(k, likes, optional)
    both = zip(found, likes, strict=True)
    return [_zeros(x, recording) if g is None and materialize else g for g, x in both]


def _by_name(
    names: list[Any] | None, found: list[Tensor | None]
) -> tuple[Tensor | None, ...] | dict[Any, Any]:
    """What `grad` returns: gradients by the names of inputs, or without names a tuple."""
    return tuple(found) if names is None else dict(zip(names, found, strict=True))


def _found_at_once(
    pairs: list[tuple[Tensor, TensorOrArray]], targets: list[Tensor], retain: bool
) -> tuple[Tensor | None, ...] | None:
    """Return gradients that one compiled call finds, once cotangents are like roots; None if it cannot."""
    plain = _in_arrays(pairs)
    return None if plain is None else at_once.gradients(*plain, targets, retain)


def _in_arrays(pairs: list[tuple[Tensor, TensorOrArray]]) -> tuple[list[Tensor], list[Any]] | None:
    """Roots and their cotangents, as values are kept; None where these are Tensors, which may be followed."""
    cotangents = [ct if isinstance(ct, Tensor) or ct.ndim else ct[()] for _, ct in pairs]
    if any(isinstance(ct, Tensor) for ct in cotangents):
        return None
    return [x for x, _ in pairs], cotangents


def _refuse_misuse(outputs: Operand, inputs: Operand, contradiction: bool) -> None:
    """Refuse arguments of `grad` of a kind that it does not take."""
    if callable(outputs):
        raise TypeError("outputs takes Tensors, found a function; tg.func.grad(f)(x) is its gradient")
    if isinstance(inputs, dict) and type(inputs) is not dict:
        raise TypeError(f"inputs takes a dict itself, found {type(inputs).__name__}")
    if contradiction:
        raise ValueError(
            "materialize_grads=True gives zeros for unused inputs; allow_unused=False forbids it"
        )


@quietly
def grad_without_values(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], grad_outputs: Sequence[TensorOrArray] | None
) -> tuple[Tensor | None, ...]:
    """As `grad` with create_graph, for gradients that are only differentiated further; inputs are results.

    They may have no values (`kernels.replay.deferring`), and may share memory.
    """
    found: Sequence[Tensor | None] | None = at_once.rerecord(outputs, grad_outputs, inputs, True)
    if found is not None:
        return tuple(found)
    targets, pairs = inputs_of(inputs, "inputs"), roots_of(list(outputs), grad_outputs, True)
    machine.load()
    roots, cotangents = zip(*pairs, strict=True)
    with enable_grad():
        found = at_once.rerecord(roots, cotangents, targets, True)
    if found is None:
        keys = [keys_of(x)[0] for x in targets]
        swept = run(pairs, keys, False, True, True, lambda key, ct: ct, None, defers=True)
        found = [swept.get(key) for key in keys]
    return tuple(None if g is None else track_gradient(g, pairs, True) for g in found)


@quietly
def _recorded_at_once(roots: Any, cotangents: Any, inputs: Any) -> tuple[Tensor, ...] | None:
    """Return the gradients that one compiled call records; None where it cannot, or some input has none.

    With inputs of None those of all leaves, or None for one, and behind them the leaves.
    """
    found = at_once.rerecord(roots, cotangents, inputs)
    if found is None or isinstance(found, tuple):
        return found
    roots = roots if isinstance(roots, list | tuple) else (roots,)
    inputs = (inputs,) if isinstance(inputs, Tensor) else inputs
    if cotangents is None:
        cotangents = (None,) * len(roots)
    elif not isinstance(cotangents, list | tuple):
        cotangents = (cotangents,)
    border, leaves = Border(list(zip(roots, cotangents, strict=True)), {}), inputs
    if inputs is None:
        leaves, found = found[len(found) // 2 :], found[: len(found) // 2]
    gradients = [None if g is None else border.result(g, x) for g, x in zip(found, leaves, strict=True)]
    return tuple(gradients if inputs is not None else gradients + leaves)


def _refuse_unused(targets: list[Tensor], keys: list[list[Key]], reached: set[Key]) -> None:
    """Refuse inputs that outputs do not depend on."""
    for k, mine in enumerate(keys):
        if reached.isdisjoint(mine):
            raise UnusedInputError(
                f"input {k} (shape {targets[k].shape}) does not take part in computing the outputs; "
                "pass allow_unused=True to get None for it, or materialize_grads=True for zeros"
                + ("" if targets[k].is_leaf else "; in grad(outputs, inputs) what was computed comes first")
            )


def _missing(k: int, inputs: Sequence[Tensor], optional: bool | None) -> None:
    """Refuse that there is no gradient, though ways lead to an input, unless that is said to be right."""
    if not optional:
        raise UnusedInputError(
            f"input {k} (shape {inputs[k].shape}) has no gradient: on every way to it a backward returned "
            "None; pass allow_unused=True to get None, or materialize_grads=True for zeros"
        )


def _lanes(gradients: Operand | None) -> int:
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
    since = attached[0]
    grad_tensors = _renamed("grad_variables", grad_variables, "grad_tensors", grad_tensors, GradientError)
    recording = _recording(create_graph, grad_tensors)
    retain_graph = _renamed("retain_variables", retain_variables, "retain_graph", retain_graph, ValueError)
    retain = recording if retain_graph is None else bool(retain_graph)
    if isinstance(inputs, dict):
        if type(inputs) is not dict:
            raise TypeError(f"inputs takes a dict itself, found {type(inputs).__name__}")
        inputs = list(inputs.values())
    _sweep_and_add(tensors, grad_tensors, retain, recording, inputs)
    if hooks.late:
        _add(hooks.found_late(since), recording)


def _sweep_and_add(tensors: Any, grad_tensors: Any, retain: bool, recording: bool, inputs: Any) -> None:
    """Add gradients to the ``.grad`` of leaves, and of results that retained it before."""
    if inputs is None and not recording and at_once.backward(tensors, grad_tensors, retain):
        return
    targets = None if inputs is None else inputs_of(inputs, "inputs")
    pairs = roots_of(listed(tensors, "tensors"), grad_tensors, recording)
    if not pairs or (recording and retain and _recorded_backward(pairs, targets)):
        return
    if not recording and _backward_at_once(pairs, targets, retain):
        return
    handles: dict[Key, Tensor] = {}
    if targets is not None:
        for x in targets:
            if not x.is_leaf:
                x.retain_grad()
            for key in keys_of(x):
                handles[key] = x
    sinks, retained = list(handles), _retained(pairs)
    handles.update(retained.items())
    border, every = Border(pairs, handles), targets is None
    if every:
        sinks = list(handles)
    found = run(pairs, sinks, every, retain, recording, border.finish, None, captured=retained)
    _commit(found, handles, border, pairs, recording)


def _backward_at_once(
    pairs: list[tuple[Tensor, TensorOrArray]], targets: list[Tensor] | None, retain: bool
) -> bool:
    """Add gradients that one compiled call finds, once cotangents are like roots; whether that is done."""
    if targets is None:
        plain = _in_arrays(pairs)
        return plain is not None and bool(at_once.backward(*plain, retain))
    if not all(x.is_leaf for x in targets) or _retained(pairs):
        return False
    targets = list({id(x): x for x in targets}.values())
    found = _found_at_once(pairs, targets, retain)
    if found is not None:
        _add_found(targets, found)
    return found is not None


def _recorded_backward(pairs: list[tuple[Tensor, TensorOrArray]], targets: list[Tensor] | None) -> bool:
    """Add gradients that one compiled call records to the ``.grad`` of leaves; whether that is done."""
    if targets is not None and (_retained(pairs) or not all(x.is_leaf for x in targets)):
        return False
    machine.load()  # a first gradient has the bits of those that follow
    with enable_grad():
        found = _recorded_at_once([x for x, _ in pairs], [ct for _, ct in pairs], targets)
        if found is None:
            return False
        leaves = found[len(found) // 2 :] if targets is None else targets
        ready = [(x, g) for x, g in zip(leaves, found, strict=False) if g is not None and x.requires_grad]
    _add(ready, True)
    return True


def _commit(
    found: Mapping[Key, TensorOrArray],
    handles: dict[Key, Tensor],
    border: Border,
    pairs: list[tuple[Tensor, TensorOrArray]],
    recording: bool,
) -> None:
    """Add gradients to the ``.grad`` of what they are of, all or none, then call what waits for that."""
    parts: dict[int, tuple[Tensor, list[TensorOrArray]]] = {}
    for key, value in found.items():
        handle = handles.get(key)
        if handle is None:
            reference = key[0].retained.get(key[1]) if isinstance(key, tuple) else key.handle
            handle = None if reference is None else reference()
        if handle is not None and handle.requires_grad:
            parts.setdefault(id(handle), (handle, []))[1].append(value)
    with enable_grad():  # of arrays there is nothing to record
        ready = [
            (handle, track_gradient(border.result(total(values), handle), pairs, recording))
            for handle, values in parts.values()
        ]
    _add(ready, recording)


def _add(ready: list[tuple[Tensor, Tensor]], recording: bool) -> None:
    """Add to the ``.grad`` of Tensors, as hooks of leaves' nodes want it, then call what waits for that."""
    watched = any(_attached(x) is not None for x, _ in ready)
    if watched:
        ready = within({"recording": recording}, _enter_nodes, ready)
    turn = _Turn()
    turn.wait()
    try:
        _accumulate(ready, recording)
    finally:
        turn.end()
    if watched:
        within({"recording": recording}, _leave_nodes, ready)


def _enter_nodes(ready: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, Tensor]]:
    """Return gradients as pre-hooks of leaves' nodes leave them."""
    attached = [(x, g, _attached(x)) for x, g in ready]
    return [(x, g if hooks is None else hooks.entering(g)) for x, g, hooks in attached]


def _leave_nodes(ready: list[tuple[Tensor, Tensor]]) -> None:
    """Call what waits for the ``.grad`` of leaves, and the hooks of their nodes."""
    for x, g in ready:
        hooks = _attached(x)
        if hooks is not None:
            hooks.after_accumulation(x)
            if hooks.post:
                hooks.after({}, g.clone(), 0)


def _attached(x: Tensor) -> Any:
    """What the user attached to a leaf; None for a result."""
    return x._at.hooks if x._tape is None else None


def _share(_: machine.Enter) -> None:
    """Let compiled code give gradients to leaves."""
    if compiled.words:
        compiled.share({layout.TURNS: _turns, layout.ADD_GRADS: _add_found})


def _add_found(leaves: Sequence[Tensor], found: Sequence[Tensor | None]) -> None:
    """Add what compiled code has found to the ``.grad`` of leaves."""
    both = zip(leaves, found, strict=True)
    _add([(x, g) for x, g in both if g is not None and x.requires_grad], False)


def _renamed(old: str, given: Operand | None, new: str, value: Operand | None, error: type[Exception]) -> Any:
    """The value of an argument that may be given by its name in torch 0.2."""
    if given is None:
        return value
    if value is not None:
        raise error(f"{old} is the older name of {new}: both are given; use {new}")
    warnings.warn(f"{old} is called {new}", FutureWarning, stacklevel=4)
    return given


def _recording(create_graph: bool | None, gradients: Operand | None) -> bool:
    """Whether a sweep is recorded; where that is not said, a Variable among the gradients says so."""
    if create_graph is not None:
        return bool(create_graph)
    several = gradients if isinstance(gradients, (list, tuple)) else [gradients]
    return any(isinstance(x, Variable) and not x.volatile for x in several)


def _retained(pairs: list[tuple[Tensor, TensorOrArray]]) -> dict[Result, Tensor]:
    """Results whose gradient is kept, on any tape the roots lead to."""
    todo = [root._tape for root, _ in pairs if root._tape is not None]
    seen: set[int] = set()
    found: dict[Result, Tensor] = {}
    while todo:
        tape = todo.pop()
        if tape.serial in seen:
            continue
        seen.add(tape.serial)
        for k, reference in tape.retained.copy().items():
            handle = reference()
            if handle is not None:
                found[(tape, k)] = handle
        todo += [older for older in tape.older.copy() if older is not None]
    return found


@quietly
def _accumulate(ready: list[tuple[Tensor, Tensor]], recorded: bool) -> None:
    """Add to the ``.grad`` of Tensors: in place where nothing else holds its buffer."""
    for handle, value in ready:
        state = extra(handle)
        before, after = state.grad, value
        if before is not None and (recorded or handle._tape is not None):
            with enable_grad():
                after = before + value
        elif before is not None:
            after = before  # the same object
            if before._tape is not None or value._tape is not None:  # goes on from the sum
                with enable_grad():
                    write(before, Ellipsis, before + value, "accumulation", True)
            else:
                accumulate(before, value._v)
        state.grad = with_metadata(after, (value,), made=after is not before)


def _backward(
    self: Tensor,
    gradient: Operand | None = None,
    retain_graph: bool | None = None,
    create_graph: bool | None = None,
    inputs: Any = None,
    *,
    retain_variables: bool | None = None,
) -> None:
    """Add the gradient of this Tensor to ``.grad`` of the leaves; see `tapegrad.backward`."""
    plain = not create_graph and inputs is retain_variables is None
    if self._tape is STALE:
        refresh_history(self)
    since = attached[0]
    if plain and at_once.backward(self, gradient, bool(retain_graph)):
        if hooks.late:
            _add(hooks.found_late(since), False)
        return
    backward([self], gradient, retain_graph, create_graph, inputs, retain_variables=retain_variables)


def _retain_grad(self: Tensor) -> None:
    """Keep the gradient of this result in ``.grad``, as a leaf does."""
    if not self.requires_grad:
        raise GradientError("retain_grad on a Tensor that does not require grad")
    if self._tape is STALE:
        refresh_history(self)
    if not self.is_leaf and not self.retains_grad:
        extra(self).retains_grad = True
        retain(self)
        hooks.ask_late(self)


def install() -> None:
    """Give Tensor the methods that need this floor, and let compiled code find gradients."""
    graph.install()
    hooks.install()
    at_once.install()
    machine.when_loaded.append(_share)
    Tensor.backward = _backward  # type: ignore[method-assign]
    Tensor.retain_grad = _retain_grad  # type: ignore[method-assign]
    _backward.__qualname__, _retain_grad.__qualname__ = "Tensor.backward", "Tensor.retain_grad"
