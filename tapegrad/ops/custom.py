"""Records whose derivative is a user's: a call of a Function, its results, and what has no derivative."""

import numpy as np

from tapegrad.ops.primitive import ALL, OUT, Primitive
from tapegrad.tape.record import Template


class Custom(Primitive):
    """An op that no NumPy function means."""

    listed = by_itself = False

    def node_name(self, attrs):
        known = attrs.get("call") or attrs.get("rule")
        return "RefusalBackward" if known is None else known.name


class Call(Custom):
    """A call of a Function; its operands are the inputs that require grad, its value stands for nothing.

    The attribute `call` holds the cotangents that came to the results and knows the user's rule, which reads
    the values of some operands: bits 0, 1, and 2 for the rest.
    """

    def __init__(self, name, saved, doc):
        self.saved = saved
        super().__init__(name, (), None, 0, doc)

    def reads(self, k):
        return self.saved

    def vjp(self, ct, out, inputs, attrs, wanted):
        return attrs["call"].vjp_of_results(wanted, ct)

    def vjp_of_lanes(self, n, ct, attrs, wanted):
        """As `vjp`, of n cotangents: the user's rule takes one at a time."""
        return attrs["call"].vjp_of_lanes(n, wanted, ct)


class Single(Call):
    """A call of a Function with one result, which is its value; bit 3 if the user's rule reads that."""

    def vjp(self, ct, out, inputs, attrs, wanted):
        return attrs["call"].vjp_of_result(wanted, ct)

    def vjp_of_lanes(self, n, ct, attrs, wanted):
        """As `vjp`, of n cotangents: the user's rule takes one at a time."""
        attrs["call"].receive(0, ct)
        return attrs["call"].vjp_of_lanes(n, wanted, ct)


class Result(Custom):
    """A result of a call; `kept` if the user's rule reads its value."""

    def __init__(self, name, kept, doc):
        self.kept = kept
        super().__init__(name, (), None, 1, doc)

    def reads(self, k):
        return self.kept << OUT

    def vjp(self, ct, out, inputs, attrs, wanted):
        return {0: attrs["call"].receive(attrs["index"], ct)}

    def vjp_of_lanes(self, n, ct, attrs, wanted):
        """As `vjp`, of n cotangents, which are received together."""
        attrs["call"].receive(attrs["index"], ct)
        return {0: np.zeros(n)}


class Compiled(Custom):
    """The result of a Function of compiled functions, which the attribute `rule` knows.

    The first operand tells compiled sweeps where its derivative is; the others are arguments.
    """

    def __init__(self, name, template, doc):
        self.template = template
        super().__init__(name, (), None, 0, doc)

    def reads(self, k):
        return ALL

    def vjp(self, ct, out, inputs, attrs, wanted):
        return attrs["rule"].vjp(ct, out, inputs, attrs["args"], wanted)

    def jvp(self, tangents, out, inputs, attrs):
        raise attrs["rule"].no_tangent()


class Refusal(Custom):
    """A value computed from the operands in a way without a derivative; the attribute `why` says so."""

    def reads(self, k):
        return 0

    def vjp(self, ct, out, inputs, attrs, wanted):
        raise attrs["why"]()

    def jvp(self, tangents, out, inputs, attrs):
        raise attrs["why"]()


calls = [Call("call", saved, "A call of a user's Function.") for saved in range(8)]
singles = [Single("single", saved, "A call with one result.") for saved in range(16)]
result = Result("result", 0, "A result of a call.")
kept_result = Result("kept_result", 1, "A result of a call that its rule reads.")
compiled = Compiled("compiled", Template.COMPILED, "A result of compiled functions.")
compiled_rule = Compiled(
    "compiled_rule", Template.PYTHON, "The same, with arguments that rules in Python take."
)
refusal = Refusal("refusal", (), None, 0, "What a Function made out of sight.")
