"""What is known of an op stands in its declaration: no module lists ops by name."""

import ast
from pathlib import Path

import numba
import numpy as np
import pytest

import tapegrad as tg
from tapegrad.kernels.vecmath import form
from tapegrad.ops import BY_OPCODE, MEANING, REGISTRY
from tapegrad.ops.primitive import Elementwise

HERE = Path(tg.__file__).parent
ALLOWED = {  # names that mean something else: the module's, the name, what it is there
    ("lowering", "min"): "a function of the language that the sweep is written in",
    ("lowering", "max"): "a function of the language that the sweep is written in",
    ("lowering", "stack"): "a function of the language that the sweep is written in",
    ("lowering", "real"): "an attribute of arrays",
    ("lowering", "imag"): "an attribute of arrays",
    ("masks", "getitem"): "Numba's word for an index",
    ("padding", "maximum"): "a mode of np.pad",
    ("padding", "minimum"): "a mode of np.pad",
    ("padding", "mean"): "a mode of np.pad",
    ("spectra", "mean"): "a way to average in scipy.signal.welch",
}


def implements_numpy(function):
    """Whether a function has the name of one of NumPy's, or of a method of arrays: it implements that."""
    return (
        hasattr(np, function.name) or hasattr(np.linalg, function.name) or hasattr(np.ndarray, function.name)
    )


def strings(nodes):
    return [n.value for n in nodes if isinstance(n, ast.Constant) and isinstance(n.value, str)]


def parts_of(node):
    """The keys and values of a literal; without the keywords of a call that is handed on, as in {"x": x}."""
    if not isinstance(node, ast.Dict):
        return node.elts
    pairs = [(k, v) for k, v in zip(node.keys, node.values, strict=True) if k is not None]
    return [x for k, v in pairs if not (isinstance(v, ast.Name) and strings([k]) == [v.id]) for x in (k, v)]


def looked_up(node):
    """The op that ``REGISTRY["name"]`` or ``something_of_ops["name"]`` means."""
    return strings([node.slice]) if isinstance(node, ast.Subscript) else []


def named(node, names):
    """Names of ops that an expression lists, or compares something with."""
    if isinstance(node, ast.Tuple | ast.List | ast.Set | ast.Dict):
        parts = parts_of(node)
        parts += [e for part in parts if isinstance(part, ast.Tuple | ast.List) for e in part.elts]
        found = [s for s in strings(parts) if s in names]
        found += [s for part in parts for s in looked_up(part) if s in names]
        return found if len(found) > 1 else []
    if isinstance(node, ast.Compare):
        kind_of_ir = isinstance(node.left, ast.Attribute) and node.left.attr == "op"  # of Numba's
        sides = [node.left, *node.comparators]
        sides += [e for s in sides if isinstance(s, ast.Tuple | ast.List | ast.Set) for e in s.elts]
        return [] if kind_of_ir else [s for s in strings(sides) if s in names]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        words = node.value.replace(",", " ").split()
        return words if len(words) > 1 and set(words) <= names else []
    return []


def tables_in(tree, names):
    """(line, names) of what lists ops in a module, outside of functions that implement NumPy's."""
    todo = [tree]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef) and implements_numpy(node):
            continue
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in ("__all__", "__slots__"):
            continue
        if found := named(node, names):
            yield node.lineno, found
        todo.extend(ast.iter_child_nodes(node))


def found_in_the_library():
    """(place, module, name) of every op that is named in a table or comparison, those of `ops` too."""
    for path in sorted(HERE.rglob("*.py")):
        for line, names in sorted(tables_in(ast.parse(path.read_text("utf-8")), set(REGISTRY))):
            for name in names:
                yield f"{path.relative_to(HERE.parent)}:{line} names {name}", path.stem, name


def test_no_module_lists_ops():
    found = list(found_in_the_library())
    wrong = [place for place, module, name in found if (module, name) not in ALLOWED]
    assert not wrong, "\n".join(wrong)
    assert {(module, name) for _, module, name in found} == set(ALLOWED), "an entry that nothing needs"


def test_what_counts_as_a_list():
    names = {"sin", "cos", "sum"}
    tables = [
        "x = ('sin', 'cos')", "x = {'sin': 1, 'cos': 2}", "x = {f: 'sin', g: 'cos'}", "x = {'sin', 'cos'}",
        "x = [('sin', 1), ('cos', 2)]",
        "x = [REGISTRY['sin'], REGISTRY['cos']]", "x = name == 'sin'", "x = op.name in ('sin', 'tg')",
        "x = 'sin cos'.split()", "def rule(name):\n    return name != 'sum'",
    ]  # fmt: skip
    others = [
        "x = REGISTRY['sin']", "f('sin')", "__all__ = ['sin', 'cos']", "x = {'sin': sin, 'cos': cos}",
        "x = ('sin', 'tg')", "def sum(how):\n    return how == 'sum'", "x = value.op == 'sum'",
        "'''The sin of cos.'''",
    ]  # fmt: skip
    assert [text for text in tables if not list(tables_in(ast.parse(text), names))] == []
    assert [text for text in others if list(tables_in(ast.parse(text), names))] == []


@pytest.mark.parametrize("name", [op.name for op in REGISTRY.values() if isinstance(op, Elementwise)])
def test_what_computes_the_value_elsewhere_computes_that_value(name):
    op = REGISTRY[name]
    low, high = zip(*(op.domain.of(k) for k in range(op.arity)), strict=True)
    xs = np.clip([0.3, 1.7, 0.9][: op.arity], np.add(low, 0.2), np.subtract(high, 0.2))
    for function in (op.operator, op.math, op.scalar):
        if function is not None:
            np.testing.assert_allclose(function(*xs.tolist()), op.forward(*xs), rtol=4e-16)
    meant = [f for f, known in MEANING.items() if known is op and f.__module__ in ("math", "_operator")]
    for function in meant:
        np.testing.assert_allclose(function(*xs.tolist()), op.forward(*xs), rtol=4e-16)


def test_what_any_form_of_a_rule_reads_is_kept():
    """As kernels, steps, of several varying operands, of complex numbers; zeros stand for what is not."""
    for op in (op for op in BY_OPCODE if isinstance(op, Elementwise)):
        for rule in filter(None, (op.rule, op.mixed, op.of_complex)):
            for parts in (rule.partials, rule.recorded):
                for k, part in enumerate(parts):
                    read = {op.slots[name] for name in part.arguments if name != "ct"}
                    assert read <= {*op.operands(k)}, op


def test_vector_forms_are_there_as_rows_say():
    for op in REGISTRY.values():
        if op.vector is not None:
            name = op.vector.name or op.name
            wanted = {"float64": op.vector.real, "complex128": op.vector.pairs}
            limited = {"float64": op.vector.limited, "complex128": op.vector.limited_pairs}
            for dtype in (numba.types.float64, numba.types.complex128):
                if wanted[dtype.name]:
                    assert callable(form(name, dtype))
                if limited[dtype.name]:
                    assert callable(form(f"{name}_ok", dtype))
