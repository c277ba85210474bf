"""autograd.functional: cases I-1 to I-3, and the same programs in torch."""

import importlib.util
import itertools

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import forward_ad as fw
from tapegrad.autograd import functional as F

X, Y = np.array([1.0, 2.0]), np.array([3.0, 4.0])
WAYS = [
    {"strategy": strategy, "vectorize": vectorize}
    for strategy in ("reverse-mode", "forward-mode")
    for vectorize in (False, True)
]


def t(data, requires_grad=False):
    return tg.tensor(data, float, requires_grad)


def cube(x):
    return (x**3).sum()


def values(x):
    return [values(part) for part in x] if isinstance(x, tuple) else x.tolist()


PRODUCTS = {"vjp": F.vjp, "jvp": F.jvp, "hvp": F.hvp, "vhp": F.vhp}

# ---------------------------------------------------------------- I-1


@pytest.mark.parametrize("name", PRODUCTS)
def test_I1_without_v(name):
    function = PRODUCTS[name]
    second = name in ("hvp", "vhp")
    assert values(function(lambda x: x**3, t(2.0))) == [8.0, 12.0]
    assert values(function(cube, t([[1.0]])))[1] in (6.0 if second else 3.0, [[6.0 if second else 3.0]])
    if name == "vjp":
        assert values(function(cube, t(X)))[1] == [3.0, 12.0]
        refused = [(lambda x: x**3, t(X)), (lambda x: (cube(x), cube(x)), t(X))]
    else:
        refused = [(cube, t(X)), (lambda x, y: cube(x) + y, (t(1.0), t(1.0)))]
    for arguments in refused:
        with pytest.raises(RuntimeError, match="without v"):
            function(*arguments)


@pytest.mark.parametrize("name", PRODUCTS)
def test_I1_v_that_does_not_fit(name):
    function = PRODUCTS[name]
    inputs = t(X)
    for wrong in (t([1.0] * 3), t([[1.0, 1.0]]), (t([1.0, 1.0]), t([1.0, 1.0])), ()):
        with pytest.raises(RuntimeError):
            function(cube, inputs, wrong)
    for wrong in ([t(X)], X, 1.0):
        with pytest.raises(TypeError):
            function(cube, inputs, wrong)


@pytest.mark.parametrize("name", PRODUCTS)
def test_I1_products(name):
    """By a matrix that is known."""
    A = np.array([[1.0, 2.0], [0.0, -1.0], [3.0, 0.5]])
    v = np.array([1.0, 10.0, -2.0])
    if name in ("vjp", "jvp"):
        function = lambda x: A @ x
        given = t(v) if name == "vjp" else t(Y)
        value, product = PRODUCTS[name](function, t(X), given)
        assert value.tolist() == (A @ X).tolist()
        assert product.tolist() == (v @ A if name == "vjp" else A @ Y).tolist()
    else:
        B = A.T @ A
        value, product = PRODUCTS[name](lambda x: x @ (B @ x), t(X), t(Y))
        assert value.tolist() == X @ B @ X
        assert product.tolist() == (2 * B @ Y).tolist()


# ---------------------------------------------------------------- I-2


@pytest.mark.parametrize("way", WAYS)
def test_I2_shapes_and_structure(way):
    jacobian = lambda *args: F.jacobian(*args, **way)
    assert values(jacobian(lambda x: x**2, t(X))) == [[2.0, 0.0], [0.0, 4.0]]
    J = jacobian(lambda x: x.reshape(2, 1) * Y, t(np.arange(6.0).reshape(3, 2)[:1]))
    assert J.shape == (2, 2, 1, 2)
    assert values(jacobian(lambda x, y: (x * y).sum(), (t(X), t(Y)))) == [[3.0, 4.0], [1.0, 2.0]]
    found = jacobian(lambda x: (x * x, x.sum()), t(X))
    assert values(found) == [[[2.0, 0.0], [0.0, 4.0]], [1.0, 1.0]]
    found = jacobian(lambda x, y: (x * y, y[0] * x), (t(X), t(Y)))
    assert [[part.shape for part in row] for row in found] == [[(2, 2), (2, 2)]] * 2
    assert values(found[1][1]) == [[1.0, 0.0], [2.0, 0.0]]
    assert isinstance(jacobian(lambda x: (x,), (t(X),))[0], tuple)
    assert jacobian(lambda x: x[:0], t(X)).shape == (0, 2)
    assert jacobian(lambda x: x * 2.0, t([])).shape == (0, 0)


@pytest.mark.parametrize("way", WAYS)
def test_I2_what_does_not_depend_on_an_input(way):
    assert values(F.jacobian(lambda x: t([3.0, 4.0, 5.0]), t(X), **way)) == [[0.0, 0.0]] * 3
    found = F.jacobian(lambda x, y: x * 2.0, (t(X), t(Y)), **way)
    assert values(found) == [[[2.0, 0.0], [0.0, 2.0]], [[0.0, 0.0]] * 2]
    assert F.jacobian(lambda x: x > 1.5, t(X), **way).shape == (2, 2)


def test_I2_strict():
    with pytest.raises(RuntimeError, match="strict"):
        F.jacobian(lambda x, y: (x * y, x), (t(X), t(Y)), strict=True)
    for function in (lambda x, y: t(3.0), lambda x, y: x * 2.0):
        with pytest.raises(RuntimeError, match="strict"):
            F.jacobian(function, (t(X), t(Y)), strict=True)
        with pytest.raises(RuntimeError, match="strict"):
            F.vjp(function, (t(X), t(Y)), t(X), strict=True)
        with pytest.raises(RuntimeError, match="strict"):
            F.jvp(function, (t(X), t(Y)), (t(X), t(Y)), strict=True)
    with pytest.raises(RuntimeError, match="create_graph"):
        F.jacobian(lambda x: x * 2.0, t(X, True), strict=True, create_graph=True)
    assert values(F.jacobian(lambda x: x * x, t(X, True), strict=True, create_graph=True))[0] == [2.0, 0.0]
    for way in WAYS[1:]:
        with pytest.raises(RuntimeError, match="strict"):
            F.jacobian(cube, t(X), strict=True, **way)


@pytest.mark.parametrize("way", WAYS)
def test_I2_arguments_of_other_types(way):
    for inputs in ([t(X)], X, (t(X), 1.0)):
        with pytest.raises(TypeError):
            F.jacobian(cube, inputs, **way)
    for function in (lambda x: 3.0, lambda x: [x], lambda x: (x, 1.0), lambda x: None):
        with pytest.raises(TypeError):
            F.jacobian(function, t(X), **way)


def test_I2_strategies():
    for strategy in ("x", None, "forward"):
        with pytest.raises(ValueError, match="strategy"):
            F.jacobian(cube, t(X), strategy=strategy)
        with pytest.raises(ValueError, match="strategy"):
            F.hessian(cube, t(X), outer_jacobian_strategy=strategy)


def test_I2_how_often_the_function_is_called():
    for way, wanted in zip(WAYS, (1, 1, 2, 1), strict=True):
        calls = []

        def function(x, calls=calls):
            calls.append(1)
            return np.stack([x[0], x[1], x[0] * x[1], x[0] ** 2])

        found = F.jacobian(function, t(X), **way)
        assert found.tolist() == [[1.0, 0.0], [0.0, 1.0], [2.0, 1.0], [2.0, 0.0]]
        assert len(calls) == wanted


@pytest.mark.parametrize("way", WAYS)
def test_I2_create_graph(way):
    x = t(X, True)
    J = F.jacobian(lambda a: a**3, x, create_graph=True, **way)
    assert J.requires_grad
    assert tg.grad(J.sum(), x)[0].tolist() == [6.0, 12.0]
    J = F.jacobian(lambda a: a**3, x, **way)
    assert not J.requires_grad
    assert x.grad is None


@pytest.mark.parametrize("way", WAYS)
def test_I2_a_function_with_writes_views_and_every_kind_of_op(way):
    def function(x):
        y = np.sin(x) * 1.0
        part = y[1:]
        part *= x[0]
        y[0] = np.linalg.norm(x)
        m = np.outer(y, x) + 3 * np.eye(3)
        return np.concatenate([np.linalg.solve(m, x), np.cumsum(y), np.sort(x), np.linalg.det(m).reshape(1)])

    x = t([0.7, -0.3, 1.1])
    found = F.jacobian(function, x, **way).numpy()
    eps = 1e-6
    columns = [
        (function(x.detach() + eps * e).numpy() - function(x.detach() - eps * e).numpy()) / (2 * eps)
        for e in np.eye(3)
    ]
    np.testing.assert_allclose(found, np.array(columns).T, rtol=1e-6, atol=1e-8)


def test_I2_inputs_that_the_function_knows_otherwise():
    """The derivative is by the argument: the same Tensor in the function's closure is held."""
    x = t(X, True)
    for way in WAYS:
        assert values(F.jacobian(lambda a: a * x, x, **way)) == [[1.0, 0.0], [0.0, 2.0]]
        found = F.jacobian(lambda a: a * x, x, create_graph=True, **way)
        assert tg.grad(found.sum(), x)[0].tolist() == [1.0, 1.0]


def test_I2_precisions():
    x = tg.tensor(X, np.float32)
    for way in WAYS:
        found = F.jacobian(lambda a: a * t(Y), x, **way)
        assert found.tolist() == [[3.0, 0.0], [0.0, 4.0]]
        assert found.dtype == (np.float32 if way["strategy"] == "reverse-mode" else np.float64)
    with pytest.raises(RuntimeError):
        F.jacobian(cube, tg.tensor([1, 2]))


def test_I2_complex_numbers():
    for way in WAYS:
        with pytest.raises(RuntimeError, match="complex"):
            F.jacobian(lambda z: z * z, tg.tensor(X * 1j), **way)
    forward = F.jacobian(lambda x: x * 1j, t(X), strategy="forward-mode")
    assert forward.tolist() == [[1j, 0], [0, 1j]]


def test_I2_grad_mode_does_not_matter():
    with tg.no_grad():
        assert F.vjp(cube, t(X))[1].tolist() == [3.0, 12.0]
        for way in WAYS:
            assert values(F.jacobian(lambda x: x**2, t(X), **way)) == [[2.0, 0.0], [0.0, 4.0]]
        assert F.hessian(cube, t(X)).tolist() == [[6.0, 0.0], [0.0, 12.0]]
        assert not tg.is_grad_enabled()


def test_I2_inside_a_level_of_forward_mode():
    """Derivatives of what carries tangents carry tangents."""
    with fw.dual_level():
        d = fw.make_dual(t(X), t(Y))
        tangents = [
            fw.unpack_dual(F.vjp(cube, d)[1]).tangent,
            fw.unpack_dual(F.jvp(lambda x: x**3, d, t([1.0, 1.0]))[1]).tangent,
            *(np.sum(fw.unpack_dual(F.jacobian(lambda x: x**3, d, **way)).tangent, axis=0) for way in WAYS),
        ]
        assert [x.tolist() for x in tangents] == [(6 * X * Y).tolist()] * 6


# ---------------------------------------------------------------- I-3

OUTER = [
    {"outer_jacobian_strategy": way["strategy"], "vectorize": way["vectorize"]} for way in WAYS
]


@pytest.mark.parametrize("way", OUTER)
def test_I3_hessian(way):
    assert values(F.hessian(cube, t(X), **way)) == [[6.0, 0.0], [0.0, 12.0]]
    assert values(F.hessian(lambda x: cube(x).reshape(1), t(X), **way)) == [[6.0, 0.0], [0.0, 12.0]]
    found = F.hessian(lambda x, y: (x * x * y).sum(), (t(X), t(Y)), **way)
    assert values(found[0]) == [[[6.0, 0.0], [0.0, 8.0]], [[2.0, 0.0], [0.0, 4.0]]]
    assert values(found[1]) == [[[2.0, 0.0], [0.0, 4.0]], [[0.0, 0.0]] * 2]
    assert values(F.hessian(lambda x: (x * 2.0).sum(), t(X), **way)) == [[0.0, 0.0]] * 2
    assert values(F.hessian(lambda x: t(3.0), t(X), **way)) == [[0.0, 0.0]] * 2
    for function in (lambda x: x * x, lambda x: (cube(x), cube(x)), lambda x: (cube(x),)):
        with pytest.raises(RuntimeError, match="one element"):
            F.hessian(function, t(X), **way)
    with pytest.raises(TypeError):
        F.hessian(cube, [t(X)], **way)


@pytest.mark.parametrize("way", OUTER)
def test_I3_third_derivatives(way):
    x = t(X, True)
    H = F.hessian(lambda a: (a**4).sum(), x, create_graph=True, **way)
    assert tg.grad(H.sum(), x)[0].tolist() == [24.0, 48.0]


def test_I3_strict():
    linear = lambda x: (x * 2.0).sum()
    for call in (
        lambda: F.hessian(linear, t(X), strict=True),
        lambda: F.hessian(lambda x: t(1.0), t(X), strict=True),
        lambda: F.hvp(linear, t(X), t(X), strict=True),
        lambda: F.vhp(linear, t(X), t(X), strict=True),
        lambda: F.vhp(lambda x, y: cube(x), (t(X), t(Y)), (t(X), t(Y)), strict=True),
    ):
        with pytest.raises(RuntimeError, match="strict"):
            call()
    assert F.hessian(cube, t(X), strict=True).tolist() == [[6.0, 0.0], [0.0, 12.0]]


@pytest.mark.parametrize("name", ["hvp", "vhp"])
def test_I3_products_with_a_hessian(name):
    function = PRODUCTS[name]
    value, product = function(cube, t(X), t(Y))
    assert (value.item(), product.tolist()) == (9.0, [18.0, 48.0])
    assert not product.requires_grad
    two = lambda x, y: (x * y * y).sum()
    _, (first, second) = function(two, (t(X), t(Y)), (t([1.0, 0.0]), t([0.0, 1.0])))
    assert first.tolist() == [0.0, 8.0]
    assert second.tolist() == [6.0, 4.0]
    with pytest.raises(RuntimeError, match="one element"):
        function(lambda x: x * x, t(X), t(Y))
    x = t(X, True)
    _, product = function(cube, x, t(Y), create_graph=True)
    assert tg.grad(product.sum(), x)[0].tolist() == [18.0, 24.0]
    v = t(Y, True)
    _, product = function(cube, t(X), v, create_graph=True)
    assert tg.grad(product.sum(), v)[0].tolist() == [6.0, 12.0]


# ---------------------------------------------------------------- the same in torch

torch = importlib.import_module("torch") if importlib.util.find_spec("torch") else None


class Ours:
    F, tensor = F, staticmethod(t)


class Theirs:
    if torch is not None:
        F = torch.autograd.functional
    tensor = staticmethod(
        lambda data, requires_grad=False: torch.tensor(
            np.array(data), dtype=torch.float64, requires_grad=requires_grad
        )
    )


def plain(x):
    if isinstance(x, (tuple, list)):
        return [plain(part) for part in x]
    return x.detach().numpy().tolist(), tuple(x.shape), x.requires_grad, str(x.dtype).rpartition(".")[2]


V, VV = (lambda m: m.tensor([1.0, 0.5])), (lambda m: (m.tensor([1.0, 0.5]), m.tensor([1.0, 0.25])))
ONE, TWO = (lambda m, track: m.tensor(X, track)), (lambda m, track: (m.tensor(X, track), m.tensor(Y)))
OF_PRODUCTS = {  # function of the namespace that gives a function, inputs, v where it is of the inputs' shape
    "cube": (lambda m: cube, ONE, V),
    "no v": (lambda m: cube, ONE, lambda m: None),
    "a number": (lambda m: lambda x: x**3, lambda m, track: m.tensor(2.0, track), lambda m: None),
    "one element": (lambda m: cube, lambda m, track: m.tensor([[3.0]], track), lambda m: None),
    "v of another size": (lambda m: cube, ONE, lambda m: m.tensor([1.0] * 3)),
    "v of another length": (lambda m: cube, ONE, lambda m: (m.tensor([1.0, 1.0]),) * 2),
    "v in a list": (lambda m: cube, ONE, lambda m: [m.tensor([1.0, 1.0])]),
    "v that requires grad": (lambda m: cube, ONE, lambda m: m.tensor([1.0, 0.5], True)),
    "a list": (lambda m: cube, lambda m, track: [m.tensor(X)], V),
    "a tuple of one": (lambda m: cube, lambda m, track: (m.tensor(X, track),), V),
    "two inputs": (lambda m: lambda x, y: (x * y * y).sum(), TWO, VV),
    "two inputs, one v": (lambda m: lambda x, y: (x * y * y).sum(), TWO, V),
    "no Tensor": (lambda m: lambda x: 3.0, ONE, V),
    "a list of Tensors": (lambda m: lambda x: [x], ONE, V),
    "independent": (lambda m: lambda x: m.tensor(4.0), ONE, V),
    "one unused": (lambda m: lambda x, y: cube(x), TWO, VV),
    "linear": (lambda m: lambda x: (x * 2.0).sum(), ONE, V),
    "quadratic": (lambda m: lambda x: (x * x).sum(), ONE, V),
    "two outputs": (lambda m: lambda x: (x * x, x.sum()), ONE, V),
    "several elements": (lambda m: lambda x: x**3, ONE, V),
    "output (1, 1)": (lambda m: lambda x: cube(x).reshape(1, 1), ONE, V),
}
OF_MATRICES = {
    "square": (lambda m: lambda x: x**2, ONE),
    "two inputs": (lambda m: lambda x, y: (x * x * y).sum(), TWO),
    "two inputs mixed": (lambda m: lambda x, y: (x * y).sum() ** 2 + (x * x * y * y).sum(), TWO),
    "outer product": (lambda m: lambda x, y: x.reshape(2, 1) * y * y, TWO),
    "two outputs": (lambda m: lambda x: (x * x, cube(x)), ONE),
    "tuples of one": (lambda m: lambda x: (x * x,), lambda m, track: (m.tensor(X, track),)),
    "a list": (lambda m: cube, lambda m, track: [m.tensor(X)]),
    "cube": (lambda m: cube, ONE),
    "output (1,)": (lambda m: lambda x: cube(x).reshape(1), ONE),
    "linear": (lambda m: lambda x: (x * 2.0).sum(), ONE),
    "independent": (lambda m: lambda x: m.tensor(3.0), ONE),
    "one unused": (lambda m: lambda x, y: cube(x), TWO),
}


def cases():
    flags = list(itertools.product((False, True), (False, True)))
    for name, (strict, track) in itertools.product(PRODUCTS, flags):
        for case, (function, inputs, v) in OF_PRODUCTS.items():
            more = {"strict": strict, "create_graph": track}
            of_outputs = name == "vjp" and case in ("cube", "two inputs", "linear", "quadratic", "one unused")
            given = (lambda m: None) if of_outputs else v
            yield (
                f"{name}, {case}, strict={strict}, create_graph={track}",
                lambda m, n=name, f=function, i=inputs, g=given, track=track, more=more: getattr(m.F, n)(
                    f(m), i(m, track), g(m), **more
                ),
            )
    for (strict, track), way, name in itertools.product(flags, WAYS, ("jacobian", "hessian")):
        for case, (function, inputs) in OF_MATRICES.items():
            strategy = "strategy" if name == "jacobian" else "outer_jacobian_strategy"
            more = {"strict": strict, "create_graph": track, "vectorize": way["vectorize"]}
            more[strategy] = way["strategy"]
            yield (
                f"{name}, {case}, {more}",
                lambda m, n=name, f=function, i=inputs, track=track, more=more: getattr(m.F, n)(
                    f(m), i(m, track), **more
                ),
            )


def outcome(program, m):
    try:
        return plain(program(m))
    except Exception as error:
        return error


def same(ours, theirs, what):
    if isinstance(theirs, list):
        assert isinstance(ours, list)
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            same(a, b, what)
        return
    np.testing.assert_allclose(ours[0], theirs[0], rtol=1e-12)
    assert ours[1::2] == theirs[1::2]
    # that a constant derivative has a history where torch gives it one is no part of the contract
    assert ours[2] == theirs[2] or (theirs[2] and not ours[2]), what


CASES = [pytest.param(*case, id=case[0]) for case in cases()] if torch is not None else []


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(("name", "program"), CASES)
def test_I_as_torch(name, program):
    theirs = outcome(program, Theirs)
    if isinstance(theirs, NotImplementedError):
        return  # forward mode with create_graph or without vectorize, which torch has not
    ours = outcome(program, Ours)
    if isinstance(theirs, Exception):
        assert isinstance(ours, Exception), f"{ours} where torch raises {theirs!r}"
        if "a list" in name and "strict" in str(theirs):
            return  # two mistakes at once
        kind = next(k for k in (TypeError, RuntimeError) if isinstance(theirs, k))
        assert isinstance(ours, kind), f"{ours!r} where torch raises {theirs!r}"
    else:
        assert not isinstance(ours, Exception), f"{ours!r} where torch gives {theirs}"
        same(ours, theirs, name)


@pytest.mark.parametrize("name", ["vjp", "jvp", "vhp", "hvp", "jacobian", "hessian"])
def test_inference_mode_outside_takes_no_derivative_away(name):
    function = getattr(tg.autograd.functional, name)

    x = tg.tensor([1.0, 2.0])
    args = (tg.tensor([1.0, 0.5]),) if name in ("jvp", "vhp", "hvp") else ()

    def outcome(x):
        found = function(lambda x: np.sum(x**3), x, *args)
        return [y.tolist() for y in (found if isinstance(found, tuple) else (found,))]

    wanted = outcome(x)
    with tg.inference_mode():
        assert outcome(x) == wanted
        with pytest.raises(tg.errors.GradientError, match="inference_mode"):
            outcome(tg.tensor([1.0, 2.0]))
