"""Six problems of GradBench, the successor of ADBench, by tapegrad and by its peers.

github.com/gradbench/gradbench; Srajer, Kukelova and Fitzgibbon, A benchmark of selected algorithmic
differentiation tools (2018). Each module states one problem, written from its definition; sizes are
GradBench's, inputs random.
"""

from . import ba, gmm, llsq, lse, lstm, ode

PROBLEMS = {module.__name__.rpartition(".")[2]: module.PROBLEM for module in (lse, llsq, gmm, ba, ode, lstm)}
