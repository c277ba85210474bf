"""Functions of ours in torch's programs, and of torch's in ours: values, derivatives, what is refused."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.errors import BorderError, DTypeError

pytestmark = pytest.mark.full
torch = pytest.importorskip("torch")


def leaf(*values, dtype=torch.float64):
    return torch.tensor(values, dtype=dtype, requires_grad=True)


def several(x, y, power=1):
    return {"sum": np.sum(np.sin(x) * y["scale"]) ** power, "parts": (x * y["scale"][0], np.argmax(x))}


def test_derivatives_of_trees_to_second_order():
    function = tg.interop.to_torch(several)

    def number(x, scale):
        found = function(x, {"scale": scale}, power=2)
        return found["sum"] + found["parts"][0].sum()

    xs = leaf(0.3, 0.7), leaf(1.0, 2.0)
    assert torch.autograd.gradcheck(number, xs) and torch.autograd.gradgradcheck(number, xs)
    exact = torch.autograd.functional.hessian(
        lambda x: (torch.sin(x) * xs[1]).sum() ** 2 + (x * 1.0).sum(), xs[0]
    )
    torch.testing.assert_close(torch.autograd.functional.hessian(lambda x: number(x, xs[1]), xs[0]), exact)
    assert not function(*xs[:1], {"scale": xs[1]})["parts"][1].requires_grad


def test_complex_numbers():
    def f(z):
        return np.exp(z) * np.conj(z)

    z = leaf(0.3 + 0.2j, 1.0 - 0.5j, dtype=torch.complex128)
    assert torch.autograd.gradcheck(tg.interop.to_torch(f), (z,))
    back = tg.interop.from_torch(lambda z: torch.exp(z) * z.conj())
    assert tg.gradcheck(back, (tg.tensor(z.detach().numpy(), requires_grad=True),))


def test_transforms_of_torch_func():
    function = tg.interop.to_torch(lambda x: np.sum(x**3))
    x = torch.tensor([1.0, 2.0], dtype=torch.float64)
    assert torch.func.jacrev(torch.func.grad(function))(x).tolist() == [[6.0, 0.0], [0.0, 12.0]]
    assert torch.func.vmap(torch.func.grad(function))(torch.stack([x, 2 * x])).tolist() == [[3, 12], [12, 48]]


def test_compiled_functions_and_dtypes():
    @tg.njit
    def cubes(x):
        total = 0.0
        for k in range(x.size):
            total += x[k] ** 3
        return total

    x = leaf(1.0, 2.0)
    tg.interop.to_torch(cubes)(x).backward()
    assert x.grad.tolist() == [3.0, 12.0]
    single = leaf(1.0, 2.0, dtype=torch.float32)
    value = tg.interop.to_torch(lambda x: np.sum(x**3))(single)
    value.backward()
    assert value.dtype == single.grad.dtype == torch.float32


def test_a_step_of_an_optimizer_is_that_of_torch_alone():
    found = []
    for f in (
        tg.interop.to_torch(lambda w: np.sum((w - np.arange(3.0)) ** 2)),
        lambda w: ((w - torch.arange(3)) ** 2).sum(),
    ):
        w = leaf(1.0, 1.0, 1.0)
        optimizer = torch.optim.LBFGS([w])

        def closure():
            optimizer.zero_grad()
            loss = f(w)
            loss.backward()
            return loss

        optimizer.step(closure)
        found.append(w.detach().clone())
    torch.testing.assert_close(*found)


def test_nothing_is_dropped():
    outside = tg.tensor(2.0, requires_grad=True)
    for x in (leaf(1.0), torch.tensor([1.0])):
        with pytest.raises(BorderError, match="none of the arguments"):
            tg.interop.to_torch(lambda x: np.sum(x) * outside)(x)
    layer = torch.nn.Linear(2, 1)
    with pytest.raises(BorderError, match="requires_grad"):
        tg.interop.from_torch(layer)(np.ones(2, np.float32))
    layer.requires_grad_(False)
    assert tg.interop.from_torch(layer)(np.ones(2, np.float32)).shape == (1,)
    with pytest.raises(DTypeError, match="bfloat16"):
        tg.interop.to_torch(np.sum)(leaf(1.0, dtype=torch.bfloat16))
    with pytest.raises(DTypeError, match="dense"):
        tg.interop.to_torch(np.sum)(torch.eye(2).to_sparse())
    with pytest.raises(TypeError, match="takes a function"):
        tg.interop.to_torch(3)


def test_torch_in_our_programs():
    f = tg.interop.from_torch(lambda x, p: torch.sin(x) * p["w"] + torch.outer(x, x) @ p["w"])

    def ours(x, w):
        return np.sin(x) * w + np.outer(x, x) @ w

    x, w = (tg.tensor(v, requires_grad=True) for v in ([0.3, 0.7], [1.0, 2.0]))
    np.testing.assert_allclose(f(x, {"w": w}).detach(), ours(x, w).detach(), rtol=1e-15)
    assert tg.gradcheck(lambda x, w: f(x, {"w": w}), (x, w)) and tg.gradgradcheck(
        lambda x, w: f(x, {"w": w}), (x, w)
    )
    at, direction = np.array([0.3, 0.7]), np.array([1.0, -1.0])
    for a, b in zip(
        tg.func.jvp(lambda x: f(x, {"w": np.ones(2)}))(at, direction),
        tg.func.jvp(lambda x: ours(x, np.ones(2)))(at, direction),
        strict=True,
    ):
        np.testing.assert_allclose(a, b, rtol=1e-14)


def test_there_and_back():
    twice = tg.interop.from_torch(tg.interop.to_torch(lambda x: np.sum(np.cosh(x))))
    x = tg.tensor([0.5, 1.0], requires_grad=True)
    np.testing.assert_allclose(
        tg.func.hessian(twice)(np.array([0.5, 1.0])), np.diag(np.cosh([0.5, 1.0])), rtol=1e-15
    )
    assert tg.gradcheck(twice, (x,))


@pytest.mark.parametrize("program", [
    "torch.sin(x) | torch's sin", "torch.stack([x, x]) | torch's stack", "x + t | torch's add",
    "t * x | torch's mul", "t.copy_(x) | torch's copy_", "torch.nn.functional.linear(x, t) | torch's linear",
    "torch.sin(x.detach()) | .detach().numpy(); interop.from_torch(f)",
])  # fmt: skip
def test_torch_s_functions_say_what_takes_our_tensors(program):
    program, words = program.split(" | ")
    x, t = tg.tensor([1.0, 2.0], requires_grad=True), torch.ones(2, dtype=torch.float64)
    with pytest.raises(BorderError, match="found one of tapegrad's; NumPy's functions") as caught:
        eval(program, {"torch": torch, "x": x, "t": t})
    assert all(word in str(caught.value) for word in words.split("; ")), caught.value
    torch.testing.assert_close(torch.as_tensor(x.detach()), torch.tensor([1.0, 2.0], dtype=t.dtype))
