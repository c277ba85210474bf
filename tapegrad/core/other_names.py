"""Names that other libraries have and this one has not: what does the same here."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Any, NoReturn

import numpy as np

from tapegrad.errors import BorderError

__all__ = ["explain_methods", "missing"]


def _read(text: str) -> dict[str, str]:
    """Names by line, each with what stands behind the colon."""
    lines = (line.strip().partition(": ") for line in text.strip().splitlines())
    return {name: advice for names, _, advice in lines for name in names.split()}


METHODS = _read("""
    cpu cuda pin_memory: arrays are NumPy's, in main memory; leave the call out
    to type: x.astype(dtype) converts
    long int bool: x.astype(int) has no derivative; x.detach().astype(int) says so
    float double: x.astype(np.float32) or x.astype(float) converts
    half bfloat16: derivatives take float32, float64 and their complex kin; use x.astype(np.float32)
    pow: write x**n
    mm mv bmm matmul: write A @ B
    add sub mul div neg: write the operator, as x + y
    eq ne lt le gt ge: write the comparison, as x > y
    t: write A.T
    permute: write x.transpose(axes)
    unsqueeze: write np.expand_dims(x, axis)
    expand expand_as: write np.broadcast_to(x, shape)
    view_as reshape_as: write x.reshape(y.shape)
    norm: write np.linalg.norm(x)
    inverse: write np.linalg.inv(A)
    det logdet: write np.linalg.det(A) or np.linalg.slogdet(A)
    numel nelement: write x.size
    dim: write x.ndim
    contiguous: NumPy copies where it must; leave the call out
    clamp: write np.clip(x, low, high)
    sigmoid: write scipy.special.expit(x)
    softmax log_softmax: tapegrad.scipy.special has it
    erf lgamma digamma: scipy.special has it
    relu: write np.maximum(x, 0.0)
    rsqrt: write 1 / np.sqrt(x)
    masked_fill: write np.where(mask, value, x)
    index_select: write np.take(x, indices, axis)
    gather: write np.take_along_axis(x, indices, axis)
    scatter scatter_add scatter_add_ index_add: write y = x.clone(); np.add.at(y, indices, values)
    chunk split: write np.split(x, n)
    unbind: write list(x)
    squeeze_ unsqueeze_ t_ transpose_: write x = x.reshape(shape); a view is no write
    H mH adjoint: write np.conj(A).T
    einsum: write np.einsum("ij,j->i", A, x)
    isnan isfinite isinf allclose: NumPy's functions take Tensors, as np.isnan(x)
    apply_ map_: write it in NumPy's functions; tg.njit compiles loops over numbers
    is_cuda get_device: arrays are NumPy's, in main memory
    register_backward_hook: write x.register_hook(f)
    value primal: write x.detach()
    new_zeros new_ones new_tensor: tg.zeros, tg.ones and tg.tensor make Tensors
    zero_grad: write x.grad = None
    at: write y = x.clone(); y[i] = value, which is differentiated
    block_until_ready: results are there when a call returns; leave the call out
    append extend: collect values in a list and np.stack it; np.append(x, value) copies the whole array
""")
MODULE = _read("""
    scipy: it is a module of its own; import tapegrad.scipy as ts
    lax: loops and branches are Python's; tg.njit compiles those over numbers
    pmap: tg.batch.map has members computed by threads, processes and machines
    tree tree_map tree_util: parameters may be dicts and lists; tg.func.ravel_tree makes a vector of them
    set_default_dtype: Tensors of Python's numbers are float64; give dtype=np.float32 where they are made
    jit: tg.compile runs a function by a program; tg.njit compiles it by Numba
    Parameter: tg.tensor(data, requires_grad=True) makes a leaf
    nn optim: tapegrad has no layers or optimizers; tapegrad.scipy.optimize.minimize takes plain functions
    numpy: import NumPy itself, its functions take Tensors
    elementwise_grad egrad: tg.func.grad of the sum of f is the gradient by each element
    multigrad_dict make_vjp make_jvp: tapegrad.func has value_and_grad, vjp and jvp
    is_tensor: write isinstance(x, tg.Tensor)
    stop_gradient: x.detach() has the value and no history
    device cuda device_put: arrays are NumPy's, in main memory
    manual_seed rand randn: NumPy's random generators make arrays, np.random.default_rng(seed)
    cat: np.concatenate takes Tensors
    mm bmm: A @ B multiplies Tensors
    pow: x**n, or np.power, takes Tensors
    relu: np.maximum(x, 0.0) takes Tensors
    sigmoid: scipy.special.expit takes Tensors
    save load: np.save keeps values, x.detach().numpy()
    Tape GradientTape: Tensors are recorded as they are computed; tg.grad(y, x) is the derivative
""")


class OtherName:
    """What raises AttributeError, and says what to write, where an attribute would be."""

    def __init__(self, name: str, advice: str) -> None:
        self.name, self.advice = name, advice

    def __get__(self, instance: object, owner: type | None = None) -> NoReturn:
        raise AttributeError(f"a Tensor has no {self.name!r}; {self.advice}", name=self.name, obj=instance)


def explain_methods(cls: type) -> None:
    """Have a class answer for the methods of other libraries' arrays.

    Names of its own, not `__getattr__`: that would cost each access to any attribute.
    """
    for name, advice in METHODS.items():
        setattr(cls, name, OtherName(name, advice))

    def __dir__(self: object) -> Iterator[str]:
        """Name what there is."""
        return (name for name in object.__dir__(self) if name not in METHODS)

    cls.__dir__ = __dir__  # type: ignore[assignment]
    cls.__init__ = _without_data  # type: ignore[misc]
    cls.__torch_function__ = classmethod(_called_by_torch)  # type: ignore[attr-defined]


def _without_data(self: object, *data: object, **options: object) -> None:
    if data or options:
        found = ", ".join([*(type(value).__name__ for value in data), *options])
        raise TypeError(
            f"{type(self).__name__}() takes no data, found {found}; tg.tensor([1.0, 2.0], requires_grad=True)"
            " makes a leaf, tg.zeros(shape) one of a shape"
        )


def _called_by_torch(cls: type, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> NoReturn:
    """Say in place of a function of torch's, which asks this of what is no tensor of its own."""
    raise BorderError(  # no TypeError, for which an operator of torch's has a message of its own
        f"torch's {function.__name__} takes torch's tensors, found one of tapegrad's; NumPy's functions and "
        "operators take it, torch.from_numpy(x.detach().numpy()) is its value, and "
        "tapegrad.interop.from_torch(f) makes a function of torch's tensors one of tapegrad's"
    )


def missing(name: str, own: Iterable[str], modules: Iterable[Any], asked: str = "tapegrad") -> str:
    """Return the message for an attribute that the package has not.

    Parameters
    ----------
    name : str
        What was asked.
    own : iterable of str
        The names of the module asked.
    modules : iterable of modules
        Of the package: where else to look.
    asked : str, optional
        The module.

    Examples
    --------
    >>> missing("cat", [], [])
    "tapegrad has no 'cat'; np.concatenate takes Tensors"
    >>> missing("exp", [], [])
    "tapegrad has no 'exp'; np.exp takes Tensors"
    >>> missing("tensr", ["tensor"], [])
    "tapegrad has no 'tensr'; there is tg.tensor"
    >>> missing("grdd", ["grad"], [], "tapegrad.func")
    "tapegrad.func has no 'grdd'; there is tg.func.grad"
    """
    said = f"{asked} has no {name!r}"
    if name in MODULE:
        return f"{said}; {MODULE[name]}"
    for module in modules:
        if name in module.__all__:
            return f"{said}; there is {module.__name__}.{name}"
    if hasattr(np, name):
        meant = getattr(np, name)
        called = callable(meant) and not isinstance(meant, type)
        return f"{said}; np.{name} {'takes Tensors' if called else 'is what to use'}"
    close = difflib.get_close_matches(name, own, 1)
    return f"{said}; there is {asked.replace('tapegrad', 'tg')}.{close[0]}" if close else said
