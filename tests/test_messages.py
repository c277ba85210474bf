"""What is said to common mistakes: each names what was asked, what was found and what to write instead."""

import numpy as np
import pytest

import tapegrad as tg

# A program; the exception; words of its message, what to do among them
MISTAKES = """
tg.grad(f) | TypeError | function; tg.func.grad(f)(x)
tg.grad(f, x) | TypeError | function; tg.func.grad(f)(x)
tg.func.grad(f(x)) | TypeError | found Tensor; tg.func.grad(f)(x)
tg.grad(x, f(x)) | ShapeError | (3,); in grad(outputs, inputs) what was computed comes first
tg.grad(s, s * s) | UnusedInputError | input 0; in grad(outputs, inputs) what was computed comes first
tg.grad(3.0, x) | TypeError | outputs; found float
tg.grad(np.ones(3), x) | TypeError | outputs; found ndarray
tg.grad(f(x), np.ones(3)) | TypeError | inputs; found ndarray
tg.grad(f(x), "x") | TypeError | inputs; found str
tg.grad(f(x), x.detach()) | GradientError | inputs[0]; (3,); requires_grad=True
tg.grad(f(x), A) | UnusedInputError | (3, 3); allow_unused=True
tg.grad(x * 2, x) | ShapeError | (3,); reduce it to a scalar
tg.grad(x * 2, x, np.ones(4)) | ShapeError | (4,); (3,)
tg.grad(tg.grad(f(x), x)[0].sum(), x) | GradientError | create_graph=True
(x * 2).backward() | ShapeError | (3,); reduce it to a scalar
y = f(x); y.backward(); y.backward() | GraphFreedError | square; retain_graph=True
tg.tensor(1.0).backward() | GradientError | requires_grad=True
np.argmax(x).backward() | GradientError | derivative is zero
(s * 1j).backward() | GradientError | complex; .real
f(x).backward(create_graf=True) | TypeError | Tensor.backward(); create_graf
tg.exp(x) | AttributeError | 'exp'; np.exp takes Tensors
tg.matmul(A, x) | AttributeError | np.matmul takes Tensors
tg.linalg.inv(A) | AttributeError | np.linalg is what to use
tg.float32 | AttributeError | np.float32 is what to use
tg.nn.Linear(3, 3) | AttributeError | no layers; tapegrad.scipy.optimize.minimize
tg.optim.Adam([x]) | AttributeError | no layers or optimizers
tg.jit(f) | AttributeError | tg.njit
tg.numpy.sin(x) | AttributeError | import NumPy itself
tg.vmap(f) | AttributeError | tapegrad.func.vmap
tg.value_and_grad(f) | AttributeError | tapegrad.func.value_and_grad
tg.Function | AttributeError | tapegrad.autograd.Function
tg.elementwise_grad(f) | AttributeError | tg.func.grad of the sum
tg.Parameter(x) | AttributeError | requires_grad=True
tg.tensr(3.0) | AttributeError | tg.tensor
x.cpu() | AttributeError | 'cpu'; leave the call out
x.cuda() | AttributeError | leave the call out
x.to("float32") | AttributeError | astype
x.double() | AttributeError | x.astype(float)
x.half() | AttributeError | x.astype(np.float32)
x.pow(2) | AttributeError | x**n
A.mm(A) | AttributeError | A @ B
A.t() | AttributeError | A.T
A.permute(1, 0) | AttributeError | transpose
x.unsqueeze(0) | AttributeError | np.expand_dims
x.norm() | AttributeError | np.linalg.norm
x.numel() | AttributeError | x.size
x.sigmoid() | AttributeError | scipy.special.expit
x.zero_grad() | AttributeError | x.grad = None
x.at[0].set(1.0) | AttributeError | y[i] = value
x.append(1.0) | AttributeError | np.append
x.gard | AttributeError | gard
x.require_grad = True | AttributeError | require_grad
x.view(3, 1) | TypeError | (3, 1); reshape
A.sum(dim=0) | TypeError | Tensor.sum(); dim
tg.tensor([1.0], require_grad=True) | TypeError | tensor(); require_grad
tg.tensor([1, 2], requires_grad=True) | DTypeError | int64; astype(float)
tg.tensor(["a"]) | DTypeError | <U1; float64
tg.tensor([s * 2, s]) | BorderError | tg.array([...])
np.array([s * 2, s]) | BorderError | np.asarray; tg.array([...])
np.sort([s * 2, s]) | BorderError | numpy.sort(tg.array([...]))
np.asarray(x * 2) | BorderError | (3,); .detach().numpy()
(x * 2).numpy() | BorderError | numpy(); .detach().numpy()
float(s * 2) | BorderError | float(); .item()
math.sin(s) | BorderError | np.sin for math.sin
np.eye(3).dot(x) | BorderError | A @ x for A.dot(x)
r = scipy.optimize.rosen; scipy.optimize.minimize(r, a, jac=tg.func.grad(r)) | BorderError | optimize.rosen,
np.vectorize(math.sin)(x) | BorderError | (3,); np.stack([f(v) for v in x]); .detach().numpy()
np.c_[x, x] | BorderError | np.column_stack((a, b))
np.r_[x, x] | BorderError | np.concatenate((a, b))
list(np.ndenumerate(x)) | BorderError | zip(np.ndindex(x.shape), x.flat)
np.polynomial.Polynomial(x)(0.5) | BorderError | np.polynomial.polynomial.polyvander(t, n) @ c
np.polynomial.Legendre([1.0, 2.0])(s) | BorderError | np.polynomial.legendre.legvander(t, n) @ c
np.polynomial.chebyshev.chebval(0.5, x) | BorderError | np.polynomial.chebyshev.chebvander(t, n) @ c
np.add.at(np.zeros(3), [0, 1, 2], x) | BorderError | np.add.at; tg.zeros(shape)
scipy.sparse.csr_matrix((x, ([0, 1, 2], [0, 1, 2]))) | BorderError | tapegrad.scipy.sparse.csr_array
scipy.linalg.solve(A, x) | BorderError | scipy.linalg.solve; tapegrad.scipy.linalg.solve
scipy.optimize.minimize(f, x) | BorderError | tapegrad.scipy.optimize.minimize
1 if x > 0 else 2 | ShapeError | (3,); any() or all()
x[0] = 3.0 | GradientError | leaf; tg.no_grad(); clone()
x += 1.0 | GradientError | +=; clone()
a = np.zeros(3); a += x | UnsupportedOpError | np.add; a = a + x
np.exp(x, out=np.zeros(3)) | UnsupportedOpError | np.exp; out=; use the result
x.grad = np.ones(3) | TypeError | found ndarray; tg.tensor
x.grad = tg.ones(4) | ShapeError | (4,); (3,)
x + np.ones(4) | ShapeError | add; (3,), (4,)
A @ np.ones(4) | ShapeError | matmul; (3, 3), (4,)
x.reshape(2, 2) | ShapeError | (3,); (2, 2)
A.sum(axis=5) | AxisError | sum; axis 5; (3, 3)
x[5] | IndexError | index 5; (3,)
tg.func.grad(lambda x: x * 2)(a) | GradientError | (3,); np.sum; jacobian
tg.func.grad(lambda x: None)(a) | GradientError | found None; its return
tg.func.jacobian(lambda x: None)(a) | GradientError | found None; its return
tg.func.grad(f)(np.arange(3)) | DTypeError | int64; astype(float)
tg.func.grad(f, argnums=2)(a) | TypeError | argument 2; 1 are given
tg.func.grad(lambda x: float(x[0]))(a) | BorderError | float()
tg.no_grad(x * 2) | TypeError | found Tensor; with no_grad():
x.register_hook(3) | TypeError | hook; found int
tg.zeros(2, 3) | TypeError | tg.zeros((2, 3))
tg.ones(2, 3, 4) | TypeError | tg.ones((2, 3, 4))
tg.tensor({"a": 1.0}) | DTypeError | of a dict
tg.is_tensor(x) | AttributeError | isinstance(x, tg.Tensor)
x.clamp(0.0, 1.0) | AttributeError | np.clip(x, low, high)
x.contiguous() | AttributeError | leave the call out
x.shape = (3, 1) | AttributeError | x.reshape((3, 1))
y = np.zeros(3); y[:] = x | BorderError | tg.zeros(shape) to write into
np.full(3, s) | BorderError | numpy.full; tapegrad.full(shape, x)
np.fill_diagonal(np.eye(2), s) | BorderError | np.fill_diagonal(a, x) with a Tensor for a; tapegrad.zeros(
np.linalg.inv(x) | ShapeError | inv needs matrices; (3,)
tg.func.jvp(f, (a,), (a,)) | ValueError | tuple of ndarray; tg.func.jvp(f)(x, v)
tg.func.vjp(f, a) | ValueError | found ndarray; tg.func.vjp(f)(x)
tg.gradcheck(f(x), x) | TypeError | function; found Tensor; tg.gradcheck(f, inputs)
tg.gradgradcheck(x, f) | TypeError | function; found Tensor; tg.gradgradcheck(f, inputs)
ts.integrate.solve_ivp(lambda t, y: -s * y, (0, 1), a, "LSODA") | UnsupportedOpError | LSODA; DOP853
tg.njit("f") | TypeError | found str
pickle.dumps(x * 2) | GradientError | .detach()
copy.deepcopy(x * 2) | GradientError | .detach(); .clone()
f"{x:.3f}" | TypeError | 0-d; (3,)
tg.jacobian(f)(a) | AttributeError | tapegrad.func.jacobian
tg.stack([x, x]) | AttributeError | np.stack takes Tensors
tg.arange(3, requires_grad=True) | DTypeError | int64; dtype=float
tg.tensor([1.0], dtype="float16", requires_grad=True) | DTypeError | float16; astype(float)
tg.tensor([1.0], requires_grad="yes") | GradientError | True or False; 'yes'
tg.tensor(None) | DTypeError | NoneType; float64
tg.tensor(1.0, device="cuda") | TypeError | tensor(); device
tg.from_numpy([1.0]) | TypeError | found list; tg.tensor
tg.autograd.grad(f)(a) | TypeError | function; tg.func.grad(f)(x)
tg.autograd.backward(f) | TypeError | function; tg.func.grad(f)(x)
tg.autograd.grd | AttributeError | tapegrad.autograd; tg.autograd.grad
tg.autograd.checkpoint(f(x)) | TypeError | checkpoint(f, x); found Tensor
tg.autograd.functional.jacobian(f, a) | TypeError | found ndarray; tg.tensor
tg.func.jit(f) | AttributeError | tapegrad.func; tg.njit
tg.func.tree_map(f, a) | AttributeError | dicts and lists
tg.func.grdd(f) | AttributeError | tg.func.grad
tg.func.exp(a) | AttributeError | np.exp takes Tensors
tg.lax.scan(f, a, a) | AttributeError | tg.njit
tg.set_default_dtype("float32") | AttributeError | dtype=np.float32
tg.func.hvp(f)(a) | TypeError | direction; (x, v); found one argument
tg.func.jvp(f)(a) | TypeError | direction; (x, v); found one argument
tg.func.hvp(f)(a, np.ones(4)) | ShapeError | direction; (3,); (4,)
tg.func.grad(f, a) | ValueError | ndarray; tg.func.grad(f)(x)
tg.func.grad(f)("a") | TypeError | holds str; argnums
tg.func.grad(f)(x=a) | TypeError | 0 are given by position
tg.func.grad(f, has_aux=True)(a) | TypeError | (value, aux); found Tensor
tg.func.vmap(f)(A, a[:2]) | ShapeError | (3, 3); (2,)
x.item() | ValueError | (3,); .tolist()
len(s) | TypeError | 0-d; .item()
f(x).backward(x) | ShapeError | (3,); ()
(x * 2).requires_grad = False | GradientError | detach()
x["a"] | IndexError | 'a'; (3,); integers
x.zero_() | GradientError | leaf; tg.no_grad()
A[0] @ A @ 3.0 | ShapeError | (3,); use *
A.reshape(-1, -1) | ShapeError | (3, 3); one unknown
np.concatenate(x, x) | TypeError | found Tensor; np.concatenate([a, b])
np.stack(x, x) | TypeError | found Tensor; np.stack([a, b])
scipy.special.erf(x, x) | UnsupportedOpError | scipy.special.erf; out=; use the result
scipy.special.logsumexp(x) | BorderError | call tapegrad.scipy.special.logsumexp
scipy.stats.norm.logpdf(x) | BorderError | call tapegrad.scipy.stats.norm.logpdf
x.split(1) | AttributeError | np.split
A.mH | AttributeError | np.conj(A).T
x.unbind() | AttributeError | list(x)
x.isnan() | AttributeError | np.isnan(x)
x.long() | AttributeError | x.astype(int)
x.is_cuda | AttributeError | main memory
x.softmax(0) | AttributeError | tapegrad.scipy.special
x.gather(0, [1]) | AttributeError | np.take_along_axis
x.register_backward_hook(f) | AttributeError | x.register_hook
int(s) | BorderError | int(); .item()
tg.Tensor([1.0]) | TypeError | takes no data; found list; tg.tensor([1.0, 2.0], requires_grad=True)
tg.Tensor(2, 3) | TypeError | found int, int; tg.zeros(shape)
tg.Tensor(x, requires_grad=True) | TypeError | found Tensor, requires_grad; tg.tensor
with tg.no_grad: x * 2 | TypeError | found the class; write with no_grad():
with tg.enable_grad: x * 2 | TypeError | write with enable_grad():
with tg.inference_mode: x * 2 | TypeError | write with inference_mode():
with tg.autograd.profiler.profile: x * 2 | TypeError | write with profile():
with tg.set_grad_enabled: x * 2 | TypeError | write with set_grad_enabled(mode):
tg.set_grad_enabled("no") | TypeError | True or False; 'no'
tg.inference_mode(3) | TypeError | True or False; 3
ts.optimize.minimize(f(x), a) | TypeError | found Tensor; scipy.optimize.minimize(f, ...)
tg.gradcheck(f, (a,)) | ValueError | no input requires grad; tg.tensor(a, requires_grad=True)
F.apply(x) | GradientError | no static method; @staticmethod
ts.integrate.quad(lambda t: x * t, 0, 1) | ShapeError | one number; (3,)
tg.diagnostics.Graph(f) | TypeError | found function
tg.diagnostics.Graph(f(x), x) | TypeError | mapping; found Tensor
tg.diagnostics.flame_chart(f) | TypeError | found function; with profile()
tg.report("no_such_folder/run.html").__enter__() | FileNotFoundError | no folder no_such_folder; run.html
x *= 2 | GradientError | *=; leaf; tg.no_grad()
x.requires_grad_(False); f(x).backward() | GradientError | does not require grad; no leaf; requires_grad=True
with tg.no_grad(): y = f(x)¶y.backward() | GradientError | computed under no_grad
tg.func.value_and_grad(f(x)) | TypeError | found Tensor; tg.func.value_and_grad(f)(x)
np.random.default_rng(0).normal(s) | BorderError | np.asarray; .item()
x[[0, 5]] | IndexError | index 5; (3,)
tg.func.jet(f, a, a) | TypeError | tuple of arguments; jet(f, (x,), ([v, w],))
x > np.ones(4) | ShapeError | greater; (3,), (4,); x[:, None] adds an axis
A * np.ones((2, 3)) | ShapeError | multiply; (3, 3), (2, 3); equal or one is 1
float(x) | BorderError | (3,); use .detach().numpy()
numba.njit(lambda x: x[0])(x) | TypingError | argument 0: a Tensor; tg.njit
tg.func.root(lambda x, a: x - a, lambda a: None)(2.0) | TypeError | root of <lambda>; returned None
tg.compile(f).jacobian(a) | AttributeError | 'jacobian'; tg.func.jacobian(f)
""".strip().splitlines()


@pytest.mark.parametrize("line", MISTAKES, ids=[line.partition(" | ")[0] for line in MISTAKES])
def test_what_is_said(line):
    program, kind, words = line.split(" | ")
    setting = "import copy, math, numba, pickle, numpy as np"
    setting += ", scipy, scipy.linalg, scipy.optimize, scipy.special"
    setting += ", scipy.stats, tapegrad as tg"
    setting += ", tapegrad.scipy as ts"
    names = {}
    exec(setting, names)
    names |= {
        "x": tg.tensor([1.0, 2.0, 3.0], requires_grad=True), "s": tg.tensor(0.5, requires_grad=True),
        "A": tg.tensor([[2.0, 0, 0], [0, 2, 0], [0, 0, 2]], requires_grad=True),
        "a": names["np"].ones(3), "f": lambda x: (x**2).sum(),
        "F": type("F", (tg.autograd.Function,), {"forward": lambda ctx, x: x, "backward": lambda ctx, g: g}),
    }  # fmt: skip
    with pytest.raises(Exception) as caught:
        exec(program.replace("¶", "\n"), names)
    assert type(caught.value).__name__ == kind, repr(caught.value)
    said = str(caught.value)
    assert all(word in said for word in words.split("; ")), said


def test_a_list_of_numbers_is_told_of_as_such():
    with pytest.raises(TypeError) as caught:
        tg.func.grad(lambda x: (x**2).sum())([1.0, 2.0])
    (note,) = caught.value.__notes__
    assert "argument 0 is a list of numbers" in note and "np.array(x)" in note


def test_a_write_to_an_element_of_a_plain_array_is_told_of_as_such():
    with pytest.raises(ValueError, match="array element") as caught:
        tg.func.grad(lambda x: np.zeros(2).__setitem__(0, x[1]))(np.ones(2))
    assert "tg.zeros(shape)" in caught.value.__notes__[0]


def test_other_names_are_none_of_ours():
    from tapegrad.core.other_names import METHODS, MODULE, missing

    x = tg.tensor(1.0)
    assert not any(hasattr(x, name) for name in METHODS)
    assert not set(METHODS) & set(dir(x))
    assert not any(hasattr(tg, name) for name in set(MODULE) - {"scipy"})
    assert "import tapegrad.scipy" in missing("scipy", [], [])  # until somebody has
    assert not set(MODULE) & {*dir(tg), *dir(tg.func), *dir(tg.autograd)}
    assert not set(METHODS) & set(dir(__import__("numpy").ndarray))
