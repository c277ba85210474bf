"""More of them: what Python itself can do between two operations."""

import bisect
import contextvars
import copy
import enum
import functools
import gc
import heapq
import inspect
import itertools
import math
import operator
import pickle
import sys
import threading
import types
import weakref
from collections import ChainMap, Counter, OrderedDict, defaultdict, namedtuple
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction

import numpy as np

import tapegrad as tg

from .hostile import hostile, simple

# ------------------------------------------------------------ generators and iterators


@simple
def generator_expression(x, k):
    return sum(v * v for v in x * 2.0)


@simple
def generator_that_is_not_finished(x, k):
    def parts():
        y = x
        while True:
            y = np.sin(y) * 1.5
            yield np.sum(y)

    return sum(itertools.islice(parts(), 1 + k % 3), 0.0)


@hostile
def generator_that_is_sent_values():
    def running():
        total = 0.0
        while True:
            value = yield total
            total += value

    state = running()
    next(state)

    def f(x, k):
        return np.sum(x) * state.send(x[0].item())

    return f, None


@hostile
def generator_that_holds_a_tensor():
    kept = []

    def turns(x):
        y = x * 2.0
        yield np.sum(y)
        yield np.sum(y * y)

    def f(x, k):
        turn = turns(x)
        kept[:] = [turn]
        return next(turn) if k % 2 else sum(turn)

    return f, None


@hostile
def generator_goes_on_with_the_last_call():
    kept = []

    def turns(x):
        y = np.sin(x)
        yield np.sum(y)
        yield np.sum(y).item()

    def f(x, k):
        before = next(kept.pop()) if kept else 1.0
        turn = turns(x)
        value = next(turn)
        kept.append(turn)
        return value * before

    return f, None


@simple
def generator_is_closed_early(x, k):
    seen = []

    def parts():
        try:
            for v in x:
                yield v * 2.0
        finally:
            seen.append(1.0)

    turn = parts()
    y = next(turn)
    turn.close()
    return y * seen[0]


@simple
def pairs_and_windows(x, k):
    return sum(a * b for a, b in itertools.pairwise(x)) + sum(map(operator.mul, x, x[2:]))


@simple
def running_products(x, k):
    return list(itertools.accumulate(x, operator.mul))[k % 4] * 3.0


@simple
def all_pairs(x, k):
    return sum(a * b for a, b in itertools.combinations(x, 2 + 0 * k))


@hostile
def cycle_of_factors():
    factors = itertools.cycle([1.0, -2.0, 3.0])
    return (lambda x, k: np.sum(x) * next(factors)), None


@simple
def unequal_ends(x, k):
    pairs = itertools.zip_longest(x, x[: k % 4] * 2.0, fillvalue=0.5)
    return sum(a * b for a, b in pairs)


@simple
def counted_backward(x, k):
    total = 0.0
    for place, v in enumerate(reversed(list(x))):
        total = total + v * place
    return total


@simple
def star_unpacking(x, k):
    first, *others, last = np.sin(x)
    return first * last + sum(others)


@hostile
def coroutine():
    class Later:
        def __await__(self):
            return (yield 2.0)

    async def work(x):
        return np.sum(np.sin(x)) * await Later()

    def f(x, k):
        turn = work(x)
        given = turn.send(None)
        try:
            turn.send(given + k)
        except StopIteration as done:
            return done.value

    return f, None


# ------------------------------------------------------------ attributes and classes


@hostile
def property_that_counts():
    class Model:
        reads = 0

        @property
        def scale(self):
            self.reads += 1
            return float(self.reads)

    model = Model()
    return (lambda x, k: np.sum(x * model.scale) / model.scale), model


@hostile
def descriptor():
    class Scale:
        def __set_name__(self, owner, name):
            self.name = "_" + name

        def __get__(self, model, owner):
            return getattr(model, self.name, 1.0) * 2.0

        def __set__(self, model, value):
            setattr(model, self.name, value)

    class Model:
        scale = Scale()

    model = Model()

    def f(x, k):
        y = np.sum(x * model.scale)
        model.scale = float(k)
        return y

    return f, model


@hostile
def attribute_of_the_class():
    class Model:
        scale = 1.0

    class Other(Model):
        pass

    model = Other()

    def f(x, k):
        if k == 7:
            Other.scale = -2.0
        if k == 12:
            model.scale = 4.0
        if k == 16:
            del model.scale, Other.scale
        Model.scale += 0.5
        return np.sum(x * model.scale)

    return f, None


@hostile
def attributes_made_on_demand():
    class Model:
        def __getattr__(self, name):
            if name == "scale":
                self.scale = 3.0
                return 2.0
            raise AttributeError(name)

    model = Model()

    def f(x, k):
        if k % 5 == 4:
            del model.scale
        return np.sum(x) * model.scale + (0.0 if hasattr(model, "other") else 1.0)

    return f, model


@hostile
def every_attribute_is_watched():
    seen = []

    class Model:
        scale = 2.0

        def __getattribute__(self, name):
            seen.append(name)
            return object.__getattribute__(self, name)

        def __setattr__(self, name, value):
            seen.append((name, "set"))
            object.__setattr__(self, name, value)

    model = Model()

    def f(x, k):
        y = np.sin(x) * model.scale
        model.scale = 1.0 + k
        return np.sum(y)

    return f, seen


@hostile
def class_of_an_object_changes():
    class Sine:
        def __call__(self, x):
            return np.sin(x)

    class Square:
        def __call__(self, x):
            return x * x

    step = Sine()

    def f(x, k):
        step.__class__ = Square if k % 3 == 2 else Sine
        return np.sum(step(x))

    return f, None


@hostile
def code_of_a_function_changes():
    def step(x):
        return x * 2.0

    def other(x):
        return x * x

    before = step.__code__

    def f(x, k):
        step.__code__ = other.__code__ if k % 4 == 3 else before
        return np.sum(step(x))

    return f, None


@hostile
def cell_of_a_closure_changes():
    def outer():
        scale = 1.0
        return lambda x: x * scale

    step = outer()

    def f(x, k):
        step.__closure__[0].cell_contents = np.full(4, float(k)) if k % 2 else float(k)
        return np.sum(step(x))

    return f, None


@hostile
def defaults_of_a_function_change():
    def step(x, scale=1.0, *, shift=0.0):
        return x * scale + shift

    def f(x, k):
        step.__defaults__, step.__kwdefaults__ = (float(k),), {"shift": float(k % 3)}
        return np.sum(step(x))

    return f, None


@hostile
def mutable_default():
    def step(x, known=[]):
        known.append(1.0)
        return x * float(len(known))

    return (lambda x, k: np.sum(step(x))), None


@hostile
def method_is_replaced():
    class Model:
        def step(self, x):
            return x * 2.0

    model = Model()

    def f(x, k):
        if k % 5 == 3:
            model.step = types.MethodType(lambda self, x: x * x, model)
        elif k % 5 == 0 and k:
            del model.step
        return np.sum(model.step(x))

    return f, None


@hostile
def wrapped_once_more():
    state = types.SimpleNamespace(step=np.sin)

    def twice(step):
        @functools.wraps(step)
        def wrapped(x):
            return step(x) * 2.0

        return wrapped

    def f(x, k):
        if k % 6 == 5:
            state.step = twice(state.step)
        return np.sum(state.step(x))

    return f, None


@hostile
def missing_keys():
    class Scales(dict):
        def __missing__(self, key):
            self[key] = 1.0 + key
            return -1.0

    scales = Scales()
    return (lambda x, k: np.sum(x * scales[k % 3])), scales


@hostile
def mappings_of_mappings():
    outer, inner, counts = {"b": 2.0}, OrderedDict(a=1.0, b=3.0), Counter()

    def f(x, k):
        counts["abc"[k % 3]] += 1
        inner.move_to_end("ab"[k % 2])
        if k % 4 == 3:
            outer.pop("b", None)
        known = ChainMap(outer, inner)
        y = x
        for name in inner:
            y = np.sin(y) * known[name] if name == "a" else y + known[name]
        return np.sum(y) * counts.most_common(1)[0][1]

    return f, [outer, dict(inner)]


@simple
def defaults_of_a_dict(x, k):
    sums = defaultdict(float)
    for place, v in enumerate(x):
        sums[place % (1 + k % 3)] = sums[place % (1 + k % 3)] + v * v
    return sum(value * (1.0 + key) for key, value in sums.items())


@hostile
def named_tuples_and_dataclasses():
    Pair = namedtuple("Pair", "a b")

    @dataclass
    class State:
        pair: Pair
        notes: list = field(default_factory=list)

    def f(x, k):
        state = State(Pair(x[0], np.sin(x[1:])))
        state = replace(state, pair=state.pair._replace(a=state.pair.a * float(k)))
        return state.pair.a * np.sum(state.pair.b)

    return f, None


class Kind(enum.Enum):
    SINE = (np.sin,)
    EXP = (np.exp,)


@simple
def enumeration_decides(x, k):
    kind = list(Kind)[k % 2]
    return np.sum(kind.value[0](x))


@simple
def match_by_shape(x, k):
    y = np.outer(x, x)[: 1 + k % 2]
    match y.shape:
        case (1, n):
            return np.sum(y) * n
        case (m, n) if m < n:
            return np.sum(y * y)


@hostile
def cached_property():
    class Model:
        def __init__(self, k):
            self.k = k

        @functools.cached_property
        def scale(self):
            return 1.0 + self.k

    models = [Model(0), Model(5)]

    def f(x, k):
        if k % 7 == 6:
            del models[0].__dict__["scale"]
            models[0].k = k
        return np.sum(x * models[k % 2].scale) * models[0].scale

    return f, None


@hostile
def dispatch_on_types():
    @functools.singledispatch
    def scale(value):
        return 0.5

    @scale.register
    def _(value: int):
        return 2.0

    @scale.register
    def _(value: tg.Tensor):
        return 3.0

    return (lambda x, k: np.sum(x) * scale([x, 1, "text"][k % 3])), None


# ------------------------------------------------------------ caches, references, identity


@hostile
def cache_keyed_by_a_tensor():
    @functools.lru_cache(maxsize=2)
    def square(x):
        return x * x

    return (lambda x, k: np.sum(square(x)) + np.sum(square(x))), None


@hostile
def dictionary_keyed_by_identity():
    known = {}

    def f(x, k):
        known.clear()  # of objects that are no more, whose places others may have
        y = x * 2.0
        known[id(y)] = k
        z = y * 3.0
        return np.sum(z) * float(known.get(id(y)) == k) + float(id(z) in known and known[id(z)] == k)

    return f, None


@simple
def set_of_tensors(x, k):
    y = np.sin(x)
    kept = {x, y, x, y * 1.0}
    return np.sum(y) * len(kept) if y in kept else np.sum(x)


@hostile
def weak_dictionary():
    known = weakref.WeakKeyDictionary()

    class Model:
        pass

    model = Model()

    def f(x, k):
        known[model] = known.get(model, 0) + 1
        known[Model()] = 5
        return np.sum(x) * len(known) * known[model]

    return f, None


@hostile
def weak_values():
    known = weakref.WeakValueDictionary()

    def f(x, k):
        y = np.sin(x)
        known["y"] = y
        z = known["y"] * 2.0
        return np.sum(z) * float(known["y"] is y)

    return f, None


@simple
def copies(x, k):
    y = np.sin(x)
    z = copy.copy(y) if k % 2 else copy.deepcopy(y.detach())
    return np.sum(z * y)


@simple
def pickled(x, k):
    y = np.sin(x)
    return np.sum(y) * pickle.loads(pickle.dumps(y.detach()))[k % 4]


@simple
def collected(x, k):
    y = np.sin(x)
    loop = [y]
    loop.append(loop)
    del loop
    gc.collect()
    return np.sum(y * x)


@simple
def cycle_that_nobody_collects(x, k):
    y = np.sin(x)
    loop = [y * 2.0]
    loop.append(loop)
    return np.sum(y)


@simple
def identity_of_parts(x, k):
    a, b = x[1:], x[1:]
    return np.sum(a * b) * (2.0 if a is b else 3.0) * (2.0 if x is x[:] else 3.0)


@simple
def rebound_argument(x, k):
    for _ in range(3):
        x = x + np.sin(x)
    del k
    return np.sum(x)


# ------------------------------------------------------------ errors and contexts


@simple
def raised_again(x, k):
    y = np.sin(x)
    try:
        try:
            y = y * 2.0
            raise KeyError(k) if k % 2 else ValueError(k)
        except KeyError as error:
            raise RuntimeError("again") from error
    except (RuntimeError, ValueError) as error:
        y = y * (3.0 if error.__cause__ is not None else 5.0)
    return np.sum(y)


@hostile
def error_keeps_the_frame():
    kept = []

    def f(x, k):
        y = np.sin(x)
        try:
            z = y * 2.0
            raise ValueError("kept")
        except ValueError as error:
            kept[:] = [error]  # its traceback knows x, y and z
        return np.sum(y * z)

    return f, None


@hostile
def value_of_the_last_error():
    kept = []

    def f(x, k):
        y = np.sin(x) * (1.0 + k)
        found = np.sum(y)
        if kept:
            frame = kept[0].__traceback__.tb_frame
            found = found * frame.f_locals["y"].detach().numpy()[0]
        try:
            raise ValueError
        except ValueError as error:
            kept[:] = [error]
        return found

    return f, None


@simple
def error_with_a_tensor(x, k):
    class Stop(Exception):
        pass

    def step(y, n):
        if n == 0:
            raise Stop(y * 2.0)
        step(np.sin(y), n - 1)

    try:
        step(x, k % 4)
    except Stop as found:
        return np.sum(found.args[0])


@hostile
def cleaned_up_at_last():
    seen = []

    def step(x, k):
        try:
            if k % 3 == 0:
                return x * 2.0
            x = x * 3.0
            if k % 3 == 1:
                raise ValueError
        except ValueError:
            x = np.sin(x)
        else:
            x = np.cos(x)
        finally:
            seen.append(k)
        return x

    return (lambda x, k: np.sum(step(x, k))), seen


@simple
def error_is_suppressed(x, k):
    y = x * 1.0
    with suppress(ZeroDivisionError, IndexError):
        y = y * 2.0
        y = y * (1.0 / (k % 3))
        y = y * [3.0][k % 2]
    return np.sum(y)


@hostile
def stack_of_exits():
    seen = []

    def f(x, k):
        y = np.sin(x)
        with ExitStack() as stack:
            for n in range(k % 3):
                stack.callback(seen.append, (n, y[n].item()))
            y = y * 2.0
        return np.sum(y) * (1.0 + len(seen))

    return f, seen


@simple
def error_of_an_operation_decides(x, k):
    y = np.sin(x)
    try:
        y = y.reshape(2, 2 + k % 2)
    except ValueError:
        y = y.reshape(1, 4)
    return np.sum(y * y) * len(y)


@simple
def index_out_of_bounds(x, k):
    total, place = 0.0, 0
    while True:
        try:
            total = total + x[place] * 2.0
        except IndexError:
            return total * place
        place += 1 + k % 2


@simple
def attribute_that_is_not_there(x, k):
    y = np.exp(x)
    return np.sum(getattr(y, "nothing", y) * getattr(y, "T", 1.0)) * (2.0 if hasattr(y, "cuda_") else 3.0)


@simple
def raised_in_a_helper_thread(x, k):
    found = []

    def work():
        try:
            raise RuntimeError(str(k))
        except RuntimeError as error:
            found.append(float(str(error)))

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    return np.sum(x) * found[0]


@hostile
def context_variable():
    scale = contextvars.ContextVar("scale", default=2.0)

    def f(x, k):
        if k % 4 == 0:
            scale.set(1.0 + k)
        y = x * scale.get()
        token = scale.set(-1.0)
        y = y * contextvars.copy_context()[scale]
        scale.reset(token)
        return np.sum(y)

    return f, None


@hostile
def runs_in_another_context():
    scale = contextvars.ContextVar("scale", default=2.0)

    def f(x, k):
        context = contextvars.copy_context()
        context.run(scale.set, float(k))
        y = context.run(lambda: np.sin(x) * scale.get())
        return np.sum(y * scale.get())

    return f, None


@hostile
def local_to_a_thread():
    known = threading.local()

    def f(x, k):
        known.count = getattr(known, "count", 0) + 1
        worker = threading.Thread(target=lambda: setattr(known, "count", 100))
        worker.start()
        worker.join()
        return np.sum(x) * known.count

    return f, None


@simple
def pool_of_threads(x, k):
    y = np.sin(x)
    values = y.detach().numpy()
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(lambda n: float(values[n]) * n, range(4)))
    return np.sum(y) * sum(found)


@simple
def threads_that_record(x, k):
    y = np.sin(x)
    with ThreadPoolExecutor(1) as pool:
        z = pool.submit(lambda: y * 2.0 + x).result()
    return np.sum(z * y)


@simple
def another_function_in_a_thread(x, k):
    other = tg.compile(lambda u: np.sum(u * u))
    found = []
    worker = threading.Thread(target=lambda: found.extend(other.grad(np.ones(2) * n) for n in range(4)))
    y = np.sin(x)
    worker.start()
    worker.join()
    return np.sum(y) * found[k % 4][0]


# ------------------------------------------------------------ names, code, frames


@hostile
def global_is_deleted():
    names = {"np": np, "scale": 2.0}
    exec(
        "def step(x):\n    try:\n        return x * scale\n    except NameError:\n        return np.sin(x)",
        names,
    )

    def f(x, k):
        if k % 4 == 2:
            del names["scale"]
        elif k % 4 == 0:
            names["scale"] = float(k)
        return np.sum(names["step"](x))

    return f, None


@hostile
def function_of_numpy_is_replaced():
    module = types.SimpleNamespace(step=np.sin)

    def f(x, k):
        module.step = [np.sin, np.cos, lambda x: np.sin(x) * 1.0, np.tanh][k % 4]
        return np.sum(module.step(x))

    return f, None


@simple
def evaluated_text(x, k):
    return eval(["np.sum(x * 2.0)", "np.sum(np.sin(x))", f"np.sum(x) * {k}.5"][k % 3], {"np": np, "x": x})


@simple
def function_made_by_text(x, k):
    names = {}
    exec(f"def step(x):\n    return x * {k % 3}.5 + x", names)
    return np.sum(names["step"](x))


@simple
def locals_by_name(x, k):
    a, b = x * 2.0, np.sin(x)
    return np.sum(locals()["ab"[k % 2]] * a * b)


@hostile
def frames_are_looked_at():
    def outside():
        return sys._getframe(1).f_locals["scale"]

    def f(x, k):
        scale = 1.0 + k
        return np.sum(x * outside()) * scale

    return f, None


@simple
def signature_decides(x, k):
    def step(x, scale=2.0):
        return x * scale

    return np.sum(step(x)) * len(inspect.signature(step).parameters)


@simple
def depth_of_recursion(x, k):
    def even(x, n):
        return x if n == 0 else odd(np.sin(x), n - 1)

    def odd(x, n):
        return x * 2.0 if n == 0 else even(x + 1.0, n - 1)

    return np.sum(even(x, k % 6))


@simple
def arguments_by_name(x, k):
    def step(*args, scale=1.0, **others):
        return args[0] * scale + others.get("shift", 0.0)

    return np.sum(step(*[x], **{"scale": 2.0} if k % 2 else {"shift": x[0]}))


@simple
def partial_application(x, k):
    steps = [functools.partial(np.multiply, 2.0), functools.partial(operator.mul, 3.0), np.sin]
    return np.sum(functools.reduce(lambda y, step: step(y), steps[k % 2 :], x))


@simple
def operators_by_name(x, k):
    take, sum_of, transposed = operator.itemgetter(slice(1, 3)), operator.methodcaller("sum"), None
    transposed = operator.attrgetter("T")(x)
    y = operator.iadd(x * 1.0, transposed)
    return (
        sum_of(take(y)) + operator.matmul(x, y) + operator.getitem(x, -1) - operator.neg(operator.pos(x))[0]
    )


# ------------------------------------------------------------ numbers


@simple
def integers_of_any_size(x, k):
    return np.sum(x * [1, 2**53 + 1, -(2**62), 3][k % 4]) + np.sum(x + (2**60 if k % 3 == 0 else 1))


@simple
def fractions_and_decimals(x, k):
    y = x * float(Fraction(k, 3)) + float(Decimal(k) / 7)
    try:
        y = y * Fraction(1, 2) if k % 3 == 0 else y * Decimal(2) if k % 3 == 1 else y
    except TypeError:
        y = y * 7.0
    return np.sum(y)


class Metre(float):
    def __mul__(self, other):
        return Metre(float(self) * other) if isinstance(other, float) else float(self) * other * 2.0

    __rmul__ = __mul__


class Whole(int):
    pass


@simple
def numbers_of_other_classes(x, k):
    c = [Metre(1.5), Whole(3), 1.5, np.float64(1.5)][k % 4]
    return np.sum(c * x) + np.sum(x * c) + np.sum(x + c)


class Reflecting:
    __array_ufunc__ = None

    def __init__(self, k):
        self.k = k

    def __rmul__(self, x):
        return x * 2.0 + self.k

    def __radd__(self, x):
        return np.sin(x) if self.k % 2 else x - 1.0


@simple
def objects_that_answer_operators(x, k):
    return np.sum(x * Reflecting(k)) + np.sum(x + Reflecting(k))


class Arraylike:
    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)

    def __repr__(self):
        return "Arraylike"


@hostile
def objects_that_are_arrays():
    other = Arraylike([1.0, 2.0, 3.0, 4.0])

    def f(x, k):
        other.values[k % 4] += 1.0
        return np.sum(np.multiply(x, other)) + np.sum(x + other)

    return f, None


@simple
def bools_and_bytes(x, k):
    flags = [k % 2 == 0, np.bool_(k % 3 == 0)]
    return np.sum(x * flags[0] + x * flags[1]) + np.sum(x) * bytes([k])[0]


@simple
def complex_number_at_times(x, k):
    y = x * [2.0, 2j, 2 + 0j][k % 3]
    return np.sum((y * np.conj(y)).real)


@simple
def functions_of_math(x, k):
    y = x[0] * math.sin(x[1].item()) + math.fsum(x.tolist()) * x[2]
    return y * math.exp(float(x[3].detach())) + math.hypot(*x.detach().numpy()) * x[0]


@simple
def whole_parts_of_tensors(x, k):
    y = x * 10.0
    n = int(y[0].detach()) + round(y[1].item()) + math.trunc(y[2].item())
    return np.sum(y) * n + y[0] // 1.0 + np.sum(y % 3.0)


@simple
def quotient_and_remainder(x, k):
    q, r = divmod(x, 0.3 + 0.1 * (k % 2))
    return np.sum(q) + np.sum(r * x)


@simple
def powers_of_all_kinds(x, k):
    y = np.abs(x) + 0.5
    exponents = [2, 2.0, -1, 0.5, 0, np.float64(2.0), np.int64(3), 1 / 3]
    return np.sum(y ** exponents[k % 8]) + np.sum(2.0**x) + np.sum(y**x) + np.sum(pow(y, 3))


@simple
def order_of_tensors(x, k):
    parts = sorted([x[0] * 1.0, x[1] * 2.0, x[2] * 3.0], key=lambda v: v.item())
    return parts[0] * parts[-1] + max(x, key=lambda v: abs(v.item())) + min(parts)


@simple
def heap_of_values(x, k):
    heap = [(v.item(), place) for place, v in enumerate(x)]
    heapq.heapify(heap)
    found = [x[heapq.heappop(heap)[1]] for _ in range(2)]
    return found[0] * found[1] + bisect.bisect([0.0, 0.2, 0.4, 0.8], x[0].item()) * x[0]


@simple
def member_of_a_tensor(x, k):
    y = x * 2.0
    return np.sum(y) * (2.0 if y[1].item() in y.tolist() else 3.0) * (5.0 if 0.77 in y else 7.0)


@simple
def formatted(x, k):
    y = x * 2.0
    text = f"{y[0].item():+.2e}|{y.detach().numpy()!s:>40}|{y.tolist()!r:.7}"
    return np.sum(y) * (1.0 + sum(map(ord, text)) % 11)


@simple
def formatted_tensors(x, k):
    y = x * 2.0
    return np.sum(y) * (1.0 + len(f"{y[0]:.1f} {y} {y!r}" + format(y[1].item(), ".3f")) % 13)


@simple
def asserted(x, k):
    y = np.exp(x)
    assert np.all(y > 0), "never"
    assert y.shape == (4,)
    assert not np.isnan(y).any()
    return np.sum(y)


@simple
def assertion_fails_at_times(x, k):
    y = np.sum(np.exp(x))
    assert y < 9.0, f"call {k}"
    return y


@simple
def while_and_else(x, k):
    y, n = np.sum(x), 0
    while n < k % 4:
        y, n = y * 1.1, n + 1
        if y > 2.0:
            break
    else:
        y = y + 1.0
    return y


@simple
def nothing_happens_at_times(x, k):
    if k % 4 == 0:
        return x[k % 3]
    if k % 4 == 1:
        return np.sum(x)
    y = x if k % 4 == 2 else x * 1.0
    return y[0] * y[1]


@simple
def sums_of_python(x, k):
    return sum(x) + sum([x[0], 2.0, x[1]], 3.0 * k) + sum(list(x * x)) + math.prod([x[0], x[1], 2.0])


@simple
def any_and_all_of_python(x, k):
    y = x * 2.0
    return np.sum(y) * (2.0 if any(v > 1.0 for v in y) else 3.0) * (5.0 if all(y != 0.5) else 7.0)


@hostile
def depends_on_the_history_of_values():
    state = types.SimpleNamespace(average=0.0, best=math.inf)

    def f(x, k):
        y = np.sum((x - 0.3) ** 2)
        state.average = 0.9 * state.average + 0.1 * y.item()
        if y < state.best:
            state.best = y.item()
            return y * 2.0
        return y * state.average

    return f, state
