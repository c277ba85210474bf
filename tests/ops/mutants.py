"""Derivative rules broken on purpose: which changes there are, how one is installed, what notices it.

A mutant is one change in the syntax tree of a rule or of a function that rules call. Of a rule that is text
for a kernel the changed text is installed, so the compiled sweep and the recorded one have the same fault;
other functions get other code in place, wherever they are known.
"""

import ast
import contextlib
import copy
import faulthandler
import functools
import itertools
import os
import signal
import warnings
from types import FunctionType

import numpy as np
import pytest

from tapegrad.autograd import traced_rules
from tapegrad.kernels import table
from tapegrad.ops import BY_OPCODE, REGISTRY, buffers, decompositions, forward, lapack, rules, triangles
from tapegrad.ops.lapack import SMALL
from tapegrad.ops.primitive import Elementwise, Irregular, Linear, Reduction
from tapegrad.ops.rules import Rule

from . import (
    checks,
    test_accuracy,
    test_buffers,
    test_complex,
    test_edges,
    test_fft,
    test_lanes,
    test_linalg,
    test_writers,
)
from .layouts import COMPLEX, DTYPES, LAYOUTS, PLAIN, SIZE1, Absent
from .samples import REAL_ONLY
from .test_every_op import is_quick

SECONDS = 60  # a mutant that runs longer than this counts as noticed
OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.Pow: ast.Mult,
    ast.FloorDiv: ast.Mult, ast.MatMult: ast.Mult,
}  # fmt: skip
COMPARISONS = {
    ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
}  # fmt: skip
OTHERS = {  # functions in each other's place
    "sin": "cos", "cos": "sin", "sinh": "cosh", "cosh": "sinh", "exp": "expm1", "sqrt": "square",
    "hypot": "maximum", "rint": "floor", "floor": "ceil", "log": "log1p", "sign": "absolute",
    "tril": "triu", "triu": "tril", "real": "imag", "imag": "real",
}  # fmt: skip
DROPPED = {  # calls left out, their first argument stays
    "conj", "adjoint", "half", "real", "sum_to", "_mT", "flip", "swapaxes", "transpose", "conjugate",
    "outside", "delayed",
}  # fmt: skip
BY_ADDRESS = {lapack.__name__, triangles.__name__}  # modules that call LAPACK, or what calls it
SWAPPED = {"matmul", "convolve", "solve", "over", "scaled"}  # operands exchanged


# ---------------------------------------------------------------- what there is to be changed


def functions_of(op):
    """The functions that make up an op's derivative, as written."""
    if isinstance(op, Elementwise | Reduction):
        total, of_complex = getattr(op, "total", None), getattr(op, "of_complex", None)
        found = [op.rule.function, total and total.function, of_complex and of_complex.function]
    elif isinstance(op, Linear):
        found = [op.rule]
    else:
        assert isinstance(op, Irregular)
        found = [op._vjp, op._jvp]
    return [f for f in found if f is not None]


def called(function):
    """Functions of the ops' modules that a function refers to."""
    code, names = [function.__code__], set()
    while code:
        each = code.pop()
        names |= set(each.co_names)
        code += [c for c in each.co_consts if isinstance(c, type(each))]
    found = [function.__globals__.get(name) for name in sorted(names)]
    ours = [f for f in found if isinstance(f, FunctionType) and f.__module__.startswith("tapegrad.ops.")]
    return [f for f in ours if f.__module__ not in BY_ADDRESS]  # see `by_address`


@functools.cache
def users():
    """Each function that takes part in derivatives, and the names of the ops whose derivatives these are."""
    found: dict[FunctionType, list[str]] = {}
    for name, op in sorted(REGISTRY.items()):
        todo, seen = functions_of(op), set()
        while todo:
            function = todo.pop()
            if function in seen:
                continue
            seen.add(function)
            found.setdefault(function, []).append(name)
            todo += called(function)
    return found


@functools.cache
def tree(function):
    """The definition of a function."""
    with open(function.__code__.co_filename, encoding="utf-8") as file:
        module = ast.parse(file.read())
    line = function.__code__.co_firstlineno
    for node in ast.walk(module):
        if isinstance(node, ast.FunctionDef) and node.name == function.__name__:
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            if first <= line <= node.lineno:
                return node
    return None  # a lambda


def changes(node):
    """Descriptions of the changes of one expression, with what it becomes."""
    if isinstance(node, ast.BinOp):
        left, right = node.left, node.right
        symbol = OPERATORS.get(type(node.op))
        if symbol is not None:
            yield f"another operator: {symbol.__name__}", ast.BinOp(left, symbol(), right)
            yield "right operand dropped", left
            yield "left operand dropped", right
        if isinstance(node.op, (ast.Sub, ast.Div, ast.Pow)):
            yield "operands exchanged", ast.BinOp(right, node.op, left)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield "sign dropped", node.operand
    elif isinstance(node, ast.Compare) and len(node.ops) == 1 and type(node.ops[0]) in COMPARISONS:
        symbol = COMPARISONS[type(node.ops[0])]
        yield "another comparison", ast.Compare(node.left, [symbol()], node.comparators)
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float, complex):
        yield "another number", ast.Constant(2 * node.value if node.value else 1)
    elif isinstance(node, ast.Call):
        name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        numpy_s = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value) == "np"
        if name in OTHERS and numpy_s:
            yield "another function", ast.Call(ast.Attribute(node.func.value, OTHERS[name], ast.Load()),
                                               node.args, node.keywords)  # fmt: skip
        if name in DROPPED and node.args:
            yield f"{name} dropped", node.args[0]
        if name in SWAPPED and len(node.args) >= 2:
            exchanged = [*node.args[1::-1], *node.args[2:]]
            yield "operands exchanged", ast.Call(node.func, exchanged, node.keywords)
        if name == "where" and len(node.args) == 3:
            yield "branches exchanged", ast.Call(node.func, [node.args[0], *node.args[:0:-1]], [])
    elif isinstance(node, ast.IfExp):
        yield "branches exchanged", ast.IfExp(node.test, node.orelse, node.body)


def results(definition):
    """Expressions that are results: what is returned or put into the dict of cotangents."""
    for node in ast.walk(definition):
        put = isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript)
        value = node.value if put or isinstance(node, ast.Return) else None
        if isinstance(value, ast.Dict):
            yield from value.values
        elif isinstance(value, ast.Tuple):
            yield from value.elts
        elif isinstance(value, ast.BinOp | ast.Call | ast.UnaryOp):
            yield value


class _Replace(ast.NodeTransformer):
    def __init__(self, old, new):
        self.old, self.new = old, new

    def visit(self, node):
        return self.new if node is self.old else self.generic_visit(node)


def mutants_of(function):
    """All mutants of a function: what is changed, as text, and the definition changed."""
    definition = tree(function)
    if definition is None:
        return
    body = [s for s in definition.body if not (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))]
    nodes = [node for statement in body for node in ast.walk(statement)]
    whole = [node for node in nodes if isinstance(node, ast.expr)]
    above = {id(part): node for node in whole for part in ast.iter_child_nodes(node)}
    found = [(node, what, new) for node in nodes for what, new in changes(node)]
    negated = ((node, "negated", ast.UnaryOp(ast.USub(), node)) for node in results(definition))
    found += [(node, what, new) for node, what, new in negated
              if not (isinstance(node, ast.Constant) and node.value is None)]  # fmt: skip
    for node, what, new in found:
        whole = copy.copy(definition)
        whole.body = [_copied(s, node, new) for s in body]
        whole.decorator_list = []
        label = f"{function.__module__.split('.')[-1]}.{function.__qualname__}, line {node.lineno}"
        inside = f" | of {ast.unparse(above[id(node)])}" if id(node) in above else ""
        yield f"{label}: {what} in {ast.unparse(node)}{inside}", ast.fix_missing_locations(whole)


def _copied(statement, old, new):
    """A copy of a statement with one expression replaced; the tree itself stays."""
    marks = {id(node): k for k, node in enumerate(ast.walk(statement))}
    place = marks.get(id(old))
    if place is None:
        return statement
    twin = copy.deepcopy(statement)
    return _Replace(list(ast.walk(twin))[place], copy.deepcopy(new)).visit(twin)


@functools.cache
def everything():
    """All mutants of all functions, of closures of one text once: (text, function, definition), in order."""
    different = {f.__code__: f for f in reversed(users())}.values()
    order = sorted(different, key=lambda f: (f.__module__, f.__code__.co_firstlineno))
    return [(text, f, changed) for f in order for text, changed in mutants_of(f)]


def chosen(count, seed):
    """So many of them, spread evenly over the functions."""
    random = np.random.default_rng(seed)
    groups = {}
    for mutant in everything():
        groups.setdefault(mutant[1], []).append(mutant)
    queues = [[group[k] for k in random.permutation(len(group))] for group in groups.values()]
    found = []
    while len(found) < count and any(queues):
        found += [queue.pop() for queue in queues if queue]
    keep = sorted(random.permutation(len(found))[:count])
    return [found[k] for k in keep]


# ---------------------------------------------------------------- installing one


def is_part_of(function, rule):
    """Whether a function is a rule, or a formula whose text stands in it."""
    return rule.function is function or (function in rules.FORMULAS and function in called(rule.function))


@contextlib.contextmanager
def installed(function, definition):
    """Let a function be as changed, in every rule and kernel."""
    ops = [op for op in REGISTRY.values() if isinstance(op, Elementwise | Reduction)]
    texts = [(op, name, rule) for op in ops for name in ("rule", "total", "of_complex")
             if isinstance(rule := getattr(op, name, None), Rule) and is_part_of(function, rule)]  # fmt: skip
    complete()
    forget()
    known, code, read = len(table._recipes), function.__code__, rules._definition
    brought = range(0)
    try:
        rules._definition = lambda rule: definition if rule is function else read(rule)
        for op, name, rule in texts:
            setattr(op, name, Rule(rule.function))
            _announce(op)
        brought = range(known, len(table._recipes))  # what comes later is of ops that are as they were
        if not texts:
            function.__code__ = _compiled(function, definition)
        yield
    finally:
        rules._definition = read
        function.__code__ = code
        for op, name, rule in texts:
            setattr(op, name, rule)
            _announce(op)
        for key in [key for key, number in table._slots.items() if number in brought]:
            del table._slots[key]
        if len(table._recipes) == brought.stop:
            del table._recipes[known:]
            table._kernels[known:] = 0
        forget()


def forget():
    """Let go of constants and programs that functions of the rules have made once."""
    decompositions._kept.cache_clear()
    traced_rules.forget()


@functools.cache
def complete():
    """Let all kernels have their numbers and formulas their ufuncs, before there is a mutant in them."""
    for op in filter(None, BY_OPCODE):
        op.complete()
        forward.ufunc_of(op)


def _announce(op):
    op._masks = None
    op.complete()
    table.version[0] = object()


def _compiled(function, definition):
    free = function.__code__.co_freevars
    name = function.__name__
    known = "" if name in free else f"    global {name}\n"  # where it calls what its module has by its name
    module = ast.parse(f"def around({', '.join(free)}):\n{known}    return {name}")
    module.body[0].body.insert(-1, definition)
    space = dict(function.__globals__)
    exec(compile(module, function.__code__.co_filename, "exec"), space)
    return space["around"](*free).__code__


# ---------------------------------------------------------------- what notices it


def cells(name, quick):
    """The cells of an op in the quick tier, or the others, those first that see most; values have no part."""
    layouts = [PLAIN, *(layout for layout in LAYOUTS if layout != PLAIN)]
    dtypes = [d for d in ("float64", "complex128", "float32", "complex64")
              if d in DTYPES or name not in REAL_ONLY]  # fmt: skip
    assert {*dtypes} <= {*DTYPES, *COMPLEX}
    for few in (dtypes[:2], dtypes[2:]):
        for layout in layouts:
            for dtype in few:
                there = is_quick(name, dtype, layout) == quick
                if there and not isinstance(checks.sample(name, layout, dtype), Absent):
                    yield from ((name, dtype, layout, order) for order in checks.ORDERS[1:])


def in_turn(rows, few=8):
    """A few of each row before more of the first."""
    rows = [iter(row) for row in rows]
    while rows:
        for row in list(rows):
            part = list(itertools.islice(row, few))
            if len(part) < few:
                rows.remove(row)
            yield from part


def too_long(*_):
    raise TimeoutError


def noticed(function, limit=None):
    """What notices a change of a function just made, and whether in the quick tier; None if nothing does.

    That is a cell, an edge or another test. With a limit only so many cells of each op are looked at.
    """
    before = signal.signal(signal.SIGVTALRM, too_long) if hasattr(signal, "SIGVTALRM") else None
    if before is not None:  # of the processor's time; again, as a finalizer may swallow the error
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS, 1)
    quick = True
    try:
        with np.errstate(all="ignore"):
            for quick, what, call, args in tests_of(users()[function], limit):
                try:
                    call(*args)
                except TimeoutError:
                    raise
                except Exception:
                    return what, quick
    except TimeoutError:
        return "it does not end", quick
    finally:
        if before is not None:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
            signal.signal(signal.SIGVTALRM, before)
    return None


# Besides the cells: where complex vectors are known up to a phase, where one triangle is read, and the like.
OWN = [
    *((row.split(",")[0], test_linalg.test_complex, row) for row in test_linalg.COMPLEX),
    *((row.split(",")[0], test_linalg.test_tangents_of_complex_vectors_are_adjoint_to_cotangents, row)
      for row in test_linalg.VECTORS),
    *((name, test_accuracy.test_derivative, name) for name in test_accuracy.EXACT),
    *(("det", test_linalg.test_det_singular, row) for row in test_linalg.SINGULAR),
    ("slogdet", test_linalg.test_slogdet_singular), ("norm", test_linalg.test_norm_at_0),
    *((name, test_complex.test_derivatives_beside_differences, name) for name in ("sinc", "arcsinh")),
    *(("sinc", test_complex.test_sinc_beside_mpmath, size) for size in (0.49, 0.02)),
    ("matmul", checks.outcome, "add", "float64", SIZE1, "second order"),  # which sums to operands as well
    ("slogdet", test_linalg.test_slogdet_of_a_singular_matrix_that_is_not_symmetric),
    *(("det", test_linalg.test_all_derivatives_of_a_determinant_at_the_zero_matrix, n) for n in (4, 5)),
    *((name, test_lanes.test_lanes_are_what_one_after_the_other_is, name, layout)
      for name in sorted(REGISTRY) for layout in (PLAIN, SIZE1)),
    ("eigh", test_linalg.test_eigh_of_a_matrix_that_is_not_symmetric),
    *(("pinv", test_linalg.test_pinv_that_leaves_out_singular_values, *row) for row in test_linalg.CUT),
    ("pinv", test_linalg.test_pinv_of_a_batch_leaves_out_different_numbers),
    *((f.__name__, test_edges.test_higher_order, f, way)
      for f in dict.fromkeys(row[0] for row in test_edges.HIGHER)
      for way in (test_edges.reverse, test_edges.forward)),
    *((name, test_linalg.test_cholesky_and_hermitian_pinv_of_one_triangle) for name in ("cholesky", "pinv")),
    ("pinv", test_linalg.test_pinv_that_leaves_out_values_not_much_smaller),
    *((op, test_linalg.test_first_derivatives_of_large_matrices_are_those_recorded, more, name, dtype,
       np.random.default_rng(1)) for op, name, dtype in (
        *((name, name, "d") for name in ("cholesky", "inv", "matmul", "qr", "pinv", "det", "slogdet")),
        ("eigh", "eigenvectors", "d"), ("svd", "singular vectors, tall", "D")) for more in (1, -1)),
    ("matmul", test_linalg.test_products_of_large_stacks, np.random.default_rng(1)),
    ("matmul", test_lanes.test_products_of_a_matrix_and_a_complex_vector),
    *(("cholesky", test_linalg.test_a_triangular_solve_is_an_elimination, "d", order, 3 * SMALL - 1,
       np.random.default_rng(1)) for order in "CF"),
    *((name, test_fft.test_derivatives_over_three_axes, function)
      for name, function in (("fft", np.fft.fftn), ("rfft", np.fft.rfftn), ("irfft", np.fft.irfftn))),
    *(("lstsq", test_linalg.test_least_squares_are_a_product_with_the_pseudoinverse, name, columns, "complex",
       np.random.default_rng(1)) for name in ("tall", "wide, dependent") for columns in (None, 2)),
    *((name, test_writers.test_derivatives_of_what_is_written_to_a_constant, name, index)
      for name, index in (("assign", slice(1, 3)), ("scatter", [3, 0]))),
    ("lstsq", test_linalg.test_lstsq_that_leaves_out_singular_values),
    *(("cholesky", test_linalg.test_tangents_of_large_cholesky_factors_are_adjoint_to_cotangents, dtype,
       np.random.default_rng(1)) for dtype in "dF"),
    ("cholesky", test_buffers.test_products_of_stacks_and_dtypes),
    *(("pinv", test_buffers.test_arithmetic_of_shapes_and_dtypes, function)
      for function in (buffers.add, buffers.subtract, buffers.multiply)),
    *((name.split(",")[0], test_linalg.test_derivatives_by_factors, name, "D", np.random.default_rng(1), None)
      for name in ("solve", "solve, vector", "solve, stack", "det", "slogdet")),
]  # fmt: skip


def tests_of(names, limit):
    """What tests derivatives of ops: whether in the quick tier, its name, the function and its arguments."""
    rows = [itertools.islice(cells(name, True), limit) for name in names]
    yield from ((True, ", ".join(cell), checks.outcome, cell) for cell in in_turn(rows))
    if limit is not None:
        return
    for name, test, *args in [row for row in OWN if row[0] in names]:
        yield True, f"own test of {name}, {test.__name__}", test, args
    for row in test_edges.FIRST:
        for record in (False, True):
            yield True, f"edge: {row[0]}", test_edges.test_first_order, (row, "float64", record)
    yield from ((True, f"edge: {row[0]}", test_edges.test_second_order, (row,)) for row in test_edges.SECOND)
    rows = [cells(name, False) for name in names]
    yield from ((False, ", ".join(cell), checks.outcome, cell) for cell in in_turn(rows))


def survivors(mutants, report=None):
    """Those that nothing notices, how many of the others no cell does, and which the quick tier does not."""
    found, own, late = [], 0, []
    for text, function, definition in mutants:
        try:
            with installed(function, definition):
                by = noticed(function)
        except (SyntaxError, TypeError, ValueError, IndexError) as error:  # it cannot even be installed
            by = f"{type(error).__name__} when read", True
        own += by is not None and by[0].startswith(("edge", "own"))
        if report is not None:
            report(f"{by[0] if by else 'SURVIVES'} <- {text}")
        if by is None:
            found.append(text)
        elif not by[1]:
            late.append(text)
    return found, own, late


# ---------------------------------------------------------------- functions that call LAPACK by address


def by_address():
    """All mutants of functions that call LAPACK, as in `everything`; they may end the process."""
    spaces = [vars(lapack), vars(lapack.LU), vars(lapack.Kept), vars(triangles)]
    found = [getattr(f, "__func__", f) for space in spaces for f in space.values()]
    found = [getattr(getattr(f, "fget", f), "__wrapped__", getattr(f, "fget", f)) for f in found]
    found = [f for f in found if isinstance(f, FunctionType) and f.__module__ in BY_ADDRESS]
    return [(text, f, changed) for f in dict.fromkeys(found) for text, changed in mutants_of(f)]


def noticed_apart(function, definition):
    """Whether a change of such a function is noticed, or ends a process of its own."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of threads: the process only calls, and ends
        child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] != 0
    try:
        faulthandler.disable()
        silent = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silent, 1)
        os.dup2(silent, 2)
        signal.alarm(SECONDS)
        function.__code__ = _compiled(function, definition)
        for known in (*vars(lapack).values(), *vars(triangles).values()):
            if hasattr(known, "cache_clear"):
                known.cache_clear()
        call_by_address()
    except BaseException:
        os._exit(1)
    os._exit(0)


def call_by_address():
    """Run tests of the quick tier that see what those functions do."""
    sizes = 0, 5, SMALL, SMALL + 1, 3 * SMALL - 1
    one = [(test_linalg.test_lapack_is_found_here,),
           (test_linalg.test_the_rule_of_qr_says_that_columns_are_dependent, None),
           (test_linalg.test_solutions_with_a_singular_matrix_are_refused,)]  # fmt: skip
    seen = [(test_linalg.test_values_that_leave_factors_behind_are_numpys, name, dtype, order)
            for name in test_linalg.BY_LU for dtype in "dF" for order in "CF"]  # fmt: skip
    seen += [(test_linalg.test_factors_of_another_matrix_are_kept_apart, dtype) for dtype in "fD"]
    seen += [(test_linalg.test_determinants_are_numpys, n) for n in (SMALL, SMALL + 1, 100)]
    seen += [(test_linalg.test_a_triangular_solve_is_an_elimination, dtype, order, n)
             for dtype in "fD" for order in "CFA" for n in sizes]  # fmt: skip
    seen += [(test_linalg.test_many_cotangents_by_factors, name) for name in test_linalg.BY_LU]
    seen += [(test_linalg.test_derivatives_of_determinants_of_singular_large_matrices,)]
    seen += [(test_linalg.test_factors_are_saved_values, name) for name in test_linalg.FACTORISED]
    seen += [(test_linalg.test_factors_are_released_by_a_sweep, name) for name in ("solve", "det")]
    seen += [(test_linalg.test_released_factors_are_computed_again, dtype) for dtype in "dD"]
    with np.errstate(all="ignore"):
        for test, *args in one:
            test(*args)
        for test, *args in seen:
            test(*args, np.random.default_rng(1))
        for columns, n in ((2, SMALL), (None, SMALL), (1, 47), (2, 47), (47, 47), (None, 47)):
            test_linalg.test_inverses_and_solutions_are_numpys(n, columns, np.random.default_rng(1), None)
        for dtype, order in itertools.product("fD", "CF"):
            test_linalg.test_systems_in_rules_are_numpys(dtype, order, np.random.default_rng(1), None)
        for name, dtype in itertools.product(test_linalg.BY_LU, "dD"):
            test_linalg.test_derivatives_by_factors(name, dtype, np.random.default_rng(1), None)
        for upper, dtype in itertools.product((False, True), "dF"):
            test = test_linalg.test_the_reverse_of_cholesky_is_its_formula
            test("C", upper, dtype, np.random.default_rng(1), None)
        for mode, dtype in itertools.product(("reduced", "complete"), "fD"):
            test_linalg.test_qr_is_numpys("ufuncs", mode, dtype, np.random.default_rng(1), None)
        for dtype in "fD":
            test = test_linalg.test_triangular_factors_in_rules_are_those_of_qr
            test(dtype, True, np.random.default_rng(1), None)
            test_linalg.test_eigh_is_numpys("ufuncs", dtype, np.random.default_rng(1), None)
        rules = (test_linalg.test_the_rule_of_qr_is_the_same_without_lapack,
                 test_linalg.test_the_rule_of_eigh_is_the_same_without_blas,
                 test_linalg.test_the_rule_of_svd_is_the_same_without_blas)  # fmt: skip
        for test, dtype in itertools.product(rules, "fD"):
            with pytest.MonkeyPatch.context() as patch:
                test(dtype, ((2,), (3, 2)), np.random.default_rng(1), patch)
        for name in ("solve", "solve, vector", "det"):
            with pytest.MonkeyPatch.context() as patch:
                test = test_linalg.test_values_and_rules_share_one_factorisation
                test(name, np.random.default_rng(1), patch)
