"""What the package shows: to `dir`, to completion, and to ``import *``."""

import inspect
import types

import pytest

import tapegrad as tg

NAMES = [
    "Tensor", "arange", "array", "asarray", "autograd", "backward", "batch", "compile", "diagnostics",
    "empty_like", "enable_grad", "errors", "eye", "from_numpy", "full", "full_like", "func", "grad",
    "gradcheck", "gradgradcheck", "guard", "inference_mode", "interop", "is_grad_enabled",
    "is_inference_mode_enabled", "linspace", "logsumexp", "njit", "no_grad", "ones", "ones_like",
    "report", "set_grad_enabled", "show_config", "tensor", "zeros", "zeros_like",
]  # fmt: skip


def shown(module):
    return [name for name in dir(module) if not name.startswith("__")]


def test_the_package_shows_what_users_need():
    assert shown(tg) == sorted(NAMES)


MODULES = [tg, tg.autograd, tg.diagnostics, tg.func]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_a_module_shows_what_it_exports(module):
    assert shown(module) == sorted(module.__all__)
    space = {}
    exec(f"from {module.__name__} import *", space)
    assert {name: space[name] for name in module.__all__} == {n: getattr(module, n) for n in module.__all__}


def test_what_is_not_shown_is_there_for_those_who_know():

    assert isinstance(tg.kernels.cache, types.ModuleType) and tg.__version__
    assert {"__doc__", "__version__"} <= set(dir(tg))


@pytest.mark.parametrize(("name", "arguments"), [
    ("no_grad", ["function"]), ("set_grad_enabled", ["mode"]), ("inference_mode", ["mode"]),
    ("guard", ["mode"]), ("autograd.set_detect_anomaly", ["mode", "check_nan"]),
    ("autograd.graph.save_on_disk", ["directory"]),
    ("autograd.Variable", ["data", "requires_grad", "volatile"]),
    ("autograd.profiler.profile",
     ["enabled", "record_shapes", "profile_memory", "with_stack", "with_flops"]),
])  # fmt: skip
def test_help_shows_what_a_class_is_made_with(name, arguments):
    found = tg
    for part in name.split("."):
        found = getattr(found, part)
    assert list(inspect.signature(found).parameters) == arguments
