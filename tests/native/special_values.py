"""What Tensors and compiled code differ in at infinities, nan, signed zeros, and huge and tiny numbers.

python -m tests.native.special_values [FIRST [END]]

Of each function the first expressions that `test_equal` has, and values and derivatives to order 2; FIRST and
END count programs of 16 expressions. What differs is printed, then counts by order and by expression.

What is left, by kind:

* Norms: Tensors have NumPy's value, whose squares overflow or vanish beyond 1e+-154; Numba's does neither.
* `np.partition`: where elements come to lie that are no more than ordered is each implementation's own.
* Numba's own values and errors, which are not NumPy's: division by 0 raises, `cholesky` and singular systems
  raise, complex `tanh` and `arccosh` are nan at infinities, and signs of complex zeros are others.
* `det`, `slogdet` and `matrix_power` eliminate and multiply in another order than LAPACK, so that infinities
  and what overflows in between meet as nan in other entries.
* Products of infinities and overflows (`prod`, `cumprod`, powers, complex functions), where the order of
  factors says whether infinity or nan results.
* Medians and quantiles without nan, of nothing but nan: Tensors give the derivative to the last, compiled
  code to none.
* Second derivatives at 1e-310, whose reciprocal overflows.
"""

import functools
import sys
import warnings
from collections import Counter
from itertools import zip_longest

import numpy as np

from . import test_equal as table

SPECIAL = (np.inf, -np.inf, np.nan, 0.0, -0.0, 1e300, -1e300, 1e-310)
ORDER, OF_ONE_PROGRAM = 2, 16


def points_for(sizes):
    """A special value everywhere, or first or last among ordinary ones."""
    for n in sizes:
        ordinary = [0.5, 2.0, -1.0, 3.0, 0.25, 1.5, -2.0, 4.0, 0.75][:n]
        for v in SPECIAL:
            yield [v] * n
            if n > 1:
                yield [v, *ordinary[1:]]
                yield [*ordinary[:-1], v]


def rows():
    """Rows as in the table, of special points; the first is an ordinary one, which says the kind of value."""
    of_text = {}
    for function, text, points, order in table.SHORT:
        _, known, highest = of_text.get(text, (function, [], 0))
        of_text[text] = function, known + [p for p in points if p], max(highest, min(order, ORDER))
    for text, (function, points, order) in of_text.items():
        if points:
            sizes = sorted({len(p) for p in points})
            yield function, text, [points[-1], *points_for(sizes[-2:])], order


def derivatives_or_error(function, point, order):
    try:
        return table.derivatives(function, point, order)
    except Exception as error:  # of either way: the other may have none
        return [type(error)]


def differences(program):
    """Expression, point, order, and what Tensors and compiled code have."""
    for which, (text, points) in enumerate(program.rows.items()):
        for point, highest in points[1:]:
            with np.errstate(all="ignore"), warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                ways = (functools.partial(f, which) for f in program.ways)
                found = (derivatives_or_error(f, point, highest) for f in ways)
                for order, (a, b) in enumerate(zip_longest(*found)):
                    if not table.alike(a, b):
                        yield text, point, order, a, b
                        break


def main(first=0, end=None):
    """Compare these programs; returns whether anything differs."""
    orders, texts, compared = Counter(), Counter(), 0
    for (part,) in (p.values for p in table.parts([*rows()], OF_ONE_PROGRAM)[first:end]):
        compared += sum(len(points) - 1 for _, _, points, _ in part)
        for text, point, order, a, b in differences(table.Program(part)):
            orders[order] += 1
            texts[text] += 1
            print(f"{text} at {point}, order {order}: Tensors {a}, compiled {b}", flush=True)
    print(f"{compared} points, {orders.total()} different, by order {dict(sorted(orders.items()))}")
    for text, count in texts.most_common():
        print(f"{count:5} {text}")
    return bool(texts)


if __name__ == "__main__":
    sys.exit(main(*map(int, sys.argv[1:])))
