"""Whether a Tensor may be written to: what is refused, before anything has changed."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np

from tapegrad.core.base import (
    Handle,
    Operand,
    has_tangent,
    needs_derivative,
    requires_grad,
    seen_by,
    strip_tangents,
    value_of,
)
from tapegrad.core.grad_mode import is_grad_enabled, is_inference_mode_enabled
from tapegrad.core.indices import shape_at
from tapegrad.core.storage import Storage
from tapegrad.errors import DTypeError, GradientError, ReadOnlyError
from tapegrad.kernels import abi

ndarray = np.ndarray


def check_writable(x: Handle, storage: Storage | None, new: Operand, what: str) -> None:
    """Raise where `new` cannot be written to a Tensor, or its derivatives would not be known."""
    if x._extra is not None and x._extra.inference and not is_inference_mode_enabled():
        raise GradientError(f"{what}: a result of inference_mode cannot be written to; use a copy by clone()")
    refuse_copied(x, what)
    whole = x if storage is None else storage.whole
    recording = is_grad_enabled()
    if recording or has_tangent(new):
        if x._extra is not None and x._extra.several is True and (requires_grad(whole) or requires_grad(new)):
            raise GradientError(
                f"{what}: the Tensor of shape {x._v.shape} is one of several views that a split made; write "
                "to what was split, or to a copy made by clone()"
            )
        origin = None if storage is None or storage.origin is None else storage.origin.whole
        for handle in (x, whole, origin):
            if handle is None or handle._tape is not None or not requires_grad(handle):
                continue
            part = "a leaf" if x._tape is None and requires_grad(x) else "a view of a leaf"
            raise GradientError(
                f"{what} would change {part} that requires grad (shape {x._v.shape}), and its gradient would "
                "be of values that are gone; write under tg.no_grad(), or to a copy made by clone()"
            )
        if origin is not None and requires_grad(origin):
            raise GradientError(
                f"{what}: the Tensor of shape {x._v.shape} was made a view while nothing was recorded, and "
                "what it is a view of requires grad; make the view anew, or write under tg.no_grad()"
            )
        if storage is not None and storage.detached and requires_grad(new):
            raise GradientError(
                f"{what}: a detached Tensor shares memory but no history, and values that require grad would "
                "need one; write to a copy made by clone()"
            )
    if not recording and (has_tangent(whole) or has_tangent(new)) and requires_grad(strip_tangents(whole)):
        raise GradientError(
            f"{what}: under tg.no_grad() the tangent of the Tensor of shape {x._v.shape} would know of the "
            "write and its gradient not; write with grad mode on, or to a copy made by clone()"
        )
    seen = seen_by(x)
    if type(seen) is ndarray and not seen.flags.writeable:
        raise ReadOnlyError(
            f"{what}: the Tensor of shape {x._v.shape} is read-only, as several of its elements are one in "
            "memory (broadcast_to) or its array was; copy it first"
        )
    kind = value_of(new).dtype
    if not is_writable_as(kind, x._v.dtype):
        raise DTypeError(
            f"{what}: values of dtype {kind} do not fit a Tensor of dtype {x._v.dtype} without loss; "
            "convert one of them with astype"
        )
    if x._v.dtype.char not in abi.GRADIENT and needs_derivative(new):
        raise DTypeError(f"{what}: a Tensor of dtype {x._v.dtype} cannot hold values that require grad")


def refuse_views(x: Handle, index: Any, what: str) -> None:
    """Refuse to write to a number of which there are copies where an array would have views."""
    presence = None if x._extra is None else x._extra.presence
    if presence is not None and any(asking.held() for asking in weakref.getweakrefs(presence)):
        shape_at(np.asarray(x._v), index, what)  # which refuses an index of nothing
        raise ReadOnlyError(
            f"{what}: of the Tensor of shape () there are copies that would be views of an array, and do not "
            "see the write; make them after it, or of what was written to before"
        )


def refuse_copied(x: Handle, what: str) -> None:
    """A write to a copy of a part is lost to what NumPy would have made a view of, if that is still there."""
    several = False if x._extra is None else x._extra.several
    if not callable(several):
        return
    if several() is None:
        x._extra.several = False
    elif x._v.ndim == 0:
        raise ReadOnlyError(
            f"{what}: the Tensor of shape () is a copy of an element, and NumPy would change the array that "
            "it was taken from as well; write x[0, 0] = value to that, y = y + value for another number, or "
            "to a copy made by .copy()"
        )
    else:
        raise ReadOnlyError(
            f"{what}: the Tensor of shape {x._v.shape} is a copy of a real or imaginary part, or of "
            "a number, and NumPy would change what it is of, if that is an array, as well; write "
            "z[...] = real + 1j * imag or x[...] = value to that, or to a copy made by .copy()"
        )


def is_writable_as(kind: np.dtype, dtype: np.dtype) -> bool:
    """Whether values of one dtype may be written to a Tensor of another one."""
    return kind is dtype or np.can_cast(kind, dtype, "same_kind")
