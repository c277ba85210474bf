"""Paths: ways through a function, how calls follow and leave them, and how they are learned."""
