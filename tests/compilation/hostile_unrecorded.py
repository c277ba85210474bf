"""More functions of the kind of `hostile`: detached Tensors, and blocks in which nothing is recorded."""

import numpy as np

import tapegrad as tg

from .hostile import hostile, simple


@simple
def targets_that_are_constants(x, k):
    y = np.sin(x) * 2.0
    target = (y * y + 0.1).detach()
    return np.sum((y - target) ** 2) + y[1] * y[2].detach() + np.sum(y.detach()[1:] * y[:-1])


@simple
def clipped_by_a_norm(x, k):
    y = np.exp(x)
    for _ in range(3):
        norm = np.linalg.norm(y.detach())
        y = y * (1.0 / norm) if norm > 1.0 else y * 1.1
        y = y * np.clip(2.0 / np.max(np.abs(y.detach())), 0.5, 1.5)
    return np.sum(y * x)


@hostile
def running_statistics():
    known = {"mean": np.zeros(4), "scale": tg.tensor(np.ones(4)), "last": None, "seen": []}

    def f(x, k):
        y = np.tanh(x) + 0.1 * k
        with tg.no_grad():
            known["mean"] = 0.9 * known["mean"] + 0.1 * np.asarray(y)
            known["scale"] = 0.9 * known["scale"] + 0.1 * np.abs(y)
            known["seen"].append(float(np.mean(y)))
        known["last"] = y.detach()
        return np.sum((y - known["mean"]) / known["scale"])

    return f, known


@hostile
def logged_values():
    seen = []

    def f(x, k):
        y = np.cos(x) * x
        seen.append((y[0].detach().item(), float(np.sum(y.detach())), y.detach().requires_grad))
        if k % 4 == 3:
            seen.append(y.detach().numpy())
        values = y.detach().numpy()
        seen.append((values.flags.writeable, values.sum(), y.detach().is_leaf))
        return np.sum(y)

    return f, seen


@hostile
def written_to_what_was_detached():
    seen = []

    def f(x, k):
        y = np.sin(x)
        z = y.detach()
        if k % 5 == 3:
            z[0] = 2.0  # y sees it
        if k % 5 == 4:
            y[1] = x[0]  # z sees it
        seen.append(z.detach().numpy().copy())
        t = z * 1.0
        t[2] = 0.5  # nothing else sees that
        return np.sum(x * z) + np.sum(t * x) + np.sum(y * 0.5)

    return f, seen


@hostile
def views_of_a_block_without_recording():
    seen = []

    def f(x, k):
        y = np.sin(x) * 1.0
        with tg.no_grad():
            part, whole = y[1:], y.reshape(2, 2)
            scaled = part * 2.0
            if k % 6 == 5:
                scaled[0] = 0.0
            number = np.sum(whole) * 0.5
        seen.append((part.requires_grad, whole.shape, scaled.requires_grad, number.item()))
        return np.sum(y[:3] * scaled) + np.sum(whole @ whole) * y[0] + np.sum(part * x[1:]) * number

    return f, seen


@simple
def recorded_or_not(x, k):
    y = x * 2.0
    with tg.set_grad_enabled(k % 4 != 3):
        z = np.exp(-y)
    with tg.no_grad():
        w = np.sin(y)
        with tg.enable_grad():
            v = w * np.cos(y)
        if k % 3 == 2:
            w = w * v
    return np.sum(z * w) + np.sum(v * y)


@hostile
def left_within_a_block():
    seen = []

    def f(x, k):
        y, total = x * 0.5, 0.0
        with tg.no_grad():
            z = np.sin(y)
            if k % 3 == 2:
                z = np.cumsum(z) + (np.prod(z) if k % 2 else 0.0)
                seen.append(tg.is_grad_enabled())
            total = total + np.sum(z)
        if k % 5 == 4:
            y = np.tanh(y)
        return np.sum(y * z) * total + np.sum(np.cos(y))

    return f, seen


@simple
def an_error_within_a_block(x, k):
    y = np.sin(x)
    try:
        with tg.no_grad():
            z = y * 2.0
            if k % 3 == 2:
                raise ValueError
            z = z + 1.0
    except ValueError:
        return np.sum(y * z) + np.sum(y)
    return np.sum(y * z)


@simple
def inference_in_a_call(x, k):
    y = np.sin(x)
    with tg.inference_mode():
        scale = float(np.max(np.abs(y)))
    return np.sum(y) / scale


@simple
def a_decorated_generator(x, k):
    @tg.no_grad()
    def weights(y):
        for n in range(3):
            yield np.sin(y) * n

    y, found = x * 1.0, 0.0
    for w in weights(y):
        found = found + np.sum(w * y)
    return found


@simple
def number_by_number(x, k):
    p, q = x[0] * 1.0, x[1] * 0.5
    for i in range(12 + k // 7):
        t = (p * q).detach()
        with tg.no_grad():
            r = p - t
        p, q = np.sin(p) + 0.1 * t * q, q * 0.9 + 0.05 * r
    return p * q + x[2]
