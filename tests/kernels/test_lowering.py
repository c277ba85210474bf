"""The translator of the subset: each program gives what plain Python gives for the same text."""

import ast
import ctypes
import re
from pathlib import Path

import numpy as np
import pytest

from tapegrad.kernels import cache, dialect, extensions, lowering, machine
from tapegrad.kernels.replay import layout

MODULE = """
from llvmlite import ir
from numba import cfunc, types
from numba.extending import intrinsic
from tapegrad.kernels.lowering import Program

@intrinsic
def program(typing, a, b, c):
    def code(context, builder, signature, args):
        return builder.call(Program([{text!r}], {constants!r}).build(builder.module, "entry"), args)
    return types.int64(types.int64, types.int64, types.int64), code

@cfunc("int64(int64, int64, int64)", cache=CACHE)
def entry(a, b, c):
    return program(a, b, c)
"""
CONSTANTS = {"SEVEN": 7, "DOWN": -2, "OFFSET": 3}
FIELDS = "WORD", "META", "SIZE_AT", "NDIM_AT", "V_SLOT", "SHARED_WORDS"
CONSTANTS |= {name: getattr(layout, name) for name in FIELDS}
KIND = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)


def plain(text):
    space = {name: getattr(dialect, name) for name in dir(dialect) if not name.startswith("_")} | CONSTANTS
    exec(text, space)
    return space["entry"]


def lowered(text):
    module = cache.load("lowering", MODULE.format(text=text, constants=CONSTANTS))
    return KIND(module.entry.address)


def both(text, *cases):
    fast, slow = lowered(text), plain(text)
    for case in cases:
        assert fast(*case) == int(slow(*case)), (text, case)


NUMBERS = [(a, b, c) for a in (-7, -1, 0, 1, 5) for b in (-3, 0, 2, 9) for c in (-1, 0, 4)]

PROGRAMS = {
    "arithmetic": "return a + b * c - (a - b) * -c",
    "bits": "return (a & b) | (c ^ a) | (~b & 255)",
    "shifts": "return ((a & 63) << 3) + ((b & 1023) >> 2)",
    "quotients": "x = a * a + 1\ny = b * b + 1\nreturn x // y * 100 + x % y",
    "comparisons": "x = (a < b) + 2 * (a <= b) + 4 * (a == b)\nreturn x + 8 * (a != b) + 16 * (a > b)",
    "constants": "return a * SEVEN + DOWN + OFFSET",
    "fields of words": "v = i64(stack(4))\nv.word, v.meta = a, b\nv.meta += c\nreturn v[WORD] * 10 + v.meta",
    "fields of objects": "x = stack(8)\ni64(shared()).v_slot = 48\n"
                         "obj(x).size, obj(x).ndim, obj(x).v = a, b, c\n"
                         "return obj(x).size * 100 + obj(x).ndim * 10 + i64(x + 48)[0] + obj(x + 0).v",
    "negative literals": "x = -5\nreturn x * a + -1 * b - -c",
    "chosen values": "return a if a > b else b if b > c else c",
    "min and max": "return min(a, b) * 100 + max(b, c)",
    "not": "x = 0\nif not a:\n    x = 1\nif not (b > c):\n    x += 2\nreturn x",
    "elif": "if a > 3:\n    return 1\nelif a > 0:\n    return 2\nelse:\n    return 4",
    "tuples": "x, y = a, b\nx, y = y, x\nreturn x * 10 + y",
    "chained targets": "x = y = a + 1\nx += b\nreturn x * 100 + y",
    "while": "n = 0\nx = a * a\nwhile x > 0:\n    x = x // 2\n    n += 1\nreturn n",
    "for": "t = 0\nfor i in range(b * b):\n    t += i * a\nreturn t",
    "for from to": "t = 0\nfor i in range(a, b):\n    t = t * 3 + i\nreturn t",
    "for down": "t = 0\nfor i in range(9, a, -1):\n    t = t * 2 + i\nreturn t",
    "for by a constant": "t = 0\nfor i in range(9, a, DOWN):\n    t = t * 2 + i\nreturn t",
    "for keeps its bounds": "n = b * b\nt = 0\nfor i in range(n):\n    n = 0\n    t += i + 1\nreturn t",
    "for survives writes to its name": "t = 0\nfor i in range(5):\n    i = i * 10\n    t += i\nreturn t + a",
    "break": "t = 0\nfor i in range(10):\n    if i == b:\n        break\n    t += i\nreturn t",
    "continue": "t = 0\nfor i in range(10):\n    if i & 1:\n        continue\n    t += i * a\nreturn t",
    "while with both": (
        "n, t = 0, 0\nwhile 1:\n    n += 1\n    if n > 20:\n        break\n"
        "    if n % 3 == 0:\n        continue\n    t += n * a\nreturn t"
    ),
    "nested loops": (
        "t = 0\nfor i in range(6):\n    for j in range(6):\n        if j == 3:\n            break\n"
        "        if i == j:\n            continue\n        t += i * 10 + j\nreturn t + a"
    ),
    "return from a loop": "for i in range(10):\n    if i * i > b * b:\n        return i\nreturn -1",
    "doubles": "x = 0.5\ny = float(a) * x + 1.25\nreturn (y > 0.0) + 2 * (y < float(b)) + 4 * (y != y)",
    "prefetch": "prefetch(stack(1))\nprefetch(-64)\nreturn a",
    "nan": "y = 0.0 * (1e308 * 10.0)\nreturn (y < 1.0) + 2 * (y > 1.0) + 4 * (y == y) + 8 * (y != y) + a",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_as_plain_python(name):
    body = "\n".join("    " + line for line in PROGRAMS[name].splitlines())
    both(f"def entry(a, b, c):\n{body}\n", *NUMBERS)


def test_logic_stops_where_it_is_decided():
    text = """
def mark(place: int, bit: int, answer: int) -> int:
    i64(place)[0] = i64(place)[0] | bit
    return answer

def entry(a, b, c):
    x = 0
    if mark(c, 1, a & 1) and mark(c, 2, a & 2):
        x = 1
    if mark(c, 4, b & 1) or mark(c, 8, b & 2):
        x += 2
    if (mark(c, 16, a & 1) or mark(c, 32, a & 2)) and mark(c, 64, b & 1):
        x += 4
    return x
"""
    fast, slow = lowered(text), plain(text)
    for a in range(4):
        for b in range(4):
            traces = [np.zeros(1, np.int64) for _ in range(2)]
            found = [f(a, b, t.ctypes.data) for f, t in zip((fast, slow), traces, strict=True)]
            assert found[0] == found[1], (a, b)
            assert traces[0][0] == traces[1][0], (a, b)


def test_functions_call_each_other():
    text = """
def power(x: int, n: int) -> int:
    if n == 0:
        return 1
    return x * power(x, n - 1)

def entry(a, b, c):
    return power(a, b * b) + twice(c)

def twice(x: int) -> int:
    return 2 * x
"""
    both(text, *[case for case in NUMBERS if abs(case[1]) < 4])


@pytest.mark.parametrize(
    ("view", "dtype"),
    [("i64", "int64"), ("i32", "int32"), ("u8", "uint8"), ("f64", "float64"), ("f32", "float32")],
)
def test_views_read_and_write(view, dtype):
    """Widened on reading, narrowed on writing; n elements of a become a reversed copy in b."""
    text = f"""
def entry(a, b, c):
    x, y = {view}(a), {view}(b)
    for i in range(c):
        y[c - 1 - i] = x[i] + x[i]
        y[c - 1 - i] += x[0]
    return 0
"""
    values = np.array([1.1, 2, 100, 60, 7]).astype(dtype)
    if dtype.startswith(("int", "float")):
        values[1] = -2
    results = []
    for f in (lowered(text), plain(text)):
        out = np.zeros_like(values)
        f(values.ctypes.data, out.ctypes.data, values.size)
        results.append(out)
    np.testing.assert_array_equal(*results)


def test_bytes_are_not_negative_and_words_are():
    text = "def entry(a, b, c):\n    return u8(a)[0] * 1000 + i32(b)[0]\n"
    byte, word = np.array([255], np.uint8), np.array([-5], np.int32)
    assert lowered(text)(byte.ctypes.data, word.ctypes.data, 0) == 255 * 1000 - 5


def test_copy_and_zero():
    text = "def entry(a, b, c):\n    copy(a, b, 24)\n    zero(a + 8, 8)\n    return 0\n"
    results = []
    for f in (lowered(text), plain(text)):
        target, source = np.full(4, 9), np.arange(1, 5)
        f(target.ctypes.data, source.ctypes.data, 0)
        results.append(target.tolist())
    assert results[0] == results[1] == [1, 0, 3, 9]


def test_call_through_an_address():
    text = "def entry(a, b, c):\n    return call(a, b, c) + 1\n"
    back = ctypes.CFUNCTYPE(ctypes.c_int64, ctypes.c_int64, ctypes.c_int64)(lambda x, y: 10 * x - y)
    address = ctypes.cast(back, ctypes.c_void_p).value
    assert lowered(text)(address, -4, 7) == plain(text)(address, -4, 7) == -46


REFUSED = [
    "return a / b", "return a ** 2", "return unknown", "return unknown(a)", "x = [1, 2]\nreturn a",
    "x = 'text'\nreturn a", "x = 1\nx = 1.5\nreturn a", "with a:\n    pass\nreturn a",
    "try:\n    pass\nfinally:\n    pass\nreturn a", "x = lambda: 1\nreturn a", "del a\nreturn b",
    "assert a\nreturn b", "raise a", "return a @ b", "return {a: b}", "for i in a:\n    pass\nreturn 0",
    "return a < b < c", "return a in b", "return a is b", "global g\nreturn a", "x = 1.5 + a\nreturn a",
    "return i64(a)", "return 1.5",
]  # fmt: skip


@pytest.mark.parametrize("body", REFUSED)
def test_what_is_outside_the_subset_raises(body):
    from llvmlite import ir

    body = "\n".join("    " + line for line in body.splitlines())
    text = f"def entry(a, b, c):\n{body}\n"
    ast.parse(text)
    with pytest.raises(lowering.Unsupported):
        lowering.Program([text], CONSTANTS).build(ir.Module(), "entry")


def test_the_refusal_says_where():
    from llvmlite import ir

    with pytest.raises(lowering.Unsupported, match=r"entry, line 3.*With"):
        lowering.Program(["def entry(a):\n    x = a\n    with x:\n        pass\n"], {}).build(
            ir.Module(), "entry"
        )


LENDER = """
def entry(a, b, c):
    i64(shared()).v_slot = a
    return shared()

def doubled(a):
    return 2 * a + i64(shared()).v_slot

def difference(a, b):
    return a - b
"""
BORROWER = """
def entry(a, b, c):
    share(a)
    i64(shared()).v_slot += 100
    return own(difference(doubled(b), c)) + call(address(doubled), 1)

def own(a):
    return 1000 * a
"""


def built(text, **how):
    module = MODULE.format(text=text, constants=CONSTANTS).replace("})", f"}}, **{how!r})")
    return KIND(cache.load("lowering", module).entry.address)


def test_a_program_calls_functions_of_another_one_and_shares_its_words():
    names = ("difference", "doubled")
    words = built(LENDER, offered=names)(7, 0, 0)
    assert built(BORROWER, borrowed=names)(words, 5, 4) == 1000 * (10 + 107 - 4) + 2 + 107


def test_extensions_call_what_is_offered_and_nothing_else(monkeypatch):
    """A function of the sweep that is offered to nobody would still be compiled for its own sake."""
    from llvmlite import ir

    found, borrowed = [], set()
    monkeypatch.setattr(machine, "load", lambda: None)
    build = lambda name, texts, entry, *_, **how: found.append((texts, entry, how))
    monkeypatch.setattr(machine, "build", build)
    extensions._load("rerecording", *extensions.RERECORDING)
    extensions._load("writing", "writing")
    constants = {k: v for k, v in vars(layout).items() if k.isupper() and isinstance(v, int)}
    for texts, entry, how in found:
        program = lowering.Program(texts, constants, **how)
        module = ir.Module()
        program.build(module, entry)
        text = str(module)
        places = {name: f"add i64 %v{{}}, {8 * place}" for name, place in program.borrowed.items()}
        borrowed |= {
            name for name, at in places.items() if re.search(at.format(r"\d+") + r"\b", text) is not None
        }
    assert sorted(borrowed) == sorted(machine.OFFERED)


def test_each_place_has_a_name_of_its_own():
    """A constant named twice would be another place in code that means the first."""
    tree = ast.parse(Path(layout.__file__).read_text("utf-8"))
    targets = [t for node in tree.body if isinstance(node, ast.Assign) for t in node.targets]
    names = [name.id for t in targets for name in ast.walk(t) if isinstance(name, ast.Name)]
    assert len(names) > 200
    assert not [name for name in names if names.count(name) > 1]


def test_each_function_has_a_name_of_its_own():
    """All texts are one program: of two functions with a name the later is called."""
    names = [
        statement.name
        for path in Path(layout.__file__).parent.glob("*.py")
        for statement in ast.parse(path.read_text("utf-8")).body
        if isinstance(statement, ast.FunctionDef)
    ]
    assert len(names) > 200
    assert sorted(names) == sorted(set(names))
