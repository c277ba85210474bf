"""Five problems of torch's tutorials, as users of either write them: the same results, times in turns.

    python -m tests.benchmarks.tutorials

Each problem is a function of torch and one of tapegrad, written with `docs/coming_from/torch.md` beside it:
a polynomial fitted to a sine by steps of gradient descent; the same with a Legendre polynomial as a
`Function`; softmax regression on handwritten digits by minibatches; a recurrent network that reads words
letter by letter; Jacobian and Hessian of a layer by `func`. Both start from the same float64 numbers and
return their parameters, which are compared before anything is timed. Printed are best times in milliseconds
of the one thread, and ours over torch's.
"""

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

from pathlib import Path
from time import thread_time

import numpy as np
import torch

import tapegrad as tg
import tapegrad.scipy as ts

from .rounds import difference, in_turns, ratios, verdict

ROUNDS, BAR, SAME = 15, 1.0, 1e-10
DIGITS = Path(__file__).parents[2] / "examples" / "data" / "digits.csv.gz"
RNG = np.random.default_rng(0)

# ---------------------------------------------------------------- a polynomial

STEPS, RATE = 100, 1e-6
X = np.linspace(-np.pi, np.pi, 2000)
Y = np.sin(X)
START = [0.3, -0.2, 0.1, -0.4]


def polynomial_torch():
    x, y = torch.tensor(X), torch.tensor(Y)
    a, b, c, d = weights = [torch.tensor(w, dtype=torch.float64, requires_grad=True) for w in START]
    for _ in range(STEPS):
        loss = (a + b * x + c * x**2 + d * x**3 - y).pow(2).sum()
        loss.backward()
        with torch.no_grad():
            for w in weights:
                w -= RATE * w.grad
                w.grad = None
    return [w.item() for w in weights]


def polynomial():
    a, b, c, d = weights = [tg.tensor(w, requires_grad=True) for w in START]
    for _ in range(STEPS):
        loss = np.sum((a + b * X + c * X**2 + d * X**3 - Y) ** 2)
        loss.backward()
        with tg.no_grad():
            for w in weights:
                w -= RATE * w.grad
                w.grad = None
    return [w.item() for w in weights]


# ---------------------------------------------------------------- a Function


class TorchLegendre3(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 0.5 * (5 * x**3 - 3 * x)

    @staticmethod
    def backward(ctx, ct):
        (x,) = ctx.saved_tensors
        return ct * 1.5 * (5 * x**2 - 1)


class Legendre3(tg.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 0.5 * (5 * x**3 - 3 * x)

    @staticmethod
    def backward(ctx, ct):
        (x,) = ctx.saved_tensors
        return ct * 1.5 * (5 * x**2 - 1)


def function_torch():
    x, y = torch.tensor(X), torch.tensor(Y)
    a, b, c, d = weights = [torch.tensor(w, dtype=torch.float64, requires_grad=True) for w in START]
    for _ in range(STEPS):
        loss = (a + b * TorchLegendre3.apply(c + d * x) - y).pow(2).sum()
        loss.backward()
        with torch.no_grad():
            for w in weights:
                w -= RATE * w.grad
                w.grad = None
    return [w.item() for w in weights]


def function():
    a, b, c, d = weights = [tg.tensor(w, requires_grad=True) for w in START]
    for _ in range(STEPS):
        loss = np.sum((a + b * Legendre3.apply(c + d * X) - Y) ** 2)
        loss.backward()
        with tg.no_grad():
            for w in weights:
                w -= RATE * w.grad
                w.grad = None
    return [w.item() for w in weights]


# ---------------------------------------------------------------- softmax regression by minibatches

TABLE = np.loadtxt(DIGITS, delimiter=",", comments="#")
IMAGES, LABELS = TABLE[:, :-1] / 16.0, TABLE[:, -1].astype(int)
WEIGHTS, BATCH, PACE = 0.1 * RNG.normal(size=(IMAGES.shape[1], 10)), 64, 0.5


def softmax_torch():
    images, labels = torch.tensor(IMAGES), torch.tensor(LABELS)
    weights = torch.tensor(WEIGHTS, requires_grad=True)
    bias = torch.zeros(10, dtype=torch.float64, requires_grad=True)
    for k in range(0, len(images), BATCH):
        x, y = images[k : k + BATCH], labels[k : k + BATCH]
        logits = torch.log_softmax(x @ weights + bias, 1)
        loss = -logits[range(len(y)), y].mean()
        loss.backward()
        with torch.no_grad():
            weights -= PACE * weights.grad
            bias -= PACE * bias.grad
            weights.grad = bias.grad = None
    return [*weights.detach().numpy().ravel(), *bias.detach().numpy()]


def softmax():
    weights = tg.tensor(WEIGHTS, requires_grad=True)
    bias = tg.tensor(np.zeros(10), requires_grad=True)
    for k in range(0, len(IMAGES), BATCH):
        x, y = IMAGES[k : k + BATCH], LABELS[k : k + BATCH]
        logits = ts.special.log_softmax(x @ weights + bias, axis=1)
        loss = -np.mean(logits[range(len(y)), y])
        loss.backward()
        with tg.no_grad():
            weights -= PACE * weights.grad
            bias -= PACE * bias.grad
            weights.grad = bias.grad = None
    return [*weights.detach().numpy().ravel(), *bias.detach().numpy()]


# ---------------------------------------------------------------- words, letter by letter

WORDS = [("ivanov", 0), ("oconnor", 1), ("tanaka", 2), ("schneider", 3), ("dubois", 4), ("rossi", 5)]
LETTERS, HIDDEN = 26, 32
SHAPES = [(LETTERS + HIDDEN, HIDDEN), (HIDDEN,), (HIDDEN, len(WORDS)), (len(WORDS),)]
NETWORK = [RNG.normal(size=shape) / np.sqrt(shape[0]) for shape in SHAPES]
CODED = [(np.eye(LETTERS)[[ord(c) - ord("a") for c in word]], k) for word, k in WORDS]


def words_torch():
    weights = [torch.tensor(w, requires_grad=True) for w in NETWORK]
    inner, inner_bias, outer, outer_bias = weights
    for word, k in [(torch.tensor(word), k) for word, k in CODED]:
        state = torch.zeros(HIDDEN, dtype=torch.float64)
        for letter in word:
            state = torch.tanh(torch.cat((letter, state)) @ inner + inner_bias)
        loss = -torch.log_softmax(state @ outer + outer_bias, 0)[k]
        loss.backward()
        with torch.no_grad():
            for w in weights:
                w -= 0.1 * w.grad
                w.grad = None
    return np.concatenate([w.detach().numpy().ravel() for w in weights])


def words():
    weights = [tg.tensor(w, requires_grad=True) for w in NETWORK]
    inner, inner_bias, outer, outer_bias = weights
    for word, k in CODED:
        state = np.zeros(HIDDEN)
        for letter in word:
            state = np.tanh(np.concatenate((letter, state)) @ inner + inner_bias)
        loss = -ts.special.log_softmax(state @ outer + outer_bias)[k]
        loss.backward()
        with tg.no_grad():
            for w in weights:
                w -= 0.1 * w.grad
                w.grad = None
    return np.concatenate([w.detach().numpy().ravel() for w in weights])


# ---------------------------------------------------------------- Jacobian and Hessian of a layer

LAYER, OFFSET, POINT = RNG.normal(size=(16, 16)), RNG.normal(size=16), RNG.normal(size=16)


def matrices_torch():
    layer, offset, point = map(torch.tensor, (LAYER, OFFSET, POINT))

    def predict(x):
        return torch.tanh(layer @ x + offset)

    jacobian = torch.func.jacrev(predict)(point)
    return np.concatenate([jacobian.ravel(), torch.func.hessian(predict)(point).ravel()])


def matrices():
    def predict(x):
        return np.tanh(LAYER @ x + OFFSET)

    return np.concatenate([tg.func.jacrev(predict)(POINT).ravel(), tg.func.hessian(predict)(POINT).ravel()])


PROBLEMS = {
    "polynomial, 100 steps": (polynomial, polynomial_torch),
    "Function, 100 steps": (function, function_torch),
    "softmax regression, 29 batches": (softmax, softmax_torch),
    "recurrent network, 6 words": (words, words_torch),
    "Jacobian and Hessian": (matrices, matrices_torch),
}


def main():
    torch.set_num_threads(1)
    print(f"{'ms':32s}{'ours':>10s}{'torch':>10s}")
    for name, (ours, theirs) in PROBLEMS.items():
        found = difference(np.array(ours()), np.array(theirs()))
        assert found <= SAME, f"{name}: {found:.1e} from torch's"
        times = in_turns({"ours": ours, "torch": theirs}, ROUNDS, clock=thread_time)
        best = {key: rows[:, 0].min() for key, rows in times.items()}
        pair = ratios(times["ours"][:, 0], times["torch"][:, 0])
        print(f"{name:32s}{1e3 * best['ours']:10.2f}{1e3 * best['torch']:10.2f}"
              f"   {pair[0]:.2f} ({pair[1]:.2f})   {verdict(pair, BAR, most=True)}", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
