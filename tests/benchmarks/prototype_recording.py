"""The first implementation of recording inside compiled code, as far as the benchmark's programs need it.

What `tapegrad.native` is measured against: numbers that are a value and the index of an entry, one tape per
process behind a symbol, a cotangent per entry, derivative rules of its own. It knows neither threads nor
failed growth nor interrupts, nor second derivatives.
"""

import ctypes
import math
import operator

import llvmlite.binding as binding
import numpy as np
from llvmlite import ir
from numba import njit
from numba.core import cgutils, types
from numba.core import ir as numba_ir
from numba.core.compiler import CompilerBase, DefaultPassBuilder
from numba.core.compiler_machinery import FunctionPass, register_pass
from numba.core.imputils import impl_ret_borrowed, lower_builtin, lower_cast, lower_constant
from numba.core.ir_utils import build_definitions, find_callname, guard
from numba.core.typeconv import Conversion
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.core.untyped_passes import IRProcessing
from numba.extending import intrinsic, models, register_model, typeof_impl

F64, I64, I32, I8 = ir.DoubleType(), ir.IntType(64), ir.IntType(32), ir.IntType(8)
BYTES = I8.as_pointer()
ENTRY, LAST, MAX_LEAVES = 12, 1 << 31, 16
PASSIVE = (types.Float, types.Integer, types.Boolean)


class State(ctypes.Structure):
    """The tape: where it is, how many entries there are, and how many fit."""

    _fields_ = [("base", ctypes.c_void_p), ("n", ctypes.c_int64), ("room", ctypes.c_int64)]


TAPE = State()
binding.add_symbol("tapegrad_prototype_tape", ctypes.addressof(TAPE))


# ---------------------------------------------------------------- types


class Var(types.Type):
    """A number on the tape."""

    mutable = True  # so Numba keeps `x += y` an update, whose result has the type of x

    def __init__(self):
        super().__init__("prototype_var")

    def can_convert_from(self, typingctx, other):
        if isinstance(other, PASSIVE):
            return Conversion.safe
        return Conversion.promote if isinstance(other, Expr) else None

    def unify(self, typingctx, other):
        return self if isinstance(other, (*PASSIVE, Expr)) else None


class Expr(types.Type):
    """What is not recorded yet, with so many leaves."""

    mutable = True

    def __init__(self, leaves):
        self.leaves = leaves
        super().__init__(f"prototype_expr({leaves})")

    def unify(self, typingctx, other):
        return VAR if isinstance(other, (*PASSIVE, Expr)) else None


VAR = Var()
KINDS = (Var, Expr)


@register_model(Var)
class _VarModel(models.StructModel):
    def __init__(self, manager, kind):
        super().__init__(manager, kind, [("v", types.float64), ("i", types.int64)])


@register_model(Expr)
class _ExprModel(models.StructModel):
    def __init__(self, manager, kind):
        members = [("v", types.float64)]
        for k in range(kind.leaves):
            members += [(f"i{k}", types.int64), (f"p{k}", types.float64)]
        super().__init__(manager, kind, members)


class Token:
    """Stands for the dtype of arrays of numbers on the tape."""


TOKEN = Token()
typeof_impl.register(Token)(lambda value, context: types.DType(VAR))


# ---------------------------------------------------------------- recording


def _state(module):
    found = module.globals.get("tapegrad_prototype_tape")
    if found is None:
        found = ir.GlobalVariable(module, ir.LiteralStructType([BYTES, I64, I64]), "tapegrad_prototype_tape")
        found.linkage = "external"
    return found


def _field(b, k):
    zero = ir.Constant(I32, 0)
    return b.gep(_state(b.module), [zero, ir.Constant(I32, k)])


def _grow(module):
    name = "tapegrad_prototype_grow"
    function = module.globals.get(name)
    if function is None:
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), []), name)
        function.linkage = "linkonce_odr"
        function.attributes.add("noinline")
        function.attributes.add("cold")
        b = ir.IRBuilder(function.append_basic_block())
        room = b.add(b.load(_field(b, 2)), ir.Constant(I64, 1 << 16))
        room = b.add(room, b.lshr(room, ir.Constant(I64, 1)))
        size = b.add(b.mul(room, ir.Constant(I64, ENTRY)), ir.Constant(I64, 1024))
        realloc = cgutils.get_or_insert_function(module, ir.FunctionType(BYTES, [BYTES, I64]), "realloc")
        b.store(b.call(realloc, [b.load(_field(b, 0)), size]), _field(b, 0))
        b.store(room, _field(b, 2))
        b.ret_void()
    return function


def _push(b, leaves):
    """Record a statement; returns the index of its last entry."""
    before = b.load(_field(b, 1))
    after = b.add(before, ir.Constant(I64, len(leaves)))
    with b.if_then(b.icmp_signed(">=", after, b.load(_field(b, 2))), likely=False):
        b.call(_grow(b.module), [])
    at = b.gep(b.load(_field(b, 0)), [b.mul(before, ir.Constant(I64, ENTRY))])
    for k, (index, partial) in enumerate(leaves):
        mark = b.trunc(index, I32)
        if k == len(leaves) - 1:
            mark = b.or_(mark, ir.Constant(I32, -LAST))
        for value, offset in ((mark, 0), (partial, 4)):
            place = b.gep(at, [ir.Constant(I64, k * ENTRY + offset)])
            b.store(value, b.bitcast(place, value.type.as_pointer()), align=4)
    b.store(after, _field(b, 1))
    return b.sub(after, ir.Constant(I64, 1))


def push(b, leaves):
    """Record a statement unless none of its leaves is on the tape."""
    any_index = leaves[0][0]
    for index, _ in leaves[1:]:
        any_index = b.or_(any_index, index)
    result = cgutils.alloca_once_value(b, ir.Constant(I64, 0))
    with b.if_then(b.icmp_signed("!=", any_index, ir.Constant(I64, 0)), likely=True):
        b.store(_push(b, leaves), result)
    return b.load(result)


def unpack(cx, b, kind, value):
    """The value, and the leaves with their partials."""
    if isinstance(kind, PASSIVE):
        return cx.cast(b, value, kind, types.float64), []
    whole = cgutils.create_struct_proxy(kind)(cx, b, value=value)
    if isinstance(kind, Var):
        return whole.v, [(whole.i, ir.Constant(F64, 1.0))]
    return whole.v, [(getattr(whole, f"i{k}"), getattr(whole, f"p{k}")) for k in range(kind.leaves)]


def pack(cx, b, kind, value, leaves):
    """A number of Numba's; what becomes a `Var` is recorded."""
    whole = cgutils.create_struct_proxy(kind)(cx, b)
    whole.v = value
    if isinstance(kind, Var):
        whole.i = push(b, leaves) if leaves else ir.Constant(I64, 0)
    else:
        for k, (index, partial) in enumerate(leaves):
            setattr(whole, f"i{k}", index)
            setattr(whole, f"p{k}", partial)
    return whole._getvalue()


@lower_cast(Expr, Var)
def _cast(cx, b, source, target, value):
    return pack(cx, b, target, *unpack(cx, b, source, value))


for _kind in PASSIVE:
    lower_cast(_kind, Var)(_cast)


@lower_constant(Var)
def _constant(cx, b, kind, value):
    return ir.Constant.literal_struct([ir.Constant(F64, float(value)), ir.Constant(I64, 0)])


# ---------------------------------------------------------------- operations


def result_of(kinds):
    if not any(isinstance(k, KINDS) for k in kinds) or not all(
        isinstance(k, (*KINDS, *PASSIVE)) for k in kinds
    ):
        return None
    leaves = sum(getattr(k, "leaves", int(isinstance(k, Var))) for k in kinds)
    return Expr(leaves) if leaves <= MAX_LEAVES else VAR


def _operation(keys, rule, update=None):
    """Declare an operation; ``rule(cx, b, *values)`` emits the result and its partials."""

    def lower(cx, b, sig, args):
        operands = [unpack(cx, b, kind, value) for kind, value in zip(sig.args, args, strict=True)]
        out, partials = rule(cx, b, *(value for value, _ in operands))
        leaves = [
            (index, b.fmul(weight, d))
            for (_, row), d in zip(operands, partials, strict=True)
            for index, weight in row
        ]
        return pack(cx, b, sig.return_type, out, leaves)

    count = rule.__code__.co_argcount - 2
    for key in keys:

        def generic(self, args, kws):
            result = result_of(args) if len(args) == count and not kws else None
            if isinstance(result, Expr) and self.key is update:
                result = VAR
            return None if result is None else signature(result, *args)

        infer_global(key)(type("VarTemplate", (AbstractTemplate,), {"key": key, "generic": generic}))
        for kind in KINDS:
            if count == 1:
                lower_builtin(key, kind)(lower)
                continue
            for other in (*KINDS, *PASSIVE):
                lower_builtin(key, kind, other)(lower)
            for other in PASSIVE:
                lower_builtin(key, other, kind)(lower)


def _one():
    return ir.Constant(F64, 1.0)


def _quotient(cx, b, x, y):
    r = b.fdiv(_one(), y)
    out = b.fdiv(x, y)
    return out, (r, b.fneg(b.fmul(out, r)))


def _math(cx, b, function, x):
    return cx.get_function(function, signature(types.float64, types.float64))(b, (x,))


def _sqrt(cx, b, x):
    out = _math(cx, b, math.sqrt, x)
    return out, (b.fdiv(ir.Constant(F64, 0.5), out),)


def _exp(cx, b, x):
    out = _math(cx, b, math.exp, x)
    return out, (out,)


_operation((operator.add, operator.iadd), lambda cx, b, x, y: (b.fadd(x, y), (_one(), _one())), operator.iadd)
_operation(
    (operator.sub, operator.isub),
    lambda cx, b, x, y: (b.fsub(x, y), (_one(), ir.Constant(F64, -1.0))),
    operator.isub,
)
_operation((operator.mul, operator.imul), lambda cx, b, x, y: (b.fmul(x, y), (y, x)), operator.imul)
_operation((operator.truediv, operator.itruediv), _quotient, operator.itruediv)
_operation((operator.neg,), lambda cx, b, x: (b.fneg(x), (ir.Constant(F64, -1.0),)))
_operation((math.sqrt,), _sqrt)
_operation((math.exp,), _exp)
_operation((math.log,), lambda cx, b, x: (_math(cx, b, math.log, x), (b.fdiv(_one(), x),)))


def _comparison(key, symbol):
    def generic(self, args, kws):
        return signature(types.boolean, *args) if result_of(args) is not None else None

    def lower(cx, b, sig, args):
        return b.fcmp_ordered(symbol, *(unpack(cx, b, *x)[0] for x in zip(sig.args, args, strict=True)))

    infer_global(key)(type("VarComparison", (AbstractTemplate,), {"key": key, "generic": generic}))
    for kind in KINDS:
        for other in (*KINDS, *PASSIVE):
            lower_builtin(key, kind, other)(lower)
        for other in PASSIVE:
            lower_builtin(key, other, kind)(lower)


_comparison(operator.lt, "<")
_comparison(operator.gt, ">")


class _Product(AbstractTemplate):
    """The product of arrays, which Numba makes a loop of."""

    key = operator.mul

    def generic(self, args, kws):
        if all(isinstance(k, types.Array) and isinstance(k.dtype, Var) for k in args):
            return signature(types.Array(VAR, max(k.ndim for k in args), "C"), *args)
        return None


infer_global(operator.mul)(_Product)


# ---------------------------------------------------------------- the twin


@intrinsic
def statement(typingctx, x):
    """Record what is given a name."""
    if isinstance(x, Expr):
        return VAR(x), lambda cx, b, sig, args: cx.cast(b, args[0], x, VAR)
    return x(x), lambda cx, b, sig, args: impl_ret_borrowed(cx, b, x, args[0])


@intrinsic
def index_of(typingctx, x):
    return types.int64(x), lambda cx, b, sig, args: b.extract_value(args[0], 1)


@intrinsic
def new_input(typingctx, x):
    def code(cx, b, sig, args):
        whole = cgutils.create_struct_proxy(VAR)(cx, b)
        whole.v, whole.i = args[0], _push(b, [(ir.Constant(I64, 0), ir.Constant(F64, 0.0))])
        return whole._getvalue()

    return VAR(x), code


@register_pass(mutates_CFG=False, analysis_only=False)
class _Rewrite(FunctionPass):
    """Lets arrays hold numbers on the tape, and records what is given a name."""

    _name = "tapegrad_prototype_pass"

    def __init__(self):
        FunctionPass.__init__(self)

    def run_pass(self, state):
        for block in state.func_ir.blocks.values():
            body = []

            def define(value, loc):
                var = block.scope.redefine("$prototype", loc)
                body.append(numba_ir.Assign(value, var, loc))
                return var

            for line in block.body:
                value = line.value if isinstance(line, numba_ir.Assign) else None
                if isinstance(value, numba_ir.Expr):
                    loc = line.loc
                    made = value.op == "call" and guard(find_callname, state.func_ir, value)
                    if made in (("zeros", "numpy"), ("empty", "numpy")):
                        token = define(numba_ir.Global("token", TOKEN, loc), loc)
                        value = line.value = numba_ir.Expr.call(value.func, [*value.args, token], (), loc)
                    if value.op in ("binop", "inplace_binop", "unary", "call") and line.target.name[0] != "$":
                        whole = define(value, loc)
                        function = define(numba_ir.Global("statement", statement, loc), loc)
                        line.value = numba_ir.Expr.call(function, [whole], (), loc)
                body.append(line)
            block.body = body
        state.func_ir._definitions = build_definitions(state.func_ir.blocks)
        return True


class _Compiler(CompilerBase):
    def define_pipelines(self):
        passes = DefaultPassBuilder.define_nopython_pipeline(self.state)
        passes.add_pass_after(_Rewrite, IRProcessing)
        passes.finalize()
        return [passes]


class Prototype:
    """Recording and sweep of a program, apart."""

    def __init__(self, primal, x, args):
        options = {
            k: v for k, v in primal.targetoptions.items() if k in ("boundscheck", "error_model", "fastmath")
        }
        twin = njit(pipeline_class=_Compiler, no_cpython_wrapper=True, no_cfunc_wrapper=True, **options)(
            primal.py_func
        )

        @njit
        def run(token, x, args):
            inputs = np.empty(x.size, token)
            for k in range(x.size):
                inputs[k] = new_input(x[k])
            return index_of(statement(twin(inputs, *args)))

        self.run, self.x, self.args = run, x, args
        self.cotangents = np.zeros(8_000_000)

    def record(self):
        TAPE.n = 1
        self.top = self.run(TOKEN, self.x, self.args)

    def reverse(self):
        n = self.x.size
        self.cotangents[self.top] = 1.0
        sweep(TAPE.base, self.top + 1, n, self.cotangents)
        found = self.cotangents[1 : 1 + n].copy()
        self.cotangents[: 1 + n] = 0.0
        return found

    @property
    def leaves(self):
        return TAPE.n

    @property
    def nbytes(self):
        return 12 * TAPE.n


@intrinsic
def entry(typingctx, address):
    kind = types.Tuple((types.uint32, types.float64))

    def code(cx, b, sig, args):
        at = b.inttoptr(args[0], BYTES)
        mark = b.load(b.bitcast(at, I32.as_pointer()), align=4)
        partial = b.load(b.bitcast(b.gep(at, [ir.Constant(I64, 4)]), F64.as_pointer()), align=4)
        return cx.make_tuple(b, kind, [mark, partial])

    return kind(address), code


@njit
def sweep(base, n, inputs, cotangents):
    """From the seeded entry to those of the inputs, clearing what is read."""
    mask = np.uint32(LAST - 1)
    at = base + (n - 1) * ENTRY
    ct = 0.0
    for k in range(n - 1, inputs, -1):
        mark, partial = entry(at)
        at -= ENTRY
        if mark > mask:
            ct = cotangents[k]
            cotangents[k] = 0.0
        cotangents[np.int64(mark & mask)] += ct * partial
