"""Records broken on purpose, and programs that must notice: run by `test_mutants.py`.

python -m tests.native.mutants NAME
"""

import importlib.abc
import importlib.machinery
import sys
from pathlib import Path

BLOCK = 256  # as `tapegrad.native.arrays.array_layout`, which is not loaded before it is broken
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
        "i - start, part_{whose}(c, {at}, p, {of}, {step}, factor))\n            begin = 0",
        "i - start, part_{whose}(c, {at}, p, {of}, {step}, factor))",
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
    "columns repeat as rows": (
        "array_records",
        "elif again or stride != 8 * many:",
        "elif stride != 8 * many:",
    ),
    "where rows that repeat begin is not passed over": (
        "array_records",
        "24 if how == REPEATED else 8",
        "16 if how == REPEATED else 8",
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
    "sums of columns begin again": (
        "array_records",
        "at // (length * inner) * inner + at % inner, inner",
        "at % inner, inner",
    ),
    "cotangents of sums stay": (
        "array_records",
        "        clear(whole, sums)",
        "        pass",
    ),
}
BRANCHES = {
    "what leaves ends no record": (
        "record",
        "builder.call(self.left, [self.tape, self.start, self.count, _ZERO])",
        "builder.call(self.left, [_ZERO, self.start, self.count, _ZERO])",
    ),
    "what leaves ends a record without its statements": (
        "record",
        "                self._end(b, tape, start, count)",
        "                self._end(b, tape, start, b.sub(count, ir.Constant(I64, 1)))",
    ),
    "what has left is seen to by each way": (
        "record",
        "            one.left = None  # what has left before is seen to by the first",
        "            pass",
    ),
    "ways share what is written": (
        "record",
        '"wanted", "written", "met",',
        '"wanted", "met",',
    ),
    "ways share places of numbers": (
        "record",
        '"met", "places", "known"',
        '"met", "known"',
    ),
    "ways share statements": (
        "record",
        '("statements", "numbers",',
        '("numbers",',
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
VALUES = {
    "a value is read from where the last one is": (
        "record",
        "len(record.met)\n        return at",
        "len(record.met)\n        return record.size - 8",
    ),
    "adjoints compute one operation more": (
        "record",
        "if depth < DEPTH and",
        "if depth <= DEPTH and",
    ),
    "any number of ways lead through a value": (
        "cut",
        "if a[1] is _ENTRANCE or b == (a[0], _ENTRANCE):",
        "if False:",
    ),
    "ways are not turned aside": (
        "cut",
        "            on[b].add(a)",
        "            pass",
    ),
    "values stay where no tape was known": (
        "record",
        "            self._store(_before(late.block.terminator), value, late.start, at)",
        "            pass",
    ),
    "values that are computed stay where no tape was known": (
        "record",
        "                self.known.clear()",
        "                pass",
    ),
    "variables hold no numbers": (
        "outside",
        "        return [(load, place) for load in loads]",
        "        return []",
    ),
    "addresses of variables are not written anywhere": (
        "outside",
        "if not known or any(x.operands[0] is variable for x in stores):",
        "if not known:",
    ),
    "what is put into a struct is no more": (
        "outside",
        "inside = [(line, at + place)] if part is value else []",
        "inside = []",
    ),
    "what is put beside a number takes its place": (
        "outside",
        "if whole is value and place[: len(at)] != at else",
        "if False else",
    ),
    "all is read outside from the second on": (
        "record",
        "                outside.append(k)",
        "                outside.append(k + 1)",
    ),
    "two numbers have one place": (
        "record",
        "at, record.hole = record.hole, 0",
        "at = record.hole",
    ),
    "cotangents of statements stay": (
        "adjoint",
        "        self._store([NOTHING] * self.size, at)",
        "        pass",
    ),
}
SMALL_PRODUCTS = {
    "results of products begin one statement late": (
        "products",
        "first, y_at = get(tape, COUNT) + 1, start",
        "first, y_at = get(tape, COUNT) + 2, start",
    ),
    "operands of products begin one statement late": (
        "matrix_planes",
        "first << 2 | ONE_BY_ONE if how == COUNTED",
        "first + 1 << 2 | ONE_BY_ONE if how == COUNTED",
    ),
    "copies of matrices are never old": (
        "matrix_planes",
        "if unchanged(known + 64, x):",
        "if True:",
    ),
    "statements in order are one": (
        "matrix_planes",
        "ONE_BY_ONE if ordered == 0 else SINGLY if same == 0 else LISTED",
        "SINGLY if ordered == 0 or same == 0 else LISTED",
    ),
    "cotangents of products begin one statement early": (
        "products",
        "ct_at = cotangents + 8 * (number + 1)",
        "ct_at = cotangents + 8 * number",
    ),
    "cotangents of products stay": (
        "products",
        "    for k in range(count):\n        ct[k] = -0.0\n",
        "",
    ),
}
PRODUCTS = {
    "cotangents of matrices stay": (
        "matrix_planes",
        "            given[k, q] = -0.0\n",
        "",
    ),
    "cotangents of matrices begin one statement early": (
        "matrix_planes",
        "(get(block, BEFORE) + 1)",
        "get(block, BEFORE)",
    ),
    "slices begin at the first element": (
        "argument_arrays",
        "at = builder.add(first, builder.ashr(apart, llvm.Constant(I64, 3)))",
        "at = first",
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
    "check_values": VALUES, "check_small_products": SMALL_PRODUCTS, "check_products": PRODUCTS,
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
    _compare("sums_along", 5, 5, BLOCK + 2)
    _compare("sums_between", 5, 5, BLOCK + 2)


def check_branches():
    """What must not pass where records go on over branches, or are left."""
    from tests.native import test_branches

    for name, test in vars(test_branches).items():
        if name.startswith("test_"):
            test()


def check_values():
    """What must not pass where what adjoints read of the tape is wrong."""
    from tests.native import test_cut
    from tests.native import test_record as of

    test_cut.test_the_least_set_that_suffices_and_the_nearest_of_these()
    of.test_straight_code_is_one_record()
    of.test_a_number_that_an_expression_of_arrays_reads()
    of.test_what_is_read_behind_branches_in_other_turns_and_of_arrays_and_tuples()
    of.test_what_comes_before_the_first_number_on_a_tape()
    of.test_values_that_partials_are_products_of_are_on_the_tape_once()
    of.test_a_value_written_before_the_first_number_on_a_tape()
    of.test_a_partial_written_before_the_first_number_on_a_tape()
    of.test_a_product_of_values_written_before_the_first_number_on_a_tape()
    of.test_calls_within_a_block()
    of.test_how_many_operations_an_adjoint_computes_for_a_partial(of.record.DEPTH + 1)


def check_small_products():
    """What must not pass where products of floats are wrong that are a record each."""
    from tests.native import test_matrices as of

    for f in (of.of_any_order, of.changed_between, of.both_ways):
        for k in range(2):
            of.test_small_products_with_vectors(f, k)


def check_products():
    """What must not pass where products of matrices are wrong, or rows that these read."""
    from tests.native import test_argument_arrays as of

    of.test_gradients(of.results, 5)
    _compare("products", 6, 6)


def check_factors():
    """What must not pass where cotangents of factors are wrong."""
    from tests.native import test_matrices as of

    for function in (of.determinants, of.least_squares):
        of.test_cotangents_of_factors_by_pieces(function, 17)


def _compare(name, *sizes):
    """Compare at these sizes; of one that comes twice the second meets what stayed of the first."""
    from tests.native import test_written_arrays as of

    f = getattr(of, name)
    for n in sizes:
        of.compare(f, of.points(n), 1, plain=of.as_tensors(f), rtol=1e-9)


def broken(name):
    """Return the module that a mutant breaks, and its text then."""
    module, part, other, _ = MUTANTS[name]
    (path,) = ROOT.rglob(f"{module}.py")
    text = path.read_text()
    if text.count(part) != 1:
        raise LookupError(f"{name}: {part!r} is {text.count(part)} times in {module}.py, not once")
    return ".".join(path.relative_to(ROOT).with_suffix("").parts), text.replace(part, other)


def main(name):
    """Run programs whose derivatives are compared with those of Tensors: a check, or a mutant's."""
    check = name
    if name not in CHECKS:
        sys.meta_path.insert(0, Finder(*broken(name)))
        check = MUTANTS[name][-1]
    try:
        globals()[check]()
    except TypeError:  # of a check that calls a test amiss
        raise
    except Exception as error:
        print("noticed:", type(error).__name__, *str(error).strip().splitlines()[:1])
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
