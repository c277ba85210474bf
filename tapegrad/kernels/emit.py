"""From a rule's text to the source of a kernel: one loop over dense operands, the rule pasted in.

A kernel is ``int64(T **p, int64 n)``: ``p[0]`` the output, ``p[1]`` the cotangent, then what the rule
reads. It returns 1 when every element was written: an exception inside would leave another status.
Names a rule may use are its arguments and the functions below; literals take the operands' dtype, so
that single precision stays single. Transcendental functions are vector forms (`tapegrad.kernels.vecmath`);
those with a limited domain run in blocks, with a second pass through libm for a block that leaves it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from typing import Any

from tapegrad.config import bounds
from tapegrad.kernels.symbols import can_link

# Functions that have a vector form, as the ops that they mean are declared.
VECTOR: set[str] = set()
LIBM: set[str] = set()  # vector forms with a limited domain, NAME_ok(x)
# Forms for complex numbers; those of LIMITED have a limited domain, outside of it NAME_far(z).
OF_COMPLEX = {"sign", "greater", "greater_equal", "less", "less_equal"}
LIMITED: set[str] = set()
FORMS = {"abs": "absolute"}  # names of forms, where they are not those of NumPy's functions
ORDER = {ast.Gt: "greater", ast.GtE: "greater_equal", ast.Lt: "less", ast.LtE: "less_equal"}
STEPS = {"floor", "ceil", "rint", "trunc"}  # Numba's own: those of `math` return integers, which overflow
CONSTANTS = {"pi": "3.141592653589793", "e": "2.718281828459045", "inf": "math.inf", "nan": "math.nan"}
BLOCK = 1024


def know(name: str, vector: Any) -> None:
    """Let rules call a function that has the forms `vector` (`tapegrad.ops.primitive.Vector`)."""
    form = vector.name or name
    FORMS[name] = form
    held = {"real": VECTOR, "limited": LIBM, "pairs": OF_COMPLEX, "limited_pairs": LIMITED}
    for flag, names in held.items():
        if getattr(vector, flag):
            names.add(form)


class RuleError(SyntaxError):
    """A rule uses what has no scalar form."""


class UnlinkedError(RuleError):
    """A rule calls a function of SciPy's that is not there for compiled code."""


class _Scalar(ast.NodeTransformer):
    """Rewrite a rule's expressions for scalars, all of one dtype.

    `vector` picks vector forms and collects their checks.
    """

    def __init__(self, names: set[str], vector: bool, pairs: bool):
        self.names, self.vector, self.pairs = names, vector, pairs
        self.used: set[str] = set()
        self.checks: list[str] = []

    def generic_visit(self, node):
        allowed = (ast.BinOp, ast.UnaryOp, ast.Compare, ast.BoolOp, ast.operator, ast.unaryop, ast.cmpop,
                   ast.boolop, ast.expr_context)  # fmt: skip
        refused = (ast.MatMult, ast.LShift, ast.RShift, ast.In, ast.NotIn, ast.Is, ast.IsNot)
        if not isinstance(node, allowed) or isinstance(node, refused):
            raise RuleError(f"no scalar form for {type(node).__name__} in a rule")
        return super().generic_visit(node)

    def visit_Constant(self, node):
        if not isinstance(node.value, (int, float, complex) if self.pairs else (int, float)):
            raise RuleError(f"a rule's literals are numbers, found {node.value!r}")
        return _expression(f"REAL({node.value!r})")

    def visit_Name(self, node):
        if node.id not in self.names:
            raise RuleError(f"a rule may name its arguments and NumPy functions, not {node.id!r}")
        return node

    def visit_Attribute(self, node):
        if isinstance(node.value, ast.Name) and node.value.id == "np" and node.attr in CONSTANTS:
            return _expression(f"REAL({CONSTANTS[node.attr]})")
        raise RuleError(f"no scalar form for {ast.unparse(node)}")

    def visit_BinOp(self, node):
        if isinstance(node.op, (ast.BitAnd, ast.BitOr)):
            op = ast.And() if isinstance(node.op, ast.BitAnd) else ast.Or()
            return ast.BoolOp(op, [self.visit(node.left), self.visit(node.right)])
        if isinstance(node.op, ast.Pow):
            power = node.right
            if isinstance(power, ast.Constant) and power.value in (2, 3):
                base = self.visit(node.left)
                square = ast.BinOp(base, ast.Mult(), base)
                return square if power.value == 2 else ast.BinOp(square, ast.Mult(), base)
            return self.special("pow", [self.visit(node.left), self.visit(node.right)])
        if self.pairs and isinstance(node.op, ast.Div):
            return self.special("divide", [self.visit(node.left), self.visit(node.right)])
        return self.generic_visit(node)

    def visit_Compare(self, node):
        if self.pairs and len(node.ops) == 1 and (name := ORDER.get(type(node.ops[0]))):
            return self.special(name, [self.visit(node.left), self.visit(node.comparators[0])])
        return self.generic_visit(node)

    def visit_UnaryOp(self, node):
        if isinstance(node.op, ast.Invert):
            return ast.UnaryOp(ast.Not(), self.visit(node.operand))
        return self.generic_visit(node)

    def visit_Call(self, node):
        function = node.func
        owner = ast.unparse(function.value) if isinstance(function, ast.Attribute) else ""
        if owner not in ("np", "special"):
            raise RuleError(f"no scalar form for {ast.unparse(function)}")
        if node.keywords or any(isinstance(a, ast.Starred) for a in node.args):
            raise RuleError(f"a rule calls functions with plain arguments, found {ast.unparse(node)}")
        name, args = function.attr, [self.visit(a) for a in node.args]
        if owner == "special":
            return self.linked(name, args)
        own = getattr(self, f"call_{name}", None)
        if own is not None:
            return own(*args)
        name = FORMS.get(name, name)
        if self.pairs:
            return self.special(name, args)
        own = getattr(self, f"call_real_{name}", None)
        if own is not None:
            return own(*args)
        if name in VECTOR:
            return self.special(name, args)
        if name in STEPS:
            return _expression(f"np.{name}({ast.unparse(args[0])})")
        raise RuleError(f"no scalar form for np.{name}")

    def linked(self, name, args):
        """A call of a function of SciPy's, of which there are those for real numbers alone."""
        if self.pairs or not can_link(name):
            raise UnlinkedError(f"no form of special.{name} for compiled code")
        self.used.add(f"special_{name}")
        given = ", ".join(f"REAL({ast.unparse(a)})" for a in args)
        return _expression(f"special_{name}({given})")

    def call_where(self, condition, a, b):
        return _expression(f"(({ast.unparse(a)}) if {ast.unparse(condition)} else ({ast.unparse(b)}))")

    def call_conj(self, x):
        return _expression(f"({ast.unparse(x)}).conjugate()") if self.pairs else x

    def call_square(self, x):
        return ast.BinOp(x, ast.Mult(), x)

    def call_real_sign(self, x):
        x = ast.unparse(x)
        return _expression(f"(REAL(({x}) > 0) - REAL(({x}) < 0) if ({x}) == ({x}) else ({x}))")

    def call_real_absolute(self, x):
        return _expression(f"abs({ast.unparse(x)})")

    def call_real_maximum(self, a, b):
        return self.chosen(">", a, b)

    def call_real_minimum(self, a, b):
        return self.chosen("<", a, b)

    def chosen(self, sign, a, b):
        a, b = ast.unparse(a), ast.unparse(b)
        return _expression(f"(({a}) if ({a}) {sign} ({b}) or ({a}) != ({a}) else ({b}))")

    def call_real_sqrt(self, x):
        return _expression(f"REAL(math.sqrt(REAL({ast.unparse(x)})))")

    def special(self, name, args):
        given = ", ".join(f"REAL({ast.unparse(a)})" for a in args)
        if self.pairs and name not in OF_COMPLEX:
            raise RuleError(f"no form of {name} for complex numbers")
        if name in (LIMITED if self.pairs else LIBM):
            if self.vector:
                self.used.add(f"{name}_ok")
                self.checks.append(f"{name}_ok({given})")
            elif self.pairs:
                name = f"{name}_far"
            else:
                return _expression(f"REAL(math.{name}({given}))")
        self.used.add(name)
        return _expression(f"{name}({given})")


def _expression(text: str) -> ast.expr:
    return ast.parse(text, mode="eval").body


def _lines(statements, expression, names, vector, pairs):
    """Scalar statements that end by setting `made`; the vector functions they use; their checks."""
    names = set(names)
    lines, used, checks = [], set(), []
    for statement in statements:
        rewrite = _Scalar(names, vector, pairs)
        value = ast.unparse(rewrite.visit(_copy(statement.value)))
        target = statement.targets[0].id
        names.add(target)
        lines.append(f"{target} = {value}")
        used |= rewrite.used
        checks += rewrite.checks
    rewrite = _Scalar(names, vector, pairs)
    lines.append(f"made = REAL({ast.unparse(rewrite.visit(_copy(expression)))})")
    return lines, used | rewrite.used, checks + rewrite.checks


def _copy(node):
    return ast.parse(ast.unparse(node), mode="eval").body


HEAD = '''"""A kernel generated from the derivative rule of an op."""
import math
from numba import carray, cfunc, {dtype}, types, uint64
{imports}
REAL = {dtype}
{wide}{forms}

@cfunc(
    types.int64(types.CPointer(types.CPointer({dtype})), types.int64),
    cache=CACHE, boundscheck=BOUNDS, error_model="numpy",
)
def kernel(p, n):
{call}{arrays}
'''
IMPORTS = """from numba.extending import intrinsic
from tapegrad.kernels.vecmath import form
"""
LINKED = "from tapegrad.kernels import linked\n"
WIDE = '''

@intrinsic
def wide(typing):
    """Vectors as wide as the machine has: worth it for arithmetic, where LLVM's default is half."""
    def code(context, builder, signature, args):
        builder.function.attributes.add("noinline")
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), code

'''
PLAIN = """    for i in range(n):
{body}
        OUT[i] = made
    return 1
"""
BLOCKED = """    low, n = uint64(0), uint64(n)  # unsigned: nothing can count from the end
    while low < n:
        high = min(low + uint64({block}), n)
        outside = False
        for i in range(low, high):
{fast}
            outside |= not ({checks})
            OUT[i] = made
        if outside:
            for i in range(low, high):
{exact}
                OUT[i] = made
        low = high
    return 1
"""


def source(
    statements: Sequence[ast.Assign], expression: ast.expr, arguments: Sequence[str], dtype: str,
    cotangent: bool, holomorphic: bool = True,
) -> str:  # fmt: skip
    """Return the source of a kernel whose element is the expression, times `ct` if `cotangent`.

    `arguments` name, in order, what ``p[1:]`` holds. Of complex numbers, the adjoint takes the conjugate of
    what the expression says if the result is a `holomorphic` function of complex operands; it may be real.
    """
    pairs = dtype.startswith("complex")
    adjoint = pairs and holomorphic
    rename = {name: f"a{q}" for q, name in enumerate(arguments)}
    statements = [renamed(s, rename) for s in statements]
    expression = renamed(expression, rename)
    names = list(rename.values())
    exact, more, _ = _lines(statements, expression, names, False, pairs)
    fast, used, checks = _lines(statements, expression, names, True, pairs)
    explicit = not cotangent and arguments[:1] == ["ct"]
    made = "made.conjugate()" if adjoint and (cotangent or explicit) else "made"
    if cotangent:
        made = f"a0 * {made}"
    for lines in (exact, fast):
        lines += [f"made = {made}"] * (made != "made")
    array = "carray({}, n)" if bounds() else "{}"  # a pointer is compiled in three quarters of the time
    arrays = "\n".join(
        f"    {name} = {array.format(f'p[{q}]')}" for q, name in enumerate(["OUT", *map(str.upper, names)])
    )
    loads = [f"a{q} = A{q}[i]" for q in range(len(names))]
    if adjoint and explicit:
        loads.append("a0 = a0.conjugate()")

    def indented(lines: Iterable[str], depth: int) -> str:
        return "\n".join(" " * depth + line for line in [*loads, *lines])

    called = used | more if checks else used
    linked = sorted(name for name in called if name.startswith("special_"))
    forms = sorted(called.difference(linked))
    imports = (IMPORTS if used else "") + (LINKED if linked else "")
    if any("np." in line for line in exact):
        imports += "import numpy as np"
    head = HEAD.format(
        dtype=dtype, arrays=arrays, imports=imports,
        forms="\n".join([f'{name} = form("{name}", REAL)' for name in forms]
                        + [f'{name} = linked.function("{name[8:]}", REAL)' for name in linked]),
        wide=WIDE if used else "", call="    wide()\n" if used else "",
    )  # fmt: skip
    if not checks:
        return head + PLAIN.format(body=indented(fast, 8))
    return head + BLOCKED.format(
        block=BLOCK, fast=indented(fast, 12), exact=indented(exact, 16), checks=" & ".join(checks)
    )


class _Rename(ast.NodeTransformer):
    def __init__(self, names):
        self.map = names

    def visit_Name(self, node):
        return ast.Name(self.map.get(node.id, node.id), node.ctx)


def renamed(node, names):
    return _Rename(names).visit(
        ast.parse(ast.unparse(node)).body[0] if isinstance(node, ast.stmt) else _copy(node)
    )


CAST = '''"""A kernel that stages elements of one dtype as another."""
from numba import carray, cfunc, types
from numba.extending import intrinsic


@intrinsic
def element(typing, address):
    def code(context, builder, signature, args):
        kind = context.get_data_type(types.{source})
        return builder.inttoptr(args[0], kind.as_pointer())

    return types.CPointer(types.{source})(types.int64), code


@intrinsic
def block(typing, address):
    def code(context, builder, signature, args):
        return builder.inttoptr(args[0], context.get_data_type(types.{target}).as_pointer())

    return types.CPointer(types.{target})(types.int64), code


@cfunc("int64(int64, int64, int64, int64)", cache=CACHE, boundscheck=BOUNDS, error_model="numpy")
def kernel(staged, source, stride, n):
    out = carray(block(staged), n)
    for i in range(n):
        out[i] = types.{target}(element(source + i * stride)[0])
    return 1
'''


def cast_source(source_dtype: str, target_dtype: str) -> str:
    """Return the source of a kernel that converts strided elements to a dense block."""
    return CAST.format(source=source_dtype, target=target_dtype)
