"""NIST's 27 nonlinear regressions: digits that agree with the certified parameters and standard errors.

    python -m tests.benchmarks.nist

Each problem (`tests/scipy/nist.py`) is solved from both starts by `curve_fit` with derivatives found, then by
Newton's steps with the exact Hessian, and by SciPy's `curve_fit` with differences. MINPACK's first step is
bounded by the start's size (factor=1): from a hundred times that BoxBOD's first start leads nowhere. Printed
are the fewest digits of a parameter and of a standard error, -log10 |found - certified| / |certified|, at
most 11, as many as NIST certifies.
"""

import numpy as np
import scipy.optimize as theirs

import tapegrad.scipy.optimize as ours
from tests.scipy.nist import MODELS, Problem, digits


def main():
    columns = [f"{what}, start {k}" for k in (1, 2) for what in ("ours", "Newton", "SciPy")]
    print(f"{'':10s}" + "".join(f"{column:>22s}" for column in columns))
    for name in MODELS:
        problem, told = Problem(name), []
        for start in problem.starts:
            found, covariance = problem.fit(ours.curve_fit, start)
            told.append((found, np.sqrt(np.diag(covariance))))
            told.append(problem.refine(found))
            try:
                found, covariance = problem.fit(theirs.curve_fit, start)
                told.append((found, np.sqrt(np.diag(covariance))))
            except RuntimeError:  # it gave up
                told.append((np.zeros(len(found)),) * 2)
        shown = [(digits(b, problem.parameters), digits(e, problem.errors)) for b, e in told]
        print(f"{name:10s}" + "".join(f"{a:14.1f}, {b:6.1f}" for a, b in shown), flush=True)


if __name__ == "__main__":
    main()
