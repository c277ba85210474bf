"""Compiled code on disk, and what it is of: names of compiled functions, their sources, captured values."""

import os
import subprocess
import sys
import types
import uuid
from pathlib import Path

import pytest

import tapegrad as tg
from tapegrad.kernels import cache

ROOT = Path(__file__).parents[2]


def run(folder, code, **more):
    """Run code in a new process that finds the modules of a folder; returns the words that it prints."""
    paths = f"{ROOT}{os.pathsep}{folder}"
    environment = os.environ | {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1"} | more
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment, cwd=folder, capture_output=True, text=True, timeout=600, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.split()


# ---------------------------------------------------------------- what other processes have compiled


ALIKE = """
import numba, numpy as np, tapegrad as tg

@numba.njit
def squared(x):
    return x[0] * x[0]

@numba.njit
def cubed(x):
    return x[0] * x[0] * x[0]

of_square, of_cube = tg.func.grad(squared), tg.func.grad(cubed)

@numba.njit(cache=True)
def one(x):
    return of_square(x)

@numba.njit(cache=True)
def other(x):
    return of_cube(x)
"""


def test_functions_that_two_processes_have_compiled_are_two_functions(tmp_path):
    (tmp_path / "alike.py").write_text(ALIKE, "utf-8")
    code = "from alike import *; x = np.array([3.0]); print("
    run(tmp_path, code + "one(x))", NUMBA_CACHE_DIR=str(tmp_path / "other"))  # what is ours compiles
    assert run(tmp_path, code + "one(x))") == ["[6.]"]
    assert run(tmp_path, code + "other(x), one(x))") == ["[27.]", "[6.]"]


FORKED = """
import os, numba, tapegrad as tg

@tg.njit
def f(x):
    return x

def shown():
    f(1.0)
    return next(iter(f.overloads.values())).fndesc.mangled_name.encode()

reading, writing = os.pipe()
if os.fork() == 0:
    os.write(writing, shown())
    os._exit(0)
os.wait()
print(shown() == os.read(reading, 1000), shown() == shown())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no forks here")
def test_a_forked_process_gives_names_of_its_own(tmp_path):
    assert run(tmp_path, FORKED) == ["False", "True"]


KALMAN = """
import os, numpy as np, numba, tapegrad as tg

@tg.njit(cache=True)
def loss(w, y):
    noise, drift = np.exp(w[0]), np.exp(w[1])
    mean, p, total = 0.0, 1.0, 0.0
    for k in range(y.size):
        p = p + drift
        v, e = p + noise, y[k] - mean
        total += 0.5 * (np.log(v) + e * e / v)
        gain = p / v
        mean = mean + gain * e
        p = p * (1 - gain)
    return total

of = tg.func
make = {
    "grad": lambda: of.grad(loss), "value_and_grad": lambda: of.value_and_grad(loss),
    "hessian": lambda: of.hessian(loss), "hvp": lambda: of.hvp(loss),
    "jvp": lambda: of.jvp(loss), "taylor": lambda: of.taylor(loss, 3),
}
names = list(make)
kinds = {name: make[name]() for name in (reversed(names) if "REVERSED" in os.environ else names)}

random = np.random.default_rng(7)
y = np.cumsum(random.normal(size=100)) + random.normal(size=100)
w = np.array([0.1, -0.2])
d = np.array([0.3, -0.7])

{functions}

def show(names):
    rows = []
    for name in names:
        found = globals()["cached_" + name](w, y)
        parts = found if isinstance(found, tuple) else (found,)
        rows.append([name, *(v.hex() for part in parts for v in np.ravel(part).tolist())])
    print(*(word for row in sorted(rows) for word in row))

def others():
    for name, f in kinds.items():
        f(w, y, *(d,) * (name in ("hvp", "jvp", "taylor")))
    x = tg.tensor(w, requires_grad=True)
    (g,) = tg.grad(loss(x, y), x, create_graph=True)
    tg.grad(g[0], x)
"""

OF_KIND = """
@numba.njit(cache=True)
def cached_{0}(w, y):
    return f_{0}(w, y{1})
"""


@pytest.mark.slow
def test_derivatives_in_cached_functions_are_the_same_in_each_process(tmp_path):
    """However each came to be: compiled here, loaded, after others, defined and called in another order."""
    names = ["grad", "value_and_grad", "hessian", "hvp", "jvp", "taylor"]
    functions = "".join(
        f"f_{name} = kinds['{name}']" + OF_KIND.format(name, ", d" * (name in ("hvp", "jvp", "taylor")))
        for name in names
    )
    (tmp_path / "kalman.py").write_text(KALMAN.replace("{functions}", functions), "utf-8")

    def shown(place, code, **more):
        place = str(tmp_path / place)
        return run(
            tmp_path, f"from kalman import *; {code}", TAPEGRAD_CACHE=place, NUMBA_CACHE_DIR=place, **more
        )

    expected = shown("together", "others(); show(names)")
    assert len(expected) == 6 + 2 + 3 + 4 + 2 + 2 + 4
    for name in ["grad", *names]:  # each compiled in a process of its own, so numbered alike
        shown("single", f"show(['{name}'])")
    for place in ("together", "single"):
        for code in ("show(names)", "others(); show(names)", "show(names[::-1]); others()"):
            assert shown(place, code) == expected
        assert shown(place, "others(); show(names)", REVERSED="1") == expected


MODEL = """
import numpy as np, numba, tapegrad as tg

@numba.njit
def scaled(x):
    return 2.0 * x

@tg.njit(cache=True)
def cost(x):
    return scaled(x[0]) * x[0] + np.sum(x)
"""

USES = """
import numba, numpy as np, tapegrad as tg
from numba.core import event
from model import cost

gradient, hessian = tg.func.grad(cost), tg.func.hessian(cost)
x = np.array([3.0, 1.0])
compiled = []

class Listener(event.Listener):
    def on_start(self, one):
        if "tapegrad_" not in str(one.data["dispatcher"].py_func.__module__):
            compiled.append(one.data["dispatcher"].__name__)
    def on_end(self, one):
        pass

@numba.njit(cache=True)
def step(x):
    return gradient(x) / hessian(x)[0, 0]

def show(*functions):
    event.register("numba:compile", Listener())
    found = [f(x).ravel().tolist() for f in functions]
    print(*(v for row in found for v in row), len(compiled))
"""


def test_derivatives_in_a_cached_function_are_of_the_sources_there_are(tmp_path):
    """Numba looks at one file alone: what stands in others it takes as it was."""
    (tmp_path / "model.py").write_text(MODEL, "utf-8")
    (tmp_path / "uses.py").write_text(USES, "utf-8")

    def shown(functions="gradient, hessian, step"):
        place = str(tmp_path / "cache")
        code = f"from uses import *; show({functions})"
        *values, compiled = run(tmp_path, code, TAPEGRAD_CACHE=place, NUMBA_CACHE_DIR=place)
        return [float(v) for v in values], int(compiled)

    def expected(scale):
        gradient = [6.0 * scale + 1.0, 1.0]
        return [*gradient, 2.0 * scale, 0.0, 0.0, 0.0, *(v / (2.0 * scale) for v in gradient)]

    assert shown("gradient, hessian")[0] == pytest.approx(expected(2.0)[:6])
    assert shown()[0] == pytest.approx(expected(2.0))  # compiles `step` with what it loads
    assert shown() == (pytest.approx(expected(2.0)), 0)
    (tmp_path / "model.py").write_text(MODEL.replace("2.0", "4.0"), "utf-8")
    assert shown("step, gradient, hessian")[0] == pytest.approx([*expected(4.0)[6:], *expected(4.0)[:6]])


# ---------------------------------------------------------------- what one process leaves to the next


UNSURE = """
import numba, tapegrad as tg
from numba.extending import overload, register_jitable

@numba.njit
def by_rate(x):
    return rate * x

@register_jitable
def by_registered(x):
    return rate * x

@numba.vectorize
def by_element(x):
    return rate * x

@numba.njit
def called(x):
    return by_rate(x) + by_registered(x) + by_element(x)

@tg.njit(cache=True)
def of_function(x):
    return by_rate(x)

@tg.njit(cache=True)
def of_registered(x):
    return by_registered(x)

def by_overload(x):
    return x

@overload(by_overload)
def _(x):
    return lambda x: x * x

@tg.njit(cache=True)
def of_overload(x):
    return by_overload(x)

@tg.njit(cache=True)
def of_element(x):
    return by_element(x)
"""


@pytest.fixture
def kept(monkeypatch):
    """The files of functions that this process writes; others write to the same folder meanwhile."""
    files, keep = set(), cache.keep

    def watched(name, content, data):
        if name.startswith("function_"):
            files.add(cache.directory() / f"tapegrad_{name}.bin")
        keep(name, content, data)

    monkeypatch.setattr(cache, "keep", watched)
    return files


def test_what_was_compiled_with_values_unknown_is_not_kept(kept):
    """Numba has compiled helpers with the number of before; what it compiles itself goes on with that."""
    space = {"__name__": f"unsure_{uuid.uuid4().hex}", "rate": 2.0}
    exec(UNSURE, space)
    assert space["called"](1.0) == 6.0
    space["rate"] = 3.0
    names = ("function", "registered", "element", "overload")
    assert [space[f"of_{name}"](1.0) for name in names] == [3.0, 2.0, 2.0, 1.0]
    with pytest.raises(tg.errors.UnsupportedOpError, match=r"rate was 2\.0, and it is 3\.0 now"):
        space["of_function"](tg.tensor(1.0, requires_grad=True))
    assert not kept


HELPER = """
import numba

@numba.njit
def scaled(x):
    return 2.0 * x
"""

PROGRAM = """
import os, sys, numpy as np, tapegrad as tg
from helper import scaled

rate = float(os.environ.get("RATE", "1.0"))

@tg.njit(cache=True)
def f(x):
    return rate * scaled(x) * x

def forms():
    from tapegrad.native.twin import twin_of
    derivatives = [tg.func.value_and_grad(f), tg.func.jvp(f)]
    x = tg.tensor(3.0, requires_grad=True)
    (g,) = tg.grad(f(x), x, create_graph=True)
    (h,) = tg.grad(g, x)
    print(f(3.0), *derivatives[0](3.0), derivatives[1](3.0, 1.0)[1], g.item(), h.item())
    found = [f.values, twin_of(f.primal, (), True), twin_of(f.primal, (1,), True)]
    found += [of._compiled for of in derivatives]
    print(*(sum(one.stats.cache_hits.values()) for one in found))
"""


SMALL = """
import numba, tapegrad as tg

@numba.njit
def scaled(x):
    return {factor} * x

@tg.njit(cache=True)
def f(x):
    return rate * scaled(x) * x
"""


@pytest.mark.quick
def test_a_form_of_other_sources_or_values_is_not_taken(monkeypatch, kept):
    name = f"program_{uuid.uuid4().hex}"

    def found(factor, rate):
        """A value, and whether the form that gave it was loaded, as in a process of its own."""
        module = types.ModuleType(name)
        module.rate = rate
        monkeypatch.setitem(sys.modules, name, module)
        exec(SMALL.format(factor=factor), vars(module))
        return module.f(3.0), sum(module.f.stats.cache_hits.values())

    assert found(2.0, 1.0) == (18.0, 0)
    assert found(2.0, 1.0) == (18.0, 1)
    (file,) = kept
    assert found(5.0, 1.0) == (45.0, 0)
    assert kept == {file}  # in the place of the one before
    assert found(5.0, 2.0) == (90.0, 0)
    assert found(5.0, 1.0) == (45.0, 1)
    file.write_bytes(file.read_bytes()[:-1])
    assert found(5.0, 1.0) == (45.0, 0)
    assert found(5.0, 1.0) == (45.0, 1)
    file.unlink()


@pytest.mark.slow
def test_all_forms_are_loaded_and_damaged_ones_compiled_again(tmp_path):
    (tmp_path / "helper.py").write_text(HELPER, "utf-8")
    (tmp_path / "program.py").write_text(PROGRAM, "utf-8")
    values = ["18.0", "18.0", "12.0", "12.0", "12.0", "4.0"]

    def forms():
        return run(tmp_path, "from program import *; forms()", TAPEGRAD_CACHE=str(tmp_path / "cache"))

    assert forms() == [*values, *"00000"]
    assert forms() == [*values, *"11111"]
    found = sorted((tmp_path / "cache").rglob("*.bin"))
    assert len(found) == 5
    for damage in (
        lambda data: b"",
        lambda data: data[:10],
        lambda data: data[: len(data) // 2],
        lambda data: data[: len(data) // 2] + bytes([data[len(data) // 2] ^ 4]) + data[len(data) // 2 + 1 :],
        lambda data: data + b"more",
    ):
        for file in found:
            file.write_bytes(damage(file.read_bytes()))
        assert forms() == [*values, *"00000"]
        assert forms() == [*values, *"11111"]
    (tmp_path / "helper.py").write_text(HELPER.replace("2.0", "4.0"), "utf-8")
    assert forms() == ["36.0", "36.0", "24.0", "24.0", "24.0", "8.0", *"00000"]
    assert not list(tmp_path.glob("__pycache__/*.nb?"))  # nothing beside the sources
