"""The examples run, draw their pictures and print the figures they are for."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def run(name, picture):
    """Run an example at small size; returns what it prints."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / name), "--small", "--output", str(picture)],
        env=environment, cwd=picture.parent, capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 10_000
    return done.stdout


def figure(pattern, text):
    found = re.search(pattern, text)
    assert found, f"{pattern!r} is not in:\n{text}"
    return tuple(float(part) for part in found.groups())


@pytest.mark.full
def test_co2(tmp_path):
    for module in ("matplotlib", "statsmodels", "tqdm"):
        pytest.importorskip(module)
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
    for module in ("matplotlib", "sklearn", "tqdm"):
        pytest.importorskip(module)
    text = run("classify.py", tmp_path / "classify.png")
    assert figure(r"gradient beside a central difference: relative difference (\S+)", text)[0] < 1e-6
    assert figure(r"losses differ by (\S+)", text)[0] < 1e-7
    assert figure(r"logistic regression: .* (\S+) in the test", text)[0] > 0.91
    assert figure(r"network of 8 hidden units: .* (\S+) in the test", text)[0] > 0.91


@pytest.mark.full
def test_nile(tmp_path):
    for module in ("matplotlib", "statsmodels"):
        pytest.importorskip(module)
    text = run("nile.py", tmp_path / "nile.png")
    assert figure(r"gradient beside central differences: off by (\S+)", text)[0] < 1e-6
    assert figure(r"Hessian beside central differences: off by (\S+)", text)[0] < 1e-6
    assert figure(r"log-likelihood (\S+),", text)[0] == pytest.approx(-632.546, abs=1e-3)
    assert figure(r"variance of the noise +(\S+),", text)[0] == pytest.approx(15098.5, abs=0.1)
    assert figure(r"variance of the drift +(\S+),", text)[0] == pytest.approx(1469.2, abs=0.1)


@pytest.mark.full
def test_bratu(tmp_path):
    for module in ("matplotlib", "tqdm"):
        pytest.importorskip(module)
    text = run("bratu.py", tmp_path / "bratu.png")
    assert figure(r"Jacobian beside a central difference: off by (\S+)", text)[0] < 1e-8
    assert figure(r"derivatives: (\S+) products", text)[0] <= 9
    assert figure(r"at the fold lam = (\S+),", text)[0] == pytest.approx(6.808, abs=2e-3)
