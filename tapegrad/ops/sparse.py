"""Products and solutions with sparse matrices of a constant pattern, by their values and the other operand.

The values of a matrix are an operand, a vector; where they stand is the attribute `pattern`. Rules are those
of matrices (Giles 2008, sections 2.2.2 and 2.3.1), restricted to the pattern.
"""

import functools

import numpy as np
from scipy import sparse
from scipy.sparse import linalg

from tapegrad.errors import GradientError
from tapegrad.ops.lapack import Kept
from tapegrad.ops.matrix_functions import declare, like
from tapegrad.ops.primitive import conj


class Pattern:
    """Where the values of a sparse matrix stand: row by row; of its transpose, if `turned`."""

    def __init__(self, indices, indptr, shape, turned=False):
        self.indices, self.indptr, self.shape, self.turned = indices, indptr, shape, turned

    def __eq__(self, other):
        """Whether values of the other one stand at the same places, in the same order."""
        return self is other or (
            isinstance(other, Pattern)
            and (self.shape, self.turned) == (other.shape, other.turned)
            and np.array_equal(self.indptr, other.indptr)
            and np.array_equal(self.indices, other.indices)
        )

    __hash__ = None  # type: ignore[assignment]

    @staticmethod
    def of_places(rows, columns, shape):
        """The pattern of places in any order, which may come twice; and in which order values stand in it."""
        order = np.argsort(rows, kind="stable")
        indptr = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=shape[0]))])
        return Pattern(columns[order], indptr, shape), order

    @property
    def T(self):
        """That of the transpose, whose values are the same."""
        return Pattern(self.indices, self.indptr, self.shape[::-1], not self.turned)

    @functools.cached_property
    def places(self):
        """Row and column of each value."""
        count = np.diff(self.indptr)
        found = np.repeat(np.arange(len(count)), count), self.indices
        return found[::-1] if self.turned else found

    def matrix(self, data: np.ndarray) -> sparse.sparray:
        """SciPy's matrix of these values."""
        shape = self.shape[::-1] if self.turned else self.shape
        found = sparse.csr_array((data, self.indices, self.indptr), shape=shape)
        return found.T if self.turned else found


def known(matrix):
    """Values and pattern of a matrix of SciPy's, which may sort and shorten its own in place later."""
    turned = matrix.format == "csc"
    matrix = matrix if turned else matrix.tocsr()
    return matrix.data, Pattern(matrix.indices.copy(), matrix.indptr.copy(), matrix.shape, turned)


def meeting(left, right):
    """Which values of two matrices are multiplied in their product, and row and column of each such pair.

    Pairs stand in the order in which a product of SciPy's adds them.
    """
    rows, inner = left.places
    theirs, columns = right.places
    mine, order = np.argsort(rows, kind="stable"), np.argsort(theirs, kind="stable")
    counts = np.bincount(theirs, minlength=right.shape[0])
    starts = np.cumsum(counts) - counts
    met = counts[inner[mine]]
    i = np.repeat(mine, met)
    j = order[starts[inner[i]] + np.arange(len(i)) - np.repeat(np.cumsum(met) - met, met)]
    return i, j, rows[i], columns[j]


def _at_places(left, right, pattern):
    """The elements of a pattern of left right**H, of vectors or matrices."""
    rows, columns = pattern.places
    found = left[rows] * conj(right[columns])
    return found if found.ndim == 1 else np.sum(found, axis=-1)


@declare(lambda data, x, pattern: pattern.matrix(data) @ x, 2, "sparse")
class product:
    """Product of a sparse matrix with a vector or a matrix."""

    reads = (0b10, 0b01)

    def vjp(ct, out, inputs, wanted, pattern):
        data, x = inputs
        found = {}
        if 0 in wanted:
            found[0] = like(_at_places(ct, x, pattern), data)
        if 1 in wanted:
            found[1] = like(product(conj(data), ct, pattern=pattern.T), x)
        return found

    def jvp(tangents, out, inputs, pattern):
        (data, x), (ddata, dx) = inputs, tangents
        terms = []
        if ddata is not None:
            terms.append(product(ddata, x, pattern=pattern))
        if dx is not None:
            terms.append(product(data, dx, pattern=pattern))
        return terms[0] if len(terms) == 1 else terms[0] + terms[1]


@declare(lambda data, pattern: pattern.matrix(data).toarray(), 1, "sparse")
class toarray:
    """The array of all elements of a sparse matrix."""

    reads = (0,)

    def vjp(ct, out, inputs, wanted, pattern):
        return {0: ct[pattern.places]}

    def jvp(tangents, out, inputs, pattern):
        return toarray(tangents[0], pattern=pattern)


class Factors(Kept):
    """Solves with a sparse matrix and its adjoint by one factorisation, made when first needed."""

    def __init__(self, **options):
        super().__init__(())
        self.options, self.superlu = options, None

    def name(self):
        return id(self)

    def factor(self, matrix):
        """SuperLU's factors of the matrix."""
        if self.superlu is None:
            kind = np.result_type(matrix.dtype, np.float32)
            try:
                self.superlu = linalg.splu(matrix.tocsc().astype(kind), **self.options)
            except RuntimeError as error:
                raise np.linalg.LinAlgError(str(error)) from error
            self.dtype = kind
        return self.superlu

    def solve(self, matrix, b, turned):
        """Return matrix**-1 b; if `turned`, the matrix is the adjoint of the one whose factors are kept."""
        if self.superlu is None:
            self.factor(matrix.conj().T if turned else matrix)
        call = functools.partial(self.superlu.solve, trans="H" if turned else "N")
        if b.dtype.kind == "c" and self.dtype.kind != "c":
            parts = (call(np.ascontiguousarray(part, self.dtype)) for part in (b.real, b.imag))
            real, imag = parts
            return real + 1j * imag
        return call(np.ascontiguousarray(b, self.dtype))


class Iteration(Kept):
    """Solves with a sparse matrix, or an operator, and its adjoint by a function of SciPy's that iterates."""

    def __init__(self, title, function, operator, M, options):
        super().__init__(())
        self.title, self.function, self.operator, self.M, self.options = title, function, operator, M, options
        self.first = None  # the solution that was found before the record, and is its value

    def name(self):
        return id(self)

    def solve(self, matrix, b, turned):
        """Return matrix**-1 b; of the operator, or if `turned` its adjoint, if the matrix is None."""
        if self.first is not None:
            found, self.first = self.first, None
            return found
        if matrix is None:
            matrix = self.operator.H if turned else self.operator
        M = self.M
        if M is not None and turned:
            M = linalg.aslinearoperator(M).H
        found, info = self.function(matrix, b, M=M, **self.options)
        if info:
            raise GradientError(
                f"{self.title}: the equation for a derivative was not solved within the iterations allowed "
                f"(info={info}); raise maxiter, or give a preconditioner M"
            )
        return found


@declare(lambda data, b, pattern, solver, turned=False: solver.solve(
    None if pattern is None else pattern.matrix(data), b, turned), 2, "sparse.linalg")  # fmt: skip
class spsolve:
    """Solution x of a x = b of a sparse matrix; without a pattern of an operator that the solver knows.

    With w = a**-H ct, db = w and da = -w x**H at the places of values.
    """

    reads = (0b1001, 0b0001)

    def vjp(ct, out, inputs, wanted, pattern, solver, turned=False):
        data, b = inputs
        back = None if pattern is None else pattern.T
        w = spsolve(conj(data), ct, pattern=back, solver=solver, turned=not turned)
        found = {}
        if 0 in wanted:
            found[0] = like(-_at_places(w, out, pattern), data)
        if 1 in wanted:
            found[1] = like(w, b)
        return found

    def jvp(tangents, out, inputs, pattern, solver, turned=False):
        ddata, db = tangents
        right = 0 if db is None else db
        if ddata is not None:
            right = right - product(ddata, out, pattern=pattern)
        return spsolve(inputs[0], right, pattern=pattern, solver=solver, turned=turned)


@declare(lambda x, operator: operator @ x, 1, "sparse.linalg")
class operate:
    """Product of a constant operator of SciPy's with a vector."""

    reads = (0,)

    def vjp(ct, out, inputs, wanted, operator):
        return {0: operate(ct, operator=operator.H)}

    def jvp(tangents, out, inputs, operator):
        return operate(tangents[0], operator=operator)
