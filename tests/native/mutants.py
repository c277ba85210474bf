"""Numbering of array elements broken on purpose, and programs that must notice: run by `test_mutants.py`.

    python -m tests.native.mutants NAME
"""

import importlib.abc
import importlib.machinery
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2] / "tapegrad" / "native"

# By name: a module of `tapegrad.native`, a part of its text that is there once, and what stands in its place.
MUTANTS = {
    "none": ("array_records", "", ""),
    "windows begin at the first element": (
        "array_records",
        "get(header, START) + (get(known, RESULT) - get(header, DATA)) // 8",
        "get(header, START)",
    ),
    "arrays begin one statement early": (
        "array_records",
        "put(header, START, get(tape, COUNT) + 1)",
        "put(header, START, get(tape, COUNT))",
    ),
    "what a write takes stays": (
        "array_records",
        "moved(address, to, COMPONENTS * count)\n    clear(address, count)",
        "moved(address, to, COMPONENTS * count)",
    ),
    "no block waits for the next": (
        "array_records",
        "found = max(found, 2 if apart else 1)",
        "found = max(found, 1)",
    ),
    "no block waits for all": (
        "array_records",
        "found = (total + BLOCK - 1) // BLOCK",
        "found = min(2, (total + BLOCK - 1) // BLOCK)",
    ),
    "all blocks read the first statements": (
        "array_records",
        "get(x, FIRST) + at << 2 | ONE_BY_ONE",
        "get(x, FIRST) << 2 | ONE_BY_ONE",
    ),
    "rows all begin at the first element": (
        "array_records",
        "get(x, FIRST) + (here - get(x, ADDRESS)) // 8 if",
        "get(x, FIRST) + i if",
    ),
    "parts begin at the first element": (
        "argument_arrays",
        "builder.add(first, builder.ashr(apart, llvm.Constant(I64, 3))), tape",
        "first, tape",
    ),
    "an element of a small product is the next one": (
        "argument_arrays",
        "builder.add(first, place), llvm.Constant(I64, 0))",
        "builder.add(builder.add(first, place), llvm.Constant(I64, 1)), llvm.Constant(I64, 0))",
    ),
}


class Finder(importlib.abc.MetaPathFinder):
    """Finds one module, whose text is another."""

    def __init__(self, module, text):
        self.name, self.text = f"tapegrad.native.{module}", text

    def find_spec(self, name, path, target=None):
        """Return where the module comes from."""
        if name != self.name:
            return None
        found = importlib.machinery.PathFinder.find_spec(name, path)
        found.loader.get_code = lambda name: compile(self.text, found.origin, "exec")
        return found


def main(name):
    """Break the library, and run programs whose derivatives are compared with those of Tensors."""
    module, part, other = MUTANTS[name]
    text = (ROOT / f"{module}.py").read_text()
    if part and text.count(part) != 1:
        raise LookupError(f"{part!r} is {text.count(part)} times in {module}.py, not once")
    sys.meta_path.insert(0, Finder(module, text.replace(part, other) if part else text))
    from tests.native.test_written_arrays import check_numbering

    try:
        check_numbering()
    except AssertionError as error:
        print("noticed:", str(error).strip().splitlines()[0])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
