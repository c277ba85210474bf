"""Malformed calls over the whole public surface.

Each raises one of the documented exceptions, and leaves everything else as it was: derivatives of a fixed
function, of a graph recorded before, and a gradient accumulated before are the same to the last bit.
"""

import operator
import warnings

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.errors import TapeError
from tests.tiers import every

# ZeroDivisionError: NumPy's answer to a range of step 0
DOCUMENTED = (TapeError, TypeError, ValueError, IndexError, OverflowError, MemoryError, ZeroDivisionError)
HUGE = 10**18


def leaf(data=(1.0, 2.0), dtype=float):
    return tg.tensor(data, dtype=dtype, requires_grad=True)


# ---------------------------------------------------------------- what must not change


class Reference:
    def __init__(self):
        self.x = leaf((0.3, -1.2, 2.5))
        self.graph = (np.exp(self.x) * self.x).sum()
        self.graph.backward(retain_graph=True)

    def look(self):
        x = leaf((0.7, -0.4, 1.9))
        y = (np.sin(x) * np.exp(x[::-1]) + x**3.0).sum() / (x @ x)
        (g,) = tg.grad(y, x, create_graph=True)
        (h,) = tg.grad((g * g).sum(), x)
        (kept,) = tg.grad(self.graph, self.x, retain_graph=True)
        found = (y.detach(), g.detach(), h, kept, self.x.grad, self.x.detach())
        return b"".join(np.asarray(t.numpy()).tobytes() for t in found), tg.is_grad_enabled()


REFERENCE = []


@pytest.fixture
def reference():
    if not REFERENCE:
        made = Reference()
        REFERENCE.extend([made, made.look()])
    return REFERENCE


# ---------------------------------------------------------------- bad values


def ring():
    items = []
    items.append(items)
    return items


def deep(depth=5000):
    items = 1.0
    for _ in range(depth):
        items = [items]
    return items


FOREIGN = {  # no array, no number
    "text": lambda: "text",
    "bytes": lambda: b"\2\3",  # to NumPy they are numbers here and there: small ones
    "object": object,
    "dict": lambda: {"a": 1.0},
    "set": lambda: {1.0},
    "function": lambda: len,
    "class": lambda: int,
    "module": lambda: np,
    "slice": lambda: slice(1),
    "generator": lambda: (i for i in range(2)),
}
DTYPES = {  # arrays and numbers that have no derivative here
    "strings": lambda: np.array(["a", "b"]),
    "objects": lambda: np.array([None, 1.0]),
    "dates": lambda: np.array(["2000-01-01", "2001-01-01"], "M8[D]"),
    "records": lambda: np.zeros(2, [("a", float)]),
    "masked": lambda: np.ma.array([1.0, 2.0]),
}
NESTED = {
    "ragged list": lambda: [[1.0], [1.0, 2.0]],
    "list of text": lambda: ["a", "b"],
    "list of None": lambda: [None, None],
    "list of Tensors": lambda: [leaf(1.0), leaf(1.0)],
    "nested Tensors": lambda: [[leaf(1.0)], [2.0]],
    "list in itself": ring,
    "deep list": deep,
}
SHAPES = {
    "three": lambda: np.ones(3),
    "(2, 3)": lambda: tg.ones((2, 3)),
    "(0,)": lambda: np.ones(0),
    "leaf of 3": lambda: leaf(np.ones(3)),
}
NONE = {"None": lambda: None}

OPERANDS = FOREIGN | DTYPES | NESTED | SHAPES | NONE

BINARY = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "**": operator.pow,
    "@": operator.matmul,
    "//": operator.floordiv,
    "<": operator.lt,
    "np.maximum": np.maximum,
    "np.hypot": np.hypot,
    "np.arctan2": np.arctan2,
    "np.where": lambda a, b: np.where([True, False], a, b),
    "np.concatenate": lambda a, b: np.concatenate([a, np.stack([b])]),
    "np.stack": lambda a, b: np.stack([a, b]),
    "np.dot": np.dot,
    "np.einsum": lambda a, b: np.einsum("i,i->i", a, b),
    "np.linalg.solve": lambda a, b: np.linalg.solve(np.eye(2) * a, b),
}

CALLS = {}


def add(name, call):
    assert name not in CALLS
    CALLS[name] = call


# what NumPy gives an answer to is no misuse
LEGAL = {("np.concatenate", name) for name in SHAPES}
PRODUCTS = ("@", "np.dot", "np.linalg.solve")

for op_name, op in BINARY.items():
    for value_name, make in OPERANDS.items():
        if (op_name, value_name) in LEGAL:
            continue
        if (op_name, value_name) not in [(product, "(2, 3)") for product in PRODUCTS]:
            add(f"{op_name} | right | {value_name}", lambda op=op, make=make: op(leaf(), make()))
        if op_name not in ("np.concatenate", "np.linalg.solve"):
            add(f"{op_name} | left | {value_name}", lambda op=op, make=make: op(make(), leaf()))

# ---------------------------------------------------------------- functions and their arguments

AXES = {
    "5": 5,
    "-3": -3,
    "1.5": 1.5,
    "text": "x",
    "object": object(),
    "twice": (0, 0),
    "huge": 10**30,
    "list": [0, "a"],
}
REDUCTIONS = ["sum", "mean", "max", "min", "prod", "var", "std", "cumsum", "argmax", "any"]
for function in REDUCTIONS:
    for axis_name, axis in AXES.items():
        f, m = getattr(np, function), operator.methodcaller(function, axis=axis)
        add(
            f"np.{function} | axis | {axis_name}", lambda f=f, axis=axis: f(leaf([[1.0, 2.0]] * 2), axis=axis)
        )
        add(f"Tensor.{function} | axis | {axis_name}", lambda m=m: m(leaf([[1.0, 2.0]] * 2)))
for function in ["sum", "mean", "max", "min", "prod", "cumsum"]:
    f = getattr(np, function)
    add(f"np.{function} | out | array", lambda f=f: f(leaf(), axis=0, out=np.zeros(())))
for function in ["sum", "mean", "prod", "cumsum"]:
    f = getattr(np, function)
    for dtype in ("U5", "nonsense", object(), "M8[s]"):
        add(f"np.{function} | dtype | {dtype!r:.20}", lambda f=f, dtype=dtype: f(leaf(), dtype=dtype))
for axis_name, axis in AXES.items():
    for name, f in {
        "np.flip": np.flip,
        "np.expand_dims": np.expand_dims,
        "np.squeeze": np.squeeze,
        "np.stack": lambda x, axis: np.stack([x, x], axis),
        "np.concatenate": lambda x, axis: np.concatenate([x, x], axis),
        "np.take": lambda x, axis: np.take(x, [0], axis),
        "np.swapaxes": lambda x, axis: np.swapaxes(x, 0, axis),
        "np.moveaxis": lambda x, axis: np.moveaxis(x, 0, axis),
        "np.transpose": lambda x, axis: np.transpose(x, (0, axis)),
        "tg.logsumexp": lambda x, axis: tg.logsumexp(x, axis),
    }.items():
        if (name, axis) not in (("np.expand_dims", -3), ("np.stack", -3)):
            add(f"{name} | axis | {axis_name}", lambda f=f, axis=axis: f(leaf([[1.0, 2.0]] * 2), axis))

NEW_SHAPES = {
    "5": 5, "(3,)": (3,), "two unknown": (-1, -1), "text": "x", "1.5": 1.5,
    "None in it": (None, 4), "huge": HUGE, "beyond": 10**40, "empty": (), "ragged": [[1], [2, 3]],
    "object": object(), "dict": {},
}  # fmt: skip
for shape_name, shape in NEW_SHAPES.items():
    add(f"np.reshape | shape | {shape_name}", lambda s=shape: np.reshape(leaf([[1.0, 2.0]] * 2), s))
    add(f"Tensor.reshape | shape | {shape_name}", lambda s=shape: leaf([[1.0, 2.0]] * 2).reshape(s))
    if shape_name != "huge":
        add(
            f"np.broadcast_to | shape | {shape_name}",
            lambda s=shape: np.broadcast_to(leaf([[1.0, 2.0]] * 2), s),
        )

INDICES = {
    "2": 2, "-3": -3, "1.5": 1.5, "text": "x", "three": (0, 0, 0), "complex": 1j, "object": object(),
    "dict": {}, "nan": float("nan"), "array of floats": np.array([0.0]), "mask of 3": np.array([True] * 3),
    "huge": 10**30, "slice of text": slice("a"), "slice by 0": slice(None, None, 0),
    "two ellipses": (..., ...), "list of text": ["a"], "far list": [0, 7], "float list": [0.5],
    "list of Tensors": [leaf(0.0)], "float Tensor": tg.tensor(1.0), "do not broadcast": ([0, 1], [0, 1, 0]),
    "bytes": b"a", "function": len, "ring": ring(),
}  # fmt: skip
for index_name, index in INDICES.items():
    add(f"Tensor[] | index | {index_name}", lambda i=index: leaf([[1.0, 2.0]] * 2)[i])
    add(f"constant[] | index | {index_name}", lambda i=index: tg.ones((2, 2))[i])
    add(
        f"Tensor[] = | index | {index_name}", lambda i=index: operator.setitem(leaf([[1.0, 2.0]] * 2), i, 1.0)
    )
    if index_name not in ("three", "two ellipses", "do not broadcast"):
        add(f"0-d[] | index | {index_name}", lambda i=index: leaf(1.0)[i])
for name in ("iadd", "isub", "imul", "itruediv", "ipow", "imatmul", "ifloordiv"):
    for value_name, make in (FOREIGN | {"number": lambda: 1.0, "array": lambda: np.ones(2)}).items():
        add(
            f"{name} | operand | {value_name}", lambda n=name, make=make: getattr(operator, n)(leaf(), make())
        )

UNSUPPORTED = {
    "np.sort_complex": np.sort_complex, "np.linalg.det": np.linalg.det, "np.linalg.svd": np.linalg.svd,
    "np.fft.fft": lambda x: np.fft.fft(x, axis=3),
    "np.cumprod": lambda x: np.cumprod(x, 3), "np.add.at": lambda x: np.add.at(x, 0, 1.0),
    "np.add.outer": lambda x: np.bitwise_and.outer(x, x),
    "np.add.reduceat": lambda x: np.add.reduceat(x, [5]),
    "np.sin where=": lambda x: np.sin(x, where=np.array([True, False])),
    "np.divmod": lambda x: np.divmod(x, "a"),
    "np.pad by a function": lambda x: np.pad(x, 1, lambda *a: None),
    "np.sort out of range": lambda x: np.sort(x, 4),
     "np.median out=": lambda x: np.median(x, out=np.zeros(())),
    "np.interp out of shape": lambda x: np.interp(x, [0, 1], [0]), "np.put": lambda x: np.put(x, [0], [1.0]),
    "np.copyto": lambda x: np.copyto(x, 1.0), "np.fill_diagonal": lambda x: np.fill_diagonal(x, 0),
    "np.reshape order": lambda x: np.reshape(x, (2,), order="X"),
    "np.take mode": lambda x: np.take(x, [5], mode="other"),
    "np.max where=": lambda x: np.max(x, where=[True, False]),
    "np.linalg.norm of an order": lambda x: np.linalg.norm(x, deep()),
    "np.linalg.cond of an order": lambda x: np.linalg.cond(np.outer(x, x), deep()),
    "np.meshgrid of an indexing": lambda x: np.meshgrid(x, x, indexing=deep()),
    "np.gradient of an order": lambda x: np.gradient(x, edge_order=deep()),
    "np.sort by fields": lambda x: np.sort(x, order=deep()),
    "np.linalg.matrix_power": lambda x: np.linalg.matrix_power(np.outer(x, x), deep()),
    "np.einsum lists": lambda x: np.einsum(x, ["a"]),
    "np.einsum out=": lambda x: np.einsum("i->", x, out=np.zeros(())),
    "np.matmul axes=": lambda x: np.matmul(x, x, axes=[0, 0, 0]),
}  # fmt: skip
for name, f in UNSUPPORTED.items():
    add(f"{name} | operand | requires grad", lambda f=f: f(leaf()))

for text in ("i,i", "ij", "", "i->jj", "ii", "i->ii->i", "i...j->", "1", "i->k", "->", "I-J", "i,,", "é..."):
    add(
        f"np.einsum | subscripts | {text}",
        lambda t=text: np.einsum(t, leaf(), *([leaf(np.ones(3))] if t == "i,i" else [])),
    )
for value_name, make in (FOREIGN | DTYPES | NONE).items():
    add(f"np.clip | min | {value_name}", lambda m=make: np.clip(leaf(), m() if m() is not None else "x", 1.0))
    add(f"np.where | one branch | {value_name}", lambda m=make: np.where(True, leaf(), m()))
    if value_name not in ("class", "None"):  # dtypes to NumPy
        add(f"Tensor.astype | dtype | {value_name}", lambda m=make: leaf().astype(m()))
    add(f"Tensor.take | indices | {value_name}", lambda m=make: leaf().take(m()))
    add(f"format | spec | {value_name}", lambda m=make: format(leaf(1.0), str(type(m())) + "!"))

# ---------------------------------------------------------------- constructors

BAD_SHAPES = {
    "-1": -1, "text": "x", "1.5": 1.5, "huge": HUGE, "beyond": 10**40, "(2, -1)": (2, -1),
    "object": object(), "(HUGE, HUGE)": (HUGE, HUGE), "float in it": (2, 0.5), "dict": {"a": 1},
    "65 dimensions": (1,) * 65,
}  # fmt: skip
BAD_DTYPES = {
    "text": "nonsense", "U5": "U5", "object": object, "instance": object(), "number": 5, "dates": "M8[s]",
    "record": [("a", float)],
}  # fmt: skip
BAD_FLAGS = {"1": 1, "None": None, "text": "yes", "np.True_": np.True_, "object": object(), "list": []}
for name in ("zeros", "ones", "full"):
    fill = (1.0,) if name == "full" else ()
    f = getattr(tg, name)
    for shape_name, shape in BAD_SHAPES.items():
        add(f"tg.{name} | shape | {shape_name}", lambda f=f, s=shape, fill=fill: f(s, *fill))
    for dtype_name, dtype in BAD_DTYPES.items():
        add(f"tg.{name} | dtype | {dtype_name}", lambda f=f, d=dtype, fill=fill: f(2, *fill, dtype=d))
    for flag_name, flag in BAD_FLAGS.items():
        add(
            f"tg.{name} | requires_grad | {flag_name}",
            lambda f=f, r=flag, fill=fill: f(2, *fill, requires_grad=r),
        )
    add(f"tg.{name} | none given", f)
    add(f"tg.{name} | keyword | unknown", lambda f=f, fill=fill: f(2, *fill, nothing=1))
for value_name, make in (FOREIGN | DTYPES | NESTED | NONE).items():
    if value_name not in ("masked",):
        add(f"tg.tensor | data | {value_name}", lambda m=make: tg.tensor(m()))
        add(f"tg.asarray | data | {value_name}", lambda m=make: tg.asarray(m()))
        if "Tensors" not in value_name:
            add(f"tg.array | data | {value_name}", lambda m=make: tg.array(m()))
    if value_name in FOREIGN or ("list" in value_name and "None" not in value_name):
        add(f"tg.full_like | value | {value_name}", lambda m=make: tg.full_like(tg.ones(2), m()))
    add(f"tg.from_numpy | array | {value_name}", lambda m=make: tg.from_numpy(m()))
    add(f"tg.arange | stop | {value_name}", lambda m=make: tg.arange(m()))
    add(f"tg.eye | n | {value_name}", lambda m=make: tg.eye(m()))
for dtype_name, dtype in BAD_DTYPES.items():
    add(f"tg.tensor | dtype | {dtype_name}", lambda d=dtype: tg.tensor([1.0], d))
    add(f"tg.array | dtype | {dtype_name}", lambda d=dtype: tg.array([leaf(1.0)], d))
    add(f"tg.asarray | dtype | {dtype_name}", lambda d=dtype: tg.asarray(leaf(), d))
for arguments in ((0, HUGE), (0, 1, 0), (0, 1, float("nan")), (0, float("inf"))):
    add(f"tg.arange | bounds | {arguments}", lambda a=arguments: tg.arange(*a))
for arguments in ((0, 1, -1), (0, 1, 2.5), (0, 1, HUGE), ("a", 1), (0,)):
    add(f"tg.linspace | bounds | {arguments}", lambda a=arguments: tg.linspace(*a))

# ---------------------------------------------------------------- differentiation

GRADIENTS = FOREIGN | DTYPES | NESTED | SHAPES
for value_name, make in GRADIENTS.items():
    add(f"backward | gradient | {value_name}", lambda m=make: (leaf() * 2.0).backward(m()))
    add(f"tg.grad | grad_outputs | {value_name}", lambda m=make: tg.grad([(x := leaf()) * 2.0], x, [m()]))
    add(f"tg.grad recorded | grad_outputs | {value_name}",
        lambda m=make: tg.grad([(x := leaf()) * 2.0], x, [m()], create_graph=True))  # fmt: skip
    if not isinstance(make(), tg.Tensor):
        add(f"Tensor.grad = | value | {value_name}", lambda m=make: setattr(leaf(), "grad", m()))
        add(f"Tensor.data = | value | {value_name}", lambda m=make: setattr(leaf(), "data", m()))
    if value_name != "list of Tensors":
        add(f"tg.backward | tensors | {value_name}", lambda m=make: tg.backward(m()))
    add(f"tg.grad | outputs | {value_name}", lambda m=make: tg.grad(m(), leaf()))
    add(f"tg.grad | inputs | {value_name}", lambda m=make: tg.grad((leaf() * 2.0).sum(), m()))
    add(f"tg.grad | in inputs | {value_name}", lambda m=make: tg.grad(((x := leaf()) * 2.0).sum(), [x, m()]))
    if value_name != "leaf of 3":  # of no effect
        add(f"backward | inputs | {value_name}", lambda m=make: (leaf() * 2.0).sum().backward(inputs=[m()]))
for flag_name, flag in BAD_FLAGS.items():
    add(f"requires_grad_ | flag | {flag_name}", lambda r=flag: tg.ones(2).requires_grad_(r))
    add(f"requires_grad = | flag | {flag_name}", lambda r=flag: setattr(tg.ones(2), "requires_grad", r))
    add(f"tg.tensor | requires_grad | {flag_name}", lambda r=flag: tg.tensor(1.0, requires_grad=r))
for value_name, make in (FOREIGN | NONE).items():
    add(
        f"tg.gradcheck | function | {value_name}",
        lambda m=make: tg.gradcheck(m() if m() is not len else None, leaf()),
    )
    add(f"tg.gradcheck | inputs | {value_name}", lambda m=make: tg.gradcheck(np.sin, m()))
    add(f"tg.gradgradcheck | inputs | {value_name}", lambda m=make: tg.gradgradcheck(np.sin, m()))
    add(
        f"tg.gradcheck | result | {value_name}",
        lambda m=make: tg.gradcheck(lambda x: x.detach() * 2.0, leaf(), eps=m()),
    )
MORE = {
    "backward | twice": lambda: [y := np.exp(leaf()).sum(), y.backward(), y.backward()],
    "backward | constant": lambda: tg.ones(()).backward(),
    "backward | keyword": lambda: leaf(1.0).backward(nothing=1),
    "tg.grad | keyword": lambda: tg.grad(leaf(1.0), leaf(1.0), is_grads_batched=True),
    "tg.grad | unused": lambda: tg.grad(leaf(1.0) * 2.0, leaf(1.0)),
    "tg.grad | contradiction": lambda: tg.grad(x := leaf(1.0), x, materialize_grads=True, allow_unused=False),
    "tg.grad | nothing": lambda: tg.grad(),
    "tg.set_grad_enabled | nothing": lambda: tg.set_grad_enabled(),
    "retain_grad | constant": lambda: tg.ones(2).retain_grad(),
    "float | several": lambda: float(tg.ones(2)),
    "int | requires grad": lambda: int(leaf(1.0)),
    "bool | several": lambda: bool(leaf()),
    "len | 0-d": lambda: len(leaf(1.0)),
    "iter | 0-d": lambda: list(leaf(1.0)),
    "item | several": lambda: leaf().item(),
    "item | far": lambda: leaf().item(5),
    "np.asarray | requires grad": lambda: np.asarray(leaf()),
    "np.array | list": lambda: np.array([leaf(), leaf()]),
    "np.sum | list": lambda: np.sum([leaf(), leaf()]),
    "tg.array | ragged": lambda: tg.array([leaf(), leaf(1.0)]),
    "tg.array | ring": lambda: tg.array([leaf(1.0), ring()]),
    "np.matrix_transpose | vector": lambda: np.matrix_transpose(leaf()),
    "solve | not square": lambda: np.linalg.solve(leaf([[1.0, 2.0]]), np.ones(1)),
    "solve | singular": lambda: np.linalg.solve(leaf(np.zeros((2, 2))), np.ones(2)),
    "max | empty": lambda: leaf(np.zeros(0)).max(),
    "no_grad | not callable": lambda: tg.no_grad(5)(),
}  # fmt: skip
for name, call in MORE.items():
    add(name, call)


@pytest.mark.parametrize("name", every(CALLS, 5))
def test_malformed_call(name, reference):
    kept, before = reference
    outcome = None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            CALLS[name]()
        except BaseException as error:
            outcome = error
    assert kept.look() == before
    assert outcome is not None, "no exception"
    assert isinstance(outcome, DOCUMENTED), f"{type(outcome).__name__}: {outcome}"
    assert str(outcome)


def test_there_are_many_of_them(capsys):
    with capsys.disabled():
        print(f"\n{len(CALLS)} malformed calls")
    assert len(CALLS) >= 500
