"""Handwritten digits: multinomial logistic regression, and a network with one hidden layer.

Both minimise the mean cross-entropy and a penalty on the squared weights with SciPy's L-BFGS-B, on the
gradient of plain NumPy code. The first problem is convex, so scikit-learn's LogisticRegression has to
arrive at the same loss; the second shows what a hidden layer adds.
"""

import argparse
from itertools import pairwise

import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import minimize
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import tapegrad as tg

CLASSES = 10
STRENGTH = 1.0  # scikit-learn's C: the penalty is |W|^2 / (2 C) beside the sum of the cross-entropies


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
    entropy = np.sum(tg.logsumexp(z, axis=1) - z[np.arange(len(labels)), labels])
    penalty = sum(np.sum(weights**2) for weights, _ in unpack(w, sizes)) / (2 * STRENGTH)
    return (entropy + penalty) / len(labels)


def value_and_gradient(values, *data):
    w = tg.tensor(values, requires_grad=True)
    value = loss(w, *data)
    value.backward()
    return value.item(), w.grad.numpy()


def accuracy(w, x, labels, sizes):
    return np.mean(np.argmax(scores(w, x, sizes), axis=1) == labels)


def fit(title, sizes, train, test, steps):
    """Minimise; returns the weights and per step (loss, errors in the test set)."""
    count = sum((rows + 1) * columns for rows, columns in pairwise(sizes))
    start = np.random.default_rng(0).normal(0, 0.1, count)
    history = []

    def follow(intermediate_result):
        w = intermediate_result.x
        history.append((intermediate_result.fun, 1 - accuracy(w, *test, sizes)))
        bar.set_postfix(loss=f"{intermediate_result.fun:.4f}")
        bar.update()

    with tqdm(desc=title, total=steps, leave=False) as bar:
        found = minimize(
            value_and_gradient, start, (*train, sizes), "L-BFGS-B", jac=True, callback=follow,
            options={"maxiter": steps, "maxfun": 2 * steps, "ftol": 1e-13, "gtol": 1e-7},
        )  # fmt: skip
    print(f"{title}: {count} parameters, {found.nit} steps, loss {found.fun:.6f}, "
          f"accuracy {accuracy(found.x, *train, sizes):.4f} in training, "
          f"{accuracy(found.x, *test, sizes):.4f} in the test")  # fmt: skip
    return found, np.array(history)


def check_gradient(sizes, train):
    """The gradient along one direction, beside a central difference."""
    rng = np.random.default_rng(1)
    count = sum((rows + 1) * columns for rows, columns in pairwise(sizes))
    w, direction, step = rng.normal(0, 0.1, count), rng.normal(size=count), 1e-6
    slope = value_and_gradient(w, *train, sizes)[1] @ direction
    ends = [loss(w + sign * step * direction, *train, sizes) for sign in (1, -1)]
    error = abs(slope - (ends[0] - ends[1]).item() / (2 * step)) / abs(slope)
    print(f"gradient beside a central difference: relative difference {error:.1e}")


def plot(path, histories, w, sizes, test):
    figure = Figure(figsize=(11, 4.6), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
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
    for (row, column), number in np.ndenumerate(table):
        if number:
            right.text(column, row, number, ha="center", va="center", fontsize=8,
                       color="white" if row == column else "black")  # fmt: skip
    right.set(xlabel="digit read", ylabel="digit written", title="Test, with hidden units",
              xticks=range(CLASSES), yticks=range(CLASSES))  # fmt: skip
    figure.savefig(path, dpi=120)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", default="classify.png", help="where the plot goes")
    parser.add_argument("--small", action="store_true", help="fewer digits, steps and hidden units")
    args = parser.parse_args()

    images, labels = load_digits(return_X_y=True)
    x, x_test, y, y_test = train_test_split(images / 16, labels, test_size=0.3, random_state=0)
    used = 400 if args.small else len(y)
    train, test = (x[:used], y[:used]), (x_test, y_test)
    steps, hidden = (150, 8) if args.small else (300, 32)
    print(f"{len(train[1])} digits in training, {len(y_test)} in the test, 8 x 8 pixels each")

    linear, network = (64, CLASSES), (64, hidden, CLASSES)
    check_gradient(network, train)
    found, first = fit("logistic regression", linear, train, test, 600)
    reference = LogisticRegression(C=STRENGTH, tol=1e-8, max_iter=10_000).fit(*train)
    w = np.concatenate([reference.coef_.T.ravel(), reference.intercept_])
    print(f"scikit-learn's LogisticRegression: loss {loss(w, *train, linear):.6f}, "
          f"accuracy {reference.score(*train):.4f} in training, {reference.score(*test):.4f} in the test; "
          f"losses differ by {abs(loss(w, *train, linear) - found.fun):.1e}")  # fmt: skip
    found, second = fit(f"network of {hidden} hidden units", network, train, test, steps)
    histories = {"logistic regression": first, f"{hidden} hidden units": second}
    plot(args.output, histories, found.x, network, test)


if __name__ == "__main__":
    main()
