"""What is compiled for a derivative: how many functions, and how often they go through LLVM."""

import contextlib
import logging
from unittest import TestCase

import numba
import numpy as np
import pytest
from numba.core import event, types
from numba.core.codegen import CPUCodeLibrary, JITCodeLibrary
from numba.core.registry import cpu_target

import tapegrad as tg
from tapegrad import progress
from tapegrad.kernels import cache
from tapegrad.native.library import array_records

from ..benchmarks.compile import Processes


@contextlib.contextmanager
def counted(monkeypatch):
    """Names of libraries that get functions, that are optimised, and that machine code is made of."""
    found = {"functions": [], "optimised": [], "machine code": []}

    def counting(name, what):
        method = getattr(CPUCodeLibrary, name)

        def counted(self, *args):
            found[what].append(self.name)
            return method(self, *args)

        patch.setattr(CPUCodeLibrary, name, counted)

    with monkeypatch.context() as patch:
        counting("add_ir_module", "functions")
        counting("_optimize_final_module", "optimised")
        counting("_finalize_final_module", "machine code")
        yield found


def fused(x, a):
    return np.sum(np.sin(x) * a + np.exp(-x * x) / (1.0 + a))


X, A = np.linspace(0.1, 0.9, 5), np.linspace(1.0, 2.0, 5)


@pytest.mark.quick
def test_a_derivative_goes_through_llvm_once(monkeypatch):
    tg.func.grad(tg.njit(lambda x: np.sum(x * x)))(X)  # what the library keeps
    compiled = tg.njit(fused)
    with counted(monkeypatch) as found:
        gradient = tg.func.grad(compiled)(X, A)
    assert found["optimised"] == found["machine code"] == ["grad"]
    assert 1 < len(found["functions"]) <= 20
    slope = np.cos(X) * A - 2 * X * np.exp(-X * X) / (1 + A)
    np.testing.assert_allclose(gradient, slope, rtol=1e-14)


def test_a_hessian_compiles_no_more_than_it_needs(monkeypatch):
    tg.func.hessian(tg.njit(lambda x: np.sum(x * x)))(np.ones(1))
    compiled = tg.njit(fused)
    with counted(monkeypatch) as found:
        hessian = tg.func.hessian(compiled)(X, A)
    assert found["optimised"] == found["machine code"] == ["hessian.<locals>.hessian"]
    assert 1 < len(found["functions"]) <= 25
    bend = -np.sin(X) * A + (4 * X * X - 2) * np.exp(-X * X) / (1 + A)
    np.testing.assert_allclose(hessian, np.diag(bend), rtol=1e-13, atol=1e-15)


@contextlib.contextmanager
def kinds_compiled():
    """The kinds of numbers that functions are compiled for, by the ends of their names."""
    kinds = set()

    class Listener(event.Listener):
        def on_start(self, one):
            kinds.add(one.data["dispatcher"].__qualname__.partition("__tape")[2].rpartition("_")[0])

        def on_end(self, one):
            pass

    with event.install_listener("numba:compile", Listener()):
        yield kinds


def test_no_order_is_compiled_that_was_not_asked_for():
    compiled = tg.njit(fused)
    with kinds_compiled() as kinds:
        tg.func.grad(compiled)(X, A)
        x = tg.tensor(X, requires_grad=True)
        tg.grad(compiled(x, A), x)
    assert kinds - {""} <= {"_entry"}  # of first derivatives; "" has no numbers
    assert not compiled.primal.overloads  # nor the values


@pytest.mark.quick
def test_a_jacobian_by_a_number_is_along_one_direction():
    rate = tg.func.jacfwd(tg.njit(lambda x: x * x * x))
    with kinds_compiled() as kinds:
        assert tg.func.jacfwd(tg.njit(lambda x: rate(x)))(2.0) == 12.0
    assert kinds - {""} == {"_1_0", "_1_1_0"}


@pytest.mark.slow
def test_inner_jacobians_of_nested_ones_are_along_one_direction_at_a_time():
    rate = tg.func.jacfwd(tg.njit(lambda x: x * x * x))
    bend = tg.func.jacfwd(tg.njit(lambda x: rate(x)[0]))
    with kinds_compiled() as kinds:
        slope = tg.func.jacfwd(tg.njit(lambda x: bend(x)[0]))(np.array([2.0]))
    np.testing.assert_array_equal(slope, [[6.0]])
    assert kinds - {""} == {"_4_0", "_4_4_0", "_1_4_4_0"}


def test_text_for_numba_grows_no_faster_than_numbers(monkeypatch):
    """Products of numbers with 25 components, told as text, took Numba minutes."""
    monkeypatch.setattr(array_records.cache, "load", lambda name, text: text)
    short, long = (array_records.compiled.__wrapped__(*spec) for spec in ((), (4, 4)))
    assert len(long) < 1.2 * len(short)


def test_what_numba_compiles_is_optimised_as_ever(monkeypatch):
    """Pieces of derivatives that wait are completed before a function of Numba's takes them in."""

    @tg.njit
    def cost(x):
        return np.sum(x * x) * np.hamming(3)[1]

    gradient = tg.func.grad(cost)
    with counted(monkeypatch) as pieces:
        assert gradient(np.ones((2, 2))).tolist() == [[2.0, 2.0], [2.0, 2.0]]
    assert cpu_target.target_context.codegen()._library_class is JITCodeLibrary

    @numba.njit
    def user(x):
        return gradient(x) * np.hamming(3)[1]

    with counted(monkeypatch) as found:
        assert user(np.ones((2, 2))).tolist() == [[2.0, 2.0], [2.0, 2.0]]
    late = set(pieces["functions"]) - set(pieces["optimised"])
    assert late & set(found["optimised"])
    assert set(found["functions"]) <= set(found["optimised"])  # the gradient is not compiled again


def test_pieces_raise_recur_and_print(capfd):
    """What compiled code needs besides itself: its environment, functions that are not complete yet."""

    @numba.njit
    def even(x, n):
        return x if n == 0 else odd(x * x, n - 1)

    @numba.njit
    def odd(x, n):
        return x if n == 0 else even(x + 1.0, n - 1)

    @tg.njit
    def cost(x, n):
        if n > 3:
            raise ValueError("too many")
        print("n is", n)
        u = np.zeros(3)
        u[: n + 1] = np.array([x, x])
        return even(x, n) + u.sum()

    gradient = tg.func.grad(cost)
    assert gradient(2.0, 1) == 6.0
    assert capfd.readouterr().out == "n is 1\n"
    with pytest.raises(ValueError, match="too many"):
        gradient(2.0, 4)
    with pytest.raises(ValueError, match=r"cannot assign slice of shape \(3,\) from input of shape \(2,\)"):
        gradient(2.0, 2)


@pytest.mark.parametrize("cached", [False, True])
def test_what_is_compiled_is_named_before(monkeypatch, cached):
    monkeypatch.setattr(progress, "LONG", 1000.0)
    monkeypatch.setattr(cache, "fetch", lambda name, content: None)  # what other runs have left there

    def cost(x):
        return x * x

    compiled = tg.njit(cost, cache=cached)
    gradient, x = tg.func.grad(compiled), tg.tensor(2.0, requires_grad=True)
    advice = "" if cached else "; tg.njit(cache=True) keeps it for later processes"
    said = [f"compiling {what}{advice}" for what in ("grad(cost)", "the recording form of cost")]
    with TestCase().assertLogs("tapegrad", logging.INFO) as told:
        gradient(2.0), compiled(x)
    assert [record.getMessage() for record in told.records] == said
    with TestCase().assertNoLogs("tapegrad", logging.INFO):
        gradient(3.0), compiled(x)
    with TestCase().assertLogs("tapegrad", logging.INFO) as told:
        gradient(np.float32(2.0))
    assert [record.getMessage() for record in told.records] == said[:1]


def test_a_process_of_the_benchmark_that_crashes_is_told_of(tmp_path):
    """With all that it wrote; a signal leaves no traceback."""
    code = "import os, signal\nprint('written', flush=True)\nos.kill(os.getpid(), signal.SIGSEGV)"
    with pytest.raises(RuntimeError, match=r"(?s)ended with -11.*written.*Segmentation fault"):
        Processes(tmp_path, 0).seconds(code)


@pytest.mark.quick
def test_what_all_programs_call_is_compiled_once(monkeypatch):
    """Tapes and sweeps are called; but for Numba's functions, which may be cached, they are linked in."""
    gradient, libraries = tg.func.grad(tg.njit(lambda x: x * x * x)), []
    build = CPUCodeLibrary._optimize_final_module
    monkeypatch.setattr(
        CPUCodeLibrary, "_optimize_final_module", lambda self: (build(self), libraries.append(self))
    )
    assert gradient(2.0) == 12.0

    @numba.njit
    def both(f, x):
        return f(x) + gradient(x)

    assert both(gradient, 2.0) == 24.0
    kinds = {}
    for one in libraries:
        found = kinds.setdefault(type(one) is JITCodeLibrary, set())
        found.update(f.name.split("B")[0] for f in one._final_module.functions if not f.is_declaration)
    for name in ("acquire", "release", "prepare", "sweep"):
        assert [any(name in f for f in kinds[complete]) for complete in (False, True)] == [False, True]


@pytest.mark.filterwarnings("ignore:First-class function type feature is experimental")
def test_derivatives_are_first_class_functions():
    """Their code for that is emitted where it is asked for: of Python, and of code that Numba compiles."""
    square, cube = (tg.func.grad(tg.njit(f)) for f in (lambda x: x * x, lambda x: x * x * x))
    assert square(1.0) == 2.0 and cube(1.0) == 3.0
    kind = types.FunctionType(types.float64(types.float64))
    by_address = numba.njit((kind, types.float64))(lambda f, x: f(x))

    @numba.njit
    def both(x):
        return by_address(square, x) + by_address(cube, x)

    assert both(2.0) == 16.0
    assert by_address(square._compiled, 3.0) == 6.0
