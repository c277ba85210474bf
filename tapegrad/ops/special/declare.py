"""How the op of a special function is declared: as an elementwise op, by the name that SciPy has for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy.special import _ufuncs

from tapegrad.errors import UnsupportedOpError
from tapegrad.kernels import symbols, table
from tapegrad.kernels.replay import layout
from tapegrad.ops import rules
from tapegrad.ops.primitive import ALL, MEANING, OUT, Elementwise, Primitive, Real, is_constant
from tapegrad.tape.record import Template

SPECIAL: dict[str, Primitive] = {}  # the ops, by name
RESULTS: dict[np.ufunc, list[Any]] = {}  # of ufuncs with several results, an op for each
special = SimpleNamespace()  # what rules call: ufuncs, or ops where those have several results
rules.MODULES["special"] = special


class Special(Elementwise):
    """An op that a function of `scipy.special` means.

    Attributes
    ----------
    title
        What messages call it.
    holomorphic
        Whether its derivative is that of a function of complex numbers too.
    """

    registry = SPECIAL
    title = ""
    holomorphic = True
    late = True
    _known = False  # whether sweeps know its row

    @property
    def opcode(self) -> int:
        """Its number; when first asked for the row is completed for the next sweep, as few are ever used."""
        if not self._known:
            self._known = True
            table.unfinished.append(self.complete)
            table.version[0] = object()
        return self._opcode

    @opcode.setter
    def opcode(self, number: int) -> None:
        self._opcode = number

    def __call__(self, *operands: np.ndarray, **attrs: Any) -> np.ndarray:
        """The op on arrays, or recorded where an operand is a Tensor."""
        for slot in self.unknown:
            if not is_constant(operands[slot]):
                self.refuse(slot, operands[slot])
        return super().__call__(*operands, **attrs)

    def refuse(self, slot: int, x: Any) -> None:
        """Raise, as a derivative is asked for by an operand by which none is known."""
        raise UnsupportedOpError(
            f"{self.title}: no derivative by its argument {self.unknown[slot]} is known, and for it a Tensor "
            f"of shape {x.shape} that requires grad or has a tangent was given; detach() it where constant"
        )


class OfMany(Special):
    """One of more operands than the words of a record have room for: its rule runs in Python."""

    template = Template.PYTHON
    form = layout.CHAIN

    def reads(self, k: int) -> int:
        return ALL

    def complete(self) -> None:
        Primitive.complete(self)


def declare(
    of: str = "", *, result: int | None = None, unknown: tuple[str, ...] = (), whole: bool = False,
    holomorphic: bool = True, domain: Real | None = None, of_complex: Any = None,
) -> Callable[[Any], Any]:  # fmt: skip
    """Declare the op of a function by its partial derivatives, as `ops.primitive.elementwise` does.

    Where this SciPy has no such function nothing is declared.

    Parameters
    ----------
    of : str, optional
        The name of the ufunc, where that of the rule is another.
    result : int, optional
        Which of its results, where it has several.
    unknown : tuple of str, optional
        Parameters by which no derivative is known.
    whole : bool, optional
        Whether it has a way of its own for a first operand that is a whole number.
    holomorphic : bool, optional
        Whether the rules are right for complex numbers.
    domain, of_complex
        As in `elementwise`.
    """

    def declared(rule: Any) -> Any:
        name = rule.__name__
        ufunc = getattr(_ufuncs, of or name, None)
        if ufunc is None:
            return None
        functions = () if result is not None else (ufunc,)
        forward = ufunc if result is None else lambda *xs: ufunc(*xs)[result]
        kind = Special if ufunc.nin <= OUT else OfMany
        own = MEANING.get(ufunc)  # a user's, who has declared it before
        op = kind(name, functions, forward, ufunc.nin, rule.__doc__, rule)
        public = (of or name).removeprefix("_").removeprefix("riemann_")
        op.domain, op.linked, op.title = domain or Real(), name, f"scipy.special.{public}"
        op.of_complex, op.holomorphic = of_complex and rules.Rule(of_complex), holomorphic
        op.of_integers = any(form.startswith("l") for form in ufunc.types)
        op.unknown = {op.slots[parameter]: parameter for parameter in unknown}
        symbols.FUNCTIONS[name] = symbols.Linked(ufunc, result or 0, whole)
        if result is not None:
            MEANING[op] = op
            RESULTS.setdefault(ufunc, [None] * ufunc.nout)[result] = op
        elif own is not None:
            MEANING[ufunc] = own
        vars(special)[name] = ufunc if result is None else op
        return op

    return declared


def plain(forward: Callable[..., Any], title: str, unknown: tuple[str, ...]) -> Callable[[Any], Special]:
    """Declare an op that no function of SciPy's means, for rules; Python computes its value."""

    def declared(rule: Any) -> Special:
        count = len(inspect.signature(rule).parameters)
        op = Special(rule.__name__, (), forward, count, rule.__doc__, rule)
        op.title, op.unknown = title, {op.slots[parameter]: parameter for parameter in unknown}
        MEANING[op] = op
        vars(special)[rule.__name__] = op
        return op

    return declared
