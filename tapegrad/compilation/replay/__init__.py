"""Calls of which the Python is skipped: what a function reads, and whether that is as it was."""
