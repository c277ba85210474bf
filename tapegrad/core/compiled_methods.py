"""Gives Tensor its compiled methods, which record in a third of the time that Python takes.

A method of `kernels.replay.recording` handles operands that are on the open tape and calls its twin in
Python for the rest. They come with the first sweep, which compiles them; until then, and always with
``TAPEGRAD_ABI=portable``, the twins do everything.
"""

from __future__ import annotations

import ctypes
import functools
import operator
import sys
import warnings
from inspect import CO_VARARGS, CO_VARKEYWORDS
from typing import Any

import numpy as np

from tapegrad import config
from tapegrad.core import base, dispatch, expected, grad_mode, inplace
from tapegrad.core.base import Extra, Handle, Operand, join
from tapegrad.core.dispatch import record
from tapegrad.core.functions import ANSWERED, detached
from tapegrad.core.operators import FAST
from tapegrad.core.storage import DUAL, OPEN, STALE, Memory, Storage
from tapegrad.kernels import abi, extensions, machine, table
from tapegrad.kernels.replay import layout
from tapegrad.kernels.state import KEEP_BYTES
from tapegrad.kernels.words import Address
from tapegrad.ops import MEANING, REGISTRY, forward
from tapegrad.ops.primitive import Elementwise, Primitive
from tapegrad.ops.scans import PRODUCT, RUNNING_PRODUCT
from tapegrad.tape import pool
from tapegrad.tape import tape as tapes
from tapegrad.tape.columns import Columns
from tapegrad.tape.record import CONS, LEAF, LINK, slot

METH_NOARGS, METH_O, METH_FASTCALL, METH_FASTCALL_KEYWORDS = 0x04, 0x08, 0x80, 0x82
METHODS = {  # in the order of `kernels.replay.recording.methods`
    "__add__": METH_O, "__radd__": METH_O, "__sub__": METH_O, "__rsub__": METH_O, "__mul__": METH_O,
    "__rmul__": METH_O, "__truediv__": METH_O, "__rtruediv__": METH_O, "__neg__": METH_NOARGS,
    "__abs__": METH_NOARGS, "__pow__": METH_O, "__array_ufunc__": METH_FASTCALL_KEYWORDS,
    "__getitem__": METH_O, "__matmul__": METH_O, "__rmatmul__": METH_O, "__array_function__": METH_FASTCALL,
    "item": METH_FASTCALL, "detach": METH_NOARGS, "__float__": METH_NOARGS, "__int__": METH_NOARGS,
    "__index__": METH_NOARGS,
}  # fmt: skip
COMPARE, TRUTH = 67, 9  # numbers of slots in CPython's stable ABI
# Slots of the type, through which operators call them, without looking for a method, in the order there:
# the place in the type, that in the table which is there, and the slot's number in CPython's stable ABI.
SLOTS = (
    (layout.AS_NUMBER_AT, layout.NB_ADD, 7),
    (layout.AS_NUMBER_AT, layout.NB_SUBTRACT, 36),
    (layout.AS_NUMBER_AT, layout.NB_MULTIPLY, 29),
    (layout.AS_NUMBER_AT, layout.NB_TRUE_DIVIDE, 37),
    (layout.AS_NUMBER_AT, layout.NB_MATRIX_MULTIPLY, 75),
    (layout.AS_NUMBER_AT, layout.NB_POWER, 33),
    (layout.AS_NUMBER_AT, layout.NB_NEGATIVE, 30),
    (layout.AS_NUMBER_AT, layout.NB_ABSOLUTE, 6),
    (layout.AS_MAPPING_AT, layout.MP_SUBSCRIPT, 5),
    (layout.TYPE_ITSELF, layout.RICH_COMPARE, COMPARE),
    (layout.AS_NUMBER_AT, layout.NB_BOOL, TRUTH),
)
SET_ITEM_SLOT = (layout.AS_MAPPING_AT, layout.MP_ASSIGN, 3)
TWINS: dict[str, Any] = {}  # of Tensor, in Python
OPERATORS = (  # in the order of their sheets: what means the op, function of the C API, methods
    (operator.add, "PyNumber_Add", "__add__", "__radd__"),
    (operator.sub, "PyNumber_Subtract", "__sub__", "__rsub__"),
    (operator.mul, "PyNumber_Multiply", "__mul__", "__rmul__"),
    (operator.truediv, "PyNumber_TrueDivide", "__truediv__", "__rtruediv__"),
    (operator.neg, "PyNumber_Negative", "__neg__", "__neg__"),
    (abs, "PyNumber_Absolute", "__abs__", "__abs__"),
    (operator.pow, "PyNumber_Power", "__pow__", "__rpow__"),
    (np.square, "", "__pow__", "__pow__"),
    (operator.matmul, "", "__matmul__", "__rmatmul__"),
)
# Places in NumPy's table of array functions.
NUMPY = {
    layout.NEW_COPY: 85,  # PyArray_NewCopy
    layout.NEW_ARRAY: 94,  # PyArray_NewFromDescr
    layout.NEW_VIEW: 137,  # PyArray_View
    layout.NEW_LIKE: 277,  # PyArray_NewLikeArray
    layout.SET_BASE: 282,  # PyArray_SetBaseObject
}
WINDOWS = {
    None: 0, "part": layout.PART, "whole": layout.WHOLE, "joined": layout.JOINED, "stacked": layout.STACKED,
    "taken": layout.TAKEN, "placed": layout.PLACED, "written": layout.WRITTEN,
    "scattered": layout.SCATTERED, "embedded": layout.EMBEDDED, "added": layout.ADDED,
    "running product": layout.ALONG + RUNNING_PRODUCT, "product": layout.ALONG + PRODUCT,
}  # fmt: skip
ARITHMETIC = {
    MEANING[operator.add]: layout.SUM, MEANING[operator.sub]: layout.DIFFERENCE,
    MEANING[operator.mul]: layout.PRODUCT, MEANING[operator.truediv]: layout.QUOTIENT,
    MEANING[operator.neg]: layout.OPPOSITE,
}  # fmt: skip
HANDLE = ("_v", "_tape", "_at", "_extra")
TAPE = (
    "log", "limit", "weight", "owner", "leaves", "constants", "numbers", "placeholder", "shadows", "lines",
    "serial", "attrs", "described", "freed", "held", "imports", "retained",
    "links", "hooks", "packed", "claims", "guards", "calls", "latest", "older", "columns",
)  # fmt: skip
MODE = ("plain", "noting", "timing", "note", "tracing")
CELL = ("handle", "hooks", "since")
STORAGE = ("base", "whole", "memory", "detached", "origin", "torn", "handles")
MEMORY = ("root", "storages", "writes")
TEXTS = {  # names of attributes and keys, and where compiled code finds them
    layout.REQUIRES_GRAD_TEXT: "requires_grad", layout.SHOWN_TEXT: "shown",
    layout.INFERENCE_TEXT: "inference", layout.VOLATILE_TEXT: "volatile", layout.CELLS_TEXT: "cells",
    layout.GRAD_TEXT: "grad", layout.INDEX_TEXT: "index", layout.PLACE_TEXT: "place",
    layout.AXIS_TEXT: "axis", layout.PLACES_TEXT: "places", layout.WORDS_TEXT: "words",
    layout.WINDOW_TEXT: "window", layout.CALL_TEXT: "__call__", layout.OPAQUE_TEXT: "opaque",
    layout.STORAGE_TEXT: "storage", layout.VERSION_TEXT: "version", layout.SEVERAL_TEXT: "several",
    layout.RETAINS_GRAD_TEXT: "retains_grad", layout.DELITEM_TEXT: "__delitem__",
    layout.SWEEPS_TEXT: "sweeps", layout.RELEASED_TEXT: "released", layout.RELEASE_TEXT: "release",
    layout.PRE_TEXT: "pre", layout.POST_TEXT: "post", layout.ACCUMULATED_TEXT: "accumulated",
    layout.EXPOSED_TEXT: "exposed", layout.FILTERS_TEXT: "filters",
    layout.SHOW_TEXT: "_showwarnmsg_impl", layout.SHARED_TEXT: "shared",
}  # fmt: skip
words: Any = ()  # shared with compiled code, once it is there
_kept: list[Any] = []  # what compiled code knows by address
_sheets_by_op: dict[Primitive, int] = {}  # addresses
_unknown = np.full(2, -1, np.int64)  # nan in every dtype: the element of an array without a value
_latest_imports = np.zeros(layout.WAY_SETS * layout.WAYS * layout.WAY_WORDS, np.int64)


class _Definition(ctypes.Structure):
    """PyMethodDef."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("function", ctypes.c_void_p),
        ("flags", ctypes.c_int),
        ("doc", ctypes.c_char_p),
    )


def install(kind: type[Handle]) -> None:
    """Let this class, Tensor, have compiled methods from the first sweep on."""
    TWINS.update((name, vars(kind)[name]) for name in (*METHODS, "__setitem__"))
    machine.when_loaded.append(functools.partial(_replace, kind))


def _replace(kind: type[Handle], enter: machine.Enter) -> None:
    """Replace methods of Tensor by compiled ones, where objects are laid out as those know them."""
    global words
    offsets = _offsets(kind)
    if not abi.native() or offsets is None:
        return
    addresses = np.zeros(len(METHODS) + len(SLOTS), np.int64)
    words = (ctypes.c_int64 * layout.SHARED_WORDS).from_address(
        enter(layout.METHODS, 0, abi.address(addresses), 0)
    )
    sheets = _sheets(kind)
    name = ctypes.create_string_buffer(b"__call__")
    _kept.extend((sheets, name))
    for place, function in enumerate(layout.API):
        words[place] = _address(function)
    share(_objects(kind, sheets))
    for place, number in (offsets | _numbers(kind, sheets, name)).items():
        words[place] = number
    forward.announce = functools.partial(_use_vector_form, sheets)
    dispatch.record_natively = builtin("record_op", METH_FASTCALL, enter(layout.RECORD_OP, 0, 0, 0))
    expected.match_call = builtin("match_call", METH_FASTCALL, enter(layout.MATCH_CALL, 0, 0, 0))
    base.like_natively = builtin("like", METH_O, enter(layout.LIKE_EXPECTED, 0, 0, 0))
    base.number_natively = builtin("number", METH_O, enter(layout.NUMBER_EXPECTED, 0, 0, 0))
    methods, slots = addresses[: len(METHODS)].tolist(), addresses[len(METHODS) :].tolist()
    for (method, flags), at in zip(METHODS.items(), methods, strict=True):
        setattr(kind, method, _method(kind, method, flags, at))
    for places, at in zip(SLOTS, slots, strict=True):
        _fill_slot(kind, *places, at)
    _await_writing(kind)


def _await_writing(kind: type[Handle]) -> None:
    """Have the first write replace what writes to Tensors."""

    def write(x: Any, index: Any, value: Operand) -> None:
        _replace_writing(kind)
        x[index] = value

    def update(x: Handle, new: Handle) -> bool | None:
        _replace_writing(kind)
        return inplace.update_natively(x, new)

    kind.__setitem__, inplace.update_natively = write, update  # type: ignore[index]


def _replace_writing(kind: type[Handle]) -> None:
    """Replace what writes to Tensors by compiled code."""
    enter, at = extensions.writing(), ctypes.addressof(words)
    method = _method(kind, "__setitem__", METH_FASTCALL, enter(layout.SET_METHOD, at, 0, 0))
    kind.__setitem__ = method  # type: ignore[index]
    _fill_slot(kind, *SET_ITEM_SLOT, enter(layout.SET_SLOT, at, 0, 0))
    inplace.update_natively = builtin("update", METH_FASTCALL, enter(layout.UPDATE, at, 0, 0))


def _offsets(kind: type[Handle]) -> dict[int, int] | None:
    """By word: where Tensors, tapes, modes and cells keep their slots; None if that cannot be told."""
    found: dict[int, int] = {}
    for start, owner, names in (
        (layout.V_SLOT, kind, HANDLE),
        (layout.LOG_SLOT, tapes.Tape, TAPE),
        (layout.PLAIN_SLOT, grad_mode.Mode, MODE),
        (layout.CELL_HANDLE_SLOT, tapes.Cell, CELL),
        (layout.COLUMNS_VALUES_SLOT, Columns, ("values", "words")),
        (layout.BASIS_SLOT, Storage, STORAGE),
        (layout.ROOT_SLOT, Memory, MEMORY),
    ):
        offsets = _slots(owner, names)
        if offsets is None:
            return None
        found.update(enumerate(offsets, start))
    return found


def _objects(kind: type[Handle], sheets: np.ndarray) -> dict[int, Any]:
    """By word: the objects that compiled code knows by address."""
    rows = sheets[len(OPERATORS) :]
    _sheets_by_op.update((op, abi.address(row)) for op, row in zip(_ufunc_ops(), rows, strict=True))
    return {
        layout.NONE_AT_ALL: None, layout.NOT_IMPLEMENTED: NotImplemented,
        layout.TRUE: True, layout.ZERO: 0, layout.TWO_OBJECT: 2,
        layout.OPERAND_ERRORS: (ValueError, TypeError), layout.MODE: grad_mode._enabled,
        layout.DOUBLE: np.dtype(float),
        layout.TENSOR_TYPE: kind, layout.FLOAT_TYPE: float, layout.INT_TYPE: int,
        layout.STR_TYPE: str, layout.MODE_TYPE: grad_mode.Mode, layout.TAPE_TYPE: tapes.Tape,
        layout.SINGLE: np.dtype(np.float32), layout.LOOK: _look,
        layout.FLOAT64_TYPE: np.float64, layout.NDARRAY_TYPE: np.ndarray, layout.RECORD: _record,
        layout.ARRAY_UFUNC: TWINS["__array_ufunc__"], layout.ARRAY_FUNCTION: TWINS["__array_function__"],
        layout.UFUNCS: {op.functions[0]: row for op, row in zip(_ufunc_ops(), rows, strict=True)},
        layout.TUPLE_TYPE: tuple, layout.LIST_TYPE: list, layout.BYTES_TYPE: bytes,
        layout.CONS_OPCODE: CONS, layout.SHEETS_BY_OP: _sheets_by_op, layout.MAKE_SHEET: sheet_of,
        layout.SLICE_TYPE: slice, layout.ELLIPSIS: ..., layout.GETITEM: TWINS["__getitem__"],
        layout.FALSE: False, layout.CELL_TYPE: tapes.Cell, layout.OPEN_LEVELS: OPEN,
        layout.VERSION: table.version, layout.LEAVE: tapes.leave,
        layout.ZEROS: np.zeros, layout.BYTE_DTYPE: np.dtype(np.uint8),
        layout.STALE_TAPE: STALE, layout.DUAL_TAPE: DUAL, layout.LOAD: dispatch.import_operand,
        layout.EXCEPTION: Exception, layout.GUARD_SETTING: config.setting_of_guard,
        layout.OFF_TEXT: config.GUARDS[2], layout.CHECKSUM_TEXT: config.GUARDS[0],
        layout.SHADOW: pool.shadow, layout.EMPTY_LIKE: pool.empty_like, layout.OUT_NAMES: ("out",),
        layout.LEAF_OPCODE: LEAF, layout.LINK_OPCODE: LINK, layout.CURRENT_TAPE: tapes.current,
        layout.NEWEST_TAPE: tapes.newest,
        layout.SETITEM: TWINS["__setitem__"], layout.EXTRA_TYPE: Extra, layout.JOIN: join,
        layout.ANSWERED: ANSWERED, layout.ITEM: TWINS["item"], layout.DETACH: TWINS["detach"],
        layout.DETACHED: detached,
        layout.AS_FLOAT: TWINS["__float__"], layout.AS_INT: TWINS["__int__"],
        layout.AS_INDEX: TWINS["__index__"], layout.INTEGER: np.dtype(np.int64),
        layout.ERROR_MODE: forward.error_mode, layout.WARNINGS: vars(warnings),
        layout.NUMPY_TRUE: np.True_, layout.NUMPY_FALSE: np.False_, layout.DICT_TYPE: dict,
    } | {place: sys.intern(text) for place, text in TEXTS.items()}  # fmt: skip


def _numbers(kind: type[Handle], sheets: np.ndarray, name: Any) -> dict[int, int]:
    """By word: sizes at which code changes ways, and addresses of what is no object."""
    test, errors = forward.error_test()
    return {
        layout.TEST_ERRORS: test,
        layout.ERRORS: errors,
        layout.GETITEM_SHEET: sheet_of(REGISTRY["getitem"]),
        layout.ELEMENT_SHEET: sheet_of(REGISTRY["element"]),
        layout.ASSIGN_SHEET: sheet_of(REGISTRY["assign"]),
        layout.SCALARS: abi.address(abi.known()),
        layout.SMALLEST: tapes.LARGE,
        layout.POOLED: pool.MIN_BYTES,
        layout.ALIGNMENT: pool.ALIGNMENT,
        layout.KEPT_BYTES: KEEP_BYTES,
        layout.COPIED: dispatch.COPIED,
        layout.HEAVIEST: tapes.MAX_BYTES,
        layout.SHEETS: abi.address(sheets),
        layout.LATEST_IMPORTS: abi.address(_latest_imports),
        layout.UNKNOWN: abi.address(_unknown),
        layout.CALL_NAME: ctypes.addressof(name),
        layout.COMPARE_BY_METHOD: _slot(kind, COMPARE),
        layout.TRUTH_BY_METHOD: _slot(kind, TRUTH),
    } | {word: abi.numpy_function("_ARRAY_API", place) for word, place in NUMPY.items()}


def share_slots(place: int, kind: type[Any], names: tuple[str, ...]) -> bool:
    """Let compiled code know where objects of a type keep slots; whether that can be told."""
    offsets = _slots(kind, names)
    for word, offset in enumerate(offsets or (), place):
        words[word] = offset
    return offsets is not None


def share(objects: dict[int, Any]) -> None:
    """Let compiled code know objects, by their places among the shared words."""
    _kept.append(objects)
    for place, x in objects.items():
        words[place] = id(x)


def _address(name: str) -> Address:
    """Address of a function of Python's C API; 0 if this Python has none of the name."""
    if not hasattr(ctypes.pythonapi, name):
        return 0
    return int(ctypes.cast(getattr(ctypes.pythonapi, name), ctypes.c_void_p).value or 0)


def _slots(kind: type[Any], names: tuple[str, ...]) -> list[int] | None:
    """Where objects of the type keep these slots; None if that cannot be told."""
    probe, found = object.__new__(kind), []
    for name in names:
        token = object()
        setattr(probe, name, token)
        places = abi.places_in(probe, token)
        delattr(probe, name)
        if len(places) != 1:
            return None
        found += places
    return found


def _ufunc_ops() -> list[Primitive]:
    """Ops that a NumPy ufunc means whatever its operands; a power of two is a square."""
    ops = [REGISTRY[name] for name in FAST] + [MEANING[np.matmul]]
    return [op for op in ops if op is not MEANING[np.power]]


def _sheets(kind: type[Handle]) -> np.ndarray:
    """What compiled code needs of an op: a row for each operator, then for each ufunc."""
    rows = []
    for meaning, function, method, reflected in OPERATORS:
        twins = TWINS[method], TWINS.get(reflected) or vars(kind)["__rpow__"]
        rows.append(_sheet(MEANING[meaning], _address(function) if function else 0, twins))
    return np.array(rows + [_sheet(op, 0, (None, None)) for op in _ufunc_ops()], np.int64)


def _sheet(op: Primitive, operate: int, twins: tuple[Any, Any]) -> list[int]:
    ufunc = forward.ufunc_of(op) or (op.functions[0] if op.functions else None)
    vector = 0 if ufunc is None or forward.has_vector_form(op, "d") else id(ufunc)
    key = op.key  # a method, made anew each time
    pointwise = isinstance(op, Elementwise) and op.takes != "shape"  # which makes a view
    _kept.append((op.opcode, ufunc, op, twins, key))
    return [
        id(op.opcode), operate, id(ufunc), vector, *(*op.masks, 0, 0)[:3], id(op), op.arity, *map(id, twins),
        op.recorded_form, id(key), WINDOWS[op.window], pointwise,
        ARITHMETIC.get(op, 0), *_loops(op, ufunc), 0, 0,
    ]  # fmt: skip


def _loops(op: Primitive, ufunc: Any) -> list[int]:
    """The loops of an op's ufunc in double and in single precision; of powers if no other loop serves any."""
    loops = isinstance(op, Elementwise) and isinstance(ufunc, np.ufunc)
    loops = loops and (op is not MEANING[np.power] or _powers_have_one_loop())
    if not loops or 0 in forward.error_test():
        return [0] * 4
    return [*abi.inner_loop(ufunc, "d"), *abi.inner_loop(ufunc, "f")]


def _powers_have_one_loop() -> bool:
    """Whether NumPy's operator is its function: before 2.3 it took others for some exponents, as a root."""
    x = np.array([-0.0, 0.7])
    return bool((x**0.5).tobytes() == np.power(x, 0.5).tobytes())


def sheet_of(op: Primitive) -> Address:
    """Return the address of the sheet by which compiled code records results of an op."""
    at = _sheets_by_op.get(op)
    if at is None:
        sheet = np.array(_sheet(op, 0, (None, None)), np.int64)
        _kept.append(sheet)
        at = _sheets_by_op[op] = abi.address(sheet)
    return at


def _use_vector_form(sheets: np.ndarray, op: Primitive, ufunc: np.ufunc) -> None:
    """Let compiled code call a vector form just made."""
    _kept.append(ufunc)
    mine = sheets[:, layout.OP] == id(op)
    sheets[mine, layout.VECTOR] = id(ufunc)
    if 0 not in forward.error_test():
        sheets[mine, layout.VECTOR_LOOPS : layout.SHEET_WORDS] = abi.inner_loop(ufunc, "d")


def builtin(name: str, flags: int, at: Address) -> Any:
    """A builtin function whose code is at an address."""
    kind = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
    make = kind(("PyCFunction_NewEx", ctypes.pythonapi))
    return make(_define(name, flags, at, ""), None, None)


def _method(kind: type[Handle], name: str, flags: int, at: Address) -> Any:
    """A method of Tensor whose code is at an address."""
    maker = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.c_void_p)
    make = maker(("PyDescr_NewMethod", ctypes.pythonapi))
    twin = TWINS[name]
    return make(kind, _define(name, flags, at, f"{name}{_signature(twin)}\n--\n\n{twin.__doc__ or ''}"))


def _signature(function: Any) -> str:
    """The parameters of a twin, by position, as CPython reads them from the text of a definition."""
    code = function.__code__
    names, more = code.co_varnames[1 : code.co_argcount], iter(code.co_varnames[code.co_argcount :])
    marks = [mark for mark, flag in (("*", CO_VARARGS), ("**", CO_VARKEYWORDS)) if code.co_flags & flag]
    return f"({', '.join(['$self', *names, '/', *(f'{mark}{next(more)}' for mark in marks)])})"


def _define(name: str, flags: int, at: Address, doc: str) -> Address:
    """The address of a definition that is never freed: when Python ends the collector still reads it."""
    definition = _Definition(name.encode(), at, flags, doc.encode())
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(definition))
    return ctypes.addressof(definition)


def _fill_slot(kind: type[Handle], table: int, place: int, number: int, function: Address) -> None:
    """Put a function into a slot of Tensor, proved to lie there; Python refills it for a replaced method."""
    begin = id(kind)
    if table != layout.TYPE_ITSELF:
        begin = ctypes.c_int64.from_address(begin + table).value
    slot = ctypes.c_int64.from_address(begin + 8 * place)
    if slot.value == _slot(kind, number):
        slot.value = function


def _slot(kind: type[Handle], number: int) -> Address:
    """Return the function in a slot of a type."""
    get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_int)
    return int(get(("PyType_GetSlot", ctypes.pythonapi))(kind, number) or 0)


def _record(op: Primitive, value: np.ndarray, *operands: Operand) -> Handle:
    """Record what compiled code computed and found to be out of the ordinary."""
    return record(op, value[()] if isinstance(value, np.ndarray) and value.ndim == 0 else value, operands)


def _look(op: Primitive, out: Handle, *operands: Operand) -> None:
    """See a result that is not finite, or cannot be looked at by compiled code."""
    lines = grad_mode.in_force("lines")
    if lines is not None:
        lines.look(out._tape, slot(out._at), op, out._v, operands)
