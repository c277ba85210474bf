"""How an op is declared: one decorated rule says what the op is and what its derivative is.

The rule is written in NumPy calls. It is emitted as text into a compiled kernel, and run as it stands
on Tensors when a derivative is itself to be differentiated. A registry row follows from each
declaration: opcode, which values a sweep reads, what to compile, how to push a tangent forward.
"""

from __future__ import annotations

import ast
import functools
import inspect
import math
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.lib.array_utils import normalize_axis_tuple

from tapegrad.kernels import emit, table
from tapegrad.kernels.replay import layout
from tapegrad.ops.kinks import multiple
from tapegrad.ops.rules import FORMULAS, STEPS, Rule
from tapegrad.tape.record import FIRST_OP, Template

Attributes: TypeAlias = dict[str, Any]  # what an op is asked for beside its operands, by name

REGISTRY: dict[str, Primitive] = {}
BY_OPCODE: list = [None] * FIRST_OP
PROGRAMS: list = [None] * FIRST_OP  # words by which compiled code records a rule, by opcode; None: to be made
TRACED: list = [None] * FIRST_OP  # such words for shapes and dtypes of operands, a dict each; None: no others
MEANING: dict[Any, Primitive] = {}  # the op that a function means: NumPy's, Python's, or one of `math`
MASK_BITS = 30  # a record's number names the axes by a bit each
OUT = 3  # the slot of the result among the values a rule may read: inputs are 0, 1, 2


class Real:
    """Where an op is differentiable: open interval(s) of each input that its tests draw from."""

    def __init__(self, *intervals):
        self.intervals = intervals or ((-math.inf, math.inf),)

    def of(self, k):
        return self.intervals[min(k, len(self.intervals) - 1)]


class Vector(NamedTuple):
    """The forms of an op in `kernels.vecmath`, which LLVM turns into SIMD code.

    Attributes
    ----------
    name
        Of the forms; that of the op if it is left out.
    real, pairs
        Whether there are forms for real and for complex numbers.
    limited, limited_pairs
        Whether those are right only where NAME_ok says so, and libm is called elsewhere.
    avx512, other
        The dtypes in which it is faster than NumPy's ufunc, for large arrays, by
        ``python -m tests.benchmarks.vecmath``: where NumPy has forms for AVX-512, and elsewhere, where it
        calls libm for nearly all.
    pole, pole_at_zero
        Where an infinite result is a division by zero: everywhere, or for an operand of 0; else it is an
        overflow.
    """

    name: str = ""
    real: bool = True
    pairs: bool = False
    limited: bool = False
    limited_pairs: bool = False
    avx512: str = ""
    other: str = "df"
    pole: bool = False
    pole_at_zero: bool = False


class Primitive:
    """A registered op.

    Attributes
    ----------
    name, opcode
        Stable name; number in this process.
    functions
        The NumPy functions that mean this op on Tensors.
    forward
        Computes the value from plain arrays: ``forward(*values, **attrs)``.
    template
        What the compiled sweep does for it (`tapegrad.tape.record.Template`).
    arity
        Number of operands; 0 for any number.
    node
        Its name in names of nodes, where torch's users know it by another word.
    flops
        How many additions and multiplications it takes, see `count_flops`.
    squares
        How it is a power of its first operand (`tapegrad.ops.kinks`).
    """

    template = Template.PYTHON
    registry = REGISTRY  # where it stands by its name: all that NumPy's functions mean, or others
    listed = True  # whether it stands there
    linked = ""  # its name for compiled code, if it is a function of SciPy's (`kernels.symbols`)
    late = False  # whether its row is completed when its opcode is first asked for
    kink = False
    lift: Any = None  # attributes of the op on operands with lanes in front (`ops.lanes`)
    multilinear = False  # whether it is linear in each operand, as products are
    broadcasts = False  # whether its rules take cotangents and tangents with lanes in front
    form: int | None = None  # which operands a record's word holds, where the arity does not tell
    window: str | None = None  # how compiled code describes a record, see `linear`
    lower: Any = None  # describes a record to the compiled sweep: lower(columns, k, operands, attrs) -> words
    node = ""
    flops: Any = 0
    rule: Any  # as declared
    vector: Vector | None = None  # forms of it that vectorise
    squares: int | None = None
    multiple: Any = None  # what its result is a multiple of, see `tapegrad.ops.kinks`
    passes_on = False  # whether its derivative computes nothing
    traceable = False  # whether its rule may be run on Tensors that only note what is applied to them
    branch: Any = None  # what of the values decides which ops its rule applies, see `primitive`
    by_itself = True  # whether operands and attributes give its value
    opaque: tuple[str, ...] = ()  # attributes that its rule hands on without looking at them

    def __init__(self, name, functions, forward, arity, doc):
        self.name = name
        self.functions = functions
        self.forward = forward
        self.arity = arity
        self.__doc__ = doc
        self.domain = Real()
        self.samples = None
        self._masks = None
        if name in self.registry:
            raise ValueError(f"op {name!r} is declared twice")
        self.recorded_form = self.form if self.form is not None else min(arity, 3) or layout.CHAIN
        self.opcode = table.declare(name, self.template, self.recorded_form)
        if not self.late:
            table.unfinished.append(self.complete)
        if self.listed:
            self.registry[name] = self
        MEANING.update(dict.fromkeys(functions, self))
        BY_OPCODE.append(self)
        PROGRAMS.append(None)
        TRACED.append(None)

    def complete(self):
        """Fill in this op's row of the table that compiled sweeps read."""
        count = self.arity or 3
        rows = [(self.reads(k), layout.CONSTANT, 1.0) for k in range(min(count, 3))]
        table.complete(self.opcode, -1, rows)

    @property
    def masks(self):
        """What `reads` says of the first three inputs."""
        if self._masks is None:
            self._masks = tuple(self.reads(k) for k in range(min(self.arity or 3, 3)))
        return self._masks

    def __repr__(self):
        return f"<op {self.name}>"

    @property
    def title(self):
        """What messages call it."""
        return self.name

    def reads(self, k):
        """Bit mask of the values that the derivative by input `k` reads (bits 0-2 inputs, 3 result)."""
        raise NotImplementedError

    def kink_value(self, out, inputs: Sequence):
        """What is 0 where the result has its kink: the result, or the operand if rules read that alone."""
        return out if self.reads(0) >> OUT & 1 else inputs[0]

    def vjp(self, ct, out, inputs: Sequence, attrs: Attributes, wanted: Sequence[int]) -> dict[int, Any]:
        """Cotangents of the inputs whose position is in `wanted`, as a dict; run on arrays or Tensors."""
        raise NotImplementedError

    def jvp(self, tangents: Sequence, out, inputs: Sequence, attrs: Attributes):
        """Tangent of the result; `tangents[k]` is None where input `k` does not move."""
        raise NotImplementedError

    def node_name(self, attrs: Mapping[str, Any]) -> str:
        """The name of a record's node in the graph."""
        words = (self.node or self.name).split("_")
        return "".join(word.capitalize() for word in words) + "Backward"

    def count_flops(self, shapes: Sequence[tuple[int, ...]]) -> int:
        """How many additions and multiplications it takes of operands of these shapes."""
        return self.flops(*shapes) if self.flops else 0

    def attributes(self, ranks, **attrs):
        """The attributes of a record whose operands have so many axes, of those that are given."""
        return attrs

    def __call__(self, *operands, **attrs):
        """The op on arrays, or recorded where an operand is a Tensor."""
        for operand in operands:
            if type(operand) is not np.ndarray and hasattr(operand, "_apply"):
                return operand._apply(self, operands, attrs)
        return self.forward(*operands, **attrs)

    def key(self, attrs: Attributes | None) -> int:
        """Attributes as one number below 2**30 where the compiled sweep can read them so, else 0."""
        return 0


def reduced(shape, axes, keepdims):
    """The shape after reducing `axes`."""
    if keepdims:
        return tuple(1 if d in axes else n for d, n in enumerate(shape))
    return tuple(n for d, n in enumerate(shape) if d not in axes)


def kept(shape, axes):
    return reduced(shape, axes, True)


def sum_to(ct, shape: tuple[int, ...], lanes: int = 0):
    """Sum a cotangent over the axes that broadcasting added or stretched; lanes in front of them stay."""
    found = np.shape(ct)
    if found[lanes:] == shape:
        return ct
    extra = len(found) - len(shape)
    axes = tuple(range(lanes, extra))
    axes += tuple(d + extra for d, n in enumerate(shape) if n == 1 and found[d + extra] != 1)
    if axes:
        ct = np.sum(ct, axis=axes)
    shape = (*found[:lanes], *shape)
    return np.reshape(ct, shape) if np.shape(ct) != shape else ct


def in_dtype(ct, dtype: np.dtype):
    """A cotangent in the dtype of its operand: of a real one the real part."""
    if dtype.kind == "f":
        ct = np.real(ct)
    return ct if ct.dtype == dtype else ct.astype(dtype)


def _promoted(x, dtype):
    """A value in the precision of the result, in which the forward has computed."""
    own = getattr(x, "dtype", dtype)
    keep = own == dtype or own.kind == "b" or (own.kind == "c" and dtype.kind != "c")
    return x if keep else x.astype(dtype)


def is_constant(x):
    """Whether an operand is a plain value, or a Tensor without a history or a tangent."""
    if getattr(x, "_tape", None) is None:
        return not getattr(x, "requires_grad", False)
    return getattr(x._at, "constant", False)


def looked_at(x):
    """The value of an operand, for a rule that applies other ops by what it is (`Primitive.branch`)."""
    if hasattr(getattr(x, "_at", None), "look"):
        x._at.look()
    return getattr(x, "_v", x)


def conj(x):
    """The complex conjugate; a real array or Tensor itself."""
    return np.conj(x) if x.dtype.kind == "c" else x


# ---------------------------------------------------------------- kinds of ops


class Elementwise(Primitive):
    """Value i of the result depends on value i of each (broadcast) input only."""

    template = Template.ELEMENTWISE
    traceable = True
    unknown: Any = types.MappingProxyType({})  # names of operands by which no derivative is known, by slot
    of_integers = False  # whether the value has a way of its own for a first operand that is an integer

    def __init__(self, name, functions, forward, arity, doc, rule):
        super().__init__(name, functions, forward, arity, doc)
        self.rule = Rule(rule)
        self.of_complex = self.mixed = None
        self.operator = self.math = self.llvm = self.scalar = self.takes = None
        self.explicit = self.rule.parameters[0] == "ct"
        self.slots = {}
        names = self.rule.parameters[1:] if self.explicit else self.rule.parameters
        for k, parameter in enumerate(names):
            self.slots[parameter] = OUT if parameter == "out" else k

    def partial(self, k):
        return self.rule.partials[k]

    @property
    def passes_on(self):
        return all(part.constant in (1, -1) for part in self.rule.partials)

    def count_flops(self, shapes):
        """`flops` for each element of the result."""
        return self.flops * math.prod(np.broadcast_shapes(*shapes)) if self.flops else 0

    def complete(self):
        PROGRAMS[self.opcode], rows = None, []
        for k in range(self.arity):
            partial = self.partial(k)
            if partial.zero:
                rows.append((0, layout.NOTHING, 0.0))
            elif partial.constant is not None and not self.explicit and self.of_complex is None:
                rows.append((0, layout.CONSTANT, partial.constant))
            else:
                by_slot = {slot: name for name, slot in self.slots.items()}
                names = ["ct", *(by_slot[slot] for slot in self.operands(k))]
                number = table.slot(
                    partial.statements, partial.expression, names, not self.explicit, self._complex_text(k)
                )
                rows.append((self.reads(k), number, 1.0))
        table.complete(self.opcode, -1, rows)

    def _complex_text(self, k):
        """Statements and expression of the partial for complex numbers, where it has others."""
        if self.of_complex is None:
            return None
        partial = self.of_complex.partials[k]
        return partial.statements, partial.expression

    def operands(self, k):
        """Slots of the values that partial `k` reads, ascending; as kernel, as steps, of complex numbers."""
        rules = [self.rule, *([] if self.of_complex is None else [self.of_complex])]
        read = {a for rule in rules for part in (rule.partials[k], rule.recorded[k]) for a in part.arguments}
        read.discard("ct")
        return sorted(self.slots[a] for a in read)

    def reads(self, k):
        return sum(1 << slot for slot in self.operands(k))

    def product(self, k, ct, out, inputs):
        """The partial by input `k` times `ct`: a cotangent or, the map being diagonal, a tangent."""
        is_complex = any(getattr(x, "dtype", ct.dtype).kind == "c" for x in (ct, *inputs))
        rule = self.of_complex if is_complex and self.of_complex is not None else self.rule
        if self.mixed is not None and not all(is_constant(x) for j, x in enumerate(inputs) if j != k):
            rule = self.mixed
        partial = rule.recorded[k]
        if partial.constant is not None and not self.explicit:
            return ct if partial.constant == 1 else -ct if partial.constant == -1 else ct * partial.constant
        values = {"out": out, "ct": ct}
        for name, x in zip(self.rule.parameters[self.explicit :], inputs, strict=False):
            unknown = self.slots[name] in self.unknown
            if unknown and not is_constant(x):
                x = x.detach()  # a sweep has recorded it, of constants: of anything else the op was refused
            values[name] = x if unknown or name not in partial.arguments else _promoted(x, ct.dtype)
        factor = partial.function(*(values[p] for p in self.rule.parameters))
        return factor if self.explicit else ct * _promoted(factor, ct.dtype)

    def vjp(self, ct, out, inputs, attrs, wanted, lanes=()):
        """The partial of a complex result, holomorphic, is conjugated; that of a real result is not."""
        zero = self.kink_value(out, inputs) if self.kink else None
        again = multiple(ct, out, zero)[0] if self.kink else None
        found = {}
        for k in wanted:
            if not self.partial(k).zero:
                complex_ = ct.dtype.kind == "c"
                part = self.product(k, conj(ct) if complex_ else ct, out, inputs)
                if again is not None:
                    part = part + np.where(zero == 0, again * inputs[k], 0)
                found[k] = sum_to(conj(part) if complex_ else part, np.shape(inputs[k]), len(lanes))
        return found

    def jvp(self, tangents, out, inputs, attrs, lanes=()):
        total, shape = None, (*lanes, *out.shape)
        for k, tangent in enumerate(tangents):
            if tangent is not None and not self.partial(k).zero:
                if tangent.shape != shape:
                    if lanes:
                        ones = (1,) * (out.ndim - np.ndim(inputs[k]))
                        tangent = np.reshape(tangent, (*lanes, *ones, *np.shape(inputs[k])))
                    tangent = np.broadcast_to(tangent, shape)
                tangent = _promoted(tangent, out.dtype)
                if tangent.dtype.kind == "c" and out.dtype.kind != "c":
                    term = np.real(self.product(k, conj(tangent), out, inputs))
                else:
                    term = self.product(k, tangent, out, inputs)
                total = term if total is None else total + term
        return total


class OfFormula(Elementwise):
    """A formula that rules call, as an op of its own: one step of a recorded sweep, not many.

    Its value is computed by a kernel of the formula's text (`tapegrad.ops.forward.ufunc_of`).
    """

    listed = False

    def __init__(self, name, functions, forward, arity, doc, rule):
        super().__init__(name, functions, forward, arity, doc, rule)
        STEPS[forward.__name__] = self
        MEANING[forward] = self

    @property
    def text(self) -> tuple[list[ast.Assign], ast.expr, tuple[str, ...]]:
        """The statements of the formula, the expression in the end, its parameters."""
        formula = Rule(self.forward)
        (part,) = formula.partials
        return part.statements, part.expression, formula.parameters


def elementwise(
    *functions: Any, forward: Any = None, domain: Any = None, kink: bool = False, of_complex: Any = None,
    mixed: Any = None, node: str = "", flops: int = 0, operator: Any = None,
    aliases: tuple[Any, ...] = (), math: Any = None, llvm: str = "", scalar: Any = None,
    vector: Vector | None = None, squares: int | None = None, multiple: Any = None, takes: str | None = None,
    multilinear: bool = False, name: str = "",
) -> Callable[[Any], Elementwise]:  # fmt: skip
    """Declare an elementwise op by its partial derivatives (a tuple for several inputs).

    Parameters of the rule are the inputs, then `out` if it wants the result. If the first is `ct`, the
    rule returns whole products with the cotangent instead of partials.

    Parameters
    ----------
    *functions
        NumPy's that mean the op on Tensors.
    forward
        The value of plain arrays, by default the first of these; a `formula` that rules call.
    domain : Real, optional
        Where tests draw from.
    kink : bool, optional
        Whether it is a length (see `tapegrad.ops.kinks`).
    of_complex, mixed : rules, optional
        In place of the rule: where it is for real numbers only; where it is right only as long as the
        other operands are constants, and they are not.
    node : str, optional
        Its name in names of nodes, where torch has another.
    flops : int, optional
        Additions and multiplications for each element.
    operator : function, optional
        Python's, by which values of Tensors are computed too.
    aliases : tuple of functions, optional
        Others that mean it in compiled code.
    math : function, optional
        That of Python's module, by which compiled code computes its value.
    llvm : str, optional
        The instruction or intrinsic for its value, see `native.emission.algebra`; instead of `math`.
    scalar : function, optional
        Its value in compiled code told in other ops and np.where; instead of `math`. Where all three are
        left out Numba compiles `forward`.
    vector : Vector, optional
        The forms of it that vectorise.
    squares : int, optional
        How it is a power of its first operand, see `tapegrad.ops.kinks`.
    multiple : function, optional
        What its result is a multiple of, see `tapegrad.ops.kinks`.
    takes : {"shape", "dtype"}, optional
        What of the result `forward` takes besides the operands; a record has it from its value.
    multilinear : bool, optional
        Whether it is linear in each operand: a product.
    name : str, optional
        Its name, by default that of the rule.
    """

    def declare(rule: Any) -> Elementwise:
        parameters = [p for p in inspect.signature(rule).parameters if p not in ("ct", "out")]
        kind = OfFormula if forward in FORMULAS else Elementwise
        named = name or rule.__name__
        op = kind(named, functions, forward or functions[0], len(parameters), rule.__doc__, rule)
        op.domain, op.kink, op.node, op.flops = domain or Real(), kink, node, flops
        op.of_complex, op.mixed = (other and Rule(other) for other in (of_complex, mixed))
        op.operator, op.math, op.llvm = operator, math, llvm
        op.scalar = forward if kind is OfFormula else scalar
        op.squares, op.multiple, op.takes = squares, multiple, takes
        op.multilinear = multilinear
        MEANING.update({f: op for f in (operator, math, *aliases) if f is not None})
        if vector is not None:
            op.vector = vector
            emit.know(op.name, vector)
        return op

    return declare


@functools.lru_cache(maxsize=256)
def axis_mask(axes):
    return sum(1 << a for a in axes)


def folded(reduce: Any, x: Any, axis: tuple[int, ...], keepdims: bool) -> Any:
    """Reduce over axes that have no bit in a record: as the second axis of a matrix."""
    shape = np.shape(x)
    left = [d for d in range(len(shape)) if d not in axis]
    matrix = np.reshape(
        np.transpose(x, (*left, *axis)), [math.prod(shape[d] for d in part) for part in (left, axis)]
    )
    return np.reshape(reduce(matrix, axis=(1,), keepdims=False), reduced(shape, axis, keepdims))


class Reduction(Primitive):
    """A reduction over axes whose partial is elementwise in input, result and one total over the lane."""

    template = Template.REDUCE
    form = layout.NUMBER
    traceable = True

    def __init__(self, name, functions, forward, doc, rule):
        super().__init__(name, functions, forward, 1, doc)
        self.rule = Rule(rule)
        self.total = self.join = self.neutral = None

    def __call__(self, x, axis=None, keepdims=False):
        """The reduction over one axis, several, or all."""
        attrs = self.attributes((x.ndim,), axis=axis, keepdims=keepdims)
        if attrs["axis"] and attrs["axis"][-1] >= MASK_BITS:
            return folded(super().__call__, x, **attrs)
        return super().__call__(x, **attrs)

    def attributes(self, ranks, axis, keepdims):
        axes = range(*ranks) if axis is None else normalize_axis_tuple(axis, *ranks)
        return {"axis": tuple(sorted(axes)), "keepdims": bool(keepdims)}

    @property
    def partial(self):
        return self.rule.partials[0]

    @property
    def passes_on(self):
        return self.partial.constant == 1

    def count_flops(self, shapes):
        """`flops` for each element of the operand."""
        return self.flops * math.prod(shapes[0]) if self.flops else 0

    def complete(self):
        partial, total = self.partial, -1
        if partial.constant is not None:
            row = (0, layout.CONSTANT, partial.constant)
        elif partial.arguments == ("n",):
            row = (0, layout.MEAN, 0.0)
        else:
            order = [name for name in ("x", "out", "total") if name in partial.arguments]
            number = table.slot(partial.statements, partial.expression, ["ct", *order], True)
            row = (self.reads(0), number, 1.0)
        if self.total is not None:
            part = self.total.partials[0]
            total = table.slot(part.statements, part.expression, ["x", "out"], False)
        table.complete(self.opcode, total, [row])

    def reads(self, k):
        mask = 0
        for part in (self.partial, *(self.total.partials if self.total else ())):
            for argument in part.arguments:
                mask |= {"x": 1, "out": 1 << OUT}.get(argument, 0)
        return mask

    def key(self, attrs):
        return axis_mask(attrs["axis"])

    def _factor(self, x, out, axes):
        values = {"x": x, "out": np.reshape(out, kept(np.shape(x), axes)) if out is not None else None}
        values["n"] = math.prod([np.shape(x)[a] for a in axes]) or 1  # of nothing: there is nothing to divide
        if self.total is not None:
            term = self.total.function(**{p: values[p] for p in self.total.parameters})
            values["total"] = np.sum(term, axis=axes, keepdims=True)
        factor = self.partial.function(*(values[p] for p in self.rule.parameters))
        return _promoted(factor, x.dtype)

    def vjp(self, ct, out, inputs, attrs, wanted, lanes=()):
        (x,) = inputs
        axes = attrs["axis"]
        again, only = multiple(ct, out, self.kink_value(out, inputs)) if self.kink else (None, False)
        if only:
            again = np.broadcast_to(again, (*lanes, *np.shape(out)))
            return {0: np.reshape(again, (*lanes, *kept(np.shape(x), axes))) * x}
        if np.shape(ct):
            ct = np.reshape(ct, (*lanes, *kept(np.shape(x), axes)))
        if not self.passes_on:
            factor = self._factor(x, out, axes)
            if x.dtype.kind == "c" and not isinstance(factor, float):
                factor = np.conj(factor)
            ct = ct * factor
        return {0: np.broadcast_to(ct, (*lanes, *np.shape(x)))}

    def jvp(self, tangents, out, inputs, attrs, lanes=()):
        (x,) = inputs
        axes = attrs["axis"]
        moved = tangents[0] if self.passes_on else tangents[0] * self._factor(x, out, axes)
        moved = np.sum(moved, axis=tuple(a + len(lanes) for a in axes))
        return np.reshape(moved, (*lanes, *np.shape(out)))


def reduction(
    *functions: Any, forward: Any, domain: Any = None, total: Any = None, kink: bool = False, node: str = "",
    flops: int = 0, join: Any = None, neutral: float | None = None, multiple: Any = None,
) -> Callable[[Any], Reduction]:  # fmt: skip
    """Declare a reduction by its partial derivative.

    Parameters of the rule are among `x` (input), `out` (result, broadcast back), `n` (elements reduced)
    and `total`: the sum over the reduced axes of the rule given as `total`. `flops` are for each element. By
    `join`, a ufunc, results of parts are joined; what is left out is replaced by the `neutral` number.
    `multiple` is as in `elementwise`.
    """

    def declare(rule: Any) -> Reduction:
        op = Reduction(rule.__name__, functions, forward, rule.__doc__, rule)
        op.domain, op.kink, op.node, op.flops = domain or Real(), kink, node, flops
        op.join, op.neutral, op.multiple = join, neutral, multiple
        if total is not None:
            op.total = Rule(total)
        return op

    return declare


class Linear(Primitive):
    """Linear in its operands: the tangent of the result is the op itself; only the transpose is told."""

    traceable = True

    def __init__(self, name, functions, forward, arity, doc, rule, template, key):
        self.template = template
        if key is not None:
            self.key = key
            self.form = layout.NUMBER
        super().__init__(name, functions, forward, arity, doc)
        self.rule = rule

    def reads(self, k):
        return 0

    def vjp(self, ct, out, inputs, attrs, wanted):
        shapes = [x.shape if type(x) is np.ndarray else np.shape(x) for x in inputs]
        return self.rule(ct, shapes, wanted, **attrs)

    def jvp(self, tangents, out, inputs, attrs):
        moved = [
            np.zeros(np.shape(x), np.result_type(x)) if t is None else t
            for t, x in zip(tangents, inputs, strict=True)
        ]
        return self(*moved, **attrs)


def linear(
    *functions, forward, lift, arity=1, template=Template.VIEW, lower=None, key=None, window=None, node="",
    opaque=(),
):  # fmt: skip
    """Declare a linear op by its transpose: ``rule(ct, shapes, wanted, **attrs) -> {k: cotangent}``.

    ``lift(attrs, n, shapes)`` gives the attributes of the same op on operands with n lanes in front of
    these shapes; None where none say that. By `window` compiled code describes a record: "part" or "whole"
    where the result is a view of some elements of the operand or of all, each once; "joined" or "stacked"
    where it is all operands one after the other along an axis, or along a new one; "taken" or "placed" where
    an `index` or `places` among the attributes take the elements; "embedded" or "added" where a basic `index`
    or one with arrays says where in the result they go; "written" where the first operand goes to a `window`
    of the second. `lower` does what it leaves. What is `opaque` among the attributes the rule only
    hands on to other ops, as the same object and under the same name.
    """

    def declare(rule):
        op = Linear(rule.__name__, functions, forward, arity, rule.__doc__, rule, template, key)
        op.lift, op.window, op.node, op.opaque = lift, window, node, opaque
        if lower is not None:
            op.lower = lambda columns, k, operands, attrs: lower(
                [columns.shape(j) for j in operands], columns.shape(k), attrs
            )
        return op

    return declare


class Irregular(Primitive):
    """An op that spells out both directions."""

    traceable = True

    def __init__(self, name, functions, forward, arity, doc, cls, template):
        self.template = template
        super().__init__(name, functions, forward, arity, doc)
        self._vjp, self._jvp = cls.vjp, cls.jvp
        self._reads = cls.reads

    def reads(self, k):
        return self._reads[k] if self.arity else self._reads

    def vjp(self, ct, out, inputs, attrs, wanted):
        return self._vjp(ct, out, inputs, wanted, **attrs)

    def jvp(self, tangents, out, inputs, attrs):
        return self._jvp(tangents, out, inputs, **attrs)


ALL = 0b1111


def primitive(
    *functions, forward, arity, template=Template.PYTHON, lower=None, domain=None, broadcasts=False, node="",
    flops=0, operator=None, join=None, neutral=None, squares=None, window=None, multilinear=False,
    opaque=(), branch=None,
):  # fmt: skip
    """Declare an irregular op by a class with static `vjp`, `jvp` and the masks `reads`.

    If it `broadcasts`, the rules are right also for cotangents and tangents with an axis of lanes in front.
    A `vjp` that applies some ops or others by what the values are has them from `looked_at`, and says in
    ``branch(out, inputs, attrs)`` which it would be, as a number or a tuple; None where only itself can tell.
    What is `opaque` among the attributes it only hands on, as in `linear`.
    By `window`, "product" or "running product", compiled code describes a record along its `axis`.
    `flops` is a function of the shapes of the operands; a product is `multilinear`. The rest is as in
    `elementwise` and `reduction`.
    """

    def declare(cls):
        op = Irregular(cls.__name__, functions, forward, arity, cls.__doc__, cls, template)
        op.lower, op.broadcasts, op.node, op.flops = lower, broadcasts, node, flops
        op.join, op.neutral, op.squares = join, neutral, squares
        op.window, op.multilinear, op.opaque, op.branch = window, multilinear, opaque, branch
        op.domain = domain or Real()
        if operator is not None:
            MEANING[operator] = op
        return op

    return declare
