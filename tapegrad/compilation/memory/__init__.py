"""Memory of programs: pages that are given back, small arrays side by side, the arena of a plan."""
