"""What functions of matrices share (`matrix_sources`): planes, products, factors, and the block itself."""

PLANES = '''"""{name} of matrices of numbers with tangents {spec}. {digest}"""
import numpy as np
from numba import njit
from tapegrad.native.arrays.array_layout import COUNTED, NUMBERED
from tapegrad.native.tapes.blocks import addressed, drop_of, inner_njit, keep, loading, pushed, roomy
from tapegrad.native.library.matrices import array_at, by_products, fortran, look
from tapegrad.native.tapes.memory import get, put, read, write
from tapegrad.native.emission.adjoint import NOTHING_BITS
from tapegrad.native.tapes.tape import BEFORE, COTANGENTS, IMPORTS, KNOWN

# Of numbers: how many components there are, how many levels of tangents, and which components of two factors
# have their product in which component.
COMPONENTS, LEVELS, PRODUCTS = {components}, {levels}, np.array({products})
REMEMBERED = 4  # matrices whose latest copies are looked at
SINGLY, ONE_BY_ONE, LISTED = 1, 2, 3  # how the statements of a copy go on: all are one
STEP = 8 * (COMPONENTS + 2)  # bytes of a number: its components, its statement and its tape
ROWS_FIRST = {rows_first}  # whether the planes of the result are it, or its transpose

# To Fortran a plane is its transpose
dgemm, dgetrf, dtrsm = fortran("dgemm"), fortran("dgetrf"), fortran("dtrsm")
PLAIN, TURNED, LEFT, LOWER, UPPER, UNIT = ord("N"), ord("T"), ord("L"), ord("L"), ord("U"), ord("U")


@inner_njit
def laid(x):
    """A matrix as its planes are to be: as it is, or its transpose, in the same place."""
    address, how, m, n, row, column, first, tape = x
    return x if ROWS_FIRST else (address, how, n, m, column, row, first, tape)


@inner_njit
def planes(k, m, n, where):
    """An array for so many components of a matrix, in the memory of a tape if one is given."""
    if where:
        return array_at(roomy(where, 8 * k * m * n), (k, m, n), np.float64)
    return np.empty((k, m, n))


@inner_njit
def home(x):
    """The tape of the first element of a matrix, 0 if that is on none: where there is memory for copies."""
    address, how, m, n, row, column, first, tape = x
    return tape if how != NUMBERED or m * n == 0 else get(address + 8 * (COMPONENTS + 1), 0)


@inner_njit
def tape_of(x):
    """The tape that a matrix is on; 0 if none of its elements is on any."""
    address, how, m, n, row, column, first, tape = x
    if how != NUMBERED:
        return tape
    for i in range(m):
        for j in range(n):
            tape = get(address + i * row + j * column, COMPONENTS + 1)
            if tape:
                return tape
    return 0


@inner_njit
def flattened(m, n, row, column):
    """Rows, columns and strides of elements in the same order, in one row if they can be."""
    if n == 1:
        return 1, m, 0, row
    return (1, m * n, 0, column) if row == n * column else (m, n, row, column)


@inner_njit
def filled(to, x):
    """Copy a matrix: how its statements go on, 0 if it has none, planes, and statements if they are listed.

    Returns how many bytes that takes.
    """
    address, how, m, n, row, column, first, tape = x
    m, n, row, column = flattened(m, n, row, column)
    count, at, k, same, ordered = m * n, to + 8, 0, 0, 0
    if how != NUMBERED or count == 0:
        for i in range(m):
            out, source = array_at(at + 8 * n * i, (n,), np.float64), address + i * row
            if column == 8:
                line = array_at(source, (n,), np.float64)
                for j in range(n):
                    out[j] = line[j]
            else:
                for j in range(n):
                    out[j] = read(source + j * column)
        put(to, 0, first << 2 | ONE_BY_ONE if how == COUNTED else 0)
        return 8 + 8 * count
    first = get(address, COMPONENTS)
    for i in range(m):
        place = address + i * row
        for j in range(n):
            for q in range(COMPONENTS):
                write(at + 8 * (q * count + k), read(place + 8 * q))
            same |= get(place, COMPONENTS) ^ first
            ordered |= get(place, COMPONENTS) ^ (first + k)
            k += 1
            place += column
    put(to, 0, 0 if same == 0 and first == 0 else first << 2 | (
        ONE_BY_ONE if ordered == 0 else SINGLY if same == 0 else LISTED))
    if get(to, 0) & 3 != LISTED:
        return 8 + 8 * COMPONENTS * count
    numbers = array_at(at + 8 * COMPONENTS * count, (count,), np.uint32)
    for i in range(m):
        for j in range(n):
            numbers[i * n + j] = get(address + i * row + j * column, COMPONENTS)
    return 8 + 8 * COMPONENTS * count + (4 * count + 7) // 8 * 8


@inner_njit
def planes_at(at, m, n):
    """The planes of a copy; one if it is plain."""
    return array_at(at + 8, (COMPONENTS if get(at, 0) else 1, m, n), np.float64)


@inner_njit
def number_of(at, count, k):
    """The statement of element k of a copy."""
    how = get(at, 0)
    if how & 3 == LISTED:
        return np.int64(array_at(at + 8 + 8 * COMPONENTS * count, (count,), np.uint32)[k])
    return (how >> 2) + k if how & 3 == ONE_BY_ONE else how >> 2


@inner_njit
def add(cotangents, at, count, k, q, value):
    """Add to component q of the cotangent of element k of what was copied."""
    number = number_of(at, count, k)
    if number:
        place = cotangents + 8 * (COMPONENTS * number + q)
        write(place, read(place) + (value + 0.0))


@inner_njit
def unchanged(at, x):
    """Whether a matrix is as it was when it was copied, bit by bit."""
    address, how, m, n, row, column, first, tape = x
    count, going = m * n, get(at, 0)
    step, numbers = (1 if going & 3 == ONE_BY_ONE else 0), array_at(at, (0,), np.uint32)
    if going & 3 == LISTED:
        numbers = array_at(at + 8 + 8 * COMPONENTS * count, (count,), np.uint32)
    for i in range(m):
        differ, place = 0, address + i * row
        if how != NUMBERED:
            words, other = array_at(at + 8 + 8 * n * i, (n,), np.int64), array_at(place, (n,), np.int64)
            for j in range(n):
                differ |= words[j] ^ other[j]
        else:
            for q in range(COMPONENTS):
                for j in range(n):
                    differ |= get(at + 8, q * count + i * n + j) ^ get(place + j * column, q)
            if numbers.size:
                for j in range(n):
                    differ |= np.int64(numbers[i * n + j]) ^ get(place + j * column, COMPONENTS)
            else:
                for j in range(n):
                    number = (going >> 2) + step * (i * n + j)
                    differ |= number ^ get(place + j * column, COMPONENTS)
        if differ:
            return False
    return True


@inner_njit
def imported(x, where):
    """Where there is a copy of a matrix: what an earlier product has made as long as it is the same."""
    address, how, m, n, row, column, first, tape = x
    known, even = get(where, IMPORTS), how == NUMBERED or column == 8
    for _ in range(REMEMBERED):
        if known == 0 or not even:
            break
        if (get(known, 1) == address and get(known, 2) == how and get(known, 3) == m and get(known, 4) == n
                and get(known, 5) == row and get(known, 6) == column and get(known, 7) == first):
            if unchanged(known + 64, x):
                return known + 64
            break
        known = get(known, 0)
    place = roomy(where, 72 + 8 * m * n * (COMPONENTS + 1 if how == NUMBERED else 1))
    put(place, 0, get(where, IMPORTS))
    put(place, 1, address)
    put(place, 2, how)
    put(place, 3, m)
    put(place, 4, n)
    put(place, 5, row)
    put(place, 6, column)
    put(place, 7, first)
    filled(place + 64, x)
    if even:
        put(where, IMPORTS, place)
    return place + 64


@inner_njit
def apart(x, where):
    """Components of a matrix, one if it is not active; statements, none if it is on no tape; and the tape.

    Of floats whose statements follow each other it is the first alone.
    """
    address, how, m, n, row, column, first, tape = x
    if how != NUMBERED:
        numbers = array_at(0, (0,), np.uint32)
        if how:
            numbers = array_at(roomy(where, 4), (1,), np.uint32)
            numbers[0] = first
        if where and m > 1 and n > 1:
            return planes_at(imported(x, where), m, n), numbers, tape
        out = planes(1, m, n, where)
        for i in range(m):
            for j in range(n):
                out[0, i, j] = read(address + i * row + j * column)
        return out, numbers, tape
    out, tape = planes(COMPONENTS, m, n, where), 0
    if where:
        statements = array_at(roomy(where, 4 * m * n), (m * n,), np.uint32)
    else:
        statements = np.empty(m * n, np.uint32)
    for i in range(m):
        for j in range(n):
            place = address + i * row + j * column
            for q in range(COMPONENTS):
                out[q, i, j] = read(place + 8 * q)
            statements[i * n + j] = get(place, COMPONENTS)
            tape |= get(place, COMPONENTS + 1)
    return out, statements if tape else statements[:0], tape


@inner_njit
def take_cotangents(tape, block, shape):
    """The cotangents of a block's results, taken; and whether anything came to one."""
    out, any_came, count = np.empty(shape), False, shape[1] * shape[2]
    place = get(tape, COTANGENTS) + 8 * COMPONENTS * (get(block, BEFORE) + 1)
    bits = array_at(place, (count, COMPONENTS), np.int64)
    given = array_at(place, (count, COMPONENTS), np.float64)
    for k in range(count):
        any_came |= bits[k, 0] != NOTHING_BITS
    for q in range(COMPONENTS):
        plane = out[q].reshape(-1)
        for k in range(count):
            plane[k] = given[k, q] + 0.0
            given[k, q] = -0.0
    return out, any_came


@inner_njit
def added(tape, statements, part):
    """Add to the cotangents of a matrix's elements."""
    cotangents, flat = get(tape, COTANGENTS), part.reshape((COMPONENTS, -1))
    if statements.size == 1 and statements[0]:
        place = cotangents + 8 * COMPONENTS * np.int64(statements[0])
        given = array_at(place, (flat.shape[1], COMPONENTS), np.float64)
        for q in range(COMPONENTS):
            for k in range(flat.shape[1]):
                given[k, q] += flat[q, k] + 0.0
        return
    for k in range(statements.size):
        if statements[k]:
            for q in range(COMPONENTS):
                place = cotangents + 8 * (COMPONENTS * statements[k] + q)
                write(place, read(place) + (flat[q, k] + 0.0))


@njit("void(float64[:, :, ::1], int64, int64, int64)", cache=CACHE)
def assemble(x, first, tape, address):
    """Write a result, of statements from `first` on, to the memory of an array in C order."""
    m, n = x.shape[1], x.shape[2]
    for i in range(m):
        for j in range(n):
            place = address + STEP * (i * n + j if ROWS_FIRST else j * m + i)
            for q in range(COMPONENTS):
                write(place + 8 * q, x[q, i, j])
            put(place, COMPONENTS, first + i * n + j if tape else 0)
            put(place, COMPONENTS + 1, tape)


@inner_njit
def product(out, x, x_turned, y, y_turned, factor, first):
    """Add a multiple of x y, of either its transpose if it is turned; of y components from `first` on."""
    m, n, inner = out.shape[1], out.shape[2], x.shape[1 if x_turned else 2]
    if m * n * inner == 0:
        return
    for t in range(PRODUCTS.shape[0]):
        i, j, k = PRODUCTS[t, 0], PRODUCTS[t, 1], PRODUCTS[t, 2]
        if i < x.shape[0] and first <= j < y.shape[0]:
            dgemm(TURNED if y_turned else PLAIN, TURNED if x_turned else PLAIN, n, m, inner, factor,
                  y[j], y.shape[2], x[i], x.shape[2], 1.0, out[k], n)


@inner_njit
def multiplied(out, x, x_turned, y, y_turned, factor):
    """Write a multiple of x y, of either its transpose if it is turned, to memory that holds anything."""
    m, n, inner = out.shape[1], out.shape[2], x.shape[1 if x_turned else 2]
    if COMPONENTS > 1 or m * n * inner == 0:
        out.fill(0.0)
        product(out, x, x_turned, y, y_turned, factor, 0)
    else:
        dgemm(TURNED if y_turned else PLAIN, TURNED if x_turned else PLAIN, n, m, inner, factor,
              y[0], y.shape[2], x[0], x.shape[2], 0.0, out[0], n)


@inner_njit
def times(x, x_turned, y, y_turned, factor):
    """A multiple of x y, of either its transpose if it is turned."""
    out = np.empty((COMPONENTS, x.shape[2 if x_turned else 1], y.shape[1 if y_turned else 2]))
    multiplied(out, x, x_turned, y, y_turned, factor)
    return out


@inner_njit
def exchanged(x, pivots, back):
    """Exchange columns in the memory of a matrix."""
    n = pivots.size
    for q in range(x.shape[0]):
        for i in range(x.shape[1]):
            for step in range(n):
                k = n - 1 - step if back else step
                x[q, i, k], x[q, i, pivots[k]] = x[q, i, pivots[k]], x[q, i, k]


@inner_njit
def over(y, x, x_turned, factors, pivots):
    """y x**-1, of x the transpose if it is turned: with the values of x, then corrected by its tangents.

    Of the values there are LU factors; or, without pivots, x is a lower triangle. LAPACK's solution by LU
    factors waits for threads at any size, which takes 20 ms where other programs have the cores.
    """
    out, n, rows = y, x.shape[1], COMPONENTS * y.shape[1]
    how = TURNED if x_turned else PLAIN
    for level in range(LEVELS + 1 if x.shape[0] > 1 else 1):
        rest = y.copy()
        if level:
            product(rest, out, False, x, x_turned, -1.0, 1)
        if not x_turned:
            exchanged(rest, pivots, False)
        if pivots.size and not x_turned:
            dtrsm(LEFT, LOWER, how, UNIT, n, rows, 1.0, factors, n, rest, n)
        dtrsm(LEFT, UPPER, how, PLAIN, n, rows, 1.0, factors, n, rest, n)
        if pivots.size and x_turned:
            dtrsm(LEFT, LOWER, how, UNIT, n, rows, 1.0, factors, n, rest, n)
        if x_turned:
            exchanged(rest, pivots, True)
        out = rest
    return out


@inner_njit
def factored(x):
    """LU factors of the values of a matrix, the exchanges of rows, and what is not 0 if it is singular."""
    n = x.shape[1]
    factors, pivots, found = x[0].copy(), np.empty(n, np.int64), np.zeros(n, np.int64)
    singular = dgetrf(n, n, factors, n, found, 0)
    for k in range(n):  # of 32 bits, if the last one, which is n, is not where it is of 64
        pivots[k] = (found[k] if found[n - 1] else found[k // 2] >> 32 * (k % 2) & 0xFFFFFFFF) - 1
    return factors, pivots, singular


@inner_njit
def widened(x):
    """A matrix with all components, as a copy."""
    out = np.zeros((COMPONENTS, x.shape[1], x.shape[2]))
    flat, given = out.reshape(-1), x.reshape(-1)
    for k in range(given.size):
        flat[k] = given[k]
    return out


@inner_njit
def multiple_of_identity(x, n):
    """A number times the identity of n rows."""
    out = np.zeros((COMPONENTS, n, n))
    for q in range(COMPONENTS):
        for i in range(n):
            out[q, i, i] = x[q]
    return out


NO_PIVOTS = np.empty(0, np.int64)


@inner_njit
def halves(x):
    """Half of the sum of a matrix and its transpose."""
    out = np.empty(x.shape)
    for q in range(x.shape[0]):
        for i in range(x.shape[1]):
            for j in range(i + 1):
                out[q, i, j] = 0.5 * x[q, i, j] + 0.5 * x[q, j, i]
                out[q, j, i] = out[q, i, j]
    return out


@inner_njit
def turned(x):
    """The transpose of a matrix."""
    out = np.empty((x.shape[0], x.shape[2], x.shape[1]))
    for q in range(out.shape[0]):
        for i in range(out.shape[1]):
            for j in range(out.shape[2]):
                out[q, i, j] = x[q, j, i]
    return out


@inner_njit
def symmetric(x):
    """A symmetric matrix, both of whose halves have a part in derivatives."""
    scale, apart = 0.0, 0.0
    for i in range(x.shape[1]):
        for j in range(i + 1):
            scale, apart = max(scale, abs(x[0, i, j])), max(apart, abs(x[0, i, j] - x[0, j, i]))
    if apart > 1e-8 * scale:
        raise np.linalg.LinAlgError("of symmetric matrices only is this recorded; found another")
    return halves(x)
'''

BLOCK = '''

def reversing(kind):
    load = loading(kind)

    def reverse(tape, block):
        known, given = load(get(block, KNOWN))
        ct, any_came = take_cotangents(tape, block, known[0].shape)
        if any_came:
            give(tape, ct, known, given)
        return 0

    return reverse


REVERSE, DROP = addressed(reversing), addressed(drop_of)


@njit("Tuple((float64[:, :, ::1], int64, int64))({signature})", cache=CACHE)
def {name}({operands}):
    """The result, the number of its first statement, and the tape."""
    {operands} = {laid}
    where = {homes}
    given = ({parts},)
    known = result({planes}, where)
    out, first, tape, size = known[0], 0, 0, known[0].size
    for _, statements, on in given:
        tape |= on
        size += statements.size
    if tape and out.size:
        look(tape, 16 * size)
        kept = known, ({statements},)
        first = pushed(tape, out.size // COMPONENTS, keep(kept), REVERSE(kept), DROP(kept)) + 1
    return out, first, tape
'''
