"""The reference of `docs/` has every public name, guides name what is there, examples with prompts run."""

import doctest
import functools
import importlib
import re
from pathlib import Path
from types import ModuleType

import pytest

import tapegrad.scipy

DOCS = Path(__file__).parents[1] / "docs"
GUIDES = [*sorted(DOCS.glob("internals/*.md")), DOCS.parent / "CONTRIBUTING.md"]
EXAMPLES = [path for path in sorted(DOCS.rglob("*.md")) if ">>> " in path.read_text() and path.stem != "MAP"]
OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
SOURCES = "\n".join(path.read_text() for path in sorted(DOCS.glob("reference/*.rst")))
MODULES = (
    "tapegrad", "tapegrad.func", "tapegrad.batch", "tapegrad.interop", "tapegrad.errors",
    "tapegrad.autograd", "tapegrad.diagnostics",
    *(f"tapegrad.autograd.{name}" for name in ("forward_ad", "function", "functional", "graph", "profiler")),
    *(f"tapegrad.scipy.{name}" for name in tapegrad.scipy.__all__),
    "tapegrad.scipy.sparse.linalg", "tapegrad.scipy.spatial.distance",
)  # fmt: skip


def public(name):
    """The names of a module, but those of modules."""
    module = importlib.import_module(name)
    found = {key: getattr(module, key) for key in module.__all__}
    return {key: value for key, value in found.items() if not isinstance(value, ModuleType)}


def described():
    """Of each module that has a section: the names that are described there."""
    sections = re.findall(r"^\.\. automodule:: (\S+)\n((?: .*\n?)*)", SOURCES, re.M)
    found = {}
    for name, options in sections:
        assert ":members:" in options, name
        left_out = re.search(r":exclude-members: ((?:.*\n?)*)", options)
        found[name] = set(public(name)) - set(re.findall(r"\w+", left_out[1] if left_out else ""))
    return found


@pytest.mark.parametrize("name", MODULES)
def test_every_public_name_is_described(name):
    sections = described()
    assert name in sections, f"docs/reference wants: .. automodule:: {name}, with :members:"
    elsewhere = {id(public(other)[key]) for other in sections for key in sections[other]}
    assert [key for key, found in public(name).items() if id(found) not in elsewhere] == []


@pytest.mark.parametrize("name", ["tapegrad", "tapegrad.func", "tapegrad.autograd", "tapegrad.diagnostics"])
def test_every_public_name_is_in_a_group(name):
    page = next(text for text in SOURCES.split(".. currentmodule:: ")[1:] if text.startswith(f"{name}\n"))
    groups = re.findall(r"^\.\. autosummary::\n\n((?:   .+\n)+)", page, re.M)
    assert sorted(" ".join(groups).split()) == sorted(public(name))


def test_every_page_is_in_a_table_of_contents():
    named = set()
    for path in DOCS.rglob("*.md"):
        for entries in re.findall(r"^```\{toctree\}\n(.*?)^```", path.read_text(), re.M | re.S):
            lines = [line for line in entries.split() if not line.startswith(":") and line not in "12"]
            named |= {(path.parent / line).resolve() for line in lines}
    files = [*DOCS.rglob("*.md"), *DOCS.rglob("*.rst")]
    pages = {path.with_suffix("") for path in files if "_build" not in path.parts}
    assert pages - named == {DOCS / "index"}


@functools.cache
def sources():
    """The text of each file of the package and its tests, by its path."""
    root = DOCS.parent
    files = [path for name in ("tapegrad", "tests") for path in (root / name).rglob("*.py")]
    return {f"/{path.relative_to(root).as_posix()}": path.read_text("utf-8") for path in files}


def is_there(name):
    """Whether a file, a test in it, a test, or a name in a module is there; all else is."""
    file = re.fullmatch(r"([\w/]+\.py)(?:::(\w+))?", name)
    test, of_module = re.fullmatch(r"test_\w+", name), re.fullmatch(r"(?:\w+\.)*([a-z_]+)\.(\w+)", name)
    if file:
        found = [text for path, text in sources().items() if path.endswith(f"/{file[1]}")]
        return any(not file[2] or f"def {file[2]}(" in text for text in found)
    if test:
        return any(f"def {name}(" in text for text in sources().values())
    if of_module and of_module[2] != "py":
        modules = [text for path, text in sources().items() if path.endswith(f"/{of_module[1]}.py")]
        return not modules or any(re.search(rf"\b{of_module[2]}\b", text) for text in modules)
    return True


@pytest.mark.parametrize("page", GUIDES, ids=lambda path: path.stem)
def test_what_a_guide_names_is_there(page):
    """Files as they end, tests, and names as `module.name`, in backticks."""
    names = [name for name in re.findall(r"`([^`\n]+)`", page.read_text("utf-8")) if not is_there(name)]
    assert not names


def test_what_is_not_there_is_noticed():
    assert is_there("kernels/cache.py") and is_there("tests/test_docs.py::test_what_is_not_there_is_noticed")
    for gone in ("kernels/cash.py", "tests/test_docs.py::test_gone", "test_of_old", "cache.no_such_name"):
        assert not is_there(gone)


@pytest.mark.parametrize("page", EXAMPLES, ids=lambda path: path.stem)
def test_examples_of_a_page(page):
    test = doctest.DocTestParser().get_doctest(page.read_text(), {}, page.stem, None, 0)
    report = []
    doctest.DocTestRunner(optionflags=OPTIONS).run(test, out=report.append)
    assert not report, "".join(report)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore:anomaly mode is on")
def test_the_readme_runs_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS.parent / "README.md").read_text("utf-8"), re.S)
    names = {}
    for number, block in enumerate(blocks, 1):
        exec(compile(block, f"README.md, block {number}", "exec"), names)
    assert number == 6 and (tmp_path / "run.html").exists() and (tmp_path / "graph.svg").exists()
