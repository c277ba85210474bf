"""Records broken on purpose, and programs that must notice: run by `test_mutants.py`.

    python -m tests.native.mutants NAME
"""

import importlib.abc
import importlib.machinery
import sys
from pathlib import Path

BLOCK = 256  # as `tapegrad.native.array_layout`, which is not loaded before it is broken
ROOT = Path(__file__).parents[2] / "tapegrad" / "native"

# By name: a module of `tapegrad.native`, a part of its text that is there once, and what stands in its place.
NUMBERING = {
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
    "what waited is not written": (
        "array_records",
        "total, total, BLOCK):\n        released(start, words, slots, known, late)",
        "total, total, BLOCK):\n        pass",
    ),
}
REPEATED = {
    "rows all begin at the first element": (
        "array_records",
        "get(x, FIRST) + (here - get(x, ADDRESS)) // 8 if",
        "get(x, FIRST) + i if",
    ),
    "blocks of rows that repeat begin with their first statement": (
        "array_records",
        "put(to, 2, at % many)",
        "put(to, 2, 0)",
    ),
    "blocks of rows that repeat begin with their first value": (
        "array_records",
        "repeated(get(x, ADDRESS), many, at % many, count, plane)",
        "repeated(get(x, ADDRESS), many, 0, count, plane)",
    ),
    "rows repeat from where the first began": (
        "partials",
        "add(first, begin + i - start, part_{whose}(c, {at}, p, {of}, {step}))\n            begin = 0",
        "add(first, begin + i - start, part_{whose}(c, {at}, p, {of}, {step}))",
    ),
    "rows that repeat have one statement more": (
        "partials",
        "end, min(end + many - begin, count)",
        "end, min(end + many + 1 - begin, count)",
    ),
    "rows that repeat are one number": (
        "array_records",
        "<< 2 | REPEATED if",
        "<< 2 | SINGLY if",
    ),
}
SUMS = {
    "sums of columns are all the first": (
        "array_records",
        "sums[k if inner == 1 else k + i, q]",
        "sums[k, q]",
    ),
    "sums of rows go on in the next": (
        "array_records",
        "return at // length, length - at % length",
        "return at // length, length",
    ),
    "floats of sums and expressions begin one statement late": (
        "array_records",
        "put(known, BEGIN, first)",
        "put(known, BEGIN, first + 1)",
    ),
}
BRANCHES = {
    "what leaves ends no record": (
        "record",
        "builder.call(self.left, [self.tape, self.start, self.count, ir.Constant(I64, self.size)])",
        "builder.call(self.left, [_ZERO, self.start, self.count, ir.Constant(I64, self.size)])",
    ),
    "what leaves ends a record without its statements": (
        "record",
        "                self._end(b, kind, tape, start, count)",
        "                self._end(b, kind, tape, start, b.sub(count, ir.Constant(I64, 1)))",
    ),
    "what has left is seen to by each way": (
        "record",
        "            one.left = None  # what has left before is seen to by the first",
        "            pass",
    ),
    "partials before a tape is known stay": (
        "record",
        "        self.weights.clear()  # those written before may be lost",
        "",
    ),
    "arrays hold nothing of a record": (
        "lowering",
        "                known.held.add(ARRAYS)",
        "                pass",
    ),
    "variables hold nothing of a record": (
        "lowering",
        "                held.add(name)",
        "                pass",
    ),
}
FACTORS = {
    "the inverse of a determinant is not turned": (
        "matrix_sources",
        "turned(inverse) * ct[0, 0, 0]",
        "inverse * ct[0, 0, 0]",
    ),
    "pivots of an inverse count from 0": (
        "matrix_sources",
        "INVERSE, pivots + 1, n",
        "INVERSE, pivots, n",
    ),
    "factors of least squares are turned": (
        "spectral_sources",
        "for how in (PLAIN, TURNED):",
        "for how in (TURNED, PLAIN):",
    ),
    "least squares have no residuals": (
        "spectral_sources",
        "        by_y += rest\n",
        "",
    ),
}
CHECKS = {
    "check_numbering": NUMBERING, "check_repeated": REPEATED, "check_sums": SUMS, "check_branches": BRANCHES,
    "check_factors": FACTORS,
}  # fmt: skip
MUTANTS = {name: (*row, check) for check, rows in CHECKS.items() for name, row in rows.items()}


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


def check_numbering():
    """What must not pass where numbers of elements are wrong."""
    _compare("in_place", 6)
    _compare("rows", BLOCK + 2)
    _compare("far", 2 * BLOCK + 3)
    _compare("in_products", 3, 6)
    _compare("shifted", 3 * BLOCK)


def check_repeated():
    """What must not pass where operands repeat that have fewer axes."""
    _compare("repeated", 5, BLOCK - 1)
    _compare("columns", 5)


def check_sums():
    """What must not pass where sums along an axis are wrong."""
    _compare("sums_along", 5, BLOCK + 2)


def check_branches():
    """What must not pass where records go on over branches, or are left."""
    from tests.native import test_branches

    for name, test in vars(test_branches).items():
        if name.startswith("test_"):
            test()


def check_factors():
    """What must not pass where cotangents of factors are wrong."""
    from tests.native import test_matrices as of

    for function in (of.determinants, of.least_squares):
        of.test_cotangents_of_factors_by_pieces(function, 17)


def _compare(name, *sizes):
    from tests.native import test_written_arrays as of

    f = getattr(of, name)
    for n in sizes:
        of.compare(f, of.points(n), 1, plain=of.as_tensors(f), rtol=1e-9)


def main(name):
    """Break the library, and run programs whose derivatives are compared with those of Tensors."""
    checks = CHECKS
    if name != "none":
        module, part, other, check = MUTANTS[name]
        text, checks = (ROOT / f"{module}.py").read_text(), {check: None}
        if text.count(part) != 1:
            raise LookupError(f"{part!r} is {text.count(part)} times in {module}.py, not once")
        sys.meta_path.insert(0, Finder(module, text.replace(part, other)))
    try:
        for check in checks:
            globals()[check]()
    except Exception as error:
        print("noticed:", str(error).strip().splitlines()[:1])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
