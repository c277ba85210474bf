"""Derivative rules as text: what a kernel is emitted from, and what a recorded sweep runs on Tensors."""

import ast
import functools
import inspect


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

    def __init__(self, rule, definition, parameters, expression):
        needed = _names(expression)
        body = []
        for statement in reversed(definition.body):
            if isinstance(statement, ast.Assign):
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
        space = dict(rule.__globals__)
        exec(compile(module, rule.__code__.co_filename, "exec"), space)
        self.function = space[rule.__name__]


def _signed_literal(expression):
    """The value of a rule that is just a number, such as 1 or -1; else None."""
    try:
        value = ast.literal_eval(expression)
    except (ValueError, TypeError):
        return None
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


class Rule:
    """A derivative rule, split into one `Partial` per input, read from its source on first use."""

    def __init__(self, function):
        self.function = function
        self.parameters = tuple(inspect.signature(function).parameters)
        self._partials = None

    @property
    def partials(self):
        if self._partials is None:
            self._partials = self._read()
        return self._partials

    def _read(self):
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
        return [Partial(self.function, definition, self.parameters, part) for part in parts]
