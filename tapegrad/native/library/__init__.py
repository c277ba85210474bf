"""Functions of NumPy, SciPy and the library that recording code calls."""
