"""Tensors that stand for what a program will compute: their slots are empty until somebody looks.

While a function of `tapegrad.compile` runs, an operation that the program expects gives such a Tensor. When a
slot is read Python finds it empty and asks for the attribute once more, by `read_slot`: for the value the
program computes up to there; for anything else it ends, and its operations are recorded, as without it. One
is not empty: `_at` says by which program it is expected.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from tapegrad.core.handle import Handle
from tapegrad.ops.primitive import Attributes, Primitive

EMPTY = ("_v", "_tape", "_extra")


class Expected:
    """What Tensors that one program computes have in the slot `_at`."""

    __slots__ = ("matcher",)

    def __init__(self, matcher: Matcher) -> None:
        self.matcher = matcher


expected: set[Expected] = set()  # of programs whose Tensors there are


class Matcher(Protocol):
    """A program at work, as what records sees it."""

    def note_array(self, x: Handle) -> None:
        """Know a Tensor of this program as an array: see `core.base.as_array`."""

    def is_array(self, x: Handle) -> bool:
        """Whether a Tensor of this program is known as an array."""

    def call(
        self, function: Callable[..., Any], how: Callable[..., Any], args: Sequence[Any], kwargs: Any
    ) -> Any:
        """Return what a function of NumPy's gives, by what computes it unless that is expected."""

    def expect(
        self, op: Primitive, operands: Sequence[Any], attrs: Attributes | None, placed: str
    ) -> Handle | None:
        """Return the Tensor of a result that is expected, without a value; None if it is to be computed.

        See `core.dispatch.expect`.
        """

    def expect_flat(
        self, function: Callable[..., Any], args: Sequence[Any], names: Attributes
    ) -> Handle | None:
        """As `expect`, for a call of a function without a derivative."""

    def part(self, x: Handle, index: Any) -> Handle | None:
        """Return the Tensor of a part by an index, if that is expected."""

    def applying(self, op: Primitive, operands: Sequence[Any]) -> None:
        """Know that an op that was not expected is computed, up to `applied`."""

    def applied(self) -> None:
        """Know that an op that was not expected has been computed, or has raised an error."""

    def match(
        self, op: Primitive, value: Any, operands: Sequence[Any], attrs: Attributes | None
    ) -> Handle | None:
        """Return the Tensor of a computed result that is expected; None where it is to be recorded."""

    def wrap(self, value: Any, tape: Any, at: int) -> Handle:
        """Return the Tensor of a result just recorded."""

    def note(self, op: Primitive, operands: Sequence[Any], attrs: Attributes | None, out: Handle) -> None:
        """Take note of a result just recorded."""

    def note_plain(
        self, op: Primitive, operands: Sequence[Any], attrs: Attributes | None, out: Handle
    ) -> None:
        """Take note of a result without a history."""

    def note_flat(
        self, function: Callable[..., Any], args: Sequence[Any], names: Attributes, out: Handle
    ) -> None:
        """Take note of what a function without a derivative has computed."""

    def note_parts(self) -> None:
        """Take note that the function of NumPy's at work is more than the operations that it applies."""

    def note_several(self, x: Handle) -> None:
        """Take note that a Tensor is one of several views that one call made."""

    def note_order(self, x: Handle, order: Callable[..., Any]) -> None:
        """Take note of what tells the places of elements that the latest operation took, by their values."""

    def note_warning(self, x: Handle, words: str) -> None:
        """Take note of the words in which the latest operation warns of invalid values."""

    def note_value(self) -> None:
        """Take note that the value of the next operation is not what its op gives."""

    def write(self, x: Handle, index: Any, new: Any, update: bool) -> bool:
        """Let a Tensor of this program be written to at an index; whether that is expected."""

    def history_of(self, x: Handle) -> Any:
        """What tells a Tensor that was computed in a call that is listed; None for any other."""

    def written(self, x: Handle, new: Any, by: Handle) -> Any:
        """What tells a Tensor that is to be written to by itself or a view, if that is to be listed."""

    def note_write(self, history: Any, how: tuple[Any, ...], x: Handle) -> None:
        """Take note that what was recorded last was a write to a Tensor, told so before."""

    def is_active(self, x: Handle) -> bool:
        """Whether a Tensor of this program depends on the arguments, as far as derivatives go."""

    def sees_history(self, x: Handle) -> bool:
        """Whether a Tensor of this program is, or is a view of, what depends on the arguments."""

    def is_flat(self, x: Any) -> bool:
        """Whether this is a Tensor without a derivative that the program computes, or learns to."""

    def held(self, seen: weakref.ref[Any], but: Handle | None = None) -> Handle | None:
        """Return a Tensor that others hold, of those that see the memory of a Tensor or storage, but one."""

    def is_number_view(self, x: Handle) -> bool:
        """Whether a Tensor of this program that has no axes is a view."""

    def like(self, x: Handle) -> Any:
        """Return an array of the shape and dtype of a Tensor of this program, whatever its elements."""

    def compute(self, x: Handle) -> Any:
        """Return the value of a Tensor of this program."""

    def decide(self, function: Callable[..., Any], operands: Sequence[Any], seen: list[Any] | None) -> Any:
        """Return what a function tells of values, as `core.base.decide` does."""

    def leave(self, why: str) -> None:
        """Record what was expected so far, and nothing is expected any more."""


def matcher_of(x: Any) -> Matcher | None:
    """Return the program that a Tensor is expected by; None for any other operand."""
    if expected and isinstance(x, Handle) and type(x._at) is Expected:
        return x._at.matcher
    return None


def match_call(method: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Handle | None:
    """Return the Tensor of a method's call, if that is what a program at work expects.

    Compiled code, as soon as it is there.
    """
    return None


def read_slot(x: Handle, name: str) -> Any:
    """Return what an empty slot of a Tensor would hold; any other name raises the error it has raised."""
    matcher = matcher_of(x) if name in EMPTY else None
    if matcher is None:
        return object.__getattribute__(x, name)
    if name == "_v":
        return matcher.compute(x)
    matcher.leave("the history or the state of a Tensor was looked at")
    return object.__getattribute__(x, name)
