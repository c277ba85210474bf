"""The same short programs here and in torch: values, or the class of the exception."""

import warnings

import numpy as np
import pytest

import tapegrad as tg

torch = pytest.importorskip("torch")

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("tape_length")]


class Ours:
    grad = staticmethod(tg.grad)
    backward = staticmethod(tg.backward)
    no_grad = tg.no_grad

    @staticmethod
    def tensor(data, requires_grad=True):
        return tg.tensor(data, dtype=float, requires_grad=requires_grad)


class Theirs:
    grad = staticmethod(torch.autograd.grad)
    backward = staticmethod(torch.autograd.backward)
    no_grad = torch.no_grad

    @staticmethod
    def tensor(data, requires_grad=True):
        return torch.tensor(data, dtype=torch.float64, requires_grad=requires_grad)


def plain(result):
    if isinstance(result, (list, tuple)):
        return [plain(r) for r in result]
    if isinstance(result, dict):
        return {k: plain(r) for k, r in result.items()}
    return result.tolist() if hasattr(result, "tolist") else result


def outcome(program, api):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return plain(program(api, api.tensor([1.0, 2.0]), api.tensor([3.0, 5.0])))
        except Exception as error:
            return error


def twice(call, between=lambda: None):
    call()
    between()
    call()


def accumulated(x, *calls):
    for call in calls:
        call()
    return x.grad


def freed(x, y):
    y.backward()
    try:
        y.backward()
    except RuntimeError:
        return "freed", x.grad
    return "kept", x.grad


PROGRAMS = {
    "A1 two elements": lambda t, x, z: (x * 2).backward(),
    "A1 grad of two elements": lambda t, x, z: t.grad(x * 2, x),
    "A1 empty": lambda t, x, z: x[:0].backward(),
    "A1 (1, 1)": lambda t, x, z: t.grad((x * z).sum().reshape(1, 1), [x, z]),
    "A3 (1, 2)": lambda t, x, z: (x * 2).backward(t.tensor([[1.0, 1.0]])),
    "A3 scalar": lambda t, x, z: (x * 2).backward(t.tensor(1.0)),
    "A4 fewer": lambda t, x, z: t.grad([x * 2, z * 2], [x, z], [t.tensor([1.0, 1.0])]),
    "A5 text": lambda t, x, z: (x * 2).backward("text"),
    "A6 None": lambda t, x, z: t.grad([x.sum(), z.sum()], [x, z], [None, t.tensor(2.0)]),
    "A7 constant root": lambda t, x, z: t.tensor(1.0, False).backward(),
    "A7 second root": lambda t, x, z: t.backward([x.sum(), t.tensor(1.0, False)]),
    "A7 detached": lambda t, x, z: t.grad(x.detach().sum(), x, allow_unused=True),
    "A8 leaf": lambda t, x, z: t.grad(x, x, t.tensor([5.0, 6.0])),
    "A8 backward of a leaf": lambda t, x, z: accumulated(x, lambda: x.backward(t.tensor([5.0, 6.0]))),
    "A9 twice": lambda t, x, z: t.grad([y := (x * z).sum(), y], [x, z]),
    "A9 root below a root": lambda t, x, z: t.grad([a := (x * x).sum(), b := 2 * a], [a, b, x]),
    "A11 no roots": lambda t, x, z: t.backward([]),
    "A11 no roots, inputs": lambda t, x, z: t.grad([], [x]),
    "A11 no roots, unused": lambda t, x, z: t.grad([], [x], allow_unused=True),
    "A14 by the gradient": lambda t, x, z: t.grad(t.grad(x * x, x, z, create_graph=True)[0].sum(), [x, z]),
    "B1 mul": lambda t, x, z: freed(x, (x * x).sum()),
    "B1 mul by a number": lambda t, x, z: freed(x, (x * 3).sum()),
    "B1 div": lambda t, x, z: freed(x, (x / 3).sum()),
    "B1 pow": lambda t, x, z: freed(x, (x**3).sum()),
    "B2 add": lambda t, x, z: freed(x, (x + x).sum()),
    "B2 neg": lambda t, x, z: freed(x, (-x).sum()),
    "B2 sub": lambda t, x, z: freed(x, (x - z).sum()),
    "B2 index": lambda t, x, z: freed(x, x[0]),
    "B2 reshape": lambda t, x, z: freed(x, x.reshape(2, 1).sum()),
    "B3": lambda t, x, z: [t.grad(y := (x * x + z * z).sum(), x), t.grad(y, z)],
    "B4": lambda t, x, z: [(a := x * x).sum().backward(), (a * a).sum().backward()],
    "B5": lambda t, x, z: [t.grad(y := (x * x).sum(), x, create_graph=True), t.grad(y, x)],
    "B5 retain": lambda t, x, z: [t.grad(y := (x * x).sum(), x, retain_graph=True), t.grad(y, x)],
    "B6": lambda t, x, z: t.grad(
        t.grad((x**3).sum(), x, create_graph=True, retain_graph=False)[0].sum(), x
    ),
    "C1": lambda t, x, z: t.grad(x.sum(), []),
    "C1 backward": lambda t, x, z: x.sum().backward(inputs=[]),
    "C2 others": lambda t, x, z: [(x * z).sum().backward(inputs=x), x.grad, z.grad],
    "C2 dict": lambda t, x, z: t.grad((x * z).sum(), {"a": z, "b": x}),
    "C3": lambda t, x, z: [a := x * z, (a * a).sum().backward(inputs=[a]), a.grad, a.retains_grad, x.grad],
    "C4": lambda t, x, z: t.grad(x.sum(), [x, z]),
    "C4 backward": lambda t, x, z: [x.sum().backward(inputs=[z]), x.grad, z.grad],
    "C5 None": lambda t, x, z: t.grad(x.sum(), [z, x], allow_unused=True),
    "C5 zeros": lambda t, x, z: t.grad(x.sum(), [z, x], materialize_grads=True),
    "C5 contradiction": lambda t, x, z: t.grad(x.sum(), [z], materialize_grads=True, allow_unused=False),
    "C6": lambda t, x, z: t.grad(x.sum(), [t.tensor(1.0, False)], allow_unused=True),
    "C7": lambda t, x, z: t.grad((x * x).sum(), [x, x]),
    "C7 backward": lambda t, x, z: [(x * x).sum().backward(inputs=[x, x]), x.grad],
    "C9": lambda t, x, z: t.grad(((a := x * z) * a).sum(), [a, z, x]),
    "C10": lambda t, x, z: t.grad(((y := x * 3) * y).sum(), [y[0]], allow_unused=True),
    "C11 off": lambda t, x, z: [y := x @ z, x.requires_grad_(False), y.backward(), x.grad, z.grad][3:],
    "D1": lambda t, x, z: [twice(lambda: (x * x).sum().backward()), x.grad],
    "D2": lambda t, x, z: [(x**3).sum().backward(create_graph=True), t.grad(x.grad.sum(), x)],
    "D3": lambda t, x, z: [(x**3).sum().backward(create_graph=True), x.sum().backward(), x.grad],
    "D3 derivative": lambda t, x, z: [
        (x**3).sum().backward(create_graph=True), x.sum().backward(), t.grad((x.grad**2).sum(), x),
    ],
    "D7 text": lambda t, x, z: setattr(x, "grad", "text"),
    "D7 shape": lambda t, x, z: setattr(x, "grad", t.tensor(1.0, False)),
    "D7 itself": lambda t, x, z: setattr(x, "grad", x),
    "D8": lambda t, x, z: (x * 2).grad,
    "D9 leaf": lambda t, x, z: [x.retain_grad(), x.retains_grad],
    "D9 constant": lambda t, x, z: t.tensor(1.0, False).retain_grad(),
    "D9": lambda t, x, z: [y := x * z, y.retain_grad(), (y * y).sum().backward(), y.grad, x.grad],
    "D10": lambda t, x, z: t.grad((x.reshape(2, 1) * z).sum(), [x, z]),
    "D13": lambda t, x, z: t.grad(next(iter(x)) * 2, x),
    "E1": lambda t, x, z: setattr(x, "requires_grad", 1),
    "E2": lambda t, x, z: (x * 2).requires_grad_(False),
    "E2 no-op": lambda t, x, z: (x * 2).requires_grad_(),
    "E3": lambda t, x, z: [x.is_leaf, (x * 2).is_leaf, x.detach().is_leaf, t.tensor(1.0, False).is_leaf],
    "E5 data": lambda t, x, z: [y := (x + z).sum(), setattr(x, "data", z.detach()), t.grad(y, x)],
    "E12 bool": lambda t, x, z: bool(x),
    "E12 len": lambda t, x, z: len(x[0]),
    "E12 iter": lambda t, x, z: list(x[0]),
    "E13 index": lambda t, x, z: x[7],
    "E17": lambda t, x, z: setattr(x, "data", 5.0),
}  # fmt: skip


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_outcome(name):
    ours, theirs = (outcome(PROGRAMS[name], api) for api in (Ours, Theirs))
    if isinstance(theirs, Exception):
        kind = next(k for k in (IndexError, TypeError, ValueError, RuntimeError) if isinstance(theirs, k))
        assert isinstance(ours, kind), f"{ours!r} where torch raises {theirs!r}"
    else:
        assert not isinstance(ours, Exception), f"{ours!r} where torch gives {theirs}"
        assert_equal(ours, theirs)


def assert_equal(ours, theirs):
    if isinstance(theirs, dict):
        assert list(ours) == list(theirs)
        ours, theirs = list(ours.values()), list(theirs.values())
    if isinstance(theirs, list):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert_equal(a, b)
    elif isinstance(theirs, float):
        np.testing.assert_allclose(ours, theirs, rtol=1e-13)
    else:
        assert ours == theirs
