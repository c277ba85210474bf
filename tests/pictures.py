"""``python -m tests.pictures docs/pictures [docs/_build/html]``: what the gallery of the documentation shows.

That is what `tapegrad.diagnostics` draws, by Chromium and matplotlib,
and pages of the site if its folder is given.
"""

import subprocess
import sys
import tempfile
from itertools import pairwise
from pathlib import Path

import numpy as np

import tapegrad as tg
from tapegrad.autograd.profiler import profile, record_function
from tapegrad.diagnostics import Graph, flame_chart, plot_gradient_flow, plot_sparsity
from tests.diagnostics.pages import CHROMIUM, FLAGS

LAYERS = (8, 32, 32, 1)
PAGES = (
    "tutorial",
    "howto/looking",
    "notebooks/08_fit_an_ode",
    "explanation/accuracy",
    "reference/func",
)


def network():
    """Weights of a small network, and its loss."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, LAYERS[0])), rng.normal(size=(200, 1))
    weights = {}
    for k, (m, n) in enumerate(pairwise(LAYERS), 1):
        weights[f"W{k}"] = tg.tensor(rng.normal(size=(m, n)) / np.sqrt(m), requires_grad=True)
        weights[f"b{k}"] = tg.tensor(np.zeros(n), requires_grad=True)

    def loss():
        h = x
        for k in range(1, len(LAYERS)):
            h = h @ weights[f"W{k}"] + weights[f"b{k}"]
            h = np.tanh(h) if k < len(LAYERS) - 1 else h
        return np.mean((h - y) ** 2)

    return weights, loss


def bratu(x):
    """Residuals of u_xx + u_yy + exp(u) = 0 on a square."""
    u = np.pad(np.reshape(x, (12, 12)), 1)
    around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
    return np.ravel(around - 4 * u[1:-1, 1:-1] + 0.02 * np.exp(u[1:-1, 1:-1]))


def report(path):
    """A report of fifty steps of gradient descent."""
    weights, loss = network()
    with tg.report(path, weights, title="A network learns", with_stack=True) as run:
        for _ in range(50):
            with record_function("forward"):
                value = loss()
            for w in weights.values():
                w.grad = None
            value.backward()
            with record_function("update"), tg.no_grad():
                for w in weights.values():
                    w -= 0.1 * w.grad
            run.log(loss=value, gradient={name: w.grad for name, w in weights.items()})
    return run.seconds


def photographed(page, picture, width, height, dark=False):
    """A picture of a page of so many pixels."""
    with tempfile.TemporaryDirectory() as folder:
        size = f"--window-size={width},{height}"
        flags = [flag for flag in FLAGS if flag != "--dump-dom"] + ["--hide-scrollbars", size]
        flags += ["--blink-settings=preferredColorScheme=0"] * dark
        flags += [f"--user-data-dir={folder}", f"--screenshot={picture}", page.as_uri()]
        subprocess.run([CHROMIUM, *flags], check=True, capture_output=True, timeout=120)


def main(folder, site=None):
    """Make them."""
    import matplotlib

    matplotlib.use("Agg")
    weights, loss = network()
    loss().backward()
    with profile() as prof:
        value = loss()
        value.backward(retain_graph=True)
    Graph(value, weights, prof).draw().save(folder / "graph.svg")
    flame_chart(prof).save(folder / "flame.svg")
    plot_gradient_flow(weights).figure.savefig(folder / "gradient_flow.webp", dpi=80)
    jacobian = tg.func.sparse_jacobian(bratu)
    jacobian(np.zeros(144))
    plot_sparsity(jacobian).figure.savefig(folder / "sparsity.webp", dpi=80)
    if CHROMIUM is None:
        sys.exit("there is no chromium on the path: no picture of the report")
    with tempfile.TemporaryDirectory() as scratch:
        page = Path(scratch) / "run.html"
        quickest = min(report(page) for _ in range(5))  # of a machine that does other things, too
        while report(page) > 1.2 * quickest:
            pass
        photographed(page, folder / "report.webp", 1280, 1180)
        photographed(page, folder / "report_phone.webp", 390, 1200, dark=True)
    for page in PAGES if site else ():
        photographed(site / f"{page}.html", folder / f"page_{Path(page).name}.webp", 1280, 1000)


if __name__ == "__main__":
    main(*(Path(given).resolve() for given in sys.argv[1:]))
