"""Derivative rules as text: what a kernel is emitted from, and what a recorded sweep runs on Tensors."""

import ast
import functools
import inspect
import operator
from types import MappingProxyType

import numpy as np

OPERATORS = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.Pow: operator.pow, ast.USub: operator.neg, ast.Eq: np.equal, ast.NotEq: np.not_equal,
    ast.Lt: np.less, ast.LtE: np.less_equal, ast.Gt: np.greater, ast.GtE: np.greater_equal,
}  # fmt: skip

MODULES: dict = {"np": np}  # whose functions rules call, by their names there; `ops.special` adds its own


@functools.cache
def _functions_of(path):
    with open(path, encoding="utf-8") as file:
        tree = ast.parse(file.read())
    return {node.lineno: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def _definition(rule):
    """The syntax tree of a rule; its line number counts from the first decorator."""
    code = rule.__code__
    known = _functions_of(code.co_filename)
    for line in range(code.co_firstlineno, code.co_firstlineno + 20):
        if line in known and known[line].name == rule.__name__:
            return known[line]
    raise ValueError(f"no source for the rule {rule.__name__!r}")


def _names(node):
    return {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}


class Partial:
    """One component of a rule: the statements it needs and its expression.

    `arguments` are the rule's parameters it reads, in order; `function` evaluates it on arrays or
    Tensors.
    """

    def __init__(self, rule, statements, parameters, expression, steps=MappingProxyType({})):
        needed = _names(expression)
        body = []
        for statement in reversed(statements):
            targets = {t.id for t in statement.targets}
            if targets & needed:
                needed |= _names(statement.value)
                body.append(statement)
        self.statements = body[::-1]
        self.expression = expression
        self.arguments = tuple(p for p in parameters if p in needed)
        self.zero = isinstance(expression, ast.Constant) and expression.value is None
        self.constant = _signed_literal(expression)
        arguments = ast.arguments(
            posonlyargs=[],
            args=[ast.arg(arg=p) for p in parameters],
            kwonlyargs=[],
            kw_defaults=[],
            defaults=[],
        )
        function = ast.FunctionDef(
            name=rule.__name__,
            args=arguments,
            body=[*self.statements, ast.Return(value=expression)],
            decorator_list=[],
            type_params=[],
        )
        module = ast.fix_missing_locations(ast.Module(body=[function], type_ignores=[]))
        space = {**rule.__globals__, **steps}
        exec(compile(module, rule.__code__.co_filename, "exec"), space)
        self.function = space[rule.__name__]


def _signed_literal(expression):
    """The value of a rule that is just a number, such as 1 or -1; else None."""
    try:
        value = ast.literal_eval(expression)
    except (ValueError, TypeError):
        return None
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


FORMULAS: set = set()  # functions that rules call by name, see `formula`
STEPS: dict = {}  # the ops that are declared of some, by their names: to a recorded sweep a call is one step


def formula(function):
    """Declare a formula that rules name, by an assignment: its text stands in the place of the call."""
    FORMULAS.add(function)
    return function


class _Local(ast.NodeTransformer):
    """Renames the variables of a formula: parameters to what is given, others by a prefix."""

    def __init__(self, names):
        self.names = names

    def visit_Name(self, node):
        return self.names.get(node.id, node)


def _assignments(body):
    """Statements that assign one name each."""
    for line in body:
        if isinstance(line, ast.Assign) and isinstance(line.targets[0], ast.Tuple):
            for target, value in zip(line.targets[0].elts, line.value.elts, strict=True):
                yield ast.Assign([target], value)
        elif not isinstance(line, ast.Expr):
            yield line


def _expanded(statements, space, kept):
    """Statements in which no formula is called but those whose names are to be `kept`."""
    found = []
    for statement in statements:
        value = statement.value
        name = value.func.id if isinstance(value, ast.Call) and isinstance(value.func, ast.Name) else None
        if name is None or name in kept or space.get(name) not in FORMULAS:
            found.append(statement)
            continue
        (target,) = statement.targets
        definition = _definition(space[name])
        names = {}
        for parameter, given in zip(definition.args.args, value.args, strict=True):
            own = f"{target.id}_{parameter.arg}"
            found.append(ast.Assign([ast.Name(own, ast.Store())], given))
            names[parameter.arg] = ast.Name(own, ast.Load())
        part = []
        for line in _assignments(definition.body):
            expression = _Local(names).visit(ast.parse(ast.unparse(line.value), mode="eval").body)
            own = target.id
            if isinstance(line, ast.Assign):
                own = f"{target.id}_{line.targets[0].id}"
                names[line.targets[0].id] = ast.Name(own, ast.Load())
            part.append(ast.Assign([ast.Name(own, ast.Store())], expression))
        found += _expanded(part, space[name].__globals__, kept)
    return found


class Rule:
    """A derivative rule, split into one `Partial` per input, read from its source on first use."""

    def __init__(self, function):
        self.function = function
        self.parameters = tuple(inspect.signature(function).parameters)

    @functools.cached_property
    def partials(self):
        """Of each input, the text in which formulas stand in full: what kernels are emitted from."""
        return self._read({})

    @functools.cached_property
    def recorded(self):
        """Those whose formulas are called where an op is declared of them: what a recorded sweep follows."""
        called = {name: STEPS[name] for name in STEPS.keys() & _names(_definition(self.function))}
        return self._read(called) if called else self.partials

    def _read(self, steps):
        definition = _definition(self.function)
        last = definition.body[-1]
        for statement in definition.body[:-1]:
            is_doc = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if not isinstance(statement, ast.Assign) and not is_doc:
                raise SyntaxError(f"rule {self.function.__name__!r}: only assignments and one return")
        if not isinstance(last, ast.Return):
            raise SyntaxError(f"rule {self.function.__name__!r} must end in a return")
        value = last.value
        parts = value.elts if isinstance(value, ast.Tuple) else [value]
        body = _expanded([*_assignments(definition.body[:-1])], self.function.__globals__, steps)
        return [Partial(self.function, body, self.parameters, part, steps) for part in parts]


class Unreadable(Exception):
    """A rule does more than apply functions to what it reads."""


class Reader:
    """Goes through the text of a rule; what its expressions become is for subclasses to say."""

    def number(self, value):
        """What a number in the text becomes."""
        raise NotImplementedError

    def apply(self, function, operands):
        """What a function of NumPy's, or an operator of Python's, of such becomes."""
        raise NotImplementedError

    def read(self, partial, scope):
        """What a partial becomes, where these are the rule's parameters."""
        scope = dict(scope)
        for statement in partial.statements:
            (target,) = statement.targets
            if not isinstance(target, ast.Name):
                raise Unreadable
            scope[target.id] = self.expression(statement.value, scope)
        return self.expression(partial.expression, scope)

    def expression(self, node, scope):
        """What an expression becomes."""
        if isinstance(node, ast.Constant) and type(node.value) in (int, float):
            return self.number(node.value)
        if isinstance(node, ast.Name) and node.id in scope:
            return scope[node.id]
        if isinstance(node, ast.Attribute) and isinstance(number := _named(node), float):
            return self.number(number)
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and _signed_literal(node.right) == 2:
            return self.apply(np.square, [self.expression(node.left, scope)])
        if isinstance(node, ast.Call) and not node.keywords and callable(function := _named(node.func)):
            parts = node.args
        elif isinstance(node, ast.UnaryOp):
            function, parts = OPERATORS.get(type(node.op)), [node.operand]
        elif isinstance(node, ast.BinOp):
            function, parts = OPERATORS.get(type(node.op)), [node.left, node.right]
        elif isinstance(node, ast.Compare) and len(node.ops) == 1:
            function, parts = OPERATORS.get(type(node.ops[0])), [node.left, *node.comparators]
        else:
            raise Unreadable
        if function is None:
            raise Unreadable
        return self.apply(function, [self.expression(part, scope) for part in parts])


def _named(node):
    """What ``np.name``, ``special.name`` or the name of a step is; None for any other expression."""
    if isinstance(node, ast.Name):
        return getattr(STEPS.get(node.id), "forward", None)
    named = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in MODULES
    return getattr(MODULES[node.value.id], node.attr) if named else None
