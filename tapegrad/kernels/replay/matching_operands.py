"""Compiled: whether an operand is what a program expects there; numbers and small arrays are copied."""

from tapegrad.kernels.dialect import call, copy, f32, f64, i64, invoke, obj, shared, stack, u8
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.operands import code_of, has, is_plain, same_words, size_of


def matches_operand(kind: int, at: int, x: int) -> int:
    """Whether an operand is what is expected there; numbers and small arrays are copied."""
    g = i64(shared())
    if kind == THIS_OBJECT and (x == at or at == 0):
        return x == at
    if x == 0:
        return 0
    if kind == THIS_OBJECT:
        return is_same(at, x)
    if kind == AN_ARRAY or kind == ELEMENTS:
        return is_copied(at, x, kind)
    if kind == WRITTEN_FROM and obj(x).type == g.ndarray_type:
        return is_copied(at, x, kind)
    if kind == AN_INDEX:
        return is_same_index(at, x)
    if kind == SAME_ELEMENTS:
        return has_elements(at, x)
    if kind == SEVERAL:
        if obj(x).type != i64(at).call_of:
            return 0
        items = x + TUPLE_ITEMS_AT
        if obj(x).type == g.list_type:
            items = obj(x).items
        return match_operands(at, items, obj(x).size)
    return is_number_copied(kind, at, x)


def constant_of(kind: int, x: int) -> int:
    """The value of a Tensor that is a constant, where a number or an array is expected; else the operand."""
    g = i64(shared())
    if kind == THIS_OBJECT or kind == AN_INDEX or x == 0:
        return x
    if obj(x).type != g.tensor_type:
        return x
    if obj(x).tape != g.none_at_all or is_plain(x) == 0:
        return x
    state = obj(x).extra
    if state != g.none_at_all and has(state, g.requires_grad_text, g.false) == 0:
        return x
    return obj(x).v


def is_number_copied(kind: int, at: int, x: int) -> int:
    """Whether an operand is a number that one of some kind, or elements, are expected to be, which it is."""
    g, number = i64(shared()), 0.0
    if kind == A_WHOLE:
        return is_whole_copied(at, x)
    if kind == OF_TYPE:
        if obj(x).type != i64(at)[0]:
            return 0
        copy(i64(at)[1], x + SCALAR_AT, i64(at)[2])
        return 1
    if obj(x).type == g.float_type or obj(x).type == g.float64_type:
        number = f64(x + SCALAR_AT)[0]
    elif obj(x).type == g.int_type:
        whole = call(g.long_as, x)
        if whole == -1 and call(g.error_occurred) != 0:
            invoke(g.error_clear)
            return 0
        if whole < -EXACT or whole > EXACT:
            return 0
        number = float(whole)
    else:
        return 0
    if kind == A_SINGLE:
        if obj(x).type == g.float64_type:
            return 0
        f32(at)[0] = number
    elif kind == WRITTEN_FROM:
        if size_of(at) > g.copied:
            return 0
        elements = f64(obj(at).data)
        for k in range(size_of(at) // 8):
            elements[k] = number
    else:
        f64(at)[0] = number
    return 1


def is_whole_copied(at: int, x: int) -> int:
    """Whether this is an integer of Python's that fits in a word, which takes it."""
    g = i64(shared())
    if obj(x).type != g.int_type:
        return 0
    whole = call(g.long_as, x)
    if whole == -1 and call(g.error_occurred) != 0:
        invoke(g.error_clear)
        return 0
    i64(at)[0] = whole
    return 1


def match_operands(words: int, items: int, count: int) -> int:
    """Whether arguments of a call, or operands in a list or tuple, are what is expected there."""
    if count != i64(words).call_count:
        return 0
    for q in range(count):
        known = i64(words + 8 * (CALL_ARGUMENTS + 2 * q))
        if matches_operand(known[0], known[1], constant_of(known[0], i64(items)[q])) == 0:
            return 0
    return 1


def is_same(known: int, x: int) -> int:
    """Whether this is an object, or a float or an integer of Python's that is the same."""
    g, kind = i64(shared()), obj(known).type
    if known == x or obj(x).type != kind:
        return known == x
    if kind == g.float_type:
        return i64(x + SCALAR_AT)[0] == i64(known + SCALAR_AT)[0]
    if kind != g.int_type:
        return 0
    mine, theirs = call(g.long_as, x), call(g.long_as, known)
    if call(g.error_occurred) != 0:
        invoke(g.error_clear)
        return 0
    return mine == theirs


def is_same_index(known: int, x: int) -> int:
    """Whether an index, or a part of one, is the same: places in an array are so in a list too."""
    g, kind = i64(shared()), obj(known).type
    if known == x:
        return 1
    if kind == g.ndarray_type:
        if obj(x).type == g.list_type:
            return obj(known).descr == g.integer and numbers_in(x, known, 0, obj(known).data, 0) == 0
        return has_elements(known, x)
    if obj(x).type != kind:
        return 0
    if kind == g.slice_type:
        return is_same_slice(known, x)
    if kind != g.tuple_type:
        return is_same(known, x)
    if obj(known).size != obj(x).size:
        return 0
    for q in range(obj(x).size):
        if is_same_index(i64(known + TUPLE_ITEMS_AT)[q], i64(x + TUPLE_ITEMS_AT)[q]) == 0:
            return 0
    return 1


def is_same_slice(known: int, x: int) -> int:
    """Whether two slices are the same."""
    for d in range(3):
        if is_same(i64(known + SLICE_AT)[d], i64(x + SLICE_AT)[d]) == 0:
            return 0
    return 1


def is_copied(target: int, x: int, how: int) -> int:
    """Whether an operand is an array of the same kind as this one, which takes its elements.

    Numbers in lists make an array. The elements of large ones are copied as they lie, of very large ones not:
    Python looks first whether they are there.
    """
    g = i64(shared())
    if obj(x).type != g.ndarray_type:
        return is_filled(target, x)
    if size_of(x) >= SUMMED or obj(x).ndim == 0 or obj(x).descr != obj(target).descr:
        return 0
    alike = same_words(x, target, DIMS_AT)
    if alike and obj(x).flags & CONTIGUOUS != 0 and lies_as(x, target) != 0:
        copy(obj(target).data, obj(x).data, size_of(x))
        return 1
    if size_of(x) > g.copied:
        return 0
    if alike == 0:
        return how == WRITTEN_FROM and stretches(x, target) and copy_elements(target, x)
    if how == AN_ARRAY or (how == ELEMENTS and lies_alike(target, x) == 0):
        return 0
    return copy_elements(target, x)


def is_filled(target: int, x: int) -> int:
    """Whether numbers of Python's in lists are an array of the same kind as this one, which takes them."""
    g, kind = i64(shared()), obj(target).descr
    if obj(target).flags & C_CONTIGUOUS == 0:
        return 0
    if kind == g.double:
        return numbers_in(x, target, 0, obj(target).data, 1) > 0  # whole ones alone make another array
    return kind == g.integer and numbers_in(x, target, 0, obj(target).data, 1) == 0


def numbers_in(x: int, like: int, axis: int, at: int, are_copied: int) -> int:
    """How many floats are in lists of an array's shape, from an axis on; -1 if there is anything else.

    All numbers are copied to its elements, from one on, or whole ones have to be these.
    """
    g, kind, count = i64(shared()), obj(x).type, 0
    if axis == obj(like).ndim:
        if kind == g.float_type or kind == g.float64_type:
            if are_copied == 0:
                return -1
            f64(at)[0] = f64(x + SCALAR_AT)[0]
            return 1
        if kind != g.int_type:
            return -1
        whole = call(g.long_as, x)
        if whole == -1 and call(g.error_occurred) != 0:
            invoke(g.error_clear)
            return -1
        if are_copied == 0:
            return (whole == i64(at)[0]) - 1
        if obj(like).descr == g.integer:
            i64(at)[0] = whole
        elif whole < -EXACT or whole > EXACT:
            return -1
        else:
            f64(at)[0] = float(whole)
        return 0
    items = x + TUPLE_ITEMS_AT
    if kind == g.list_type:
        items = obj(x).items
    elif kind != g.tuple_type:
        return -1
    if obj(x).size != i64(obj(like).dims)[axis]:
        return -1
    for q in range(obj(x).size):
        found = numbers_in(i64(items)[q], like, axis + 1, at + q * i64(obj(like).strides)[axis], are_copied)
        if found < 0:
            return -1
        count += found
    return count


def has_elements(known: int, x: int) -> int:
    """Whether this is an array like a dense one, with the same elements bit by bit."""
    if obj(x).type != i64(shared()).ndarray_type or obj(x).descr != obj(known).descr:
        return 0
    size = size_of(known)
    if size < 0 or obj(x).flags & CONTIGUOUS == 0 or same_words(x, known, DIMS_AT) == 0:
        return 0
    mine, theirs, done = obj(x).data, obj(known).data, size - size % 8
    for k in range(done // 8):
        if i64(mine)[k] != i64(theirs)[k]:
            return 0
    for k in range(done, size):
        if u8(mine)[k] != u8(theirs)[k]:
            return 0
    return 1


def stretches(x: int, target: int) -> int:
    """Whether an array has the shape of another one by broadcasting."""
    n, dims, wanted = obj(x).ndim, i64(obj(x).dims), i64(obj(target).dims)
    behind = obj(target).ndim - n
    if behind < 0:
        return 0
    for d in range(n):
        if dims[d] != 1 and dims[d] != wanted[behind + d]:
            return 0
    return 1


def lies_as(x: int, y: int) -> int:
    """Whether two arrays, of one shape, have the same strides, but for axes of one element."""
    dims, mine, theirs = i64(obj(x).dims), i64(obj(x).strides), i64(obj(y).strides)
    for d in range(obj(x).ndim):
        if dims[d] != 1 and mine[d] != theirs[d]:
            return 0
    return 1


def lies_alike(x: int, y: int) -> int:
    """Whether the axes of two arrays, of one shape, follow each other in memory in one order."""
    n, dims = obj(x).ndim, i64(obj(x).dims)
    mine, theirs = i64(obj(x).strides), i64(obj(y).strides)
    for d in range(n):
        for e in range(d):
            if dims[d] > 1 and dims[e] > 1:
                p, q = distance(mine[e]) - distance(mine[d]), distance(theirs[e]) - distance(theirs[d])
                if p == 0 or q == 0 or (p > 0) != (q > 0):
                    return 0
    return 1


def distance(stride: int) -> int:
    """How far a stride goes, in whichever direction."""
    return max(stride, 0 - stride)


def copy_elements(target: int, x: int) -> int:
    """Copy the elements of an array to another one of its dtype, whose shape it stretches to; 1."""
    size, n, done, place, steps = code_of(target) >> 8, obj(target).ndim, 0, stack(64), stack(64)
    dims, to, at, of = i64(obj(target).dims), i64(obj(target).strides), i64(place), i64(steps)
    count, p, q = size_of(target) // size, obj(target).data, obj(x).data
    for d in range(n):
        at[d], of[d], e = 0, 0, d - n + obj(x).ndim
        if e >= 0:
            if i64(obj(x).dims)[e] == dims[d]:
                of[d] = i64(obj(x).strides)[e]
    while done < count:
        if size == 8:
            i64(p)[0] = i64(q)[0]
        else:
            copy(p, q, size)
        done, d = done + 1, n - 1
        while d >= 0:
            at[d] = at[d] + 1
            p, q = p + to[d], q + of[d]
            if at[d] < dims[d]:
                break
            at[d] = 0
            p, q, d = p - dims[d] * to[d], q - dims[d] * of[d], d - 1
    return 1
