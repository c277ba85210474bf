"""Operands in every layout that the op suite covers, and what a sample of an op consists of."""

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

import tapegrad as tg

PLAIN, SCALAR, EMPTY, SIZE1 = "plain", "0-d", "empty", "size-1"
STRIDED, NEGATIVE, FORTRAN, READONLY = "strided", "negative stride", "Fortran", "read-only"
INTEGER, MIXED = "integer operand", "mixed precision"
LAYOUTS = (PLAIN, SCALAR, EMPTY, SIZE1, STRIDED, NEGATIVE, FORTRAN, READONLY, INTEGER, MIXED)
DTYPES = ("float64", "float32")
COMPLEX = ("complex128", "complex64")


class Reason(enum.Enum):
    """Why a cell cannot exist."""

    NEEDS_DIMENSIONS = "the op takes no 0-d operand"
    NO_ELEMENT = "an empty array has no element to take"
    INTEGER_ONLY = "the only operand is an integer, which has no derivative"
    REAL_ONLY = "the op takes no complex operand"
    ONE_OPERAND = "no second operand could have another dtype"


@dataclass
class Absent:
    """A cell that cannot exist, and a way to see that: `shown` returns True."""

    reason: Reason
    shown: Callable[[], bool]


@dataclass
class Case:
    """One use of an op.

    Attributes
    ----------
    operands
        What `call` takes: leaf Tensors, and constants as arrays or numbers.
    call
        The public call that means the op, on Tensors.
    reference
        The same on arrays.
    smooth
        An extension of the function to complex operands, holomorphic around the sample.
    ulps
        Allowed difference of the value from the reference, in units of eps, for values up to 1 of eps.
    floor
        Least sum of absolute terms of a component that rounding is measured by: where each element comes
        of all of a matrix.
    function
        The same as `reference` without rounding, where that makes a difference.
    """

    operands: tuple[Any, ...]
    call: Callable[..., Any]
    reference: Callable[..., Any]
    smooth: Callable[..., Any]
    ulps: float = 0
    floor: float = 0
    function: Any = None
    jacobians: Any = field(default=None, repr=False)  # once it is known, as the next
    complex: bool | None = None

    @property
    def moves(self) -> list[int]:
        """Positions of the operands that require grad."""
        return [k for k, x in enumerate(self.operands) if isinstance(x, tg.Tensor) and x.requires_grad]

    @property
    def values(self) -> list[Any]:
        """The operands as arrays and numbers."""
        return [x.detach().numpy() if isinstance(x, tg.Tensor) else x for x in self.operands]


def refuses(call: Callable[[], Any], error: type[Exception]) -> bool:
    """Whether a call raises."""
    try:
        call()
    except error:
        return True
    return False


def spread(random, count: int, interval: tuple[float, float]) -> Any:
    """Numbers of an interval in random order, apart from each other and away from its ends and 0."""
    low, high = interval
    low, high = (-1.9 if low == -np.inf else low + 0.5), (1.9 if high == np.inf else high - 0.5)
    step = (high - low) / max(count, 1)
    found = low + step * (np.arange(count) + 0.5 + random.uniform(-0.25, 0.25, count))
    if low < 0:
        found = np.sign(found) * (0.25 + np.abs(found))
    return random.permutation(found)


def typed(random, x: Any, dtype: str) -> Any:
    """Real numbers as numbers of a dtype; if that is complex, with imaginary parts."""
    if dtype in COMPLEX:
        x = x + 1j * random.permutation(np.linspace(-0.4, 0.5, x.size)).reshape(x.shape)
    return x.astype(dtype)


def drawn(random, shape: tuple[int, ...], interval: tuple[float, float], dtype: str) -> Any:
    """An array of such numbers."""
    return typed(random, spread(random, int(np.prod(shape)), interval).reshape(shape), dtype)


def leaf(array: Any, layout: str = PLAIN) -> tg.Tensor:
    """Return a leaf that holds these values in memory laid out as asked."""
    array = np.asarray(array)
    every = (slice(None),) * array.ndim
    if layout == STRIDED and array.ndim:
        roomy = np.full([2 * n for n in array.shape], 99, array.dtype)
        steps = tuple(slice(None, None, 2) for _ in every)
        roomy[steps] = array
        made = tg.tensor(roomy)[steps]
    elif layout == NEGATIVE and array.ndim:
        back = tuple(slice(None, None, -1) for _ in every)
        made = tg.tensor(array[back].copy())[back]
    elif layout == FORTRAN:
        made = tg.tensor(np.asfortranarray(array))
    elif layout == READONLY:
        array = array.copy()
        array.flags.writeable = False
        made = tg.from_numpy(array)
    else:
        made = tg.tensor(array)
    if made.dtype.kind in "fc":
        made.requires_grad_()
    assert laid_out(made, layout), f"{layout}: strides {made.strides} of shape {made.shape}"
    return made


def laid_out(x: tg.Tensor, layout: str) -> bool:
    """Whether memory is as the layout says, where shape and size make a difference."""
    long = [s // x.itemsize for s, n in zip(x.strides, x.shape, strict=True) if n > 1]
    if not long or x.size == 0:
        return True
    if layout == STRIDED:
        return min(long) >= 2
    if layout == NEGATIVE:
        return max(long) < 0
    if layout == FORTRAN:
        return long[0] == 1
    return min(long) >= 1 and sorted(long, reverse=True) == long


def repeated(array: Any) -> tg.Tensor:
    """Return a leaf whose first axis has stride 0, repeating the first row of an array."""
    made = np.broadcast_to(tg.tensor(array[:1]), array.shape).requires_grad_()
    assert made.strides[0] == 0
    return made


def integers(random, shape: tuple[int, ...], dtype: str, low: int = 1, high: int = 4) -> Any:
    """Integers whose products with this dtype keep it."""
    return random.integers(low, high, shape).astype(integer(dtype))


def integer(dtype: str) -> str:
    return "int64" if dtype in ("float64", "complex128") else "int16"


def other(dtype: str) -> str:
    """The other precision, of real numbers."""
    return "float32" if dtype in ("float64", "complex128") else "float64"


def converted(x: Any, dtype: str) -> Any:
    """The same numbers, or their real parts, in the other precision."""
    return np.real(x).astype(other(dtype))


def one_operand(op) -> Absent:
    return Absent(Reason.ONE_OPERAND, lambda: op.arity == 1)
