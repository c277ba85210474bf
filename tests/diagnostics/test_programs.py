"""What is told of compiled functions, as text and as HTML."""

import copy
import pickle
from contextlib import suppress

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.kernels import abi

from .pages import checked

pytestmark = pytest.mark.skipif(not abi.native(), reason="there are no programs")


def called(times=20):
    """A function that does several things, and fails, after some calls."""

    def f(x, k):
        y = np.einsum("i,i->i", np.sin(x), x)
        if k % 5 == 4:
            assert y.grad_fn
        if k % 7 == 6:
            raise ValueError("stop")
        return np.sum(np.exp(y)) if k % 3 else np.sum(y) * 2.0

    f.__name__ = "<b>f&g</b>"
    compiled = tg.compile(f, wait=True)
    for k in range(times):
        with suppress(ValueError):
            compiled.value_and_grad(np.array([0.1, 0.2]), k)
    return compiled


def test_it_tells_ways_and_calls():
    explanation = called().explain()
    (kind,) = explanation.kinds
    assert kind.arguments == "float64 (2,)"
    assert kind.total == 20
    assert len(kind.ways) == 2  # a way that was left and is known is not learned once more
    assert {way.operations for way in kind.ways} == {4}
    followed = sum(way.calls for way in kind.ways)
    assert followed + sum(kind.left.values()) == 18  # but the first call, and that which was learned from
    assert all("einsum" in way.by_python for way in kind.ways)
    assert kind.left["ValueError was raised"] == 2
    assert any("history" in why for why in kind.left)
    assert f"way 1: {kind.ways[0].calls} calls, 4 operations" in explanation
    assert str(explanation) == repr(explanation) == f"{explanation}"


def test_reasons_are_bounded():
    compiled = tg.compile(lambda x, k: getattr(np, FUNCTIONS[k % 12])(x)[0], wait=True)
    for k in range(40):
        compiled.value_and_grad(np.array([0.1, 0.2]), k)
    (kind,) = compiled.explain().kinds
    assert len(kind.left) <= 9


FUNCTIONS = ["sin", "cos", "tan", "exp", "log", "sqrt", "tanh", "sinh", "cosh", "square", "arctan", "log1p"]


TENSOR = tg.tensor([1.0, 2.0], requires_grad=True)


def test_what_gives_no_way_says_why():
    for f, why in (
        (lambda x: np.sum(TENSOR * x), "is a Tensor from outside"),
        (lambda x: tg.tensor(1.0), "returned Tensor"),
    ):
        compiled = tg.compile(f, wait=True)
        for _ in range(3):
            compiled(np.array([0.1, 0.2]))
        (kind,) = compiled.explain().kinds
        assert why in kind.not_learned
        assert why in compiled.explain()


def test_second_derivatives_are_told():
    compiled = tg.compile(lambda x: np.sum(np.sin(x)), wait=True)
    for _ in range(4):
        compiled.hvp(np.ones(2), np.ones(2))
    assert "for second derivatives" in compiled.explain()


def test_notebooks_show_a_table():
    for compiled in (called(), called(0), called(1)):
        html = compiled.explain()._repr_html_()
        found = checked(html)
        assert "<b>f&g</b>" in found.text()
        assert "<b>" not in html


def test_it_is_a_value():
    explanation = called().explain()
    for other in (pickle.loads(pickle.dumps(explanation)), copy.deepcopy(explanation)):
        assert other == explanation
        assert other.kinds == explanation.kinds
