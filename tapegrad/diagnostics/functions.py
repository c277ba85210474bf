"""What there is: the settings in use, and a row for each public function of NumPy.

``python -m tapegrad info`` prints the settings, ``python -m tapegrad ops`` the table.
"""

from __future__ import annotations

import platform
from collections import Counter
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np

from tapegrad.compilation import background
from tapegrad.config import bounds, compiling_setting, guard_setting
from tapegrad.core.functions import FUNCTIONS, PLAIN, UFUNCS
from tapegrad.kernels import abi, cache
from tapegrad.ops import REGISTRY

__all__ = ["Row", "catalog", "instead_of", "show_config", "table"]

OP, COMPOSED, NATURE, MISSING = "op", "composed", "no derivative by nature", "not supported"
REASONS = {
    "makes arrays from numbers, shapes or other objects": """
        arange array asanyarray asarray asarray_chkfinite ascontiguousarray asfortranarray asmatrix bartlett
        blackman bmat broadcast_shapes diag_indices empty eye from_dlpack frombuffer fromfunction fromiter
        fromstring full hamming hanning identity indices kaiser mask_indices ones require tri tril_indices
        triu_indices zeros fft.fftfreq fft.rfftfreq""",
    "reads files": "fromfile fromregex genfromtxt load loadtxt",
    "integers, bits or dates": """
        bitwise_and bitwise_count bitwise_invert bitwise_left_shift bitwise_or bitwise_right_shift bitwise_xor
        busday_count busday_offset datetime_as_string datetime_data gcd is_busday isnat lcm""",
    "about dtypes, text or settings": """
        base_repr binary_repr format_float_positional format_float_scientific frompyfunc get_include
        get_printoptions getbufsize geterr geterrcall info isdtype isfortran isscalar issubdtype iterable
        mintypecode nested_iters printoptions promote_types set_printoptions setbufsize seterr seterrcall
        show_config show_runtime test typename linalg.test fft.test""",
    "truth values, indices or flat steps": "",  # what `PLAIN` has
    "reads memory by strides": "lib.stride_tricks.as_strided",
    "order of complex numbers": "sort_complex",
}
LACKING = {"order of complex numbers"}
ALIASES = {"row_stack"}  # Python functions of NumPy's that call another one


class Row(NamedTuple):
    """One function: its name, what there is, and why if there is no derivative."""

    name: str
    status: str
    reason: str = ""


def _functions() -> dict[str, Any]:
    """Public functions by name, of several names of one the first."""
    found = {}
    seen: set[int] = set()
    for module, prefix in (
        (np, ""), (np.linalg, "linalg."), (np.fft, "fft."), (np.lib.stride_tricks, "lib.stride_tricks."),
    ):  # fmt: skip
        for name in sorted(dir(module)):
            function = getattr(module, name)
            other = name.startswith("_") or isinstance(function, (type, ModuleType)) or not callable(function)
            if not other and id(function) not in seen and name not in ALIASES:
                seen.add(id(function))
                found[prefix + name] = function
    return found


def instead_of(name: str) -> str:
    """Return the function of this library that stands in for one of SciPy's, empty if there is none.

    Examples
    --------
    >>> from tapegrad.diagnostics.functions import instead_of
    >>> instead_of("scipy.special.logsumexp"), instead_of("scipy.special.errprint")
    ('tapegrad.scipy.special.logsumexp', '')
    """
    package, *parts = name.split(".")
    if package != "scipy" or len(parts) < 2:
        return ""
    try:
        found: Any = import_module(f"tapegrad.scipy.{parts[0]}")
    except ImportError:
        return ""
    for part in parts[1:]:
        there = part in found.__all__ if isinstance(found, ModuleType) else hasattr(found, part)
        if not there:  # a module has SciPy's other names too, which are SciPy's functions
            return ""
        found = getattr(found, part)
    return f"tapegrad.{name}"


def catalog() -> list[Row]:
    """Return a row for each public function of numpy, numpy.linalg, numpy.fft and numpy.lib.stride_tricks.

    Returns
    -------
    list of Row

    Examples
    --------
    >>> from tapegrad.diagnostics.functions import catalog
    >>> [row for row in catalog() if row.name == "sin"]
    [Row(name='sin', status='op', reason='')]
    """
    ops = {function for op in REGISTRY.values() for function in op.functions}
    reasons = {name: reason for reason, names in REASONS.items() for name in names.split()}
    rows = []
    for name, function in _functions().items():
        if function in PLAIN:
            rows.append(Row(name, NATURE, "truth values, indices or flat steps"))
        elif function in ops:
            rows.append(Row(name, OP))
        elif function in FUNCTIONS or function in UFUNCS:
            rows.append(Row(name, COMPOSED))
        else:
            reason = reasons.get(name, "unknown to this version")
            rows.append(Row(name, NATURE if name in reasons and reason not in LACKING else MISSING, reason))
    return rows


def table() -> str:
    """Return the rows as text, with a count of each kind at the end."""
    rows = catalog()
    lines = [f"{name:32s} {status}{': ' if reason else ''}{reason}" for name, status, reason in rows]
    counts = Counter(row.status for row in rows)
    differentiable = counts[OP] + counts[COMPOSED]
    return "\n".join([
        *lines, "",
        f"{differentiable} differentiable ({counts[OP]} by an op of their own, {counts[COMPOSED]} composed), "
        f"{counts[NATURE]} without a derivative by nature, {counts[MISSING]} not supported",
    ])  # fmt: skip


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def show_config() -> str:
    """Describe versions, the kernel cache and the interface to NumPy's structs in use.

    Returns
    -------
    str
        One setting a line.

    Examples
    --------
    >>> import tapegrad as tg
    >>> "kernel cache" in tg.show_config()
    True
    """
    rows = {name: _version(name) for name in ("tapegrad", "numpy", "numba", "llvmlite", "scipy")}
    rows["python"] = platform.python_version()
    rows["machine"] = f"{platform.system()} {platform.machine()}"
    rows["processor"] = cache.processor()
    rows["kernel cache"] = cache.describe()
    rows["of size"] = f"{sum(size for _, _, size, _ in cache.versions()) / 2**20:.1f} MiB, all versions"
    rows["guard"] = guard_setting()
    rows["object layout"] = abi.layout_in_use()
    rows["fused kernels"] = f"{compiling_setting()}: {background.describe()}"
    rows["bounds"] = "checked (TAPEGRAD_BOUNDS)" if bounds() else "not checked"
    return "\n".join(f"{name:14s} {value}" for name, value in rows.items())
