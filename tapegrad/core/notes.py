"""What functions note for those that follow operations: programs of `tg.compile`, recorded `Function`s."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from tapegrad.core import expected as programs
from tapegrad.core.base import H, Handle, Operand, extra
from tapegrad.core.expected import Matcher
from tapegrad.core.grad_mode import Mode, _enabled, in_force
from tapegrad.ops.primitive import Attributes

enabled = _enabled.get


def note_flat(
    out: H, function: Callable[..., Any], operands: Sequence[Operand], options: Attributes | None = None
) -> H:
    """Note what a function without a derivative has made of operands; returns it."""
    mode = enabled()
    if type(mode) is Mode and mode.forward is not None:
        mode.forward.flat(out, functools.partial(function, **options) if options else function, operands)
    elif type(mode) is Mode and mode.matcher is not None and mode.pair is not None:
        mode.matcher.note_flat(function, operands, options or {}, out)
    return out


def expect_flat(
    function: Callable[..., Any], operands: Sequence[Operand], options: Attributes | None = None
) -> Handle | None:
    """The Tensor of what a function without a derivative gives, if a program at work expects it."""
    mode = enabled()
    if type(mode) is Mode and mode.matcher is not None:
        return mode.matcher.expect_flat(function, operands, options or {})
    return None


def call_compared(
    function: Callable[..., Any], how: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Return what a function gives, by what computes it unless a program at work expects this call."""
    known = programs.match_call(function, args, kwargs)
    if known is not None:
        return known
    matcher = in_force("matcher")
    return how(*args, **kwargs) if matcher is None else matcher.call(function, how, args, kwargs)


def comparing() -> Matcher | None:
    """Return the program that learns operations here, or compares them."""
    mode = enabled()
    return mode.matcher if type(mode) is Mode and mode.pair is not None else None


def is_compared() -> bool:
    """Whether a program learns operations here, or compares them: so a function better looks at no values."""
    return comparing() is not None


def note_parts() -> None:
    """Let a program that learns operations know that a function of NumPy's is more than these.

    It warns, looks at values, or has another handling of errors of numbers. So its calls are not compared
    as a whole.
    """
    matcher = in_force("matcher")
    if matcher is not None:
        matcher.note_parts()


def note_several(x: Handle) -> None:
    """Note on a view that one call made it and others, of which one is not to be written to alone."""
    extra(x).several = True
    matcher = in_force("matcher")
    if matcher is not None:
        matcher.note_several(x)


def note_order(x: Handle, order: Callable[..., Any]) -> None:
    """Note on elements just taken at places that a function of the values tells, which one that is."""
    matcher = in_force("matcher")
    if matcher is not None:
        matcher.note_order(x, order)


def note_warning(x: Handle, words: str) -> None:
    """Note on what has just been computed in which words the operation warns of invalid values."""
    matcher = in_force("matcher")
    if matcher is not None:
        matcher.note_warning(x, words)


def note_value() -> None:
    """Let a program that learns operations know that the value of the next one is not what its op gives."""
    matcher = in_force("matcher")
    if matcher is not None:
        matcher.note_value()


def is_followed(x: Operand) -> bool:
    """Whether this is a Tensor without a derivative that a program at work computes, or learns to."""
    mode = enabled()
    return type(mode) is Mode and mode.matcher is not None and mode.matcher.is_flat(x)


def note_escape(*tensors: Handle) -> None:
    """Note, in the forward or backward of a Function, that values leave Tensors."""
    mode = enabled()
    if type(mode) is Mode and mode.forward is not None:
        for x in tensors:
            mode.forward.take(x)
