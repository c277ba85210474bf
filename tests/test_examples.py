"""The examples run, draw their pictures and print the figures they are for."""

import gzip
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FIRST_LINE = 3  # seconds of the processor's, until one is told what there is to wait for


def run(name, picture):
    """Run an example at small size; returns what it prints."""
    for module in ("matplotlib", "tqdm"):
        pytest.importorskip(module)
    with subprocess.Popen(
        [sys.executable, str(ROOT / "examples" / name), "--small", "--output", str(picture)],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=picture.parent,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        first = process.stdout.readline()
        used = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
        printed, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert sum(map(int, used)) / os.sysconf("SC_CLK_TCK") < FIRST_LINE, f"printed late: {first}"
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 10_000
    return first + printed


def figure(pattern, text):
    found = re.search(pattern, text)
    assert found, f"{pattern!r} is not in:\n{text}"
    return tuple(float(part) for part in found.groups())


def test_size():
    files = sorted((ROOT / "examples").glob("*.py"))
    assert len(files) >= 9
    for path in files:
        lines = path.read_text().splitlines()
        assert len(lines) <= 120, path.name
        assert len(lines[0]) > 30, path.name


def test_data_name_source_and_licence():
    files = sorted((ROOT / "examples" / "data").iterdir())
    programs = [*(ROOT / "examples").glob("*.py"), *(ROOT / "notebooks").glob("*.ipynb")]
    used = "".join(path.read_text() for path in programs)
    for path in files:
        read = gzip.open if path.suffix == ".gz" else open
        with read(path, "rt") as file:
            head = " ".join(line.removeprefix("# ").strip() for line in file if line.startswith("#"))
        assert "Source: " in head, path.name
        assert re.search("Public domain|Licence: |free of copyright", head), path.name
        assert path.name in used, path.name
    assert sum(path.stat().st_size for path in files) < 100_000


WITHOUT_MATPLOTLIB = """
import importlib.util, runpy, sys
find = importlib.util.find_spec
importlib.util.find_spec = lambda name: None if name == "matplotlib" else find(name)
sys.modules["matplotlib"] = None
sys.argv = [sys.argv[1], "--small"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.full
def test_without_matplotlib(tmp_path):
    """No picture, but all figures."""
    pytest.importorskip("tqdm")
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_MATPLOTLIB, str(ROOT / "examples" / "co2.py")],
        env={**os.environ, "PYTHONPATH": str(ROOT)}, cwd=tmp_path,
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "seasonal swing" in done.stdout
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_co2(tmp_path):
    text = run("co2.py", tmp_path / "co2.png")
    assert figure(r"gradient beside central differences: off by (\S+)", text)[0] < 1e-6
    assert figure(r"Hessian beside central differences: off by (\S+)", text)[0] < 1e-5
    growth, error = figure(r"growth in 2000, ppm/year +(\S+) \+- (\S+)", text)
    assert growth == pytest.approx(1.62, abs=0.01)
    assert error == pytest.approx(0.065, abs=0.005)
    swing, error = figure(r"seasonal swing in 2000, ppm +(\S+) \+- (\S+)", text)
    assert swing == pytest.approx(6.55, abs=0.02)
    assert error == pytest.approx(0.19, abs=0.02)


@pytest.mark.full
def test_classify(tmp_path):
    text = run("classify.py", tmp_path / "classify.png")
    assert figure(r"losses differ by (\S+)", text)[0] < 1e-7
    assert figure(r"logistic regression: .* (\S+) in the test", text)[0] > 0.91
    assert figure(r"network of 8 hidden units: .* (\S+) in the test", text)[0] > 0.91


@pytest.mark.full
def test_nile(tmp_path):
    text = run("nile.py", tmp_path / "nile.png")
    assert figure(r"gradient beside central differences: off by (\S+)", text)[0] < 1e-6
    assert figure(r"Hessian beside central differences: off by (\S+)", text)[0] < 1e-6
    assert figure(r"log-likelihood (\S+),", text)[0] == pytest.approx(-632.546, abs=1e-3)
    assert figure(r"variance of the noise +(\S+),", text)[0] == pytest.approx(15098.5, abs=0.1)
    assert figure(r"variance of the drift +(\S+),", text)[0] == pytest.approx(1469.2, abs=0.1)


@pytest.mark.full
def test_bratu(tmp_path):
    text = run("bratu.py", tmp_path / "bratu.png")
    assert figure(r"Jacobian beside a central difference: off by (\S+)", text)[0] < 1e-8
    assert figure(r"derivatives: (\S+) products", text)[0] <= 9
    assert figure(r"at the fold lam = (\S+),", text)[0] == pytest.approx(6.808, abs=2e-3)


@pytest.mark.full
def test_challenger(tmp_path):
    text = run("challenger.py", tmp_path / "challenger.png")
    slope, error = figure(r"change per degree (\S+) \+- (\S+)", text)
    assert slope == pytest.approx(-0.2322, abs=1e-4)  # as Dalal, Fowlkes and Hoadley
    assert error == pytest.approx(0.1082, abs=1e-4)
    assert figure(r"jackknife: (\S+)", text)[0] == pytest.approx(3.12, abs=0.01)
    assert figure(r"95 % by the profile: (\S+) to", text)[0] == pytest.approx(0.804, abs=0.001)


@pytest.mark.full
def test_gp(tmp_path):
    text = run("gp.py", tmp_path / "gp.png")
    assert figure(r"gradient beside central differences: off by (\S+)", text)[0] < 1e-5
    before, after = figure(r"evidence (\S+) before, (\S+) after", text)
    assert after > before + 5
    assert 9 < figure(r"period, years +(\S+),", text)[0] < 12


@pytest.mark.full
def test_orbit(tmp_path):
    text = run("orbit.py", tmp_path / "orbit.png")
    assert figure(r"Jacobian beside central differences: off by (\S+)", text)[0] < 1e-7
    radius, off = figure(r"last radius (\S+) .* by (\S+)", text)
    assert radius == pytest.approx(1.525, abs=1e-3)
    assert off < 1e-4


@pytest.mark.full
def test_epidemic(tmp_path):
    text = run("epidemic.py", tmp_path / "epidemic.png")
    assert figure(r"Jacobian beside central differences: off by (\S+)", text)[0] < 1e-2
    number, error = figure(r"reproduction number +(\S+) \+- (\S+)", text)
    assert number == pytest.approx(3.93, abs=0.01)
    assert error == pytest.approx(0.34, abs=0.01)


@pytest.mark.full
def test_bundle(tmp_path):
    text = run("bundle.py", tmp_path / "bundle.png")
    assert figure(r"derivatives: (\S+) products", text)[0] <= 9
    assert figure(r"before, (\S+) after", text)[0] == pytest.approx(0.5, abs=0.03)
    after, before = figure(r"points are off by (\S+), in the guess by (\S+)", text)
    assert after < before / 50


@pytest.mark.full
def test_greeks(tmp_path):
    text = run("greeks.py", tmp_path / "greeks.png")
    textbook, equation = figure(r"Greeks by (\S+), off the equation by (\S+)", text)
    assert textbook < 1e-11
    assert equation < 1e-11
    assert figure(r"on the same paths: off by (\S+)", text)[0] < 1e-4
    slope, error = figure(r"slope by price +(\S+) \+- (\S+)", text)
    assert abs(slope - 0.607) < 4 * error


@pytest.mark.full
def test_lennard_jones(tmp_path):
    text = run("lennard_jones.py", tmp_path / "lennard_jones.png")
    assert figure(r"beside a central difference: off by (\S+)", text)[0] < 1e-7
    assert figure(r"energy an atom +(\S+) ", text)[0] == pytest.approx(-5.512, abs=0.06)
    assert abs(figure(r"pressure +(\S+) ", text)[0]) < 0.3
    assert figure(r"moves by (\S+) in", text)[0] < 0.02
