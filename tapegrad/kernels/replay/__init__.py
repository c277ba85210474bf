"""Sources of the compiled sweep: text to `tapegrad.kernels.lowering`, plain Python to a reader.

One call walks a sealed tape backwards up to the first record that needs Python.
"""
