"""The checked build (``TAPEGRAD_BOUNDS=1``): escapes planted in its programs, tapes and kernels are found.

Programs of the subset are built checked in this process; whole sweeps run in a process of the checked build.
"""

import ctypes
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.kernels import bounds, cache
from tapegrad.kernels.replay import layout

# ---------------------------------------------------------------- programs

MODULE = """
from numba import cfunc, types
from numba.extending import intrinsic
from tapegrad.kernels.lowering import Program

@intrinsic
def program(typing, table, a, b, c):
    def code(context, builder, signature, args):
        built = Program([{trusted!r}, {text!r}], {constants!r}, 1).build(builder.module, "start")
        return builder.call(built, args)
    return types.int64(types.int64, types.int64, types.int64, types.int64), code

@cfunc("int64(int64, int64, int64, int64)", cache=CACHE)
def entry(table, a, b, c):
    return program(table, a, b, c)
"""
START = """
def start(table: int, a: int, b: int, c: int) -> int:
    i64(shared())[GUARD] = table
    return serve(a, b, c)
"""
KIND = ctypes.CFUNCTYPE(*[ctypes.c_int64] * 5)


def region_source():
    text = (Path(layout.__file__).parent / "memory.py").read_text("utf-8")
    return re.search(r"def region\(.*?\n\n\n", text, re.DOTALL).group()


def escaped(text, arrays, *args):
    """The line of the first escape of a program that may touch these arrays, 0 if there was none; its result.

    Lines count from that of the ``def``.
    """
    constants = {k: v for k, v in vars(layout).items() if k.isupper() and isinstance(v, int)} | {"BOUNDS": 1}
    source = MODULE.format(trusted=region_source() + START, text=text, constants=constants)
    state = np.zeros(layout.STATE_WORDS, np.int64)
    for array in arrays:
        bounds.know(array)
    words = bounds.table(state.ctypes.data)
    words[1] = state.ctypes.data
    found = KIND(cache.load("bounds", source).entry.address)(words.ctypes.data, *args)
    return int(words[2]) & 0xFFFFFFFF, found


class Sandwich:
    """An array of 8 elements in the middle of memory that must stay as it is."""

    def __init__(self, dtype):
        self.whole = np.full(24, 7, dtype)
        self.array = self.whole[8:16]
        self.at = self.array.ctypes.data

    def untouched(self):
        return bool((np.delete(self.whole, range(8, 16)) == 7).all())


VIEWS = {"i64": np.int64, "i32": np.int32, "u8": np.uint8, "f64": np.float64, "f32": np.float32}
VALUE = {"i64": "5", "i32": "5", "u8": "5", "f64": "5.0", "f32": "5.0"}


@pytest.mark.parametrize("index", [-8, -1, 0, 7, 8, 9, 1 << 40, -(1 << 40)])
@pytest.mark.parametrize("view", VIEWS)
def test_an_index_written_or_read(view, index):
    memory = Sandwich(VIEWS[view])
    wrong = not 0 <= index < 8
    text = f"def serve(a, b, c):\n    x = {view}(a)\n    x[b] = {VALUE[view]}\n    return 1\n"
    assert escaped(text, [memory.array], memory.at, index, 0) == ((3, 0) if wrong else (0, 1))
    assert memory.untouched()
    assert (memory.array == 7).all() == wrong
    text = f"def serve(a, b, c):\n    if {view}(a)[b] > {VALUE[view]}:\n        return 1\n    return 2\n"
    memory.array[:] = 9
    assert escaped(text, [memory.array], memory.at, index, 0) == ((2, 0) if wrong else (0, 1))


@pytest.mark.parametrize("offset", [-8, -1, 0, 56, 57, 64, 4096])
def test_an_address_computed(offset):
    """Also one that lies in the array, but so near its end that the element does not."""
    memory = Sandwich(np.float64)
    text = "def serve(a, b, c):\n    f64(a + b)[0] = 5.0\n    return 1\n"
    assert escaped(text, [memory.array], memory.at, offset, 0) == ((0, 1) if 0 <= offset <= 56 else (2, 0))
    assert memory.untouched()


def test_an_index_does_not_reach_the_neighbour():
    """Both arrays may be touched, but a view is of one."""
    whole = np.zeros(16)
    first, second = whole[:8], whole[8:]
    text = "def serve(a, b, c):\n    f64(a)[b] = 5.0\n    return 1\n"
    assert escaped(text, [first, second], first.ctypes.data, 8, 0) == (2, 0)
    assert escaped(text, [first, second], second.ctypes.data, -8, 0) == (2, 0)
    assert not whole.any()
    assert escaped(text, [first, second], second.ctypes.data, 0, 0) == (0, 1)


def test_memory_that_is_gone_or_was_never_there():
    memory = Sandwich(np.float64)
    text = "def serve(a, b, c):\n    f64(a)[0] = 5.0\n    return 1\n"
    assert escaped(text, [], memory.at, 0, 0) == (2, 0)
    view = memory.whole[8:16]
    assert escaped(text, [view], memory.at, 0, 0) == (0, 1)
    del view
    assert escaped(text, [], memory.at, 0, 0) == (2, 0)
    assert escaped(text, [], 0, 0, 0) == (2, 0)


def test_everything_ends_where_the_first_escape_is():
    """Not only the function that left its memory: its callers do nothing more."""
    memory, other = Sandwich(np.int64), np.zeros(3, np.int64)
    text = """def serve(a, b, c):
    i64(c)[0] = 1
    again(a, b, c)
    i64(c)[1] = 1
    return 1

def again(a: int, b: int, c: int) -> int:
    for q in range(20):
        i64(a)[q] = 5
        i64(c)[2] = q
    return 1
"""
    line, found = escaped(text, [memory.array, other], memory.at, 0, other.ctypes.data)
    assert (line, found) == (9, 0)
    assert other.tolist() == [1, 0, 7]
    assert memory.untouched()


@pytest.mark.parametrize("count", [0, 64, 65])
@pytest.mark.parametrize(
    ("move", "written"),
    [("copy(a, c, b)", True), ("copy(c, a, b)", False), ("zero(a, b)", True), ("within(a, b)", False)],
)
def test_bytes_moved_or_handed_on(move, written, count):
    memory, other = Sandwich(np.int64), np.zeros(100, np.int64)
    text = f"def serve(a, b, c):\n    {move}\n    return 1\n"
    wrong = count > 64
    found = escaped(text, [memory.array, other], memory.at, count, other.ctypes.data)
    assert found == ((2, 0) if wrong else (0, 1))
    assert memory.untouched()
    assert (memory.array == 7).all() == (not written or count != 64)


def test_a_sum_that_escapes_is_the_same_without_checks_and_not_found():
    """What the check is for: the same text, built unchecked, reads the neighbours."""
    memory = Sandwich(np.int64)
    text = "def serve(a, b, c):\n    t = 0\n    for q in range(b):\n        t += i64(a)[q]\n    return t\n"
    source = MODULE.format(trusted=START, text=text, constants={"GUARD": 0, "SHARED_WORDS": 64})
    entry = KIND(cache.load("bounds", source).entry.address)
    assert entry(0, memory.at, 16, 0) == 16 * 7
    assert escaped(text, [memory.array], memory.at, 16, 0) == (4, 0)


# ---------------------------------------------------------------- whole sweeps

HEAD = """
import sys
import numpy as np
import tapegrad as tg
from tapegrad.kernels import abi, emit, table
from tapegrad.kernels.replay import layout

sys.unraisablehook = lambda *args: None  # an exception in a kernel: Numba can only print it
x = tg.tensor(np.linspace(0.1, 1.0, 6), requires_grad=True)
keep = x * 1.0  # on the tape, and never read

def attempt(loss):
    try:
        print("gradient", tg.grad(loss, x, retain_graph=True)[0].tolist())
    except tg.errors.KernelError as error:
        print("found", error)
"""
PLANTED = {
    "an index of a scatter": """
        loss = np.sum(x[[0, 2, 2]] * 2.0)
        attempt(loss)
        for k, words in loss._tape.described.items():
            loss._tape.described[k] = words = np.array(words)
            words[2] = 6 + {by}
        attempt(loss)
        """,
    "a shape": """
        loss = np.sum(np.sin(x) * x)
        attempt(loss)
        columns = loss._tape.sealed()
        columns.words[3 * columns.n : 3 * columns.n + 1] += {by} + 1
        attempt(loss)
        """,
    "an address": """
        loss = np.sum(np.sin(x) * x)
        attempt(loss)
        columns = loss._tape.sealed()
        addresses = columns.words[2 * columns.n : 3 * columns.n]
        k = [k for k in range(columns.n) if columns.shape(k) == (6,)][0]
        addresses[k] += 8 * ({by} ** 4 + 1)  # a few megabytes away other memory of the sweep may lie
        attempt(loss)
        """,
    "a stride": """
        loss = np.sum(np.exp(x[::2]) * 3.0)
        attempt(loss)
        columns = loss._tape.sealed()
        metas = columns.words[columns.n : 2 * columns.n]
        k = [k for k in range(columns.n) if metas[k] >> 8 & 1 == 0 and columns.shape(k)][0]
        columns.words[3 * columns.n + (metas[k] >> 32) + 1] *= 1000 + {by}
        metas &= ~0x100
        attempt(loss)
        """,
    "a number of an operand": """
        loss = np.sum(np.sin(x) * x)
        attempt(loss)
        columns = loss._tape.sealed()
        columns.words[columns.n - 1] += (1000 + {by}) << 16
        attempt(loss)
        """,
    "a place that a link leads to": """
        loss = None  # else a damaged tape is pruned
        y = np.sin(x)
        y._tape.sealed()
        loss = np.sum(y * y)
        attempt(loss)
        words = loss._tape.sealed().words
        words[[k for k in range(3) if words[k] & 0xFFFF == layout.LINK]] += (1000 + {by}) << 32
        attempt(loss)
        """,
    "a kernel": """
        emit.PLAIN = emit.PLAIN.replace("OUT[", "OUT[{by} + n + ")
        table._kernels[:] = 0  # to be built anew
        attempt(np.sum(x * x * 1.5))
        emit.PLAIN = emit.PLAIN.replace("OUT[{by} + n + ", "OUT[")
        table._kernels[:] = 0
        """,
}


def sweep(body, **environment):
    code = HEAD + textwrap.dedent(body)
    environment = os.environ | {"PYTHONPATH": str(Path(tg.__file__).parents[1])} | environment
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True, text=True, timeout=300, check=False, env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()


@pytest.fixture(scope="module")
def outcomes():
    """What each case, planted in one process after the other, printed."""
    cases = [(name, by, textwrap.dedent(body)) for name, body in PLANTED.items() for by in (0, 1000)]
    code = "\n".join(f"print('==')\n{body.format(by=by)}" for _, by, body in cases)
    # what is damaged is a tape as compiled code reads it
    parts = "\n".join(sweep(code, TAPEGRAD_BOUNDS="1", TAPEGRAD_ABI="")).split("==\n")[1:]
    return {case[:2]: part.splitlines() for case, part in zip(cases, parts, strict=True)}


@pytest.mark.full
@pytest.mark.parametrize("by", [0, 1000])
@pytest.mark.parametrize("name", PLANTED)
def test_an_escape_planted_in_a_sweep_is_an_error(name, by, outcomes):
    *before, last = outcomes[name, by]
    assert all(line.startswith("gradient") for line in before)
    assert len(before) == (name != "a kernel")
    assert last.startswith("found"), last
    assert "left its memory" in last or (name == "a kernel" and "failed" in last)


@pytest.mark.full
def test_both_builds_give_the_same_and_share_no_cache():
    body = """
        from tapegrad.kernels import cache
        attempt(np.sum(np.sin(x)[::-2] * x[[0, 1, 1]]))
        attempt(np.sum((x.reshape(2, 3) @ x.reshape(3, 2)).astype(np.float32)))
        print("bounds  " in tg.show_config(), layout.BOUNDS, cache.directory().name)
        """
    found = [sweep(body, TAPEGRAD_BOUNDS=bounds) for bounds in ("", "0", "1")]
    assert found[0] == found[1]
    assert found[0][:2] == found[2][:2]
    plain, checked = (lines[2].split() for lines in found[1:])
    assert (plain[:2], checked[:2]) == (["True", "0"], ["True", "1"])
    assert plain[2] != checked[2]
