"""Several histories in one memory: detached Tensors, leaves and views that are written to."""

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.errors import GradientError
from tests.tensors import grad, leaf


@pytest.mark.parametrize("shape", [(), (3,)])
def test_E11_detach_in_place(shape):
    x = tg.ones(shape, requires_grad=True)
    y = x * 2.0
    z = y * y
    y.retain_grad()
    assert y.detach_() is y
    assert y.is_leaf
    assert not y.requires_grad
    assert y.grad_fn is None
    assert not y.retains_grad
    assert grad(z.sum(), x) == [(np.ones(shape) * 8.0).tolist()]  # what was recorded stays
    with pytest.raises(RuntimeError, match="does not require grad"):
        y.sum().backward()
    y.mul_(5.0)
    y.requires_grad_()
    assert grad((y * y).sum(), y) == [(np.ones(shape) * 20.0).tolist()]
    assert y.grad is None


def test_E11_detach_in_place_of_a_leaf():
    x = leaf()
    y = x * 2.0
    assert x.detach_() is x
    assert not x.requires_grad
    assert tg.ones(2).detach_().is_leaf
    y.sum().backward()
    assert x.grad is None  # as C-11


def test_E11_detach_in_place_of_views_and_their_base():
    x = leaf()
    y = x * 1.0
    v = y[:2]
    with pytest.raises(GradientError, match="view"):
        v.detach_()
    with pytest.raises(GradientError, match="view"):
        y.T.detach_()
    y.detach_()
    with tg.no_grad():
        y[0] = 7.0
    assert v.tolist() == [7.0, 2.0]  # memory is shared, histories are apart
    assert y.tolist() == [7.0, 2.0, 3.0]
    assert v.requires_grad
    assert not (y * 2).requires_grad
    assert grad(v, x) in ([[0.0, 1.0, 0.0]], [[1.0, 1.0, 0.0]])
    w = x * 1.0
    d = w.detach()
    assert d.detach_() is d
    w.detach_()
    d[1] = 9.0
    assert w.tolist() == [1.0, 9.0, 3.0]


def test_E11_detach_in_place_of_what_carries_a_tangent():
    fw = tg.autograd.forward_ad
    with fw.dual_level():
        y = fw.make_dual(leaf(), tg.ones(3)) * 2.0
        tangent = fw.unpack_dual(y.detach()).tangent
        y.detach_()
        assert not tg.no_grad()(lambda: fw.unpack_dual(y).primal.requires_grad)()
        found = fw.unpack_dual(y).tangent
        assert (found is None) == (tangent is None)
        assert found is None or found.tolist() == tangent.tolist()


def test_E11_detach_shares_memory():
    x = leaf()
    d = x.detach()
    d[0] = 5.0
    assert x.tolist() == [5.0, 2.0, 3.0]
    assert not d.requires_grad
    assert grad(x * x, x) == [[10.0, 4.0, 6.0]]
    s = leaf(2.0)
    d = s.detach()
    d += 1.0
    assert s.item() == 2.0


def test_a_detached_tensor_takes_no_history():
    x, y = leaf(), leaf()
    d = (x * 1.0).detach()
    with pytest.raises(GradientError, match="detached"):
        d += y
    d.requires_grad_()
    with pytest.raises(GradientError, match="leaf"):
        d += 1.0


def test_a_constant_that_becomes_a_leaf():
    c = tg.zeros(3)
    v = c[:2]
    c.requires_grad_()
    with pytest.raises(GradientError, match="leaf"):
        v[0] = 1.0
    c = tg.zeros(3)
    v = c[:2].requires_grad_()
    before = v * 2.0
    with pytest.raises(GradientError, match="leaf"):
        v[0] = 1.0
    c[0] = 4.0
    assert v.tolist() == [4.0, 0.0]
    assert grad(v * v, v) == [[8.0, 0.0]]
    assert grad(before, v) == [[2.0, 2.0]]


@pytest.mark.parametrize("leaf_of", ["detach", "a view under no_grad"])
@pytest.mark.parametrize("origin", ["result", "leaf"])
def test_another_leaf_in_the_same_memory(leaf_of, origin):
    """What it is a leaf of keeps its own history, through writes and in its views."""
    x = leaf()
    y = x * 2.0 if origin == "result" else x
    v = y[1:]
    with tg.no_grad():
        d = (y.detach() if leaf_of == "detach" else y[:]).requires_grad_()
        y += 1.0
    scale = 2.0 if origin == "result" else 1.0
    gx, gd = tg.grad(np.sum(y * y), (x, d), allow_unused=True, retain_graph=True)
    assert gx.tolist() == [2 * scale * (scale * t + 1) for t in (1.0, 2.0, 3.0)]
    assert gd is None
    gx, gd = tg.grad(np.sum(v), (x, d), allow_unused=True)
    assert gx.tolist() == [0.0, scale, scale]
    assert gd is None
    assert tg.grad(np.sum(d * d), d)[0].tolist() == [2 * (scale * t + 1) for t in (1.0, 2.0, 3.0)]


def test_a_leaf_beside_a_result_does_not_stop_its_writes():
    x = leaf()
    y = x * 2.0
    d = y.detach().requires_grad_()
    y *= 3.0
    assert grad(y, x) == [[6.0] * 3]
    assert d.tolist() == [6.0, 12.0, 18.0]


def test_data_leaves_the_memory():
    x = leaf()
    v = x[1:]
    x.data = tg.tensor([7.0, 8.0, 9.0])
    with tg.no_grad():
        v *= 2.0
    assert x.tolist() == [7.0, 8.0, 9.0]
    assert v.tolist() == [4.0, 6.0]


@pytest.mark.parametrize("part", [slice(None), slice(5)])
def test_a_leaf_made_of_a_detached_part_keeps_its_views(part):
    """A write to the memory from elsewhere changes values; what is a view of the leaf stays one."""
    w = tg.zeros(10)
    x = w[part].detach().requires_grad_()
    v = x[1:3]
    for mode in (tg.no_grad, tg.enable_grad):
        with mode():
            w[2] = w[2].item() + 1.0
    assert v.tolist() == [0.0, 2.0]
    assert v.requires_grad
    assert not w.requires_grad
    assert grad(v * v, x)[0][2] == 4.0


def test_a_leaf_and_its_source_have_each_their_own_history():
    x, t = leaf([2.0]), tg.zeros(3)
    a = t.detach().requires_grad_()
    u, v = t[:2], a[:2]
    t[:1] = x
    assert u.requires_grad
    assert v.requires_grad
    assert a.is_leaf
    assert a.tolist() == t.tolist() == [2.0, 0.0, 0.0]
    gx, ga = tg.grad(np.sum(u * 3.0) + np.sum(v * v), (x, a))
    assert gx.tolist() == [3.0]
    assert ga.tolist() == [4.0, 0.0, 0.0]


def test_a_leaf_that_is_none_any_more():
    x = leaf()
    v = x[:2]
    x.requires_grad_(False)
    x[0] = 5.0
    assert v.tolist() == [5.0, 2.0]
    assert v.requires_grad
    assert not x.requires_grad
    x.requires_grad_()
    assert grad(v, x) == [[1.0, 1.0, 0.0]]  # of what x was then, and is still the same Tensor


def test_E9_a_view_made_while_nothing_is_recorded():
    x = leaf()
    y = x * 2.0
    with tg.no_grad():
        v = y[:2]
    with pytest.raises(GradientError, match="while nothing was recorded"):
        v[0] = 3.0
    assert y.tolist() == [2.0, 4.0, 6.0]
    y[0] = 5.0  # from here on it is a view with the history of what it sees
    assert v.tolist() == [5.0, 4.0]
    assert grad(v, x) == [[0.0, 2.0, 0.0]]


def test_a_view_of_a_detached_tensor_is_detached():
    x = leaf()
    y = x * 2.0
    d = y.detach()[1:]
    d[0] = 7.0
    assert y.tolist() == [2.0, 7.0, 6.0]
    assert not d.requires_grad
    with pytest.raises(GradientError, match="detached"):
        d[0] = x[0]
    assert grad(y, x) == [[2.0, 2.0, 2.0]]


def test_versions_survive_the_first_view():
    x = tg.zeros(3)
    x += 1.0
    v = x[1:]
    v += 1.0
    assert x._version == v._version == 2
