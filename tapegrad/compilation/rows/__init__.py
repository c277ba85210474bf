"""Rows: what compiled code runs to compute a program, and the text of kernels for groups of them."""
