"""What is said of the package in several places is the same in all."""

import configparser
import re
from pathlib import Path

import pytest

import tapegrad as tg

ROOT = Path(__file__).parents[1]
RECIPE = ROOT / ".ci/recipe/recipe.yaml"


def settings():
    parser = configparser.ConfigParser()
    parser.read(ROOT / "setup.cfg")
    return parser


def test_the_recipe_for_conda_wants_what_setup_cfg_does():
    recipe, options = RECIPE.read_text(), settings()["options"]
    run = re.search(r"  run:\n((?:    - .*\n)+)", recipe)[1]
    wanted = {line.strip("- ").replace(" ", "") for line in run.splitlines()}
    assert wanted == {*options["install_requires"].split(), f"python{options['python_requires']}"}
    assert f"  version: {tg.__version__}\n" in recipe
    assert settings()["metadata"]["description"] in recipe


def test_the_recipe_for_conda_is_one():
    """Every command is a string: unquoted, one with a lambda is a mapping to YAML."""
    recipe = pytest.importorskip("yaml").safe_load(RECIPE.read_text())
    assert recipe["build"]["noarch"] == "python"
    assert (RECIPE.parent / recipe["source"]["path"]).resolve() == ROOT
    assert (ROOT / recipe["about"]["license_file"]).exists()
    *_, commands = recipe["tests"]
    assert all(type(command) is str for command in [recipe["build"]["script"], *commands["script"]])


def test_the_recipe_for_conda_is_read_by_its_builder():
    pytest.importorskip("rattler_build.stage0").Stage0Recipe.from_file(str(RECIPE))


def test_the_version_cited_is_this_one():
    assert f"\nversion: {tg.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_versions_named_are_those_tested():
    """README names Python's minor versions that CI runs with; so do the classifiers."""
    tested = re.search(r"## Tested on\n\n.*?Python 3\.(\d+) to 3\.(\d+)", (ROOT / "README.md").read_text())
    classifiers = settings()["metadata"]["classifiers"].splitlines()
    named = [line.rsplit(" ", 1)[1] for line in classifiers if re.search(r"Python :: 3\.\d+$", line)]
    assert named == [f"3.{minor}" for minor in range(int(tested[1]), int(tested[2]) + 1)]
