"""Products and solves."""

import math
import operator
import string

import numpy as np

from tapegrad.ops import buffers, kinks
from tapegrad.ops.primitive import conj, primitive, sum_to
from tapegrad.tape.record import Template


def _adjoint(x):
    return conj(x.mT)


def _flops_of_product(a, b):
    rows, columns = a[-2:-1], b[-1:] if len(b) > 1 else ()
    return 2 * math.prod((*np.broadcast_shapes(a[:-2], b[:-2]), *rows, a[-1], *columns))


def _part_of_product(k, ct, a, b):
    """The cotangent of an operand of a product of matrices, or of a matrix and a vector."""
    if k == 0:
        if np.ndim(a) == 1:
            return conj(b) @ ct
        return buffers.outer(ct, conj(b)) if np.ndim(b) == 1 else buffers.matmul(ct, _adjoint(b))
    if np.ndim(a) == 1:
        return buffers.outer(conj(a), ct)
    return ct @ conj(a) if np.ndim(b) == 1 else buffers.matmul(_adjoint(a), ct)


@primitive(
    np.matmul, forward=buffers.product, arity=2, template=Template.MATMUL, broadcasts=True,
    flops=_flops_of_product, operator=operator.matmul, squares=kinks.PRODUCT, multilinear=True,
)  # fmt: skip
class matmul:
    """Matrix product, batched as NumPy does."""

    reads = (0b10, 0b1)

    def vjp(ct, out, inputs, wanted):
        a, b = inputs
        axes = np.ndim(a), np.ndim(b)
        rows, columns = axes[0] == 1, axes[1] == 1
        if rows and columns:  # no product of matrices: quicker, and `kinks` sees through it
            ct = np.reshape(ct, (*np.shape(ct), 1)) if np.ndim(ct) else ct
            return {k: ct * conj(inputs[1 - k]) for k in wanted}
        if max(axes) == 2 and np.ndim(ct) == sum(axes) - 2:  # no stacks, no lanes
            return {k: _part_of_product(k, ct, a, b) for k in wanted}
        left = np.reshape(a, (1, -1)) if rows else a
        right = np.reshape(b, (-1, 1)) if columns else b
        shape = np.shape(ct)
        if rows:
            shape = (*shape[: len(shape) - (not columns)], 1, *shape[len(shape) - (not columns) :])
        if columns:
            shape = (*shape, 1)
        ct = np.reshape(ct, shape)
        lanes = shape[: len(shape) - max(np.ndim(left), np.ndim(right))]
        found = {}
        if 0 in wanted:
            if lanes and rows and np.ndim(b) == 2:  # one product of matrices, not one of a vector per lane
                part = buffers.matmul(np.reshape(ct, (*lanes, np.shape(b)[1])), _adjoint(b))
            else:
                part = sum_to(buffers.matmul(ct, _adjoint(right)), np.shape(left), len(lanes))
            found[0] = np.reshape(part, (*lanes, *np.shape(a)))
        if 1 in wanted:
            if lanes and columns and np.ndim(a) == 2:
                part = buffers.matmul(np.reshape(ct, (*lanes, np.shape(a)[0])), conj(a))
            else:
                part = sum_to(buffers.matmul(_adjoint(left), ct), np.shape(right), len(lanes))
            found[1] = np.reshape(part, (*lanes, *np.shape(b)))
        return found

    def jvp(tangents, out, inputs):
        a, b = inputs
        terms = []
        if tangents[0] is not None:
            terms.append(np.matmul(tangents[0], b))
        if tangents[1] is not None:
            terms.append(np.matmul(a, tangents[1]))
        return terms[0] if len(terms) == 1 else terms[0] + terms[1]


def _solve(a, b, lu=None, turned=False):
    return np.linalg.solve(a, b) if lu is None else lu.solve(a, b, turned)


def _solution(a, b, lu, turned):
    return np.linalg.solve(a, b) if lu is None else solve(a, b, lu=lu, turned=turned)


@primitive(np.linalg.solve, forward=_solve, arity=2, broadcasts=True, opaque=("lu",))
class solve:
    """Solution x of a x = b; with a**-H applied to the cotangent, db = w and da = -w x**H.

    The attribute `lu` has the factors of a, or of its adjoint if it is `turned` (`lapack.LU`).
    """

    reads = (0b1001, 0b0001)

    def vjp(ct, out, inputs, wanted, lu=None, turned=False):
        a, b = inputs
        vector = b.ndim == 1
        if vector and ct.ndim == 1:  # one matrix, no lanes
            w = _solution(_adjoint(a), ct, lu, not turned)
            return {k: w if k else buffers.outer(-w, conj(out)) for k in wanted}
        right = np.reshape(ct, (*ct.shape, 1)) if vector else ct
        lanes = ct.ndim - (a.ndim - 1 if vector else max(a.ndim, b.ndim))
        w = _solution(_adjoint(a), right, lu, not turned)
        found = {}
        if 0 in wanted:
            x = np.reshape(out, (*out.shape, 1)) if vector else out
            product = buffers.multiply if vector else buffers.matmul
            found[0] = sum_to(buffers.negative(product(w, _adjoint(x))), a.shape, lanes)
        if 1 in wanted:
            found[1] = sum_to(np.reshape(w, ct.shape) if vector else w, b.shape, lanes)
        return found

    def jvp(tangents, out, inputs, lu=None, turned=False):
        a, b = inputs
        da, db = tangents
        right = 0 if db is None else db
        if da is not None:
            x = np.reshape(out, (*np.shape(out), 1)) if np.ndim(b) == 1 else out
            moved = np.matmul(da, x)
            right = right - (np.reshape(moved, np.shape(out)) if np.ndim(b) == 1 else moved)
        if np.ndim(b) == 1:
            right = np.reshape(right, (*np.shape(right), 1))
            return np.reshape(_solution(a, right, lu, turned), np.shape(out))
        return _solution(a, right, lu, turned)


def _inv(a, lu=None):
    return np.linalg.inv(a) if lu is None else lu.inverse(a)


@primitive(np.linalg.inv, forward=_inv, arity=1, broadcasts=True, opaque=("lu",))
class inv:
    """Inverse x of a matrix, which moves by -x da x; `lu` has factors of the matrix that are known."""

    reads = (0b1000,)

    def vjp(ct, out, inputs, wanted, lu=None):
        back = _adjoint(out)
        return {0: buffers.negative(buffers.matmul(buffers.matmul(back, ct), back))}

    def jvp(tangents, out, inputs, lu=None):
        return -np.matmul(np.matmul(out, tangents[0]), out)


@primitive(np.einsum, forward=lambda *x, inputs, output: np.einsum(_text(inputs, output), *x), arity=0,
           broadcasts=True, multilinear=True)  # fmt: skip
class einsum:
    """Einstein summation over explicit subscripts (`numpy_api.products` makes them explicit)."""

    reads = 0b111

    def vjp(ct, out, operands, wanted, inputs, output):
        front = _new(output, *inputs) if np.ndim(ct) > len(output) else ""  # the axis of lanes
        lanes = np.shape(ct)[: len(front)]
        found = {}
        for k in wanted:
            mine, shape = inputs[k], np.shape(operands[k])
            others = [conj(x) for j, x in enumerate(operands) if j != k]
            labels = [s for j, s in enumerate(inputs) if j != k]
            once = "".join(dict.fromkeys(mine))
            extent = dict(zip(mine, shape, strict=True))
            known = set(output).union(*labels)
            kept = "".join(c for c in once if c in known)
            part = np.einsum(_text([front + output, *labels], front + kept), ct, *others)
            own = np.shape(part)[len(front) :]
            own = tuple(min(extent[c], n) for c, n in zip(kept, own, strict=True))
            part = sum_to(part, own, len(front))
            # an index that only this operand has was summed over; one it repeats lies on a diagonal
            where = tuple(slice(None) if c in known else None for c in once)
            where = (slice(None),) * len(front) + where
            full = np.broadcast_to(part[where], (*lanes, *(extent[c] for c in once)))
            if len(once) != len(mine):
                for at, c in enumerate(mine):
                    if mine.index(c) == at:
                        continue
                    eye = np.eye(extent[c], dtype=np.result_type(full))
                    new = _new(once, front, *known)
                    mine = mine[:at] + new + mine[at + 1 :]
                    full = np.einsum(_text([front + once, c + new], front + once + new), full, eye)
                    once += new
                full = np.transpose(full, [(front + once).index(c) for c in front + mine])
            found[k] = full
        return found

    def jvp(tangents, out, operands, inputs, output):
        total = None
        for k, tangent in enumerate(tangents):
            if tangent is not None:
                front = _new(output, *inputs) if np.ndim(tangent) > len(inputs[k]) else ""
                moved = [tangent if j == k else x for j, x in enumerate(operands)]
                labels = [front + s if j == k else s for j, s in enumerate(inputs)]
                term = np.einsum(_text(labels, front + output), *moved)
                total = term if total is None else total + term
        return total


def _new(*labels):
    """A letter that is no label yet."""
    return next(c for c in string.ascii_letters if c not in "".join(labels))


def _text(inputs, output):
    return f"{','.join(inputs)}->{output}"
