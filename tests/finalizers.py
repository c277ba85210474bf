"""Finalizers that run where a test wants them to."""

import contextlib
import contextvars
import gc


class Cycle:
    """What only the collector frees; it calls a function then.

    In a context of its own: CPython before 3.12 frees the variables that it is just setting (it collects
    inside of ContextVar.set) where a finalizer sets some.
    """

    def __init__(self, function):
        self.itself, self.function = self, function

    def __del__(self):
        contextvars.Context().run(self.function)


@contextlib.contextmanager
def frozen():
    """Nothing is collected that there is already."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


@contextlib.contextmanager
def no_collection():
    """Nothing is collected but in `collecting`."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def collecting(k, *older):
    """The collector runs after so many objects more."""
    thresholds = gc.get_threshold()
    gc.set_threshold(k, *older)
    gc.enable()
    try:
        yield
    finally:
        gc.disable()
        gc.set_threshold(*thresholds)
