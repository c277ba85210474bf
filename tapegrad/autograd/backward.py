"""`backward` and `grad`: arguments checked as a whole, one sweep, results committed at the end."""

from __future__ import annotations

import time
import warnings
from contextlib import nullcontext
from typing import Any

import numpy as np

from tapegrad.autograd import graph, hooks
from tapegrad.autograd.graph import GradientEdge, resolved
from tapegrad.autograd.variables import Variable
from tapegrad.dispatch import (
    Handle,
    extra,
    former,
    moves,
    normal,
    noted,
    recall,
    record,
    retain,
    settle,
    tensors_in,
    under,
    wrap,
)
from tapegrad.duals import known, noting, without_history
from tapegrad.engine.rerecord import rerecord
from tapegrad.engine.sweep import Key, at_once, sweep
from tapegrad.errors import DTypeError, GradientError, ShapeError, UnusedInputError
from tapegrad.grad_mode import (
    Mode,
    _enabled,
    enable_grad,
    in_force,
    is_grad_enabled,
    set_grad_enabled,
)
from tapegrad.kernels.replay import layout
from tapegrad.ops import REGISTRY
from tapegrad.tape.record import STRIDE, Place
from tapegrad.tape.tape import Claims, local
from tapegrad.tensor import Tensor
from tapegrad.views import OPEN, STALE
from tapegrad.writes import accumulate, write

__all__ = ["backward", "grad"]


class _Turn:
    """One commit to ``.grad`` at a time; a turn that an interrupt cut off ends by itself."""

    def wait(self) -> None:
        """Return when it is this one's turn."""
        end = time.monotonic() + 5.0
        while not _turns.take(0, self) and time.monotonic() < end:
            time.sleep(1e-5)


float64 = np.float64
_turns = Claims()
RESHAPE = REGISTRY["reshape"]


def _listed(x: Any, what: str) -> list[Any]:
    if isinstance(x, (Tensor, GradientEdge)):
        return [resolved(x)]
    if isinstance(x, (list, tuple)):
        return [resolved(item) for item in x]
    raise TypeError(f"{what} takes a Tensor or a list or tuple of Tensors, found {type(x).__name__}")


def _roots(
    tensors: list[Any], gradients: Any, create_graph: bool, lanes: int | None = None
) -> list[tuple[Tensor, Any]]:
    """Pair each root with its cotangent: an array, or a Tensor where the rules are to run on Tensors."""
    if gradients is None:
        gradients = [None] * len(tensors)
    elif isinstance(gradients, (list, tuple)):
        gradients = list(gradients)
    else:
        gradients = [gradients]
    if len(gradients) != len(tensors):
        raise GradientError(f"{len(gradients)} gradients for {len(tensors)} tensors; give one for each")
    pairs = []
    following = not create_graph and (any(moves(given) for given in gradients) or noting(tensors))
    for k, (root, given) in enumerate(zip(tensors, gradients, strict=True)):
        if not isinstance(root, Tensor):
            raise TypeError(f"root {k} is no Tensor, found {type(root).__name__}")
        if given is not None and not isinstance(given, (Handle, np.ndarray, np.generic, int, float, complex)):
            raise TypeError(
                f"gradient {k} is neither Tensor, ndarray, number nor None, found {type(given).__name__}"
            )
        if not root.requires_grad:
            raise GradientError(
                f"root {k} (shape {root.shape}) does not require grad: no leaf it depends on has "
                "requires_grad=True, or it was computed under no_grad or detached"
            )
        if root._tape is STALE:
            settle(root)
        ct = _cotangent(k, root, given, create_graph or following, lanes)
        pairs.append((under(root) if moves(root) else root, without_history(ct) if following else ct))
    return pairs


def _cotangent(k: int, root: Tensor, given: Any, as_tensor: bool, lanes: int | None) -> Any:
    shape = root.shape if lanes is None else (lanes, *root.shape)
    if given is None:
        if lanes is not None:
            raise ShapeError(f"gradient {k}: is_grads_batched=True takes one of shape {shape}, found None")
        if root.size != 1:
            raise ShapeError(
                f"root {k} has shape {root.shape}: only a root of one element has an implicit gradient; "
                "pass one of the root's shape, or reduce it to a scalar"
            )
        if root.dtype.kind == "c":
            raise GradientError(
                f"root {k} is complex: only a real one has an implicit gradient; pass one, or take its .real"
            )
        value: Any = np.ones(root.shape, root.dtype)
        return wrap(value[()] if root.ndim == 0 else value) if as_tensor else value
    value = given._v if isinstance(given, Handle) else np.asarray(normal(given, f"gradient {k}"))
    if value.shape != shape:
        batch = "" if lanes is None else f" and a batch of {lanes}"
        raise ShapeError(f"gradient {k} of shape {value.shape} for a root of shape {root.shape}{batch}")
    if value.dtype.kind not in "fiubc" or (value.dtype.kind == "c" and root.dtype.kind != "c"):
        raise DTypeError(f"gradient {k} of dtype {value.dtype} for a root of dtype {root.dtype}")
    if as_tensor and isinstance(given, Handle):
        with enable_grad():
            return given if given._v.dtype == root.dtype else given.astype(root.dtype)  # type: ignore[attr-defined]
    value = np.array(value, root.dtype, order="C")
    return wrap(value[()] if value.ndim == 0 else value) if as_tensor else value


# A sum of cotangents that has no value is no error of the caller's; what their own code computes may be.
quietly = np.errstate(all="ignore")


@quietly
def _run(
    pairs: list[tuple[Tensor, Any]],
    sinks: list[Key],
    every: bool,
    retain: bool,
    create_graph: bool,
    settle: Any,
    check: Any,
    lanes: int | None = None,
    floor: int = 0,
) -> dict[Key, Any]:
    """Sweep; roots that are leaves contribute to themselves, and so do those of tapes below the floor."""
    seeds: dict[tuple[int, int], Any] = {}
    tapes: dict[int, Any] = {}
    direct: dict[Key, Any] = {}
    for root, ct in pairs:
        if root._tape is None or root._tape.serial < floor:
            key = _keys(root)[0]
            if every or key in sinks:
                direct[key] = ct if key not in direct else _sum(direct[key], ct, create_graph)
            continue
        tapes[root._tape.serial] = root._tape
        place = (root._tape.serial, (root._at >> 2) - 1)
        seeds[place] = ct if place not in seeds else _sum(seeds[place], ct, create_graph)
    roots = [(tapes[serial], k, ct) for (serial, k), ct in seeds.items()]
    as_tensors = any(isinstance(ct, Tensor) for _, ct in pairs)
    lines, profile = in_force("lines"), in_force("profile")
    event = nullcontext() if profile is None else profile.event("backward", [r for r, _ in pairs], True)
    with event:
        if not as_tensors and lanes is None:
            return sweep(roots, sinks, every, retain, direct, check, lines, profile, floor)
        with set_grad_enabled(create_graph):
            again = recall if as_tensors else _value
            return rerecord(
                roots, sinks, every, retain, direct, again, settle, known, check, lanes, lines, profile, floor
            )


def partials(
    pairs: list[tuple[Any, Any]], keys: list[Key], floor: int, recorded: bool = False
) -> dict[Key, Any]:
    """Return cotangents by key, each with all other keys held fixed: of a sweep of the newest tapes only.

    Parameters
    ----------
    pairs
        Results, and the cotangent of each: an array, or a Tensor where the rules are to run on Tensors.
    keys
        Leaves' cells, and places on tapes older than the floor.
    floor
        Serial of the oldest tape to sweep.
    recorded
        Whether the sweep is recorded.
    """
    found = None if recorded or len(keys) > layout.QUICK_INPUTS else _partials_at_once(pairs, floor)
    return _run(pairs, keys, False, recorded, recorded, None, None, floor=floor) if found is None else found


@quietly
def _partials_at_once(pairs: list[tuple[Any, Any]], floor: int) -> dict[Key, Any] | None:
    """As `partials`, of one open tape in one compiled call; None where that cannot be."""
    tape = local.tape
    if tape is None or tape.serial != floor or tape.watches or tape.packed:
        return None
    if type(_enabled.get()) is Mode or any(
        x._tape is not tape or x._v.dtype.char not in "fd" or type(ct) is Tensor for x, ct in pairs
    ):
        return None
    (root, ct), *more = pairs
    if more:  # the derivative of this sum is that of all of them with their cotangents
        root, ct = np.sum(root * wrap(ct)), None
        for x, g in more:
            root = root + np.sum(x * wrap(g))
    elif not ct.flags.c_contiguous or ct.dtype is not root._v.dtype:
        return None
    places = [STRIDE * (k + 1) for k in tape.imports]
    likes = [tape.log[at - 1] for at in places]
    if not all(like.flags.c_contiguous and like.dtype.char in "fd" for like in likes):
        return None
    outs = at_once(tape, root._at, ct, places, likes, True)
    if outs is None:
        return None
    found: dict[Key, Any] = {}
    for key, g in zip(tape.imports.values(), outs, strict=True):
        if g is not None:
            found[key] = g if key not in found else found[key] + g
    return found


def _sum(a: Any, b: Any, recorded: bool) -> Any:
    with set_grad_enabled(recorded):
        return a + b


def _value(value: Any, *source: Any) -> Any:
    return value


def _keys(x: Tensor) -> list[Key]:
    """What the sweep may know a Tensor by: a leaf has a key for each value it had."""
    at = under(x) if moves(x) else x
    if at._tape is not None:
        return [(at._tape, (at._at >> 2) - 1)]
    return [at._at, *former(x)]


def _inputs(inputs: Any, what: str) -> list[Tensor]:
    found = _listed(inputs, what)
    if not found:
        raise GradientError(f"{what} is empty: name at least one Tensor")
    for k, x in enumerate(found):
        if not isinstance(x, Tensor):
            raise TypeErrorInput(f"{what}[{k}] is no Tensor, found {type(x).__name__}")
        if not x.requires_grad:
            raise GradientError(f"{what}[{k}] (shape {x.shape}) does not require grad")
        if x._tape is STALE:
            settle(x)
    return found


class TypeErrorInput(GradientError, TypeError):
    """An input that is no Tensor."""


@quietly
def _total(parts: list[Any]) -> Any:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


class _Border:
    """Makes what a sweep found into Tensors that share no memory with anything, laid out as their leaves."""

    def __init__(self, pairs: list[tuple[Tensor, Any]], likes: dict[Key, Tensor]) -> None:
        self.taken = [value for pair in pairs for value in pair]  # kept, so that ids stay theirs
        self.memories = {_memory(value) for value in self.taken}
        self.likes = likes
        self.settled: list[Tensor] = []

    def settle(self, key: Key, ct: Tensor) -> Tensor:
        """Return, while a sweep is recorded, the gradient of a result on the way as `result` will."""
        like = self.likes.get(key)
        if like is None or not is_grad_enabled():
            return ct
        self.settled.append(self.result(ct, like))
        return self.settled[-1]

    def result(self, value: Any, like: Tensor) -> Tensor:
        """Return the gradient of `like`: an array or, when recording, a Tensor."""
        for k, settled in enumerate(self.settled):
            if settled is value:
                return self.settled.pop(k)
        array = value._v if isinstance(value, Tensor) else value
        if like.ndim == 0 and not isinstance(value, Tensor):
            return wrap(array[()])  # type: ignore[no-any-return]
        layout = np.empty_like(like._v, order="K") if like.ndim else array
        if like.ndim and like._v.strides != layout.strides:
            layout = np.empty(like.shape, like.dtype)
        memory = _memory(value)
        own = array.base is None if isinstance(value, Tensor) else array.flags.writeable
        fits = like.ndim == 0 or (own and array.strides == layout.strides)
        if memory in self.memories or not fits:
            if like.ndim:
                layout[...] = array
            if isinstance(value, Tensor):
                value = record(RESHAPE, layout, (value,), {"shape": like.shape})
            else:
                value = layout
        self.taken.append(value)
        self.memories.add(_memory(value))
        return value if isinstance(value, Tensor) else wrap(value)


def _told(g: Any, pairs: Any, recorded: bool) -> Any:
    """Note, within a Function, what a gradient depends on; returns it."""
    return g if in_force("forward") is None else noted(g, tensors_in(pairs), not recorded)


def _memory(value: Any) -> int:
    """Identity of what a change would show in: the memory of an array, of a scalar the Tensor itself."""
    array = value._v if isinstance(value, Tensor) else value
    if not isinstance(array, np.ndarray):
        return id(value)
    while isinstance(array.base, np.ndarray):
        array = array.base
    return id(array)


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
) -> Any:
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
        quick = _at_once(outputs, inputs, grad_outputs, retain_graph, allow_unused)
        if quick is not None:
            return quick if in_force("forward") is None else tuple(_told(g, [outputs], False) for g in quick)
    if isinstance(inputs, dict) and type(inputs) is not dict:
        raise TypeError(f"inputs takes a dict itself, found {type(inputs).__name__}")
    if materialize_grads and allow_unused is False:
        raise ValueError(
            "materialize_grads=True gives zeros for unused inputs; allow_unused=False forbids it"
        )
    names = list(inputs) if type(inputs) is dict else None
    targets = _inputs(list(inputs.values()) if names is not None else inputs, "inputs")
    recording = _recording(create_graph, grad_outputs)
    retain = recording if retain_graph is None else bool(retain_graph)
    lanes = _lanes(grad_outputs) if is_grads_batched else None
    pairs = _roots(_listed(outputs, "outputs"), grad_outputs, recording, lanes)
    keys = [_keys(x) for x in targets]
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
    border = _Border(pairs, {key: x for mine, x in zip(keys, likes, strict=True) for key in mine})
    checked = None if optional else check
    every = not only_inputs
    found = _run(pairs, sinks, every, retain, recording, border.settle, checked, lanes) if pairs else {}
    results: list[Tensor | None] = []
    with enable_grad():  # of arrays there is nothing to record
        for mine, x in zip(keys, likes, strict=True):
            parts = [found[key] for key in mine if key in found]
            if not parts:
                _missing(len(results), x, optional)
            if not parts:
                results.append(_zeros(x, recording) if materialize_grads else None)
            else:
                results.append(_told(border.result(_total(parts), x), pairs, recording))
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
    if tape.watches or tape.packed or type(_enabled.get()) is Mode:
        return None
    if seed is not None:
        if type(seed) is not Tensor:
            return None
        seed, value = seed._v, output._v
        if seed.dtype is not value.dtype or seed.shape != value.shape or not seed.flags.c_contiguous:
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
    found = at_once(tape, output._at, seed, sinks, likes, bool(retain_graph)) if sinks else None
    if found is None:
        return None
    return tuple(
        [
            wrap(value) if value is not None else _missing(k, inputs[k], optional)
            for k, value in enumerate(found)
        ]
    )


def _lanes(gradients: Any) -> int:
    """How many cotangents a batch has in each of the gradients."""
    listed = gradients if isinstance(gradients, (list, tuple)) else [gradients]
    first = next((np.shape(x) for x in listed if x is not None), ())
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
    targets = None if inputs is None else _inputs(inputs, "inputs")
    pairs = _roots(_listed(tensors, "tensors"), grad_tensors, recording)
    if not pairs:
        return
    handles: dict[Key, Any] = {}
    if targets is not None:
        for x in targets:
            if not x.is_leaf:
                x.retain_grad()
            for key in _keys(x):
                handles[key] = x
    retained = _retained(pairs)
    handles.update(retained)
    sinks = list(handles)
    border = _Border(pairs, handles)
    found = _run(pairs, sinks, targets is None, retain, recording, border.settle, None)
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
    found: dict[Key, Any], handles: dict[Key, Any], border: _Border, pairs: Any, recording: bool
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
            (handle, _told(border.result(_total(values), handle), pairs, recording))
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
        _turns.drop(0, turn)
    for handle, _ in ready:
        if handle._tape is None and handle._at.watch is not None:
            handle._at.watch.settled(handle)


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
    listed = gradients if isinstance(gradients, (list, tuple)) else [gradients]
    return any(isinstance(x, Variable) and not x.volatile for x in listed)


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
        for k, reference in tape.retained.items():
            handle = reference()
            if handle is not None:
                found[(tape, k)] = handle
        todo += [source[0] for source in tape.imports.values() if type(source) is Place]
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
    """Give Tensor the methods that need this floor."""
    graph.install()
    hooks.install()
    Tensor.backward = _backward_method  # type: ignore[method-assign]
    Tensor.retain_grad = _retain_grad  # type: ignore[method-assign]
