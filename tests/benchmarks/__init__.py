"""Measurements beside other tools; each verifies its results before it times anything."""
