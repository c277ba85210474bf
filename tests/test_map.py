"""docs/MAP.md: its examples run, and its names, arguments and defaults are those of the libraries."""

import ast
import doctest
import importlib
import inspect
import re
from pathlib import Path

import pytest

import tapegrad as tg

TEXT = (Path(__file__).parents[1] / "docs/MAP.md").read_text()
ENTRIES = dict(re.findall(r"^### (.+?)\n(.+?)(?=^##|\Z)", TEXT, re.M | re.S))
SPAN = re.compile(r"`(tg|torch)\.([\w.]+)(\(.*?\))?`")
LINES = [
    (entry, system, span.groups())
    for entry, body in ENTRIES.items()
    for system, rest in re.findall(r"^\| (tapegrad|torch) \|(.*)$", body, re.M)
    for span in SPAN.finditer(rest)
]
ABSENT = [name for system, name, _ in SPAN.findall(TEXT.split("## Not here")[1]) if system == "torch"]
OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def rows(system):
    return [pytest.param(name, args, id=name) for _, of, (_, name, args) in LINES if of == system]


def resolve(module, name):
    """What a dotted name stands for; the modules on the way are imported."""
    found = module
    for part in name.split("."):
        if not hasattr(found, part) and inspect.ismodule(found):
            importlib.import_module(f"{found.__name__}.{part}")
        found = getattr(found, part)
    return found


def written(args):
    """Kind and default of each argument, and whether the list is whole."""
    whole = "..." not in args
    text = re.sub(r"\.\.\.(, )?", "", args).replace(", )", ")")
    parsed = ast.parse(f"def f{text}: pass").body[0].args
    default = [None] * (len(parsed.args) - len(parsed.defaults)) + parsed.defaults
    out = {a.arg: ("by position", d) for a, d in zip(parsed.args, default)}
    out |= {parsed.vararg.arg: ("*", None)} if parsed.vararg else {}
    out |= {a.arg: ("by name", d) for a, d in zip(parsed.kwonlyargs, parsed.kw_defaults)}
    out |= {parsed.kwarg.arg: ("**", None)} if parsed.kwarg else {}
    return out, whole


def actual(found, bound):
    """The same of what is there, without self."""
    kinds = {
        inspect.Parameter.VAR_POSITIONAL: "*",
        inspect.Parameter.VAR_KEYWORD: "**",
        inspect.Parameter.KEYWORD_ONLY: "by name",
    }
    parameters = list(inspect.signature(found).parameters.values())
    if bound and parameters and parameters[0].name == "self":
        parameters = parameters[1:]
    return {p.name: (kinds.get(p.kind, "by position"), p.default) for p in parameters}


def compare(module, name, args):
    """Whether the name is there and, where arguments are written, has those."""
    found = resolve(module, name)
    if args is None:
        return
    want, whole = written(args)
    have = actual(found, "." in name)
    if whole:
        assert list(want) == list(have)
    for key, (kind, default) in want.items():
        assert have[key][0] == kind, key
        if default is None:
            assert have[key][1] is inspect.Parameter.empty, key
        elif isinstance(default, ast.Name):
            assert have[key][1].__name__ == default.id, key
        else:
            assert have[key][1] == ast.literal_eval(default), key


@pytest.mark.parametrize(("name", "args"), rows("tapegrad"))
def test_names_arguments_and_defaults_here(name, args):
    compare(tg, name, args)


@pytest.mark.full
@pytest.mark.parametrize(("name", "args"), rows("torch"))
def test_names_arguments_and_defaults_of_torch(name, args):
    torch = pytest.importorskip("torch")
    compare(torch, name, args if torch.__version__.startswith("2.13.") else None)


@pytest.mark.parametrize("name", ABSENT)
def test_what_is_not_here_is_not_here(name):
    with pytest.raises((AttributeError, ModuleNotFoundError)):
        resolve(tg, name)


@pytest.mark.full
@pytest.mark.parametrize("name", ABSENT)
def test_what_is_not_here_is_in_torch(name):
    resolve(pytest.importorskip("torch"), name)


@pytest.mark.parametrize("entry", ENTRIES)
def test_example(entry):
    body = ENTRIES[entry]
    assert body.count("```python\n>>> ") == 1, "each entry has one example"
    example = "".join(re.findall(r"^```python\n(.+?)^```", TEXT[: TEXT.index("\n## ")] + body, re.M | re.S))
    test = doctest.DocTestParser().get_doctest(example, {}, entry, "MAP.md", 0)
    report = []
    doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=report.append)
    assert not report, "".join(report)


def test_every_entry_has_a_table_and_a_line_for_tapegrad():
    assert len(ENTRIES) > 40
    for entry, body in ENTRIES.items():
        systems = re.findall(r"^\| (\w[\w.+]*) \|", body, re.M)[1:]
        assert systems[0] == "tapegrad" and len(systems) > 1, entry
        assert len(set(systems)) == len(systems), entry
        assert set(systems) <= {"tapegrad", "torch", "0.2", "C++", "R", "OneFlow"}, entry
        assert SPAN.search(body), entry
