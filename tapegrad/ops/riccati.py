"""Algebraic Riccati equations, by SciPy; declared when first asked for.

Their stabilising solution x is what the best feedback k leaves to pay, so k is held still where x is
differentiated: with c = a - b k, and dw what moves by da, db, dq and dr alone, x moves by the solution of a
linear equation with c (Kao and Hennequin 2020, "Automatic differentiation of Sylvester, Lyapunov, and
algebraic Riccati equations").
"""

import numpy as np
from scipy import linalg

from tapegrad.ops.decompositions import adjoint, half
from tapegrad.ops.matrix_functions import declare, like, solve_sylvester


def stein(c, q):
    """x of x = c x c**H + q, of a matrix c whose eigenvalues are below 1 in size.

    Its Cayley transform has the same x in an equation of Sylvester's.
    """
    eye, back = np.eye(c.shape[-1], dtype=c.dtype), adjoint(c)
    turned = np.linalg.inv(back + eye)
    b = np.matmul(back - eye, turned)
    right = np.matmul(np.matmul(np.linalg.inv(c + eye), q), turned) * -2
    return solve_sylvester(adjoint(b), b, right)


def _rules(feedback, forward, turned, moved):
    """The rules of an equation, by its feedback, its linear equation, that of the adjoint, and x or x c."""

    class rules:
        reads = (0b11111,) * 4

        def vjp(ct, out, inputs, wanted):
            a, b, q, r = inputs
            k = feedback(a, b, r, out)
            w = turned(a - np.matmul(b, k), half(ct))
            found, left = {}, np.matmul(moved(a, b, k, out), w) * 2
            if 0 in wanted:
                found[0] = like(left, a)
            if 1 in wanted:
                found[1] = like(-np.matmul(left, adjoint(k)), b)
            if 2 in wanted:
                found[2] = like(w, q)
            if 3 in wanted:
                found[3] = like(np.matmul(np.matmul(k, w), adjoint(k)), r)
            return found

        def jvp(tangents, out, inputs):
            (a, b, _, r), (da, db, dq, dr) = inputs, tangents
            k = feedback(a, b, r, out)
            terms, right = [] if dq is None else [dq], adjoint(moved(a, b, k, out))
            if da is not None:
                terms.append(np.matmul(right, da) * 2)
            if db is not None:
                terms.append(np.matmul(np.matmul(right, db), k) * -2)
            if dr is not None:
                terms.append(np.matmul(adjoint(k), np.matmul(dr, k)))
            total = terms[0]
            for term in terms[1:]:
                total = total + term
            return forward(a - np.matmul(b, k), half(total))

    return rules


def _continuous(forward):
    rules = _rules(
        lambda a, b, r, x: np.linalg.solve(r, np.matmul(adjoint(b), x)),
        lambda c, w: solve_sylvester(adjoint(c), c, -w),
        lambda c, w: solve_sylvester(c, adjoint(c), -w),
        lambda a, b, k, x: x,
    )
    rules.__name__, rules.__doc__ = "solve_continuous_are", "x of a**H x + x a - x b r**-1 b**H x + q = 0."
    return declare(forward, 4)(rules)


def _of_steps(a, b, r, x):
    onward = np.matmul(adjoint(b), x)
    return np.linalg.solve(r + np.matmul(onward, b), np.matmul(onward, a))


def _discrete(forward):
    rules = _rules(
        _of_steps,
        lambda c, w: stein(adjoint(c), w),
        stein,
        lambda a, b, k, x: np.matmul(x, a - np.matmul(b, k)),
    )
    rules.__name__, rules.__doc__ = (
        "solve_discrete_are",
        "x = a**H x a - k**H (r + b**H x b) k + q of the best k.",
    )
    return declare(forward, 4)(rules)


solve_continuous_are = _continuous(linalg.solve_continuous_are)
solve_discrete_are = _discrete(linalg.solve_discrete_are)
