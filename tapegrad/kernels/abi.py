"""Where CPython and NumPy keep what a tape reads natively, proved on this interpreter before use.

``TAPEGRAD_ABI=portable`` (or a failed proof) makes Python fill the same columns through public calls.
"""

from __future__ import annotations

import ctypes
import functools
import sys
import warnings
from collections.abc import Callable

import numpy as np

from tapegrad.config import abi
from tapegrad.kernels import bounds
from tapegrad.kernels.replay import layout
from tapegrad.kernels.words import Address

# Code of each dtype a value may have. Gradients have those of GRADIENT; 1 to 4 are swept in compiled code,
# which reads all up to 13.
CODES = {"d": 1, "f": 2, "D": 3, "F": 4, "?": 13, "e": 14, "g": 15, "G": 16}
CODES |= {c: {8: 5, 4: 6, 2: 7, 1: 8}[np.dtype(c).itemsize] for c in "bhilq"}
CODES |= {c: {8: 9, 4: 10, 2: 11, 1: 12}[np.dtype(c).itemsize] for c in "BHILQ"}
GRADIENT = "dfgGDF"
DTYPES: dict[int, np.dtype] = {CODES[c]: np.dtype(c) for c in GRADIENT}
DESTRUCTOR_AT = 48  # in a class
NAMES = {
    1: "float64", 2: "float32", 3: "complex128", 4: "complex64", 5: "int64", 6: "int32", 7: "int16",
    8: "int8", 9: "uint64", 10: "uint32", 11: "uint16", 12: "uint8", 13: "bool", 14: "float16",
    15: "longdouble", 16: "clongdouble",
}  # fmt: skip


# All memory as words: reading one is a single call, a third of the time that `from_address` takes for each.
_WORDS = (ctypes.c_int64 * (sys.maxsize >> 3)).from_address(0)


def _word(address: Address) -> int:
    return _WORDS[address >> 3]


def _allocated(items: list[object]) -> int:
    """For how many items a list has room."""
    return (sys.getsizeof(items) - sys.getsizeof([])) // 8


def _proved() -> bool:
    """Read what is known from where it should lie."""
    if sys.implementation.name != "cpython" or sys.maxsize < 2**63 - 1 or sys.byteorder != "little":
        return False
    if not getattr(sys, "_is_gil_enabled", lambda: True)():
        return False
    array = np.arange(24.0).reshape(2, 3, 4).transpose(1, 0, 2)[:, :, ::2]
    at = id(array)
    dims, strides = _word(at + layout.DIMS_AT), _word(at + layout.STRIDES_AT)
    token = object()
    pair, text = (token, at), b"12345"
    table, several = {token: at}, {token, at, text}
    part, room = slice(token, at, text), bytearray(b"54321")
    items = [12345, token, np.float64(1.5)]
    cells = _word(id(items) + layout.ITEMS_AT)
    count = sys.getrefcount(token) - 1
    scalars = (np.float64(-2.5), np.float32(-2.5), np.int16(-3), np.bool_(True), np.complex128(1 - 2j))
    return (
        _word(at + layout.DATA_AT) == array.__array_interface__["data"][0]
        and ctypes.c_int32.from_address(at + layout.NDIM_AT).value == 3
        and tuple(_word(dims + 8 * d) for d in range(3)) == array.shape
        and tuple(_word(strides + 8 * d) for d in range(3)) == array.strides
        and _word(at + layout.DESCR_AT) == id(array.dtype)
        and _word(at + layout.BASE_AT) == id(array.base)
        and np.ndarray.__weakrefoffset__ == layout.WEAK_LIST_AT
        and ctypes.c_int32.from_address(at + layout.FLAGS_AT).value == array.flags.num
        and array.flags.num & layout.ALIGNED != 0
        and _word(id(pair) + layout.TUPLE_ITEMS_AT) == id(token)
        and _word(id(pair) + layout.SIZE_AT) == 2
        and ctypes.string_at(id(text) + layout.BYTES_AT, 5) == text
        and _word(id(part) + layout.SLICE_AT) == id(token)
        and ctypes.string_at(_word(id(room) + layout.BYTEARRAY_AT), 5) == room
        and _word(id(table) + layout.SIZE_AT) == 1
        and _word(id(several) + layout.SET_SIZE_AT) == 3
        and _word(id(part) + layout.SLICE_AT + 16) == id(text)
        and [_word(cells + 8 * k) for k in range(3)] == [id(x) for x in items]
        and all(_word(id(x) + layout.ALLOCATED_AT) == _allocated(x) for x in (items, [], items + items))
        and ctypes.c_int32.from_address(id(items[0]) + layout.DIGIT_AT).value == 12345
        and all(ctypes.c_int32.from_address(id(k) + layout.DIGIT_AT).value == k for k in (0, 1, 2**29))
        and ctypes.c_int32.from_address(id(token) + layout.REFCOUNT_AT).value == count
        and _word(id(token) + layout.TYPE_AT) == id(object)
        and all(ctypes.string_at(id(s) + layout.SCALAR_AT, s.nbytes) == s.tobytes() for s in scalars)
    )


def _in_a_list() -> int:
    values = [object()]
    value = values[0]
    return sys.getrefcount(value)


def _untraced(function: Callable[[], int]) -> int:
    """Call a function whose frame no tracer sees: reading `f_locals` adds references.

    One written in C, as cProfile, does not read them, and cannot be put back by its object.
    """
    tracer, profiler = sys.gettrace(), sys.getprofile()
    if callable(tracer):
        sys.settrace(None)
    if callable(profiler):
        sys.setprofile(None)
    try:
        return function()
    finally:
        if callable(tracer):
            sys.settrace(tracer)
        if callable(profiler):
            sys.setprofile(profiler)


IN_A_LIST = _untraced(_in_a_list)  # what `sys.getrefcount` says of a local variable that else a list holds


@functools.cache
def layout_in_use() -> str:
    """Return ``"native"`` or ``"portable"``."""
    return "portable" if abi() == "portable" or not _proved() else "native"


native = functools.cache(lambda: layout_in_use() == "native")


def numpy_function(table: str, place: int) -> Address:
    """Return the address of a function of NumPy's C API, from its place in one of the two tables."""
    from numpy._core import _multiarray_umath

    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)
    pointer = get(("PyCapsule_GetPointer", ctypes.pythonapi))(getattr(_multiarray_umath, table), None)
    return _word(int(pointer) + 8 * place)


def _loop(ufunc: np.ufunc, char: str) -> tuple[str, Address, Address]:
    """The dtypes of a ufunc's loop, the loop, and what it is called with; zeros where there is none.

    The struct is public (``PyUFuncObject`` in ``numpy/ufuncobject.h``).
    """
    types = char if "->" in char else char * ufunc.nin + "->" + char * ufunc.nout
    if types not in ufunc.types:
        return "", 0, 0
    at, k, chars = id(ufunc), ufunc.types.index(types), types.replace("->", "")
    counts, types_at = at + layout.UFUNC_COUNTS_AT, at + layout.UFUNC_TYPES_AT
    known = np.array([ufunc.nin, ufunc.nout, ufunc.nargs, ufunc.ntypes], np.int32).tobytes()
    if ctypes.string_at(counts, 12) + ctypes.string_at(types_at, 4) != known:
        return "", 0, 0
    row = ctypes.string_at(_word(at + layout.UFUNC_CODES_AT) + k * ufunc.nargs, ufunc.nargs)
    loop, data = (_word(_word(at + place) + 8 * k) for place in (layout.UFUNC_LOOPS_AT, layout.UFUNC_DATA_AT))
    if row != bytes(np.dtype(c).num for c in chars):
        return "", 0, 0
    return chars, loop, data


def inner_loop(ufunc: np.ufunc, char: str) -> tuple[Address, Address]:
    """Return a ufunc's loop over operands of one dtype, and what it is called with; zeros without proof.

    Or of several dtypes, where `char` is such as "ld->d".
    """
    chars, loop, data = _loop(ufunc, char)
    if loop == 0:
        return 0, 0
    values = [[2, 1, 3]] * (ufunc.nin - 1) + [[0.75, 0.5, 0.25]] * (1 + ufunc.nout)
    given = [np.array(x, c) for x, c in zip(values, chars, strict=True)]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of SciPy's deprecate numbers that are no integers
        return (loop, data) if _is_loop_of(ufunc, given, loop, data) else (0, 0)


def product_words(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> list[int]:
    """Return extents and strides that NumPy gives the loop of `np.matmul`, of vectors, matrices or stacks.

    Stacks have one axis besides, both of them. An axis that is not there, or is one long, has no stride.
    """
    rows, columns, count = a.ndim >= 2, b.ndim >= 2, out.shape[0] if out.ndim == 3 else 1
    extents = [count, a.shape[-2] if rows else 1, a.shape[-1], b.shape[-1] if columns else 1]
    of_a = [a.strides[-2] if rows else 0, a.strides[-1]]
    of_b = [b.strides[-2 if columns else 0], b.strides[-1] if columns else 0]
    of_out = [out.strides[-1 - columns] if rows else 0, out.strides[-1] if columns else 0]
    pairs = zip(of_a + of_b + of_out, (1, 2, 2, 3, 1, 3), strict=True)
    stacks = [x.strides[0] if count > 1 else 0 for x in (a, b, out)]
    return [*extents, *stacks, *(stride if extents[axis] > 1 else 0 for stride, axis in pairs)]


@functools.cache
def product_loop(char: str) -> tuple[Address, Address]:
    """Return the loop of `np.matmul`, and what it is called with; zeros without proof."""
    chars, loop, data = _loop(np.matmul, char)
    if loop == 0:
        return 0, 0
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)(loop)
    numbers = np.random.default_rng(0)
    shapes = ((7, 5), (5,)), ((7,), (7, 5)), ((7, 5), (5, 6)), ((9,), (9,)), ((1, 9), (9, 1))
    for left, right in (*shapes, ((3, 7, 5), (3, 5, 6))):
        a, b = numbers.normal(size=left).astype(chars[0]), numbers.normal(size=right).astype(chars[1])
        expected = np.asarray(np.matmul(a, b))
        out = np.zeros_like(expected)
        places = np.array([location(x) for x in (a, b, out)], np.int64)
        words = np.array(product_words(a, b, out), np.int64)
        call(location(places), location(words), location(words[4:]), data)
        if out.tobytes() != expected.tobytes():
            return 0, 0
    return loop, data


def _is_loop_of(ufunc: np.ufunc, given: list[np.ndarray], loop: Address, data: Address) -> bool:
    """Whether a loop gives what the ufunc does."""
    expected = ufunc(*given[: ufunc.nin])
    words, count = np.array([location(x) for x in given], np.int64), np.array([3], np.int64)
    steps = np.array([x.itemsize for x in given], np.int64)
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * 4)(loop)
    call(location(words), location(count), location(steps), data)
    last = expected if ufunc.nout == 1 else expected[-1]
    return np.array_equal(given[-1], last, equal_nan=True)


def location(array: np.ndarray) -> Address:
    """Return the address of an array's data."""
    if native():
        return _WORDS[(id(array) + layout.DATA_AT) >> 3]
    return int(array.__array_interface__["data"][0])


def _noted(array: np.ndarray) -> Address:
    bounds.know(array)
    return location(array)


address = _noted if layout.BOUNDS else location  # of arrays whose memory compiled code works on


def destructor_of(cls: type) -> Address:
    """Return where the function is that ends objects of a class; of all class statements it is the same."""
    return _word(id(cls) + DESTRUCTOR_AT)


def places_in(x: object, part: object) -> list[int]:
    """Return where an object refers to another one, in bytes from its beginning."""
    return [at for at in range(0, type(x).__basicsize__, 8) if _word(id(x) + at) == id(part)]


def owner_of(array: np.ndarray) -> np.ndarray:
    """Return the array in whose memory an array lies; `as_strided` puts something between."""
    while array.base is not None:
        base = array.base if isinstance(array.base, np.ndarray) else getattr(array.base, "base", None)
        if not isinstance(base, np.ndarray):
            return array
        array = base
    return array


def code_of(char: str) -> int:
    """Return a dtype's code and bytes per element << 8, as compiled code has them."""
    return CODES[char] | np.dtype(char).itemsize << 8


@functools.cache
def known() -> np.ndarray:
    """Return the table by which compiled code tells a value's dtype; see `kernels.replay.reading`."""
    scalars = [(id(np.dtype(c).type), c) for c in CODES]
    dtypes = [(id(np.dtype(c)), c) for c in CODES]
    rows = [(len(scalars), len(dtypes))]
    rows += [(at, code_of(c)) for at, c in (*scalars, *dtypes)]
    return np.array(rows, np.int64)
