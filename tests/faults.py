"""Random programs as text, a line for each operation, of which one is at fault."""

import numpy as np

SIZE = 8
BACKWARD = {  # at fault in reverse: what is done to a square `{v}` that is 0 somewhere, and then masked
    "sqrt": "np.sqrt({v})",
    "power": "{v} ** 0.5",
    "cbrt": "np.cbrt({v})",
    "arccos": "np.arccos(1.0 - {v})",
    "arccosh": "np.arccosh({v} + 1.0)",
    "arcsin": "np.arcsin(1.0 - {v})",
}
FORWARD = {  # at fault forward: what is done to it
    "log": "np.log({v})",
    "reciprocal": "1.0 / {v}",
    "nothing by nothing": "{v} / {v}",
    "overflow": "np.exp({v} + 800.0)",
    "root of a negative": "np.sqrt({v} - 0.5)",
}
SPLIT = ("arccos", "arccosh", "arcsin", "overflow", "root of a negative")  # the operand has a line of its own


class Program:
    """A function ``run(np, x, y, mask)`` of a scalar and an array, whose result is a scalar.

    Attributes
    ----------
    text
        Its source.
    line
        The line that is at fault, or None.
    """

    def __init__(self, rng, operations, fault=None, arrays=0.5):
        self.rng, self.lines, self.line = rng, ["def run(np, x, y, mask):"], None
        self.known = {False: [("x", 1.0)], True: [("y", 1.0)]}  # by whether an array: names, and their bounds
        self.arrays = arrays
        self.total = None
        place = int(rng.integers(1, operations - 10)) if fault else operations
        while len(self.lines) <= operations:
            if fault and len(self.lines) >= place:
                self.fault(fault)
                fault = None
            else:
                self.operation()
        out = [name for name, _ in self.known[False][-3:]]
        out += [self.put(f"np.sum({name})") for name, _ in self.known[True][-3:]]
        out += [] if self.total is None else [self.total]
        result = out[0]
        for name in out[1:]:
            result = self.put(f"{result} + {name}")
        self.lines.append(f"    return {result}")
        self.text = "\n".join(self.lines) + "\n"

    def put(self, expression):
        """Add a line; returns the name of what it computes."""
        name = f"v{len(self.lines)}"
        self.lines.append(f"    {name} = {expression}")
        return name

    def pick(self, array):
        """One of the values computed last."""
        names = self.known[array][-12:]
        return names[self.rng.integers(len(names))]

    def operation(self):
        """A random operation; values and the cotangents that flow back stay bounded."""
        rng = self.rng
        array = bool(rng.random() < self.arrays)
        a, bound = self.pick(array)
        kind = rng.integers(12)
        if bound > 4 or kind < 3:
            f = ("sin", "cos", "tanh")[kind % 3]
            made, bound = f"np.{f}({a})", 1.0
        elif kind < 6:
            b, other = self.pick(array and bool(rng.random() < 0.7))
            made = f"{a} {'+-'[kind % 2]} {b}" if kind < 5 else f"np.maximum({a}, {b})"
            bound += other
        elif kind < 8:
            b, other = self.pick(array and bool(rng.random() < 0.7))
            made, bound = f"{a} * {b}", bound * other
        elif kind == 8:
            made, bound = f"{a} / {2.0 + float(rng.random()):.3f}", bound / 2
        elif kind == 9:
            made, bound = f"{a} * {0.2 + 0.2 * float(rng.random()):.3f}", bound / 2
        elif kind == 10:
            made = f"-{a}"
        elif array and rng.random() < 0.5:
            array, made = False, f"{a}[{rng.integers(SIZE)}]"
        elif array:
            array, made = False, f"np.mean({a})"
        else:
            made, bound = f"{a} ** 2", bound * bound
        self.known[array].append((self.put(made), bound))

    def fault(self, name):
        """The lines around one that is at fault; what it makes has no part in what follows but the result."""
        array = bool(self.rng.random() < self.arrays)
        v, _ = self.pick(array)
        zero = "mask" if array else "0.0"
        v = self.put(f"{v} * {v}")
        v = self.put(f"{v} * {zero}")
        form = (BACKWARD | FORWARD)[name]
        if name in SPLIT:
            for inner in ("{v} + 1.0", "1.0 - {v}", "{v} + 800.0", "{v} - 0.5"):
                if inner in form:
                    form = form.replace(inner, "{v}")
                    v = self.put(inner.format(v=v))
        self.line = len(self.lines) + 1
        v = self.put(form.format(v=v))
        v = self.put(f"{v} * {zero}")
        self.total = self.put(f"np.sum({v})") if array else v

    def compiled(self, path):
        """The function, its source written to a file that tracebacks name."""
        path.write_text(self.text)
        space = {}
        exec(compile(self.text, str(path), "exec"), space)
        return space["run"]


def arguments(rng):
    """A scalar, an array, and a constant array with a zero somewhere."""
    mask = np.ones(SIZE)
    mask[rng.integers(SIZE)] = 0.0
    return float(rng.uniform(0.2, 0.9)), rng.uniform(0.2, 0.9, SIZE), mask
