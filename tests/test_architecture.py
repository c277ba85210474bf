"""Imports go downwards only, and importing the library is light."""

import ast
import functools
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tapegrad as tg

HERE = Path(tg.__file__).parent
LINES = 60  # of a function's body
FLOORS = (  # lowest first; a module imports from its own package and from lower floors
    "errors", "config", "progress", "kernels", "tape", "ops", "engine", "core", "tensor", "numpy_api",
    "creation", "array_api", "autograd", "native", "func", "compilation", "scipy", "warmup", "batch",
    "interop", "bench", "diagnostics", "__init__", "__main__",
)  # fmt: skip
FOLDERS = {  # of the floors that have some: these and single modules, lowest first
    "native": (
        "emission", "analysis", "tapes", "numbers", "arrays", "twins", "library",
        "border", "explain", "twin", "segment", "function", "derivatives",
    ),
    "compilation": (
        "explanation", "wanted", "background", "memory", "events", "rows", "programs", "plans", "paths",
        "replay", "pace", "shortcuts", "kinds", "function",
    ),
}  # fmt: skip
MODULES = {
    ".".join(path.relative_to(HERE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(HERE.rglob("*.py"))
}


def floor_of(module):
    """The floor of a module: the place of its first name below the package."""
    return FLOORS.index([*module.split("."), "__init__"][1])


@functools.cache
def tree_of(path):
    """A file's syntax, parsed once for all tests."""
    return ast.parse(path.read_text("utf-8"))


@functools.cache
def imports_of(path):
    """(line, module of ours) of every import in a file, those inside functions and for types too."""
    package = path.relative_to(HERE.parent).parent.parts
    found = []

    def visit(node):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                names = [alias.name for alias in child.names]
            elif isinstance(child, ast.ImportFrom):
                above = package[: len(package) - child.level + 1] if child.level else ()
                base = ".".join([*above, *([child.module] if child.module else [])])
                parts = [f"{base}.{alias.name}" for alias in child.names]
                names = [part if part in MODULES else base for part in parts]
            else:
                if not isinstance(child, ast.expr):  # in which there are no statements
                    visit(child)
                continue
            found.extend((child.lineno, name) for name in names if name in MODULES)

    visit(tree_of(path))
    return found


def circles(graph):
    """Sets of several modules that import one another, by Tarjan's algorithm."""
    found, number, low, stack = [], {}, {}, []

    def visit(module):
        number[module] = low[module] = len(number)
        stack.append(module)
        for other in graph[module]:
            if other not in number:
                visit(other)
            if other in stack:
                low[module] = min(low[module], low[other])
        if low[module] == number[module]:
            at = stack.index(module)
            found.append(sorted(stack[at:]))
            del stack[at:]

    for module in graph:
        if module not in number:
            visit(module)
    return [names for names in found if len(names) > 1]


def test_every_part_has_a_floor():
    assert {[*module.split("."), "__init__"][1] for module in MODULES} == set(FLOORS)


def test_imports_go_down():
    wrong, seen = [], 0
    for module, path in MODULES.items():
        for line, target in imports_of(path):
            seen += 1
            if floor_of(target) > floor_of(module):
                wrong.append(f"{path.relative_to(HERE.parent)}:{line} imports {target}")
    assert seen > 1000
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("floor", FOLDERS)
def test_imports_of_a_floor_go_down(floor):
    """A package's own module, which imports none but by name, and what loads modules are on no floor."""
    order = FOLDERS[floor]

    def place(module):
        name = module.split(".")[2:]
        return order.index(name[0]) if name and name[0] in order else None

    modules = {module: place(module) for module in MODULES if module.startswith(f"tapegrad.{floor}.")}
    assert {module.split(".")[2] for module, at in modules.items() if at is None} <= {"loading"}
    wrong = [
        f"{module}:{line} imports {target}"
        for module, at in modules.items()
        for line, target in imports_of(MODULES[module])
        if at is not None and modules.get(target, at) is not None and modules.get(target, at) > at
    ]
    assert not wrong, "\n".join(wrong)


def test_no_modules_import_one_another():
    graph = {module: {name for _, name in imports_of(path)} - {module} for module, path in MODULES.items()}
    assert not circles(graph), "\n".join(map(str, circles(graph)))


def test_imports_for_types_count():
    """Else a file could name the class of one that imports it, and nobody reads one without the other."""
    names = {name for _, name in imports_of(MODULES["tapegrad.compilation.plans.planning"])}
    text = MODULES["tapegrad.compilation.plans.planning"].read_text("utf-8")
    for_types = re.search(r"if TYPE_CHECKING:\n((?:    .*\n)+)", text)[1]
    found = re.findall(r"from (tapegrad\.[\w.]+) import", for_types)
    assert found and names > set(found)


# Modules of ours that are imported inside of functions, by how many imports, and why.
DEFERRED = {
    "tapegrad.diagnostics": 3,  # what only a display or a report needs
    "tapegrad.diagnostics.graph": 5,
    "tapegrad.diagnostics.reports": 1,
    "tapegrad.core.sparse": 1,  # it imports SciPy
    "tapegrad.kernels.cache": 1,  # what imports Numba
}


def test_deferred_imports_are_few():
    found = {}
    for module, path in MODULES.items():
        at_import = {line for node in tree_of(path).body for line in lines_of(node)}
        count = len({line for line, _ in imports_of(path)} - at_import)
        if count:
            found[module] = count
    assert found == DEFERRED


def lines_of(node):
    """Lines that run as a module is imported, of a statement of it; not those of functions' bodies."""
    if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        yield node.lineno
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt | ast.ExceptHandler):
                yield from lines_of(child)


def test_circles_are_found():
    graph = {"a": {"b"}, "b": {"c", "d"}, "c": {"a"}, "d": {"e"}, "e": {"f", "d"}, "f": set(), "g": {"a"}}
    assert circles(graph) == [["d", "e"], ["a", "b", "c"]]
    assert not circles({"a": {"b", "c"}, "b": {"c"}, "c": set()})


def test_no_function_is_longer_than_a_screen():
    """Without its docstring; how many branches one may have is set in pyproject.toml."""
    long = []
    for name, path in MODULES.items():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = node.body[1 if ast.get_docstring(node) and len(node.body) > 1 else 0]
                if node.end_lineno - first.lineno >= LINES:
                    long.append(f"{name}.{node.name}")
    assert not long


def test_the_engine_names_no_op_and_no_tensor():
    """No `Tensor` in the engine, and no op's name as a string or an attribute of the registry."""
    names = set(__import__("tapegrad.ops", fromlist=["REGISTRY"]).REGISTRY)
    for path in sorted((HERE / "engine").glob("*.py")):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.Name):
                assert node.id != "Tensor", f"{path.name}:{node.lineno}"
            if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                assert node.slice.value not in names, f"{path.name}:{node.lineno} names {node.slice.value}"


# What the compiled sweep calls the words that describe a record, and those of its operands.
RECORD_WORDS = {"window", "along", "matrix", "described", "descriptors", "own", "others"}


def bare_fields(text):
    """Lines in which an entry of a log, or a word that describes a record, is named by a number."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if not isinstance(node, ast.Subscript):
            continue
        names = {n.id for n in ast.walk(node.value) if isinstance(n, ast.Name)}
        names |= {n.attr for n in ast.walk(node.value) if isinstance(n, ast.Attribute)}
        numbers = [n.value for n in ast.walk(node.slice) if isinstance(n, ast.Constant)]
        named = any(isinstance(n, ast.Name) and n.id.isupper() for n in ast.walk(node.slice))
        if ("items" in names and 4 in numbers) or (names & RECORD_WORDS and numbers and not named):
            found.append(node.lineno)
    return found


def test_words_of_records_have_names():
    """Those of `layout`, in the compiled sweep and in what describes records to it."""
    wrong, seen = [], 0
    for path in sorted((HERE / "kernels" / "replay").glob("*.py")):
        text = path.read_text("utf-8")
        seen += text.count("window[WINDOW_") + text.count("[ENTRIES *")
        wrong += [f"{path.name}:{line}" for line in bare_fields(text)]
    assert seen > 30
    assert not wrong, wrong


def test_bare_fields_are_found():
    found = "i64(obj(log).items)[at - 4]", "items[4 * k + 3]", "window[2]", "own[4 + batch + axis]"
    for text in (*found, "i64(i64(s.descriptors)[k])[1]", "i64(described)[1]"):
        assert bare_fields(text) == [1]
    kept = "items[ENTRIES * k + VALUE_ENTRY]", "window[WINDOW_EXTENTS + 2 * ndim + axis]"
    for text in (*kept, "i64(described)[slot]"):
        assert not bare_fields(text)


def run(code, **more):
    environment = os.environ | {"PYTHONPATH": str(HERE.parent)} | more
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.strip()


def test_importing_does_not_import_numba_or_scipy():
    heavy = "{'numba', 'llvmlite', 'scipy'}"
    code = f"import sys, tapegrad; print(sorted({{m.split('.')[0] for m in sys.modules}} & {heavy}))"
    assert run(code) == "[]"


def test_recording_does_not_import_numba_or_scipy():
    code = (
        "import sys, numpy as np, tapegrad as tg; x = tg.tensor([1.0, 2.0], requires_grad=True)\n"
        "y = np.sum(np.sin(x) * x[0]); assert 'numba' not in sys.modules and 'scipy' not in sys.modules"
    )
    assert run(code) == ""


def test_importing_starts_no_thread_and_makes_no_directory(tmp_path):
    code = "import threading, tapegrad; print(threading.active_count())"
    assert run(code, TAPEGRAD_CACHE=str(tmp_path / "cache")) == "1"
    assert not (tmp_path / "cache").exists()
