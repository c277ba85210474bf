"""Every exception the library raises on its own account.

A class may be two things at once: a wrong shape is torch's ``RuntimeError`` and NumPy's ``ValueError``,
so code written against either catches it.
"""

from __future__ import annotations

__all__ = [
    "AnomalyError",
    "AxisError",
    "BorderError",
    "DTypeError",
    "GradcheckError",
    "GradientError",
    "GraphFreedError",
    "KernelError",
    "MutationError",
    "ReadOnlyError",
    "ReplayError",
    "ShapeError",
    "TapeBusyError",
    "TapeError",
    "UnsupportedOpError",
    "UnusedInputError",
]


class TapeError(RuntimeError):
    """Base class: something about a tape or a derivative is not as asked."""


class GradientError(TapeError):
    """A derivative was asked of something that has none, or in a way that is ambiguous."""


class AnomalyError(GradientError):
    """A derivative that is not a number, found in anomaly mode."""


class UnusedInputError(GradientError):
    """An input of `grad` does not take part in the computation of any output."""


class GraphFreedError(TapeError):
    """A second sweep needs values that the first one released."""


class MutationError(TapeError):
    """An array that a derivative reads was written to from outside after it was recorded."""


class ReadOnlyError(TapeError, ValueError):
    """A write to memory that is read-only."""


class TapeBusyError(TapeError):
    """Another sweep at work runs through the same records, and one of the two releases them."""


class KernelError(TapeError):
    """A compiled kernel reported failure or could not be built."""


class ReplayError(TapeError):
    """A function does what rules out that its Python is skipped, as ``tg.compile(replay=True)`` asks."""


class ShapeError(TapeError, ValueError):
    """Shapes do not fit."""


class AxisError(ShapeError, IndexError):
    """An axis lies outside the array's dimensions."""


class DTypeError(TapeError, TypeError):
    """A dtype cannot take part in differentiation here."""


class BorderError(TapeError):
    """A conversion out of tapegrad would drop the derivative.

    No TypeError: SciPy and matplotlib catch those of ``float()`` and ``__array__`` and raise messages of
    their own instead.
    """


class UnsupportedOpError(TapeError, NotImplementedError, TypeError):
    """A function, or a form of it, that has no derivative here."""


class GradcheckError(TapeError):
    """An analytical derivative differs from the numerical one."""


def is_from_signal(error: BaseException) -> bool:
    """Whether the handler of a signal has raised it: it belongs to the user, whatever it came between.

    A handler is given the frame that it interrupts, which is also the one that its own goes back to.
    """
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        for x in frame.f_locals.values() if frame.f_back is not None else ():
            if x is frame.f_back or (type(x) is tuple and any(y is frame.f_back for y in x)):
                return True
        trace = trace.tb_next
    return False
