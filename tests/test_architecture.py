"""Imports go downwards only, and importing the library is light."""

import ast
import os
import subprocess
import sys
from pathlib import Path

import tapegrad as tg

HERE = Path(tg.__file__).parent
FLOORS = [  # lowest first
    {"errors", "config"},
    {"tape", "kernels"},
    {"ops"},
    {"engine"},
    {"core", "numpy_api", "tensor", "creation"},
    {"autograd", "native"},
    {"func"},
    {"__init__", "diagnostics", "__main__"},
]
LEVEL = {name: level for level, names in enumerate(FLOORS) for name in names}


def part_of(module):
    """The part of the house a module belongs to: its first name below the package."""
    names = module.split(".")
    return names[1] if len(names) > 1 else "__init__"


def imported(node, package):
    """Full names of the modules that an import statement reads."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    base = node.module or ""
    if node.level:
        above = package.split(".")[: len(package.split(".")) - node.level + 1]
        base = ".".join([*above, *([node.module] if node.module else [])])
    if base == "tapegrad":
        return [f"tapegrad.{alias.name}" for alias in node.names]
    return [base]


def imports_of(path):
    """(line, module) of every import in a file, those inside functions too."""
    relative = path.relative_to(HERE.parent).with_suffix("")
    package = ".".join(relative.parts[:-1])
    part = part_of(".".join(relative.parts))
    found = []

    def visit(node):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, (ast.Import, ast.ImportFrom)):
                found.extend((child.lineno, name) for name in imported(child, package))
            visit(child)

    visit(ast.parse(path.read_text("utf-8")))
    return part, found


def test_every_part_has_a_floor():
    parts = {p.stem if p.suffix else p.name for p in HERE.iterdir() if p.suffix == ".py" or p.is_dir()}
    assert parts - {"__pycache__", "py", "py.typed"} <= set(LEVEL)


def test_imports_go_down():
    wrong, seen = [], 0
    for path in sorted(HERE.rglob("*.py")):
        part, found = imports_of(path)
        for line, module in found:
            if module.split(".")[0] != "tapegrad":
                continue
            seen += 1
            target = part_of(module)
            if target != part and LEVEL[target] > LEVEL[part]:
                wrong.append(f"{path.relative_to(HERE.parent)}:{line} imports {module}")
    assert seen > 50
    assert not wrong, "\n".join(wrong)


def test_the_engine_names_no_op_and_no_tensor():
    """No `Tensor` in the engine, and no op's name as a string or an attribute of the registry."""
    names = set(__import__("tapegrad.ops", fromlist=["REGISTRY"]).REGISTRY)
    for path in sorted((HERE / "engine").glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Name):
                assert node.id != "Tensor", f"{path.name}:{node.lineno}"
            if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                assert node.slice.value not in names, f"{path.name}:{node.lineno} names {node.slice.value}"


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
