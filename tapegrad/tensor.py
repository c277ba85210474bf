"""The Tensor: a NumPy value that remembers how it was computed."""

from __future__ import annotations

import copy as _copy
import functools
import operator
import reprlib
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, ParamSpec, TypeAlias, TypeGuard, TypeVar

import numpy as np

from tapegrad.core import array_methods, base, dispatch, forward_mode
from tapegrad.core.array_methods import ArrayMethods
from tapegrad.core.base import (
    ARRAY,
    Handle,
    Index,
    as_array,
    decide,
    extra,
    has_tangent,
    is_array,
    is_expected,
    join,
    like_of,
    needs_derivative,
    number_seen,
    refresh_history,
    renew,
    requires_grad,
    separate_storage,
    strip_tangents,
    value_of,
)
from tapegrad.core.callers import asking, way_out
from tapegrad.core.conversion import copy
from tapegrad.core.dispatch import as_tape_value, contains_tensor, enabled, origin, timed, with_metadata
from tapegrad.core.expected import expected, matcher_of
from tapegrad.core.functions import FUNCTIONS, UFUNCS, detached
from tapegrad.core.grad_mode import is_grad_enabled, is_inference_mode_enabled
from tapegrad.core.histories import forget
from tapegrad.core.indices import getitem
from tapegrad.core.inplace import update_in_place, write
from tapegrad.core.lending import lend
from tapegrad.core.nodes import Node, RemovableHandle
from tapegrad.core.notes import comparing, note_escape
from tapegrad.core.operators import FAST, OPERANDS, REFLECTED, power
from tapegrad.core.sparse import is_sparse, sparse_times, times_sparse
from tapegrad.core.storage import STALE
from tapegrad.core.writable import refuse_copied
from tapegrad.errors import BorderError, DTypeError, GradientError, ShapeError
from tapegrad.kernels import abi
from tapegrad.ops import BY_OPCODE
from tapegrad.ops.primitive import Attributes, Primitive
from tapegrad.tape import pool
from tapegrad.tape.record import slot
from tapegrad.tape.tape import Cell

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, DTypeLike

__all__ = ["Tensor", "asarray", "from_numpy", "tensor"]

P = ParamSpec("P")
Result = TypeVar("Result")
Binary = Callable[[Any, Any], "Tensor"]
Unary = Callable[[Any], "Tensor"]
SCALARS = {np.float64, np.float32, np.complex128, np.complex64}
JOINED = "tg.array([...]) or np.stack to join Tensors, tg.zeros(shape) to write into, "
KEEPING = {  # what is to be written where nothing is known of who asks
    "float()": f"use np.sin for math.sin, {JOINED}or ",
    "np.asarray": f"use {JOINED}A @ x for A.dot(x), or ",
}
NUMPY_S_OWN = {id(np.dtype(char)) for char in "dfDF"}  # tapes refuse other objects that are equal to these
# What all above takes and makes: the handles of `core` are Tensors.
TensorOrArray: TypeAlias = "Tensor | np.ndarray"
Operand: TypeAlias = "Tensor | ArrayLike"
Out: TypeAlias = "TensorOrArray | None"


def _of_tensors(function: Callable[P, Handle]) -> Callable[P, Tensor]:
    """Give what makes handles the type of what it makes, as `core.base.use` has told it to."""
    return function  # type: ignore[return-value]


wrap, alias_of, recall = _of_tensors(base.wrap), _of_tensors(base.alias_of), _of_tensors(base.recall)
apply, record = _of_tensors(dispatch.apply), _of_tensors(dispatch.record)
wrap_without_history = _of_tensors(dispatch.wrap_without_history)
attach, without_history = _of_tensors(forward_mode.attach), _of_tensors(forward_mode.without_history)
is_tensor: Callable[[Operand], TypeGuard[Tensor]] = base.is_tensor  # type: ignore[assignment]
_timed_getitem = timed("getitem")(getitem)


def _not_known(self: Any, other: Any) -> Any:
    return NotImplemented


def _operator(
    function: Callable[[Any, Any], Any], otherwise: Any = _not_known
) -> Callable[[Any, Any], Tensor]:
    """Return an operator's method, which leaves operands of other kinds to their own."""

    def call(self: Any, other: Any) -> Tensor:
        return (function if isinstance(other, OPERANDS) else otherwise)(self, other)

    return call


def _reflected(
    function: Callable[[Any, Any], Result], otherwise: Any = _not_known
) -> Callable[[Any, Any], Result]:
    def call(self: Any, other: Any) -> Any:
        return (function if isinstance(other, OPERANDS) else otherwise)(other, self)

    return call


def _is_parameter(x: Tensor) -> bool:
    """Whether this is a leaf that requires grad while nothing is recorded: what updates it means itself."""
    return not is_grad_enabled() and x.is_leaf and x.requires_grad


def _is_changed(x: Tensor, name: str) -> bool:
    """Whether a 0-d Tensor is a view, which an operator in place changes; a program ends where one is."""
    if (matcher := matcher_of(x)) is not None and matcher.is_number_view(x):
        matcher.leave(f"{name} changes a 0-d view")
    if is_expected(x) or x._extra is None:
        return False
    refuse_copied(x, name)
    return x._extra.storage is not None or x._extra.written


def _in_place(operate: Callable[[Any, Any], Tensor], name: str) -> Callable[[Any, Any], Tensor]:
    def update(self: Tensor, other: Operand) -> Tensor:
        result = operate(self, other)
        if not isinstance(result, Tensor):
            return result
        if self.ndim == 0 and not _is_parameter(self):  # a number is immutable: the name is bound to another
            if not expected and self._extra is None:
                return result
            if not expected and self._extra is ARRAY:
                return as_array(result)
            if not _is_changed(self, name):
                return as_array(result) if is_array(self) else result
        update_in_place(self, result, name)
        return self

    return update


class _PandasPriority:
    """Above that of a frame, 4000, by which the operators of pandas' objects are left to Tensors.

    In place (``series += x``) they are not: pandas does not ask the other operand then.
    """

    def __get__(self, x: Tensor | None, owner: type[Tensor]) -> int:
        frame = sys._getframe(1).f_back
        return 0 if frame is not None and frame.f_code.co_name == "_inplace_method" else 10_000


def _left_to_tensors() -> bool:
    """Whether a sparse matrix of SciPy's asks for an array as the other side of @.

    Of a number that is an object it tells Python to ask that operand, which computes the product.
    """
    frame = sys._getframe(1).f_back
    if frame is None or frame.f_code.co_name != "_matmul_dispatch":
        return False
    above = frame.f_back
    if above is None or above.f_code.co_name != "__matmul__":
        return False
    return is_sparse(frame.f_locals.get("self"))


@functools.cache
def _tell_numba() -> None:
    """Let `numba.typeof`, which is about to be asked, say what to do with a Tensor."""
    from numba.extending import typeof_impl

    typeof_impl.register(Tensor)(_refuse_typeof)


def _refuse_typeof(x: Tensor, context: Any) -> NoReturn:
    raise ValueError("a Tensor: decorate the function with tg.njit, or pass x.detach().numpy()")


class Tensor(ArrayMethods):
    """An array whose operations are recorded, so that they can be differentiated.

    Made by `tapegrad.tensor` and by operations. Value, indexing, operators and methods are NumPy's;
    ``requires_grad``, ``grad``, ``backward`` and their kin are those of torch.

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> x = tg.tensor([1.0, 2.0], requires_grad=True)
    >>> np.sum(np.sin(x) * x).backward()
    >>> x.grad
    tensor([1.3818, 0.0770])
    """

    __slots__ = ()
    __array_priority__ = 1000.0
    __pandas_priority__ = _PandasPriority()

    # ------------------------------------------------------------ what it is

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the axes."""
        return like_of(self).shape

    @shape.setter
    def shape(self, shape: Any) -> NoReturn:
        raise AttributeError(f"the shape of a Tensor is what it was made with; write x.reshape({shape!r})")

    @property
    def dtype(self) -> np.dtype:
        """Type of the elements."""
        return like_of(self).dtype

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return like_of(self).ndim

    @property
    def size(self) -> int:
        """Number of elements."""
        return like_of(self).size

    @property
    def nbytes(self) -> int:
        """Bytes of the value."""
        return like_of(self).nbytes

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return like_of(self).itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        """Steps in bytes along the axes."""
        return self._v.strides

    def dim(self) -> int:
        """Number of dimensions, by torch's name."""
        return self.ndim

    def numel(self) -> int:
        """Number of elements, by torch's name."""
        return self.size

    def is_floating_point(self) -> bool:
        """Whether the dtype is floating point."""
        return self.dtype.kind == "f"

    def is_complex(self) -> bool:
        """Whether the dtype is complex."""
        return self.dtype.kind == "c"

    @property
    def real(self) -> Tensor:
        """The real part: of a complex Tensor a copy, which cannot be written to while that is there."""
        return array_methods.real(self)

    @real.setter
    def real(self, value: Any) -> NoReturn:
        raise AttributeError("the real part of a Tensor cannot be set; write x[...] = value + 1j * x.imag")

    @property
    def imag(self) -> Tensor:
        """The imaginary part, a copy, which cannot be written to while the Tensor is there."""
        return array_methods.imag(self)

    @imag.setter
    def imag(self, value: Any) -> NoReturn:
        raise AttributeError(
            "the imaginary part of a Tensor cannot be set; write x[...] = x.real + 1j * value"
        )

    def conj(self) -> Tensor:
        """The complex conjugate; a real Tensor itself, as in NumPy."""
        return UFUNCS[np.conjugate](self) if self.dtype.kind == "c" else self

    conjugate = conj

    # ------------------------------------------------------------ differentiation

    @property
    def requires_grad(self) -> bool:
        """Whether operations on it are recorded; can be set on a leaf."""
        return requires_grad(strip_tangents(self) if has_tangent(self) else self)

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        self.requires_grad_(value)

    def requires_grad_(self, requires_grad: bool = True) -> Tensor:
        """Say whether operations on this leaf are recorded from now on; returns the Tensor."""
        if not isinstance(requires_grad, bool):
            raise GradientError(f"requires_grad takes True or False, found {reprlib.repr(requires_grad)}")
        if not self.is_leaf:
            if requires_grad:
                return self
            raise GradientError(
                "requires_grad=False on the result of an operation; use detach() for a value without history"
            )
        if requires_grad and self.dtype.char not in abi.GRADIENT:
            raise _no_gradient(self.dtype)
        if requires_grad and self.is_inference() and not is_inference_mode_enabled():
            raise GradientError("a result of inference_mode cannot require grad; use a copy made by clone()")
        if requires_grad != self.requires_grad and has_tangent(self):
            self._at = self._at.rooted(Cell(self), requires_grad)
            separate_storage(self)
        elif requires_grad != (self._extra is not None and self._extra.requires_grad):
            state = extra(self)
            note_escape(self)  # from here on it is a beginning, unknown to a Function
            state.call = None
            renew(self)  # first: to tapes the leaf is another one than the constant it was
            state.requires_grad = requires_grad
            separate_storage(self)
        return self

    @property
    def is_leaf(self) -> bool:
        """Whether it is not the result of a recorded operation."""
        return (strip_tangents(self) if has_tangent(self) else self)._tape is None

    @property
    def grad(self) -> Tensor | None:
        """Gradient accumulated by `backward`: a Tensor of the same shape and dtype, or None."""
        found = None if self._extra is None else self._extra.grad
        if found is None and self._tape is not None and not self.is_leaf and not self.retains_grad:
            warnings.warn(
                "the .grad of a Tensor that is not a leaf is not kept; call retain_grad() on it first",
                UserWarning,
                stacklevel=2,
            )
        return found

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        if value is None:
            if self._extra is not None and self._extra.grad is not None:
                self._extra.grad = None
            return
        if not isinstance(value, Tensor):
            raise TypeError(
                f"grad takes a Tensor or None, found {type(value).__name__}; tg.tensor(value) makes one"
            )
        if value is self:
            raise GradientError("a Tensor cannot be its own grad")
        if value.shape != self.shape:
            raise ShapeError(f"grad of shape {value.shape} for a Tensor of shape {self.shape}")
        if value.dtype != self.dtype:
            raise DTypeError(f"grad of dtype {value.dtype} for a Tensor of dtype {self.dtype}")
        extra(self).grad = value

    @grad.deleter
    def grad(self) -> None:
        self.grad = None

    @property
    def retains_grad(self) -> bool:
        """Whether a result keeps its gradient, by `retain_grad`."""
        return self._extra is not None and self._extra.retains_grad

    def retain_grad(self) -> None:
        """Keep the gradient of this result in ``.grad``, as a leaf does."""
        raise NotImplementedError

    def backward(
        self,
        gradient: Any = None,
        retain_graph: bool | None = None,
        create_graph: bool | None = None,
        inputs: Any = None,
        *,
        retain_variables: bool | None = None,
    ) -> None:
        """Add the gradient of this Tensor to ``.grad`` of the leaves; see `tapegrad.backward`."""
        raise NotImplementedError

    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
        """Call ``hook(grad)`` whenever a gradient of this Tensor is computed."""
        raise NotImplementedError

    def register_post_accumulate_grad_hook(self, hook: Callable[[Tensor], None]) -> RemovableHandle:
        """Call ``hook(tensor)`` after ``.grad`` of this leaf has been updated."""
        raise NotImplementedError

    @property
    def grad_fn(self) -> Node | None:
        """The node of the graph that computes its gradient; None for a leaf."""
        raise NotImplementedError

    def detach(self) -> Tensor:
        """The same memory without history; a 0-d Tensor's value is copied."""
        matcher = comparing()
        known = None if matcher is None else matcher.expect_flat(detached, (self,), {})
        if known is not None:
            return known  # type: ignore[return-value]
        if self.ndim == 0:
            out = wrap(np.array(number_seen(self))[()])
        else:
            value = self._v
            out = join(self, wrap(value.view()), value, True)
        out = with_metadata(out, (self,), True)
        if matcher is not None:
            matcher.note_flat(detached, (self,), {}, out)
        return out

    def detach_(self) -> Tensor:
        """Become a leaf without history; returns the Tensor. Views that were made of it keep theirs."""
        if self.is_leaf:
            return self.requires_grad_(False)
        forget(self)
        return self

    @property
    def data(self) -> Tensor:
        """The value without history; assigning another Tensor's value replaces it."""
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        if not isinstance(value, Tensor):
            raise TypeError(f"data takes a Tensor, found {type(value).__name__}")
        if has_tangent(self) or self._tape is not None:
            raise GradientError("data of the result of an operation cannot be replaced")
        if self.requires_grad and value.dtype.char not in abi.GRADIENT:
            raise _no_gradient(value.dtype)
        shown = None if value._extra is None else value._extra.shown
        state = extra(self)
        renew(self)
        if state.storage is not None:
            state.version = state.storage.memory.writes
            state.storage.remove(self)
            state.storage = state.place = None
        state.shown = shown
        self._v = value._v
        with_metadata(self, (value,), True, made=False)

    @property
    def volatile(self) -> bool:
        """Whether nothing computed from it has a history; see `tapegrad.autograd.Variable`."""
        return self._extra is not None and self._extra.volatile

    def is_inference(self) -> bool:
        """Whether it was made under `inference_mode`."""
        return self._extra is not None and self._extra.inference

    @property
    def _version(self) -> int:
        state = self._extra
        if self.is_inference():
            raise GradientError("a result of inference_mode counts no versions")
        if state is None:
            return 0
        return state.version if state.storage is None else state.storage.memory.writes

    def copy_(self, src: Operand) -> Tensor:
        """Take the values of another Tensor or array, broadcast."""
        write(self, Ellipsis, src, "copy_")
        return self

    def fill_(self, value: Operand) -> Tensor:
        """Let all elements be one value."""
        write(self, Ellipsis, value, "fill_")
        return self

    def fill(self, value: Operand) -> None:
        """Let all elements be one value."""
        write(self, Ellipsis, value, "fill")

    def put(self, indices: Operand, values: Operand, mode: str = "raise") -> None:
        """Write to elements by their number in C order; values repeat."""
        FUNCTIONS[np.put](self, indices, values, mode)

    def zero_(self) -> Tensor:
        """Let all elements be zero."""
        return self.fill_(self.dtype.type(0))

    def add_(self, other: Operand) -> Tensor:
        """As ``+=``; so are `sub_`, `mul_` and `div_`."""
        update_in_place(self, self + other, "add_")
        return self

    def sub_(self, other: Operand) -> Tensor:
        """As ``-=``."""
        update_in_place(self, self - other, "sub_")
        return self

    def mul_(self, other: Operand) -> Tensor:
        """As ``*=``."""
        update_in_place(self, self * other, "mul_")
        return self

    def div_(self, other: Operand) -> Tensor:
        """As ``/=``."""
        update_in_place(self, self / other, "div_")
        return self

    def clone(self) -> Tensor:
        """A copy with the same history."""
        return copy(self)

    def copy(self, order: str = "C") -> Tensor:
        """A copy with the same history, by NumPy's name."""
        return copy(self, order)

    # ------------------------------------------------------------ out to Python and NumPy

    def _border(self, what: str) -> None:
        note_escape(self)
        if needs_derivative(self):
            kind, mode = (
                ("carries a tangent", "") if has_tangent(self) else ("requires grad", " or tg.no_grad()")
            )
            package, called = asking()
            one = ".item(), " * (self.size == 1)
            keeping = way_out(package, called) or KEEPING.get(what, "")
            raise BorderError(
                f"{what} of a Tensor that {kind}{called and f', asked for by {called},'} would drop its "
                f"derivative (shape {self.shape}, dtype {self.dtype}); "
                f"{keeping}use {one}.detach().numpy(){mode} for the value"
            )

    def numpy(self) -> np.ndarray:
        """The value as an ndarray that shares memory; read-only with a history, and of one number a copy."""
        self._border("numpy()")
        return lend(self)

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        """The value as an ndarray, read-only where it shares memory."""
        if _left_to_tensors():
            return np.array(None, object)
        self._border("np.asarray")
        value = np.asarray(self._v).view()
        value.flags.writeable = False
        if dtype is not None and value.dtype != dtype:
            if copy is False:
                raise ValueError(f"a Tensor of dtype {value.dtype} needs a copy to become {dtype}")
            return value.astype(dtype)
        return value.copy() if copy else value

    def _sympy_(self) -> Any:
        """What SymPy puts into an expression: numbers, which have no derivative."""
        self._border("sympify")
        return sys.modules["sympy"].sympify(np.asarray(self._v)[()])

    @property
    def _numba_type_(self) -> NoReturn:
        """What Numba asks of an argument: there is no such type, and what it asks next is told what to do."""
        _tell_numba()
        raise AttributeError("a Tensor has no type of Numba's")

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: tuple[int, int] | None = None,
        dl_device: Any = None,
        copy: bool | None = None,
    ) -> Any:
        """The memory for another library, by the DLPack protocol; as `numpy` it has no derivative."""
        value = np.asarray(self.numpy())
        if not value.ndim:
            value = value.copy()  # a number has no memory
        return value.__dlpack__(stream=stream, max_version=max_version, dl_device=dl_device, copy=copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        """The device of the memory, by the DLPack protocol: that of NumPy's."""
        return np.zeros(0).__dlpack_device__()

    def item(self, *args: int | tuple[int, ...]) -> Any:
        """The value of one element as a Python number."""
        note_escape(self)
        return self._v.item(*args) if args else self._one("item()", "; name one, or take .tolist()")

    def tolist(self) -> Any:
        """The values as nested lists."""
        note_escape(self)
        return self._v.tolist()

    def __float__(self) -> float:
        self._border("float()")
        return float(self._one("float()"))

    def __int__(self) -> int:
        self._border("int()")
        return int(self._one("int()"))

    def __complex__(self) -> complex:
        self._border("complex()")
        return complex(self._one("complex()"))

    def __round__(self, ndigits: int | None = None) -> Any:
        """As of NumPy's numbers: with `ndigits` a Tensor, without a derivative, else an integer."""
        if ndigits is not None:
            return self.round(ndigits)
        self._border("round()")
        return round(self._one("round()"))

    def __index__(self) -> int:
        if self.ndim == 0 and self.dtype.kind in "iu":
            return int(number_seen(self))
        raise TypeError(f"only an integer scalar is an index, found shape {self.shape}, dtype {self.dtype}")

    def _one(self, what: str, advice: str = "") -> Any:
        like = like_of(self)
        if like.size != 1:
            raise ValueError(f"{what} needs one element, found shape {like.shape}{advice}")
        return number_seen(self).item()

    def __bool__(self) -> bool:
        if self.size != 1:
            raise ShapeError(f"the truth of an array of shape {self.shape} is ambiguous; use any() or all()")
        return bool(decide(bool, self))

    def __len__(self) -> int:
        if self.ndim == 0:
            raise TypeError("len() of a 0-d Tensor; .item() is its number")
        return len(like_of(self))

    def __iter__(self) -> Iterator[Tensor]:
        shape = like_of(self).shape
        if not shape:
            raise TypeError("iteration over a 0-d Tensor; .item() is its number")
        return map(self.__getitem__, range(shape[0]))

    def __contains__(self, item: Operand) -> bool:
        return bool(decide(_contains, self, item))

    # ------------------------------------------------------------ text and copies

    def __repr__(self) -> str:
        if has_tangent(self):  # with the tangents of the levels further out before it
            return f"{self._at.primal!r}"[:-1] + f", tangent={self._at.tangent!r})"
        text = np.array2string(
            np.asarray(self._v), precision=4, separator=", ", prefix="tensor(", floatmode="maxprec_equal"
        )
        if self.dtype.char != "d" and not (self.dtype.char in "l?" and self.size):
            text += f", dtype={self.dtype}"
        if self._tape is not None:
            text += f", grad_fn=<{self._node_name()}>"
        elif self.requires_grad:
            text += ", requires_grad=True"
        return f"tensor({text})"

    def _node_name(self) -> str:
        if self._tape is STALE:
            try:
                refresh_history(self)
            except GradientError:
                return "interrupted"
        tape: Any = self._tape
        k = slot(self._at)
        return BY_OPCODE[tape.operation(k)[0]].node_name(tape.attrs.get(k, {}))

    def __format__(self, spec: str) -> str:
        if not spec:
            return str(self)
        if self.ndim == 0:
            return format(number_seen(self).item(), spec)
        raise TypeError(f"format {spec!r} needs a 0-d Tensor, found shape {self.shape}")

    def __copy__(self) -> Tensor:
        return self._leaf_copy(self._v, "copy.copy")

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        out = self._leaf_copy(np.array(self._v)[()], "copy.deepcopy")
        memo[id(self)] = out
        if self._extra is not None and self._extra.grad is not None:
            extra(out).grad = _copy.deepcopy(self._extra.grad, memo)
        return out

    def __reduce_ex__(self, protocol: Any) -> Any:
        if has_tangent(self) or self._tape is not None:
            raise GradientError(_not_leaf("pickle"))
        note_escape(self)
        return tensor, (np.asarray(self._v), None, self.requires_grad)

    def _leaf_copy(self, value: np.ndarray, what: str) -> Tensor:
        if has_tangent(self) or self._tape is not None:
            raise GradientError(_not_leaf(what))
        out: Tensor = wrap(value)
        if self._extra is ARRAY:
            return as_array(out)
        if self._extra is not None:
            mine = extra(out)
            mine.array = self._extra.array
            mine.shown, mine.volatile = self._extra.shown, self._extra.volatile
            if self._extra.requires_grad:
                note_escape(self)
                out.requires_grad_()
            mine.call = self._extra.call
        return out

    __hash__ = object.__hash__

    # ------------------------------------------------------------ operators

    __add__: ClassVar[Binary] = FAST["add"]
    __radd__: ClassVar[Binary] = REFLECTED["add"]
    __sub__: ClassVar[Binary] = FAST["subtract"]
    __rsub__: ClassVar[Binary] = REFLECTED["subtract"]
    __mul__: ClassVar[Binary] = FAST["multiply"]
    __rmul__: ClassVar[Binary] = REFLECTED["multiply"]
    __truediv__: ClassVar[Binary] = FAST["divide"]
    __rtruediv__: ClassVar[Binary] = REFLECTED["divide"]
    __mod__: ClassVar[Binary] = FAST["remainder"]
    __rmod__: ClassVar[Binary] = REFLECTED["remainder"]
    __divmod__: Any = _operator(UFUNCS[np.divmod])  # a pair
    __rdivmod__ = _reflected(UFUNCS[np.divmod])
    __and__, __rand__ = _operator(np.bitwise_and), _reflected(np.bitwise_and)
    __or__, __ror__ = _operator(np.bitwise_or), _reflected(np.bitwise_or)
    __xor__, __rxor__ = _operator(np.bitwise_xor), _reflected(np.bitwise_xor)
    __lshift__, __rlshift__ = _operator(np.left_shift), _reflected(np.left_shift)
    __rshift__, __rrshift__ = _operator(np.right_shift), _reflected(np.right_shift)
    __iand__ = _in_place(operator.and_, "&=")
    __ior__ = _in_place(operator.or_, "|=")
    __ixor__ = _in_place(operator.xor, "^=")
    __ilshift__ = _in_place(operator.lshift, "<<=")
    __irshift__ = _in_place(operator.rshift, ">>=")
    __floordiv__ = _operator(UFUNCS[np.floor_divide])
    __rfloordiv__ = _reflected(UFUNCS[np.floor_divide])
    __pow__: ClassVar[Binary] = power
    __rpow__: ClassVar[Binary] = _reflected(power)
    __matmul__: ClassVar[Binary] = _operator(UFUNCS[np.matmul], times_sparse)
    __rmatmul__: ClassVar[Binary] = _reflected(UFUNCS[np.matmul], sparse_times)
    __neg__: ClassVar[Unary] = FAST["negative"]
    __abs__: ClassVar[Unary] = FAST["absolute"]
    __iadd__ = _in_place(operator.add, "+=")
    __isub__ = _in_place(operator.sub, "-=")
    __imul__ = _in_place(operator.mul, "*=")
    __itruediv__ = _in_place(operator.truediv, "/=")
    __ipow__ = _in_place(operator.pow, "**=")
    __imatmul__ = _in_place(operator.matmul, "@=")
    __ifloordiv__ = _in_place(operator.floordiv, "//=")
    __imod__ = _in_place(operator.mod, "%=")
    __eq__: Any = _operator(UFUNCS[np.equal])  # of anything else than numbers it is a bool
    __ne__: Any = _operator(UFUNCS[np.not_equal])
    __lt__ = _operator(UFUNCS[np.less])
    __le__ = _operator(UFUNCS[np.less_equal])
    __gt__ = _operator(UFUNCS[np.greater])
    __ge__ = _operator(UFUNCS[np.greater_equal])

    def __invert__(self) -> Tensor:
        return np.invert(self)  # type: ignore[return-value]

    def __pos__(self) -> Tensor:
        return copy(self)

    def __getitem__(self, index: Index) -> Tensor:
        return (getitem if enabled() is True else _timed_getitem)(self, index)

    def __setitem__(self, index: Index, value: Operand) -> None:
        write(self, index, value, "x[...] = value")

    # ------------------------------------------------------------ protocols

    __array_ufunc__: ClassVar[Callable[..., Any]]  # of `numpy_api`, which puts them in place
    __array_function__: ClassVar[Callable[..., Any]]

    def _apply(self, op: Primitive, operands: Sequence[Operand], attrs: Attributes) -> Tensor:
        return apply(op, operands, attrs)

    def _origin(self) -> tuple[Primitive | None, list[Handle], Attributes | None]:
        return origin(self)

    # ------------------------------------------------------------ methods of ndarray

    @property
    def T(self) -> Tensor:
        """Axes reversed."""
        return array_methods.transpose(self)

    @property
    def mT(self) -> Tensor:
        """The last two axes exchanged."""
        return FUNCTIONS[np.matrix_transpose](self)

    def exp(self) -> Tensor:
        """Exponential, by torch's name; so are `log`, `sqrt`, `sin`, `cos`, `tanh`, `abs`."""
        return FAST["exp"](self)

    log: ClassVar[Unary] = FAST["log"]
    sqrt: ClassVar[Unary] = FAST["sqrt"]
    sin: ClassVar[Unary] = FAST["sin"]
    cos: ClassVar[Unary] = FAST["cos"]
    tanh: ClassVar[Unary] = FAST["tanh"]
    abs: ClassVar[Unary] = FAST["absolute"]


def _no_gradient(dtype: np.dtype) -> GradientError:
    return _GradientDType(
        f"requires_grad needs a complex dtype or a floating-point one of 32 bits or more, found {dtype}; "
        "convert with dtype=float or .astype(float)"
    )


class _GradientDType(GradientError, DTypeError):
    """A gradient asked of a dtype that has none."""


_GradientDType.__name__ = _GradientDType.__qualname__ = DTypeError.__name__  # as tracebacks show it
_GradientDType.__module__ = DTypeError.__module__


for _methods in (ArrayMethods, Tensor):  # a call with a wrong argument names the method as it is called
    for _name, _method in vars(_methods).items():
        if isinstance(_method, FunctionType):
            _method.__qualname__ = f"Tensor.{_name}"


def _contains(x: Any, item: Any) -> bool:
    return bool(np.any(x == item))


def _not_leaf(what: str) -> str:
    _, called = asking()
    if called:
        return (
            f"{what} of a Tensor with history, asked for by {called}, would lose it; "
            "give .detach().numpy(), its value"
        )
    return (
        f"{what} of a Tensor with history would lose it; copy its value with .detach(), "
        "or keep the history with .clone()"
    )


def tensor(data: Any, dtype: DTypeLike | None = None, requires_grad: bool = False) -> Tensor:
    """Return a Tensor that holds a copy of the data.

    Parameters
    ----------
    data : array_like
        Numbers, nested lists of numbers, an array, or a Tensor (of which the value is copied). For
        nested lists that contain Tensors use `array`.
    dtype : dtype, optional
        NumPy's choice by default: float64 for Python floats.
    requires_grad : bool, optional
        Whether operations on it are recorded. Needs floats of 32 bits or more, or complex numbers.

    Returns
    -------
    Tensor
        A leaf.

    Examples
    --------
    >>> import tapegrad as tg
    >>> tg.tensor([1.0, 2.0], requires_grad=True)
    tensor([1., 2.], requires_grad=True)
    """
    if dtype is None and type(requires_grad) is bool and enabled() is True:
        kind = type(data)
        if kind is float:
            return _of_copy(np.float64(data), requires_grad)
        if kind in SCALARS:  # immutable
            return _of_copy(data, requires_grad)
        if kind is np.ndarray and id(data.dtype) in NUMPY_S_OWN and data.nbytes < pool.MIN_BYTES:
            return _of_copy(data.copy("K") if data.ndim else data[()], requires_grad)
    if contains_tensor(data) and not isinstance(data, Handle):
        raise BorderError("tensor() would drop the history of Tensors in a list; use tg.array([...])")
    value = as_tape_value(np.array(value_of(data), dtype=dtype), "tensor")
    if value.nbytes >= pool.MIN_BYTES and value.flags.c_contiguous:
        aligned = pool.empty(value.shape, value.dtype)
        aligned[...] = value
        value = aligned
    out: Tensor = with_metadata(wrap(value), (data,), True)
    if not value.ndim:
        as_array(out)
    return out.requires_grad_(requires_grad) if requires_grad is not False else out


def _of_copy(value: Operand, leaf: bool) -> Tensor:
    """The common case of `tensor`: of a number or a new array, where no mode wants to know."""
    out: Tensor = wrap(value)
    if type(value) is not np.ndarray:
        out._extra = ARRAY
    if leaf:
        extra(out).requires_grad = True
        out._at = Cell(out)
    return out


def from_numpy(array: np.ndarray) -> Tensor:
    """Return a Tensor that shares memory with an ndarray.

    Writes to the array are seen by later operations; what is recorded is a copy of what was there. A Tensor
    without axes holds a number: of an array without axes it is a copy, and views of one element, as
    ``x[0, ...]``, have what was there when they were made or last written to by a Tensor.

    Parameters
    ----------
    array : numpy.ndarray

    Returns
    -------
    Tensor

    Examples
    --------
    >>> import numpy as np, tapegrad as tg
    >>> a = np.zeros(2)
    >>> x = tg.from_numpy(a)
    >>> a[0] = 3.0
    >>> x
    tensor([3., 0.])
    """
    if not isinstance(array, np.ndarray):
        raise TypeError(f"from_numpy takes an ndarray, found {type(array).__name__}; tg.tensor copies that")
    value = as_tape_value(array, "from_numpy")
    out: Tensor = wrap(value)
    if isinstance(value, np.ndarray) and np.may_share_memory(value, array):
        extra(out).shown = True
    return out if value.ndim else as_array(out)


def asarray(data: Operand, dtype: DTypeLike | None = None) -> Tensor:
    """Return the data as a Tensor, without a copy where NumPy's `asarray` makes none.

    Parameters
    ----------
    data : array_like
        A Tensor of the wanted dtype is returned as it is.
    dtype : dtype, optional

    Returns
    -------
    Tensor

    Examples
    --------
    >>> import tapegrad as tg
    >>> tg.asarray([1, 2], dtype=float)
    tensor([1., 2.])
    """
    if isinstance(data, Tensor):
        return data if dtype is None else data.astype(dtype)
    if isinstance(data, np.ndarray):
        return from_numpy(np.asarray(data, dtype))
    return tensor(data, dtype)
