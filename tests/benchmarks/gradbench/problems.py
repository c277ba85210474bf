"""The problems by name; apart from the package, whose import must not load NumPy before threads are set."""

from . import ba, gmm, llsq, lse, lstm, ode

PROBLEMS = {module.__name__.rpartition(".")[2]: module.PROBLEM for module in (lse, llsq, gmm, ba, ode, lstm)}
