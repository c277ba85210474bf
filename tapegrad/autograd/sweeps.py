"""From Tensors to a sweep, and from what it finds to Tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, TypeAlias

import numpy as np

from tapegrad.autograd import at_once
from tapegrad.autograd.graph import GradientEdge, resolved
from tapegrad.core.base import Handle, has_tangent, previous_cells, refresh_history, strip_tangents
from tapegrad.core.dispatch import as_tape_value, tensors_in, with_metadata
from tapegrad.core.forward_mode import known, noting
from tapegrad.core.grad_mode import (
    Mode,
    _enabled,
    enable_grad,
    in_force,
    is_grad_enabled,
    set_grad_enabled,
)
from tapegrad.core.storage import OPEN, STALE
from tapegrad.engine.plan import Key, Result
from tapegrad.engine.rerecord import rerecord
from tapegrad.engine.sweep import sweep
from tapegrad.errors import DTypeError, GradientError, ShapeError
from tapegrad.kernels import abi
from tapegrad.kernels.replay import layout
from tapegrad.ops import REGISTRY
from tapegrad.tape.record import STRIDE, Value
from tapegrad.tape.tape import Tape, local
from tapegrad.tensor import Operand, Tensor, TensorOrArray, recall, record, without_history, wrap

Differentiated: TypeAlias = Tensor | GradientEdge | Sequence[Tensor | GradientEdge]
Cotangent: TypeAlias = Tensor | np.ndarray | np.generic | complex | None
Cotangents: TypeAlias = Cotangent | Sequence[Cotangent]
RESHAPE = REGISTRY["reshape"]


def listed(x: Differentiated, what: str) -> list[Tensor]:
    """Return a Tensor, or several, as a list; edges of the graph as what they are edges to."""
    if isinstance(x, (Tensor, GradientEdge)):
        return [resolved(x)]
    if isinstance(x, (list, tuple)):
        return [resolved(item) for item in x]
    if callable(x):
        raise TypeError(f"{what} takes Tensors, found a function; tg.func.grad(f)(x) is its gradient")
    raise TypeError(f"{what} takes a Tensor or a list or tuple of Tensors, found {type(x).__name__}")


def roots_of(
    tensors: list[Tensor], gradients: Any, create_graph: bool, lanes: int | None = None
) -> list[tuple[Tensor, TensorOrArray]]:
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
    following = not create_graph and (any(has_tangent(given) for given in gradients) or noting(tensors))
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
                "requires_grad=True, or it was computed under no_grad, detached, or by functions whose "
                "derivative is zero wherever there is one (np.floor, np.sign, comparisons); for a derivative "
                "of a gradient, take that with create_graph=True"
            )
        if root._tape is STALE:
            refresh_history(root)
        ct = _cotangent(k, root, given, create_graph or following, lanes)
        pairs.append(
            (strip_tangents(root) if has_tangent(root) else root, without_history(ct) if following else ct)
        )
    return pairs


def _cotangent(k: int, root: Tensor, given: Any, as_tensor: bool, lanes: int | None) -> Any:
    shape = root.shape if lanes is None else (lanes, *root.shape)
    if given is None:
        if lanes is not None:
            raise ShapeError(f"gradient {k}: is_grads_batched=True takes one of shape {shape}, found None")
        if root.size != 1:
            hint = "; it is a leaf: in grad(outputs, inputs) what was computed comes first"
            raise ShapeError(
                f"root {k} has shape {root.shape}: only a root of one element has an implicit gradient; "
                "pass one of the root's shape, or reduce it to a scalar" + (hint if root.is_leaf else "")
            )
        if root.dtype.kind == "c":
            raise GradientError(
                f"root {k} is complex: only a real one has an implicit gradient; pass one, or take its .real"
            )
        value = np.ones(root.shape, root.dtype)
        return wrap(value[()] if root.ndim == 0 else value) if as_tensor else value
    value = given._v if isinstance(given, Handle) else np.asarray(as_tape_value(given, f"gradient {k}"))
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
def run(
    pairs: list[tuple[Tensor, TensorOrArray]],
    sinks: list[Key],
    every: bool,
    retain: bool,
    create_graph: bool,
    finish: Any,
    check: Callable[[set[Key]], None] | None,
    lanes: int | None = None,
    floor: int = 0,
    captured: Iterable[Result] = (),
    defers: bool = False,
) -> Mapping[Key, Any]:
    """Sweep; roots that are leaves contribute to themselves, and so do those of tapes below the floor.

    If it `defers`, gradients of results may have no values.
    """
    seeds: dict[tuple[int, int], TensorOrArray] = {}
    tapes: dict[int, Tape] = {}
    direct: dict[Key, TensorOrArray] = {}
    for root, ct in pairs:
        if root._tape is None or root._tape.serial < floor:
            key = keys_of(root)[0]
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
            return sweep(roots, sinks, every, retain, direct, check, lines, profile, floor, captured)
        with set_grad_enabled(create_graph):
            again = recall if as_tensors else _value
            alone = type(_enabled.get()) is bool and not OPEN and create_graph == (lanes is None)
            return rerecord(
                roots,
                sinks,
                every,
                retain,
                direct,
                again,
                finish,
                known,
                check,
                lanes,
                lines,
                profile,
                floor,
                captured,
                functools.partial(_follow, defers) if alone and as_tensors == create_graph else None,
            )


def _follow(
    defers: bool, state: int, tape: Tape, values: list[Value], records: list[int], cts: list[Any]
) -> Any:
    """Run a sealed tape's rules on Tensors, recorded, or on arrays with an axis of lanes, which are not."""
    lanes = not is_grad_enabled()
    tensors = [ct if isinstance(ct, Tensor) else wrap(ct) for ct in cts]  # some rules give arrays
    found = at_once.rerecord_sealed(state, tape, values, records, tensors, lanes, defers)
    if found is not None and lanes:
        found[1::2] = [ct._v for ct in found[1::2]]
    return found


def partials(
    pairs: list[tuple[Tensor, TensorOrArray]],
    keys: list[Key],
    floor: int,
    recorded: bool = False,
    retain: bool = False,
) -> Mapping[Key, Any]:
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
    retain
        Whether another sweep follows.
    """
    found = None if recorded or retain or len(keys) > layout.QUICK_INPUTS else _partials_at_once(pairs, floor)
    return (
        run(pairs, keys, False, recorded or retain, recorded, None, None, floor=floor)
        if found is None
        else found
    )


@quietly
def _partials_at_once(pairs: list[tuple[Tensor, Any]], floor: int) -> dict[Key, np.ndarray] | None:
    """As `partials`, of one open tape in one compiled call; None where that cannot be."""
    tape = local.tape
    if tape is None or tape.serial != floor or tape.hooks or tape.packed:
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
    sources = dict(tape.sources())
    places = [STRIDE * (k + 1) for k in sources]
    inputs = [wrap(tape.log[at - 1], tape, at) for at in places]
    outs = at_once.gradients(root, ct, inputs, True, True)
    if outs is None:
        return None
    found: dict[Key, np.ndarray] = {}
    for key, g in zip(sources.values(), outs, strict=True):
        if g is not None:
            found[key] = g._v if key not in found else found[key] + g._v
    return found


def _sum(a: TensorOrArray, b: TensorOrArray, recorded: bool) -> TensorOrArray:
    with set_grad_enabled(recorded):
        return a + b


def _value(value: Operand, *source: Any) -> Any:
    return value


def keys_of(x: Tensor) -> list[Key]:
    """What the sweep may know a Tensor by: a leaf has a key for each value it had."""
    at = strip_tangents(x) if has_tangent(x) else x
    if at._tape is not None:
        return [(at._tape, (at._at >> 2) - 1)]
    return list(dict.fromkeys([at._at, *previous_cells(x)]))  # once each, while another thread renews it


def inputs_of(inputs: Differentiated, what: str) -> list[Tensor]:
    """Return what is differentiated by, as a list, each seen to be a Tensor that requires grad."""
    found = listed(inputs, what)
    if not found:
        raise GradientError(f"{what} is empty: name at least one Tensor")
    for k, x in enumerate(found):
        if not isinstance(x, Tensor):
            raise InputTypeError(f"{what}[{k}] is no Tensor, found {type(x).__name__}")
        if not x.requires_grad:
            raise GradientError(
                f"{what}[{k}] (shape {x.shape}) does not require grad; make it by tg.tensor(x, "
                "requires_grad=True), or say x.requires_grad_(), before something is computed from it"
            )
        if x._tape is STALE:
            refresh_history(x)
    return found


class InputTypeError(GradientError, TypeError):
    """An input that is no Tensor."""


def total(parts: list[TensorOrArray]) -> TensorOrArray:
    """Return the sum of a gradient's parts."""
    found = parts[0]
    if len(parts) > 1:
        with np.errstate(all="ignore"):
            for part in parts[1:]:
                found = found + part
    return found


class Border:
    """Makes what a sweep found into Tensors that share no memory with anything, laid out as their leaves."""

    def __init__(self, pairs: list[tuple[Tensor, TensorOrArray]], likes: dict[Key, Tensor]) -> None:
        self.kept = [value for pair in pairs for value in pair]  # kept, so that ids stay theirs
        self.memories = {_memory(value) for value in self.kept}
        self.likes = likes
        self.finished: list[Tensor] = []

    def finish(self, key: Key, ct: Tensor) -> Tensor:
        """Return, while a sweep is recorded, the gradient of a result on the way as `result` will."""
        like = self.likes.get(key)
        if like is None or not is_grad_enabled():
            return ct
        self.finished.append(self.result(ct, like))
        return self.finished[-1]

    def result(self, value: TensorOrArray, like: Tensor) -> Tensor:
        """Return the gradient of `like`: an array or, when recording, a Tensor."""
        for k, finished in enumerate(self.finished):
            if finished is value:
                return self.finished.pop(k)
        array = value._v if isinstance(value, Tensor) else value
        if like.ndim == 0 and not isinstance(value, Tensor):
            return wrap(array[()])
        memory = _memory(value)
        own = array.base is None if isinstance(value, Tensor) else array.flags.writeable
        fits = like.ndim == 0 or (own and array.flags.c_contiguous and like._v.flags.c_contiguous)
        if memory in self.memories or not fits:
            layout = np.empty_like(like._v, order="K") if like.ndim else array
            if like.ndim and like._v.strides != layout.strides:
                layout = np.empty(like.shape, like.dtype)
            if memory in self.memories or not own or array.strides != layout.strides:
                if like.ndim:
                    layout[...] = array
                if isinstance(value, Tensor):
                    value = record(RESHAPE, layout, (value,), {"shape": like.shape})
                else:
                    value = layout
        self.kept.append(value)
        self.memories.add(_memory(value))
        return value if isinstance(value, Tensor) else wrap(value)


def track_gradient(g: Tensor, pairs: list[tuple[Tensor, TensorOrArray]], recorded: bool) -> Tensor:
    """Note, within a Function, what a gradient depends on; returns it."""
    return g if in_force("forward") is None else with_metadata(g, tensors_in(pairs), not recorded)


def _memory(value: TensorOrArray) -> int:
    """Identity of what a change would show in: the memory of an array, of a scalar the Tensor itself."""
    array = value._v if isinstance(value, Tensor) else value
    if not isinstance(array, np.ndarray):
        return id(value)
    return id(abi.owner_of(array))
