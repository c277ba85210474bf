"""From a rule's text to a kernel: the vocabulary is closed, precision is kept, equal texts share a kernel."""

import ast
import ctypes
import inspect
import re

import llvmlite.binding
import numpy as np
import pytest

from tapegrad.kernels import abi, cache, emit, table
from tests.tiers import every


def parsed(text):
    body = ast.parse(inspect.cleandoc(text)).body
    return body[:-1], body[-1].value


def compiled(text, arguments, dtype, cotangent=False):
    """The kernel of a rule as a function of arrays."""
    statements, expression = parsed(text)
    number = table.slot(statements, expression, arguments, cotangent)
    address = table.kernel(number, abi.CODES[np.dtype(dtype).char])

    def run(*arrays):
        out = np.empty_like(arrays[0])
        pointers = np.array([abi.address(a) for a in (out, *arrays)], np.int64)
        kind = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)
        assert kind(address)(abi.address(pointers), out.size) == 1
        return out

    return run


RULES = [
    "a * b + 2",
    "a - b / 3",
    "-a + (+b)",
    "np.where(a > b, a, b)",
    "np.where((a > 0) & (b > 0), a * b, 0)",
    "np.where((a > 0) | ~(b > 0), a, -b)",
    "np.where(a == b, 0.5, np.where(a < b, 0, 1))",
    "np.sqrt(np.abs(a)) + np.square(b)",
    "a ** 2 + b ** 3",
    "np.abs(a) ** 2.5",
    "np.abs(a) ** b",
    "np.power(np.abs(a), b)",
    "np.maximum(a, b) - np.minimum(a, b)",
    "np.sign(a) * b",
    "np.exp(a) + np.expm1(b)",
    "np.log(np.abs(a) + 1) * np.log1p(np.abs(b))",
    "np.sin(a) * np.cos(b) + np.tan(a)",
    "np.sinh(a) + np.cosh(b) * np.tanh(a)",
    "np.hypot(a, b) + np.arctan2(a, b) + np.arctan(a)",
    "np.exp2(a) + np.log2(np.abs(a) + 1) + np.log10(np.abs(b) + 1) + np.cbrt(b)",
    "np.arcsin(a / 3) + np.arccos(b / 3) * np.arctanh(b / 3)",
    "np.arcsinh(a) + np.arccosh(1 + np.abs(b))",
    "np.floor(a) + np.ceil(b) * np.rint(a * 3) - np.trunc(b * 3)",
    "np.pi * a + np.e * b",
    "t = a * b\nt * t + t",
    "t = np.exp(a)\nu = t + b\nu / t",
]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("text", every(RULES, 3))
def test_a_kernel_is_its_rule(text, dtype, random):
    a, b = (random.uniform(-2, 2, 1500).astype(dtype) for _ in range(2))
    b[::7] = a[::7]
    space = {"np": np, "a": a, "b": b}
    statements, expression = parsed(text)
    for statement in statements:
        exec(ast.unparse(statement), space)
    expected = eval(ast.unparse(expression), space)
    found = compiled(text, ["a", "b"], dtype)(a, b)
    assert found.dtype == dtype
    rtol, atol = (4e-6, 1e-6) if dtype is np.float32 else (1e-14, 2e-15)
    np.testing.assert_allclose(found, expected, rtol=rtol, atol=atol)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_the_cotangent_multiplies(dtype, random):
    ct, a = (random.uniform(-2, 2, 40).astype(dtype) for _ in range(2))
    found = compiled("a * a", ["ct", "a"], dtype, cotangent=True)(ct, a)
    np.testing.assert_allclose(found, ct * a * a, rtol=1e-6)


SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan, 1e300, 5e-324])


@pytest.mark.parametrize(
    "text", ["1 / a", "np.where(a == 0, 1, a)", "np.log(a)", "np.sqrt(a)", "np.exp(a)", "np.sign(a)",
             "a ** 2", "np.maximum(a, 0)", "np.minimum(a, 0)", "np.tanh(a)", "np.abs(a)", "a * np.inf",
             "a + np.nan", "a ** -1.0"],
)  # fmt: skip
def test_special_values_are_numpy_s(text):
    with np.errstate(all="ignore"):
        expected = np.asarray(eval(text, {"np": np, "a": SPECIAL}), float)
    found = compiled(text, ["a"], np.float64)(SPECIAL)
    np.testing.assert_allclose(found, expected, rtol=1e-15)
    finite = ~np.isnan(expected)
    np.testing.assert_array_equal(np.signbit(found[finite]), np.signbit(expected[finite]))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("name", sorted(emit.LIBM))
def test_far_arguments_among_near_ones(name, dtype):
    """One argument outside a vector form's domain sends its block to libm, which knows all."""
    a = np.linspace(-50, 50, 5000).astype(dtype)
    a[[7, 1023, 1024, 3333, 4999]] = [1e22, -3e9, np.inf, np.nan, 2e5]
    with np.errstate(invalid="ignore"):
        expected = getattr(np, name)(a.astype(np.float64))
    found = compiled(f"np.{name}(a)", ["a"], dtype)(a)
    np.testing.assert_allclose(found, expected, rtol=2 * np.finfo(dtype).eps)


@pytest.mark.parametrize("name", every(sorted(emit.VECTOR - {"pow"} | {"power"}), 4))
def test_a_kernel_is_vectorised(name):
    """Elements are loaded, computed and stored side by side, without a call of libm."""
    if not llvmlite.binding.get_host_cpu_features().get("avx2"):
        pytest.skip("needs AVX2")
    names = ["a", "b"] if name in ("power", "hypot", "arctan2", "logaddexp", "logaddexp2") else ["a"]
    text = emit.source(*parsed(f"np.{name}({', '.join(names)})"), names, "float64", False)
    space = {"CACHE": False, "BOUNDS": False}
    exec(compile(text, "<kernel>", "exec"), space)
    code = space["kernel"].inspect_llvm()
    assert "gather" not in code
    assert re.search(r"store <[48] x double>", code)
    assert len(re.findall(r"(?:fadd|fmul|fmuladd\S*\().*<[48] x double>", code)) > 1
    assert set(re.findall(r"call double @(\w+)\(", code)) <= ({name} if name in emit.LIBM else set())


@pytest.mark.parametrize(
    "text",
    ["other * a", "np.linalg.norm(a)", "np.cumsum(a)", "len(a)", "a.sum()", "__import__('os')", "np.pi.real",
     "os.system", "[a][0]", "(lambda: a)()", "'text'", "a if a > 0 else b", "np.where", "np.exp(a, out=a)",
     "np.exp(*a)", "f'{a}'", "{a: a}", "a[0]", "a @ a", "a << 1", "(b := a)"],
)  # fmt: skip
def test_what_has_no_scalar_form_is_refused(text):
    statements, expression = parsed(text)
    with pytest.raises(emit.RuleError):
        emit.source(statements, expression, ["a"], "float64", False)


def test_the_refusal_names_what_it_refuses():
    for text, named in [("other * a", "'other'"), ("np.cumsum(a)", "np.cumsum"), ("len(a)", "len")]:
        with pytest.raises(emit.RuleError, match=named):
            emit.source(*parsed(text), ["a"], "float64", False)


def test_a_name_set_by_a_statement_may_be_used_after_it_only():
    emit.source(*parsed("t = a\nt * t"), ["a"], "float64", False)
    with pytest.raises(emit.RuleError, match="'t'"):
        emit.source(*parsed("u = t\nt = a\nu"), ["a"], "float64", False)


@pytest.mark.parametrize(
    "text", ["a * 2", "0.1 * a + 1", "np.where(a > 0.5, 1, 0.1)", "np.pi * a", "a ** 2 / 3"]
)
def test_literals_take_the_dtype(text):
    """In single precision every literal is rounded first, as NumPy does with Python numbers."""
    a = np.linspace(0, 1, 257, dtype=np.float32)
    expected = eval(text, {"np": np, "a": a})
    np.testing.assert_array_equal(compiled(text, ["a"], np.float32)(a), np.asarray(expected, np.float32))
    source = emit.source(*parsed(text), ["a"], "float32", False)
    body = source.partition("def kernel")[2]
    for node in ast.walk(ast.parse("def kernel" + body)):
        if isinstance(node, ast.Constant) and isinstance(node.value, float):
            assert f"REAL({node.value!r})" in body


def test_equal_texts_share_a_kernel():
    one = table.slot(*parsed("x * y + 1"), ["x", "y"], True)
    same = table.slot(*parsed("(p * q) + 1"), ["p", "q"], True)
    other = table.slot(*parsed("y * x + 1"), ["x", "y"], True)
    bare = table.slot(*parsed("x * y + 1"), ["x", "y"], False)
    assert one == same
    assert len({one, other, bare}) == 3
    assert table.kernel(one, 1) == table.kernel(same, 1)
    assert table.kernel(one, 1) != table.kernel(one, 2)
    assert table.kernel(one, 1) != table.kernel(other, 1)


def test_a_module_is_loaded_once():
    text = emit.source(*parsed("a * 7"), ["a"], "float64", False)
    assert cache.load("once", text) is cache.load("once", text)


@pytest.mark.parametrize("source", ["float64", "float32", "int64", "int32", "int16", "int8", "uint8", "bool"])
@pytest.mark.parametrize("target", ["float64", "float32"])
def test_conversions_stage_any_stride(source, target):
    if source == target:
        return
    values = np.array([0, 1, 2, 3, 100, 127]).astype(source)
    codes = {name: code for code, name in abi.NAMES.items()}
    address = table.cast(codes[source], codes[target])
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * 4)
    for view in (values, values[::2], values[::-1]):
        out = np.empty(view.size, target)
        assert (
            kind(address)(abi.address(out), view.__array_interface__["data"][0], view.strides[0], view.size)
            == 1
        )
        np.testing.assert_array_equal(out, view.astype(target))


def test_more_derivatives_than_the_table_has_room_for_are_refused(monkeypatch):
    """Compiled code would read an address behind it."""
    monkeypatch.setattr(table, "_recipes", [None] * len(table._kernels))
    with pytest.raises(MemoryError, match="room for 2048 different derivatives"):
        table.slot([], ast.parse("x * 0.1234", mode="eval").body, ["x"], True)
