"""Compiled: writes to a Tensor at a basic index and in-place operators, recorded as `core.inplace` does.

Done here is the common write: of a number, or of an array or a Tensor that has the shape of the part, to a
dense Tensor whose history is on the open tape and whose memory no other Tensor sees, but perhaps the one view
by which it is written to. ``x[key] += y`` is such a write, and then one of the view to where it lies, which
changes nothing. All else, and what is wrong, is left to Python.
"""

from tapegrad.kernels.dialect import address, call, i64, invoke, obj, share, shared, stack
from tapegrad.kernels.replay.admitting import (
    array_at,
    constant,
    is_own_memory,
    needs_grad,
    same_kind,
    shade_for,
)
from tapegrad.kernels.replay.committing import commit
from tapegrad.kernels.replay.layout import *
from tapegrad.kernels.replay.matching import matched_write
from tapegrad.kernels.replay.operands import (
    code_of,
    drop,
    drop_position,
    has,
    in_force,
    left,
    number_as,
    open_tape,
    position,
    room,
    same_words,
    size_of,
)
from tapegrad.kernels.replay.parts import basic
from tapegrad.kernels.replay.words import length, place_of, written_words


def writing(what: int, words: int, _extra: int, _more: int) -> int:
    """The address of one of three functions, which share the words of compiled recording."""
    share(words)
    if what == SET_METHOD:
        return address(tensor_setitem)
    if what == SET_SLOT:
        return address(slot_setitem)
    return address(update)


def tensor_setitem(self: int, args: int, count: int) -> int:
    """``__setitem__(index, value)``, called by its name."""
    g, given, everything, n = i64(shared()), i64(args), stack(4), min(count, 3)
    if count == 2:
        done = written(self, given[0], given[1])
        if done != UNHANDLED:
            if done != 0:
                invoke(g.incref, done)
            return done
    i64(everything)[0] = self
    for q in range(n):
        i64(everything)[q + 1] = given[q]
    return call(g.vectorcall, g.setitem, everything, n + 1, 0)


def slot_setitem(self: int, key: int, value: int) -> int:
    """``x[key] = value``, and ``del x[key]`` where the value is 0: 0, or -1 with an error set."""
    g, args = i64(shared()), stack(3)
    if value == 0:
        call(g.get_attribute, self, g.delitem_text)  # there is none, which is the error
        return -1
    done = written(self, key, value)
    if done == UNHANDLED:
        i64(args)[0], i64(args)[1], i64(args)[2] = self, key, value
        done = call(g.vectorcall, g.setitem, args, 3, 0)
        if done != 0:
            invoke(g.decref, done)
    return 0 - (done == 0)


def update(self: int, args: int, count: int) -> int:
    """``(x, new)``: True where x, or what it is a view of, is now what an operator made of it; or None."""
    g, given, done = i64(shared()), i64(args), UNHANDLED
    tensors = count == 2 and obj(given[0]).type == g.tensor_type and obj(given[1]).type == g.tensor_type
    if tensors and obj(given[0]).tape != 0 and obj(given[1]).tape != 0:  # 0: what a program has given out
        base = base_of(given[0])
        if base == g.none_at_all:
            done = replaced(given[0], given[1])
        elif base != 0:
            done = written_to(base, 0, given[0], given[1])
        drop_position(base, 0)
    if done == UNHANDLED:
        done = g.none_at_all
    elif done != 0:
        done = g.true
    if done != 0:
        invoke(g.incref, done)
    return done


def base_of(x: int) -> int:
    """A new reference to what a Tensor is a view of, to None if it is none; 0 where that is not known."""
    g, state, args = i64(shared()), obj(x).extra, stack(1)
    storage = g.none_at_all
    if state != g.none_at_all:
        storage = call(g.get_attribute, state, g.storage_text)
        if storage == 0:
            invoke(g.error_clear)
            return 0
        invoke(g.decref, storage)
    if storage == g.none_at_all or refers_to(obj(storage).basis, x):
        invoke(g.incref, g.none_at_all)
        return g.none_at_all
    base = call(g.vectorcall, obj(storage).basis, args, 0, 0)
    if base == g.none_at_all:
        return drop_position(base, 0)
    return base


def replaced(x: int, new: int) -> int:
    """Let a result be another one, which an operator has computed from all of it; as `written`."""
    g, before, value, at = i64(shared()), obj(x).v, obj(new).v, obj(x).at
    dense, mode, tape = C_CONTIGUOUS | ALIGNED | WRITEABLE, in_force(), open_tape(x)
    if mode != g.true or tape == 0 or before == 0 or value == 0:
        return UNHANDLED * (mode != 0)
    if obj(before).type != g.ndarray_type or obj(value).type != g.ndarray_type or obj(new).tape != tape:
        return UNHANDLED
    if obj(before).flags & obj(value).flags & dense != dense or same_kind(value, before) == 0:
        return UNHANDLED
    storage = storage_alone(x, 0)
    if storage == UNHANDLED:
        return left()
    count, whole = version_after(x, storage), alias_of(new)
    done = g.none_at_all * (count != 0 and whole != 0)
    if done != 0 and (obj(x).v != before or obj(x).at != at or obj(whole).v != value):
        done = UNHANDLED
    elif done != 0 and storage_alone(x, 0) != storage:
        done = UNHANDLED
    if done == g.none_at_all:
        if storage != 0:
            put_whole(storage, whole)
        put_value(x, value)
        put_history(x, tape, obj(new).at, storage, g.false)
        if put_version(x, storage, count) == 0:
            done = 0
    drop_position(whole, 0)
    return drop_position(count, done)


def alias_of(x: int) -> int:
    """A new Tensor with the value and the history of another; 0 with an error set."""
    g = i64(shared())
    out = call(g.allocate_object, g.tensor_type, 0)
    if out != 0:
        invoke(g.incref, obj(x).v)
        invoke(g.incref, obj(x).tape)
        invoke(g.incref, obj(x).at)
        invoke(g.incref, g.none_at_all)
        obj(out).v, obj(out).tape = obj(x).v, obj(x).tape
        obj(out).at, obj(out).extra = obj(x).at, g.none_at_all
    return out


def written(self: int, key: int, new: int) -> int:
    """None, borrowed, where the write was done and recorded; 0 with an error set; UNHANDLED."""
    g = i64(shared())
    if g.matching != 0:
        done = matched_write(self, key, new)
        if done != UNHANDLED:
            return done
    if obj(self).type != g.tensor_type or basic(key) < 0:
        return UNHANDLED
    if obj(new).type == g.tensor_type and obj(new).tape == g.stale_tape:
        if lies_at(self, key, new):
            return counted(self)
    return written_to(self, key, 0, new)


def counted(self: int) -> int:
    """Count a write by which nothing changes to a Tensor of which there is a view; as `written`."""
    g, done = i64(shared()), 0
    storage = call(g.get_attribute, obj(self).extra, g.storage_text)
    if storage != 0:
        count = version_after(self, storage)
        if count != 0:
            put_version(self, storage, count)
            invoke(g.decref, count)
            done = g.none_at_all
        invoke(g.decref, storage)
    return done


def lies_at(self: int, key: int, new: int) -> int:
    """Whether a stale Tensor is the view of self at an index: then a write of it changes nothing."""
    g, base, same = i64(shared()), base_of(new), 0
    if base == self and obj(self).v != 0:
        part = call(g.get_item, obj(self).v, key)
        if part == 0:
            invoke(g.error_clear)
        elif obj(part).type == g.ndarray_type and obj(obj(new).v).type == g.ndarray_type:
            same = same_kind(part, obj(new).v) and obj(part).data == obj(obj(new).v).data
            same = same and same_words(part, obj(new).v, STRIDES_AT)
        drop_position(part, 0)
    return drop_position(base, same)


def written_to(self: int, key: int, view: int, new: int) -> int:
    """As `written`, at an index or, if that is not 0, where a view of the Tensor lies."""
    g, x, dense = i64(shared()), obj(self).v, C_CONTIGUOUS | ALIGNED | WRITEABLE
    if obj(self).type != g.tensor_type or x == 0:
        return UNHANDLED
    if obj(x).type != g.ndarray_type or obj(x).flags & dense != dense:
        return UNHANDLED
    kind = code_of(x) & 0xFF
    if kind == 0 or kind >= COMPLEX:
        return UNHANDLED
    mode = in_force()
    if mode != g.true:
        return UNHANDLED * (mode != 0)
    tape = open_tape(self)
    if tape == 0:
        return UNHANDLED
    storage = storage_alone(self, view)
    if storage == UNHANDLED:
        return left()
    part = part_written(x, key, view)
    if part == 0:
        invoke(g.error_clear)  # Python says it better
        return UNHANDLED
    frame, window, place = stack(OPERAND_WORDS), 0, -1
    f = i64(frame)
    f[PLACE + 1], f[VALUE + 1], f[NEW_CONST + 1] = obj(self).at, x, 0
    invoke(g.incref, f[PLACE + 1])
    invoke(g.incref, x)
    invoke(g.incref, tape)
    if storage != 0:
        invoke(g.incref, storage)
    if obj(part).type != g.ndarray_type and basic(key) == obj(x).ndim:
        place = place_of(key, x)
    taken = taken_in(tape, frame, part, new, code_of(x))
    if taken:
        window = window_at(x, part, place)
    invoke(g.decref, part)
    done = UNHANDLED
    if window == 0:
        done = left()
    elif window != UNHANDLED:
        done = write_at(self, tape, frame, key, view, window, storage)
    if window != 0 and window != UNHANDLED:
        invoke(g.decref, window)
    if taken:
        drop(frame, 2, 0)
    else:
        invoke(g.decref, f[PLACE + 1])
        invoke(g.decref, x)
    drop_position(storage, 0)
    invoke(g.decref, tape)
    return done


def part_written(x: int, key: int, view: int) -> int:
    """A new reference to the part of an array that is written to, array or number; 0 if there is none."""
    g = i64(shared())
    if view == 0:
        return call(g.get_item, x, key)
    part, plain = obj(view).v, 0
    if part != 0 and has(obj(view).extra, g.shown_text, g.none_at_all):
        plain = has(obj(view).extra, g.retains_grad_text, g.false)
        plain = plain & has(obj(view).extra, g.inference_text, g.false)
        plain = plain & has(obj(view).extra, g.several_text, g.false)
    if plain:
        if obj(part).type == g.ndarray_type and obj(part).flags & WRITEABLE != 0:
            invoke(g.incref, part)
            return part
    return 0


def storage_alone(x: int, view: int) -> int:
    """What a Tensor that is written to shares memory through, borrowed, if it is all that does; 0 for none.

    A view of it may be there beside it. UNHANDLED where others see the memory, or where its state says what
    a write has to heed.
    """
    g, state = i64(shared()), obj(x).extra
    if state == g.none_at_all:
        return 0
    plain = has(state, g.shown_text, g.none_at_all) & has(state, g.retains_grad_text, g.false)
    plain = plain & has(state, g.inference_text, g.false) & has(state, g.several_text, g.false)
    if plain == 0:
        return UNHANDLED
    storage = call(g.get_attribute, state, g.storage_text)
    if storage == 0:
        return UNHANDLED
    invoke(g.decref, storage)
    if storage == g.none_at_all:
        return 0
    if obj(storage).torn != g.false or obj(storage).detached != g.false:
        return UNHANDLED
    if obj(storage).origin != g.none_at_all or refers_to(obj(storage).basis, x) == 0:
        return UNHANDLED
    memory, whole, handles = obj(storage).memory, obj(storage).whole, obj(storage).handles
    if obj(whole).extra != g.none_at_all or obj(obj(memory).storages).size != 1:
        return UNHANDLED
    if obj(whole).v != obj(x).v or obj(memory).root != obj(x).v or obj(whole).tape != obj(x).tape:
        return UNHANDLED
    if call(g.long_as, obj(whole).at) != call(g.long_as, obj(x).at):
        return UNHANDLED
    for q in range(obj(handles).size):
        reference = i64(obj(handles).items)[q]
        if refers_to(reference, g.none_at_all) == 0 and refers_to(reference, x) == 0:
            if view == 0 or refers_to(reference, view) == 0:
                return UNHANDLED
    return storage


def refers_to(reference: int, x: int) -> int:
    """Whether a weak reference is to an object; to None it is when the object is gone."""
    g, args = i64(shared()), stack(1)
    found = call(g.vectorcall, reference, args, 0, 0)
    if found != 0:
        invoke(g.decref, found)
    return found == x


def taken_in(tape: int, frame: int, part: int, new: int, code: int) -> int:
    """Take what is written into a frame, as its first operand; 0 where that fails or is left to Python.

    A constant that is written to several elements is recorded as its shadow, as no derivative reads it.
    """
    g, f, value, at, fresh, number = i64(shared()), i64(frame), new, 0, 0, stack(1)
    several = obj(part).type == g.ndarray_type
    if obj(new).type == g.tensor_type:
        value = obj(new).v
        if value == 0:
            return 0
    if obj(value).type == g.ndarray_type:
        if several == 0 or same_kind(value, part) == 0:
            return 0
    elif number_as(code, number, value) == 0:
        return 0
    active = needs_grad(new)
    if active and (several != (obj(value).type == g.ndarray_type) or code_of(value) != code):
        return 0
    invoke(g.incref, value)  # from now on, as in `admit`
    if active:
        at = position(tape, new)
        if obj(new).v != value:
            at = drop_position(at, 0)
    elif several:
        shade = shade_for(tape, part)
        if shade != 0:
            at = constant(tape, shade, 0, 0, 0)
            invoke(g.decref, shade)
    elif code_of(value) == code:
        fresh = value
        invoke(g.incref, fresh)
    else:
        at = position(tape, value)
    if at == 0 and fresh == 0:
        return drop_position(value, 0)
    f[PLACE], f[VALUE], f[NEW_CONST] = at, value, fresh
    return 1


def window_at(x: int, part: int, place: int) -> int:
    """Where a part lies in a dense array, as `core.storage.window` says it: a new tuple.

    `place` is the element's number if the part is one, else -1. UNHANDLED where the part has no elements, or
    is an array without axes; 0 with an error set.
    """
    g, words, size, n = i64(shared()), stack(WINDOW_WORDS), code_of(x) >> 8, 0
    w, parts = i64(words), i64(stack(3))
    if obj(part).type == g.ndarray_type:
        n, place = obj(part).ndim, (obj(part).data - obj(x).data) // size
        if n == 0 or size_of(part) == 0:
            return UNHANDLED
    elif place < 0:
        return UNHANDLED
    for d in range(n):
        w[d] = i64(obj(part).dims)[d]
        stride = i64(obj(part).strides)[d] * (w[d] != 1)
        w[n + d] = length(stride) // size
        if stride < 0:
            w[n + d] = 0 - w[n + d]
    parts[0], parts[1], parts[2] = call(g.long_from, place), integers_from(words, n), 0
    if parts[0] != 0 and parts[1] != 0:
        parts[2] = integers_from(words + 8 * n, n)
    out = 0
    if parts[2] != 0:
        out = call(g.new_tuple, 3)
    for q in range(3):
        if out != 0:
            i64(out + TUPLE_ITEMS_AT)[q] = parts[q]
        else:
            drop_position(parts[q], 0)
    return out


def integers_from(words: int, n: int) -> int:
    """A new tuple of n integers; 0 with an error set."""
    g = i64(shared())
    out = call(g.new_tuple, n)
    for q in range(n):
        if out != 0:
            number = call(g.long_from, i64(words)[q])
            if number == 0:
                invoke(g.decref, out)
                out = 0
            else:
                i64(out + TUPLE_ITEMS_AT)[q] = number
    return out


def write_at(self: int, tape: int, frame: int, key: int, view: int, window: int, storage: int) -> int:
    """As `written`, of operands in a frame; with the words and the attributes of the record."""
    g, done = i64(shared()), 0
    words, attrs = written_words(window), call(g.new_dict)
    if words != 0 and attrs != 0:
        if call(g.dict_set, attrs, g.window_text, window) & 0xFFFFFFFF == 0:
            count = version_after(self, storage)
            if count != 0:
                done = write_values(self, tape, frame, key, view, attrs, words, storage)
                if done != 0 and done != UNHANDLED:
                    done = done * put_version(self, storage, count)
                invoke(g.decref, count)
    drop_position(attrs, 0)
    return drop_position(words, done)


def version_after(self: int, storage: int) -> int:
    """A new reference to the number of versions that a Tensor has with one more; 0 with an error set."""
    g, args, state, counter = i64(shared()), stack(1), obj(self).extra, 0
    if state == g.none_at_all:
        state = call(g.vectorcall, g.extra_type, args, 0, 0)
        if state == 0:
            return 0
        if obj(self).extra == g.none_at_all:  # else a finalizer has made it meanwhile
            obj(self).extra = state
            invoke(g.decref, g.none_at_all)
        else:
            invoke(g.decref, state)
            state = obj(self).extra
    if storage != 0:
        counter = obj(obj(storage).memory).writes
        invoke(g.incref, counter)
    else:
        counter = call(g.get_attribute, state, g.version_text)
        if counter == 0:
            return 0
    count = call(g.long_from, call(g.long_as, counter) + 1)
    invoke(g.decref, counter)
    return count


def put_version(self: int, storage: int, count: int) -> int:
    """Say how many versions a Tensor has; 0 with an error set, else 1."""
    g = i64(shared())
    if storage == 0:
        return call(g.set_attribute, obj(self).extra, g.version_text, count) & 0xFFFFFFFF == 0
    before = obj(obj(storage).memory).writes
    invoke(g.incref, count)
    obj(obj(storage).memory).writes = count
    invoke(g.decref, before)
    return 1


def write_values(
    self: int, tape: int, frame: int, key: int, view: int, attrs: int, words: int, storage: int
) -> int:
    """As `write_at`: change the values, in a copy where something else refers to them, and the history.

    What is made for the record may run anything, so the Tensor is looked at before and after; from then on
    nothing else runs in this thread. It has no history (`core.histories.mark_torn`) until there is that of
    its values again; a view takes its own from that.
    """
    g, f = i64(shared()), i64(frame)
    x, at, holders = f[VALUE + 1], f[PLACE + 1], 2 + 2 * (storage != 0)  # the Tensor, frame, whole and memory
    if obj(self).v != x or obj(self).at != at or room(tape) == 0 or storage_alone(self, view) != storage:
        return UNHANDLED
    target, seen, alone = x, 0, seen_by_no_other(tape, x, view, holders, 0)
    if alone:
        invoke(g.incref, target)
    else:
        target = call(g.new_copy, x, C_ORDER)
        if target == 0:
            return 0
    if view != 0:
        seen = view_like(obj(view).v, x, target)
        if seen == 0:
            return drop_position(target, 0)
    done, out = 0, commit(g.assign_sheet, tape, frame, 2, g.zero, target, size_of(x), attrs, words)
    if out == UNHANDLED:
        done = UNHANDLED
    elif out != 0:
        if alone:  # but for the Tensor of the record, this function and perhaps the log
            entry = call(g.long_as, obj(out).at) - ENTRIES + VALUE_ENTRY
            logged = i64(obj(obj(tape).log).items)[entry] == x
            alone = seen_by_no_other(tape, x, view, holders + 2 + logged, 1)
        if obj(self).v != x or obj(self).at != at or storage_alone(self, view) != storage:
            done = UNHANDLED
        elif target == x and alone == 0:
            done = UNHANDLED
        else:
            done = put_all(self, tape, key, view, storage, out, seen, f[VALUE])
        invoke(g.decref, out)
    drop_position(seen, 0)
    invoke(g.decref, target)
    return done


def put_all(self: int, tape: int, key: int, view: int, storage: int, out: int, seen: int, value: int) -> int:
    """Write into the value of a record's Tensor, which has the value and history of ours from then on."""
    g, before, target = i64(shared()), obj(self).at, obj(out).v
    invoke(g.incref, before)
    if view != 0:
        put_history(view, g.stale_tape, g.none_at_all, 0, 0)
    put_history(self, g.stale_tape, g.none_at_all, storage, g.true)
    done = UNHANDLED
    if set_values(target, key, seen, value) == 0:
        put_history(self, tape, before, storage, g.false)
    else:
        if storage != 0:
            put_whole(storage, out)
        if view != 0:
            put_value(view, seen)
        put_value(self, target)
        put_history(self, tape, obj(out).at, storage, g.false)
        done = g.none_at_all
    invoke(g.decref, before)
    return done


def seen_by_no_other(tape: int, x: int, view: int, holders: int, more: int) -> int:
    """Whether only so many holders, and a view if there is one, see an array and its memory.

    To the array of the view so many more refer than it does.
    """
    alone = obj(x).refcount == holders + sees(view, x) and is_own_memory(tape, x, sees(view, obj(x).base))
    if view != 0 and alone:
        alone = obj(obj(view).v).refcount == 1 + more  # else a tape keeps what is seen there
    return alone


def set_values(target: int, key: int, seen: int, value: int) -> int:
    """Write to an array at an index, or to all of a view of it; 0 if that fails, which Python says better."""
    g = i64(shared())
    if seen != 0:
        failed = call(g.set_item, seen, g.ellipsis, value) & 0xFFFFFFFF
    else:
        failed = call(g.set_item, target, key, value) & 0xFFFFFFFF
    if failed:
        invoke(g.error_clear)
    return failed == 0


def sees(view: int, x: int) -> int:
    """Whether a view, if there is one, refers to an array whose elements it sees."""
    if view == 0 or x == 0:
        return 0
    return obj(obj(view).v).base == x


def view_like(part: int, x: int, target: int) -> int:
    """A new view of an array at the place that a part has in another like it; 0 with an error set."""
    g = i64(shared())
    if x == target:
        invoke(g.incref, part)
        return part
    at = obj(target).data + obj(part).data - obj(x).data
    return array_at(at, target, part, obj(part).strides, ALIGNED | WRITEABLE)


def put_value(x: int, value: int) -> int:
    """Give a Tensor another value."""
    g, before = i64(shared()), obj(x).v
    invoke(g.incref, value)
    obj(x).v = value
    invoke(g.decref, before)
    return 0


def put_history(x: int, tape: int, at: int, storage: int, torn: int) -> int:
    """Give a Tensor another tape and position, and say whether its storage, if not 0, is torn."""
    g, own, place = i64(shared()), obj(x).tape, obj(x).at
    invoke(g.incref, tape)
    invoke(g.incref, at)
    obj(x).tape, obj(x).at = tape, at
    if storage != 0:
        before = obj(storage).torn
        invoke(g.incref, torn)
        obj(storage).torn = torn
        invoke(g.decref, before)
    invoke(g.decref, own)
    invoke(g.decref, place)
    return 0


def put_whole(storage: int, out: int) -> int:
    """Let a result be the whole of a storage, and its value the memory."""
    g, memory = i64(shared()), obj(storage).memory
    whole, root = obj(storage).whole, obj(memory).root
    invoke(g.incref, out)
    invoke(g.incref, obj(out).v)
    obj(storage).whole, obj(memory).root = out, obj(out).v
    invoke(g.decref, whole)
    invoke(g.decref, root)
    return 0
