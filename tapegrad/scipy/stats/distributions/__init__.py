"""Distributions by their densities, distribution functions and inverses, of standardised numbers.

Numbers lie in the support. Each is stated in functions that Tensors differentiate. What is left out follows
from the rest: a density is the exponential of its logarithm, and a logarithm that of the smaller tail.
"""
