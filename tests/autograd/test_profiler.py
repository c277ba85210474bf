"""The profiler: H-10 and the newer names."""

import itertools
import json
import sys
import threading
import time

import numpy as np
import pytest

import tapegrad as tg
from tapegrad.autograd import profiler_util
from tapegrad.autograd.profiler import profile, record_function


def program(x):
    return np.sum(np.sin(x) * x) + np.linalg.norm(x)


@pytest.fixture
def events():
    x = tg.tensor(np.linspace(0.1, 1, 50), requires_grad=True)
    program(x).backward()
    with profile(record_shapes=True, profile_memory=True, with_stack=True) as prof:
        program(x).backward()
    return prof


def events_of(prof):
    """All but what is compiled meanwhile, which hangs on what the process did before."""
    return [event for event in prof.function_events if not event.name.startswith("compile ")]


def names(prof):
    return [event.name for event in events_of(prof)]


def test_H10_operations_and_records_are_events(events):
    found = names(events)
    for name in ("sin", "multiply", "sum", "norm", "add", "numpy.linalg.norm", "backward"):
        assert name in found
    for name in ("SinBackward", "MulBackward", "SumBackward", "NormBackward", "AddBackward"):
        assert found.count(name) == 1
    assert found.index("backward") < found.index("SinBackward")


def test_H10_gradients_are_the_same():
    x = tg.tensor(np.linspace(0.1, 1, 50), requires_grad=True)
    plain = tg.grad(program(x), x)[0].numpy()
    with profile():
        (first,) = tg.grad(program(x), x)
        (second,) = tg.grad(program(x), x, create_graph=True)
    np.testing.assert_array_equal(first.numpy(), plain)
    np.testing.assert_allclose(second.detach().numpy(), plain, rtol=1e-14)


def test_events_lie_within_each_other_and_add_up(events):
    within = {id(child) for event in events.function_events for child in event.cpu_children}
    (sweep,) = [event for event in events.function_events if event.name == "backward"]
    children = {event.name for event in sweep.cpu_children}
    assert "MulBackward" in children
    for event in events.function_events:
        assert 0 <= event.start <= event.end
        assert event.self_cpu_time_total == pytest.approx(
            event.cpu_time_total - sum(c.cpu_time_total for c in event.cpu_children), abs=1e-9
        )
        for child in event.cpu_children:
            assert event.start - 20 <= child.start <= child.end <= event.end + 20  # two clocks
    outer = sum(event.cpu_time_total for event in events.function_events if id(event) not in within)
    assert events.total_average().cpu_time_total == pytest.approx(outer)
    assert events.self_cpu_time_total == pytest.approx(outer)


def test_compiled_sweeps_are_not_split():
    """The times come from compiled code, which runs through all records."""
    x = tg.tensor(1.0, requires_grad=True)
    y = x
    for _ in range(3000):
        y = y * 0.999
    for _ in range(2):  # the first loads what it takes
        calls = []
        with profile() as prof:
            sys.setprofile(lambda frame, event, _: calls.append(event))
            try:
                tg.grad(y, x, retain_graph=True)
            finally:
                sys.setprofile(None)
    found = [event for event in prof.function_events if event.name == "MulBackward"]
    assert len(found) == 3000
    assert len(calls) < 3000  # in Python one a record at least


def test_H10_averages_and_their_table(events):
    averages = {event.key: event for event in events.key_averages()}
    assert averages["sum"].count == 1
    table = events.key_averages().table(sort_by="self_cpu_time_total")
    rows = [line.split()[0] for line in table.splitlines()[3:-2]]
    assert set(rows) <= {name.split()[0] for name in averages}
    times = [averages[row].self_cpu_time_total for row in rows if row in averages]
    assert times == sorted(times, reverse=True)
    assert len(events.table(row_limit=2).splitlines()) == 7
    with pytest.raises(ValueError, match="sort_by"):
        events.table(sort_by="nothing")
    assert str(events) == events.table()


def test_grouping_by_shape():
    with profile(record_shapes=True) as prof:
        for n in (2, 2, 3):
            np.exp(tg.tensor(np.ones(n), requires_grad=True))
    grouped = prof.key_averages(group_by_input_shape=True)
    assert sorted((event.key, event.input_shapes, event.count) for event in grouped) == [
        ("exp", [(2,)], 2),
        ("exp", [(3,)], 1),
    ]
    assert [event.count for event in prof.key_averages()] == [3]


def test_shapes_memory_and_stack_are_noted(events):
    (event,) = [event for event in events.function_events if event.name == "sin"]
    assert event.input_shapes == [(50,)]
    assert event.cpu_memory_usage == 400
    assert any("test_profiler.py" in line and "program" in line for line in event.stack)


def trace_of(prof, path):
    """The entries of an exported trace by kind, the file held to the rules of the Trace Event Format."""

    def refuse(constant):
        raise AssertionError(f"{constant} is no JSON")

    prof.export_chrome_trace(path)
    whole = json.loads(path.read_text(), parse_constant=refuse)
    assert whole["displayTimeUnit"] in ("ms", "ns")
    by_kind = {"X": [], "M": [], "s": [], "f": []}
    for entry in whole["traceEvents"]:
        by_kind[entry["ph"]].append(entry)
        assert type(entry["name"]) is str and entry["name"]
        assert type(entry["pid"]) is int and type(entry["tid"]) is int
        assert type(entry.get("args", {})) is dict
        if entry["ph"] != "M":
            assert type(entry["ts"]) in (int, float) and entry["ts"] >= 0
            assert type(entry["cat"]) is str
    slices, threads = by_kind["X"], {}
    assert len(slices) == len(prof.function_events)
    for entry in slices:
        assert type(entry["dur"]) in (int, float) and entry["dur"] >= 0
        threads.setdefault((entry["pid"], entry["tid"]), []).append(entry)
    for entry in by_kind["M"]:
        assert entry["name"] in ("process_name", "thread_name") and type(entry["args"]["name"]) is str
    named = {(m["pid"], m["tid"]) for m in by_kind["M"] if m["name"] == "thread_name"}
    assert named == set(threads)
    for mine in threads.values():  # slices of a thread lie within each other or apart
        ends = []
        for entry in sorted(mine, key=lambda e: (e["ts"], -e["dur"])):
            while ends and ends[-1] <= entry["ts"] + 1e-6:
                ends.pop()
            assert not ends or entry["ts"] + entry["dur"] <= ends[-1] + 1e-6
            ends.append(entry["ts"] + entry["dur"])
    starts, finishes = ({(e["cat"], e["name"], e["id"]): e for e in by_kind[ph]} for ph in "sf")
    assert set(starts) == set(finishes)
    assert (len(starts), len(finishes)) == (len(by_kind["s"]), len(by_kind["f"]))
    for key, finish in finishes.items():
        assert starts[key]["ts"] <= finish["ts"] and finish["bp"] == "e"
        for end in (starts[key], finish):
            mine = threads[end["pid"], end["tid"]]
            assert any(e["ts"] - 1e-6 <= end["ts"] <= e["ts"] + e["dur"] + 1e-6 for e in mine)
    return by_kind


def test_H10_export_chrome_trace(events, tmp_path):
    trace = trace_of(events, tmp_path / "trace.json")
    assert {entry["cat"] for entry in trace["X"]} == {"forward", "backward"}
    slices = {(e["tid"], e["ts"]): e["name"] for e in reversed(trace["X"])}
    links = {e["id"]: [slices[e["tid"], e["ts"]]] for e in trace["s"]}
    for e in trace["f"]:
        links[e["id"]].append(slices[e["tid"], e["ts"]])
    assert ["sin", "SinBackward"] in links.values()
    assert ["multiply", "MulBackward"] in links.values()


def test_traces_of_all_there_is_are_valid(tmp_path):
    class Twice(tg.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    x = tg.tensor(np.linspace(0.1, 1, 6), requires_grad=True)
    everything = {"record_shapes": True, "profile_memory": True, "with_flops": True}
    for more in ({}, {"with_stack": True}, everything):
        with profile(**more) as prof, record_function("\u2211 \"step\""):
            y = np.linalg.norm(np.sin(Twice.apply(x)).reshape(2, 3) @ np.ones((3, 2)) / x[0])
            (g,) = tg.grad(y, x, create_graph=True)
            np.sum(g * g).backward()
            with np.errstate(all="ignore"):
                tg.grad(x * np.inf - np.inf, x, np.full(6, np.nan))
        assert trace_of(prof, tmp_path / "trace.json")["s"]
    with profile() as prof:
        pass
    trace_of(prof, tmp_path / "empty.json")


def test_H10_profiles_do_not_nest():
    with profile(), pytest.raises(RuntimeError, match="nest"), profile():
        pass
    with profile(), profile(enabled=False):
        pass
    with profile():
        pass


def test_H10_disabled_it_does_nothing():
    with profile(enabled=False) as prof:
        np.exp(tg.tensor(1.0, requires_grad=True))
    assert prof.function_events == []
    assert prof.total_average().count == 0


def test_record_function_names_a_part():
    x = tg.tensor(2.0, requires_grad=True)

    @record_function("step")
    def step(x):
        time.sleep(0.002)
        return np.exp(x)

    step(x)  # no profile
    with profile() as prof, record_function("outer"):
        step(x)
    outer, inner, op = prof.function_events
    assert (outer.name, inner.name, op.name) == ("outer", "step", "exp")
    assert (outer.cpu_children, inner.cpu_children) == ([inner], [op])
    assert 2000 <= inner.cpu_time_total <= outer.cpu_time_total


def test_compilations_are_events():
    """Of a kernel no process has compiled, for lack of a cache."""
    from tapegrad.kernels import cache

    with profile() as prof:
        cache.load("probe", f"VALUE = {time.perf_counter_ns()}\n")
    assert [event.name for event in prof.function_events] == ["compile probe"]
    assert prof.function_events[0].cpu_time_total > 0
    assert not cache.observers


def test_an_exception_ends_it():
    x = tg.tensor([1.0], requires_grad=True)
    with pytest.raises(RuntimeError), profile() as prof:
        np.exp(x).reshape(7)
    assert "exp" in names(prof)
    np.exp(x)
    assert names(prof).count("exp") == 1


def test_other_threads_are_not_in_it():
    x = tg.tensor(1.0, requires_grad=True)
    with profile() as prof:
        other = threading.Thread(target=lambda: np.exp(x))
        other.start()
        other.join()
        np.sin(x)
    assert names(prof) == ["sin"]


def test_times_in_words():
    assert [profiler_util._text(us) for us in (0.5, 1500.0, 2e6)] == ["0.500us", "1.500ms", "2.000s"]


def test_compiled_operations_tell_shapes_bytes_and_records():
    x = tg.tensor(np.ones((2, 3)), requires_grad=True)
    y = tg.tensor(np.ones(3), requires_grad=True)
    z = x * y
    with profile(record_shapes=True, profile_memory=True) as prof:
        z = z * y
        z = z + 2.0
        z = -z
        w = np.sin(z[0, 0])
        tg.grad(w, [x, y])
    found = {event.name: event for event in prof.function_events}
    assert found["multiply"].input_shapes == [(2, 3), (3,)]
    assert found["add"].input_shapes == [(2, 3)]
    assert found["negative"].input_shapes == [(2, 3)]
    assert found["sin"].input_shapes == [()]
    assert [found[name].cpu_memory_usage for name in ("multiply", "sin")] == [48, 8]
    assert found["NegBackward"].sequence == found["negative"].sequence
    single = tg.tensor(np.ones(3, np.float32), requires_grad=True)
    with profile(profile_memory=True) as prof:
        single * single
        single[0] * single[0]
    assert [e.cpu_memory_usage for e in prof.function_events if e.name == "multiply"] == [12, 4]


def test_as_many_events_as_there_are_operations():
    """More than the room that compiled code is given at once."""
    x = tg.tensor(0.5, requires_grad=True)
    with profile() as prof:
        y = x
        for _ in range(15000):
            y = np.sin(y) * 1.25
        y.backward()
    found = names(prof)
    for name in ("sin", "multiply", "SinBackward", "MulBackward"):
        assert found.count(name) == 15000
    ops = [event for event in events_of(prof) if not event.is_backward]
    for before, event in itertools.pairwise(ops):
        assert before.end <= event.start
    assert {event.thread for event in ops} == {threading.get_ident()}


def test_events_are_there_in_every_mode():
    x = tg.tensor(0.5, requires_grad=True)
    for mode in (tg.no_grad, tg.inference_mode, tg.enable_grad):
        with profile() as prof, mode():
            np.sin(x) * x
        assert names(prof) == ["sin", "multiply"]
    with profile() as prof, tg.autograd.set_detect_anomaly(True):
        (np.sin(x) * x).backward()
    assert names(prof) == ["sin", "multiply", "backward", "MulBackward", "SinBackward"]


def test_what_records_without_an_op_of_its_own_is_an_event():
    class Double(tg.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    @tg.njit
    def cube(x):
        return x * x * x

    x = tg.tensor(np.linspace(0.1, 1, 4), requires_grad=True)
    cube(x[0])
    with profile(record_shapes=True) as prof:
        y = Double.apply(x)
        y[1] = x[0]
        y += x
        y.copy()
        cube(y[2])
    found = names(prof)
    assert found == ["Double", "multiply", "getitem", "assign", "add", "assign", "copy", "getitem", "cube"]
    double = prof.function_events[0]
    assert [event.name for event in double.cpu_children] == ["multiply"]
    assert double.input_shapes == [(4,)]


def test_flops_of_products_and_arithmetic():
    a = tg.tensor(np.ones((4, 5)), requires_grad=True)
    b = tg.tensor(np.ones((5, 6)), requires_grad=True)
    with profile(with_flops=True) as prof:
        c = a @ b
        d = c * c[0] + 1.0
        np.sum(np.exp(d)).backward(retain_graph=True)
    found = {event.key: event.flops for event in prof.key_averages()}
    assert found["matmul"] == 2 * 4 * 5 * 6
    assert found["MatmulBackward"] == 2 * found["matmul"]
    assert (found["multiply"], found["MulBackward"]) == (24, 48)
    assert (found["add"], found["AddBackward"], found["exp"], found["sum"]) == (24, 0, 0, 24)
    assert "Total FLOPs" in prof.key_averages().table()
    c.register_hook(lambda g: None)  # its rule runs in Python
    with profile(with_flops=True, record_shapes=True) as prof:
        np.sum(c).backward()
    (event,) = [event for event in prof.function_events if event.name == "MatmulBackward"]
    assert (event.flops, event.input_shapes) == (2 * found["matmul"], [(4, 6)])
    with profile() as prof:
        a @ b
    assert prof.total_average().flops == 0
    assert "FLOPs" not in prof.table()


@pytest.mark.parametrize(
    ("a", "b", "count"),
    [
        ((3,), (3,), 6),
        ((2, 3), (3,), 12),
        ((3,), (3, 4), 24),
        ((7, 2, 3), (3, 4), 336),
        ((5, 1, 2, 3), (2, 3, 4), 480),
    ],
)
def test_flops_of_matmul_of_any_shapes(a, b, count):
    with profile(with_flops=True) as prof:
        np.matmul(tg.tensor(np.ones(a), requires_grad=True), np.ones(b))
    assert prof.total_average().flops == count


def test_averages_of_some_of_the_events_stand_for_themselves(events):
    names = "SinBackward", "MulBackward"
    some = profiler_util.EventList(e for e in events.function_events if e.name in names)
    assert some.total_average().cpu_time_total == pytest.approx(sum(e.cpu_time_total for e in some))
    assert {e.key: e.count for e in some.key_averages()} == {"SinBackward": 1, "MulBackward": 1}
