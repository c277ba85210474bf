"""Derivatives as compiled functions, called from Python and from compiled code."""
