"""Sources of the compiled program: text to `tapegrad.kernels.lowering`, plain Python to a reader.

It appends records, reads them into columns, and walks those backwards up to the first record that needs
Python.
"""
