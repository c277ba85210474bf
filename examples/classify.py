"""Handwritten digits: multinomial logistic regression, and a network with one hidden layer.

Both minimise the mean cross-entropy and a penalty on the squared weights, in plain NumPy, with SciPy's
L-BFGS-B on the gradient. The first problem is convex, so Newton's method on Hessian-vector products has to
arrive at the same loss; the second shows what a hidden layer adds.
"""

import argparse
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import numpy as np
from scipy.optimize import minimize
from tqdm import tqdm

import tapegrad as tg
import tapegrad.scipy as ts

DATA = Path(__file__).parent / "data" / "digits.csv.gz"
CLASSES, PENALTY = 10, 0.5  # the latter of the squared weights, beside the sum of the cross-entropies


def unpack(w, sizes):
    """Cut a vector into weights and biases of layers."""
    layers, at = [], 0
    for rows, columns in pairwise(sizes):
        weights = w[at : at + rows * columns].reshape(rows, columns)
        at += rows * columns
        layers.append((weights, w[at : at + columns]))
        at += columns
    return layers


def scores(w, x, sizes):
    *hidden, (weights, bias) = unpack(w, sizes)
    for inner, offset in hidden:
        x = np.tanh(x @ inner + offset)
    return x @ weights + bias


def loss(w, x, labels, sizes):
    z = scores(w, x, sizes)
    entropy = np.sum(ts.special.logsumexp(z, axis=1) - z[np.arange(len(labels)), labels])
    squares = sum(np.sum(weights**2) for weights, _ in unpack(w, sizes))
    return (entropy + PENALTY * squares) / len(labels)


value_and_grad, hvp = tg.func.value_and_grad(loss), tg.func.hvp(loss)


def accuracy(w, x, labels, sizes):
    return np.mean(np.argmax(scores(w, x, sizes), axis=1) == labels)


def fit(title, sizes, train, test, steps):
    """Minimise; returns the weights, the loss, and per step (loss, errors in the test set)."""
    count = sum((rows + 1) * columns for rows, columns in pairwise(sizes))
    start, history = np.random.default_rng(0).normal(0, 0.1, count), []

    def follow(intermediate_result):
        history.append((intermediate_result.fun, 1 - accuracy(intermediate_result.x, *test, sizes)))
        bar.update()

    with tqdm(desc=title, total=steps, leave=False, disable=None) as bar:
        options = {"maxiter": steps, "maxfun": 2 * steps, "ftol": 1e-13, "gtol": 1e-7}
        data = *train, sizes
        found = minimize(value_and_grad, start, data, "L-BFGS-B", True, callback=follow, options=options)
    right = [accuracy(found.x, *data, sizes) for data in (train, test)]
    print(f"{title}: {count} parameters, {found.nit} steps, loss {found.fun:.6f}, "
          f"accuracy {right[0]:.4f} in training, {right[1]:.4f} in the test", flush=True)  # fmt: skip
    return found.x, found.fun, np.array(history)


def plot(path, histories, w, sizes, test):
    from matplotlib.figure import Figure

    left, middle, right = (figure := Figure(figsize=(11, 4), layout="constrained")).subplots(1, 3)
    for title, history in histories.items():
        steps = np.arange(1, len(history) + 1)
        left.loglog(steps, history[:, 0], label=title)
        middle.semilogx(steps, 100 * history[:, 1], label=title)
    left.set(xlabel="L-BFGS step", ylabel="loss (nats per digit)", title="Training")
    middle.set(xlabel="L-BFGS step", ylabel="digits misread (%)", title="Test", ylim=(0, 20))
    left.legend(frameon=False)
    table = np.zeros((CLASSES, CLASSES), int)
    np.add.at(table, (test[1], np.argmax(scores(w, test[0], sizes), axis=1)), 1)
    right.imshow(np.log1p(table), cmap="Blues")
    for row, column in zip(*np.nonzero(table), strict=True):
        right.text(column, row, table[row, column], ha="center", va="center", color="wk"[int(row != column)])
    right.set(xlabel="digit read", ylabel="digit written", title="Test, with hidden units",
              xticks=range(CLASSES), yticks=range(CLASSES))  # fmt: skip
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="fewer digits, steps and hidden units")
    parser.add_argument("--output", default="classify.png", help="where the plot goes")
    options = parser.parse_args()
    table = np.random.default_rng(0).permutation(np.loadtxt(DATA, delimiter=",", dtype=int))
    last, steps, hidden = (940, 150, 8) if options.small else (None, 300, 32)
    x, y = table[:, :-1] / 16, table[:, -1]
    train, test = (x[540:last], y[540:last]), (x[:540], y[:540])
    print(f"{len(train[1])} digits in training, {len(test[1])} in the test, 8 x 8 pixels each", flush=True)

    linear, network = (64, CLASSES), (64, hidden, CLASSES)
    w, least, first = fit("logistic regression", linear, train, test, 600)
    newton = minimize(value_and_grad, 0 * w, (*train, linear), "Newton-CG", True, options={"xtol": 1e-7},
                      hessp=lambda w, v, *data: hvp(w, *data, v))  # fmt: skip
    print(f"Newton's method: {newton.nit} steps; losses differ by {abs(newton.fun - least):.1e}", flush=True)
    w, _, second = fit(f"network of {hidden} hidden units", network, train, test, steps)
    if find_spec("matplotlib"):
        histories = {"logistic regression": first, f"{hidden} hidden units": second}
        plot(options.output, histories, w, network, test)
        print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
