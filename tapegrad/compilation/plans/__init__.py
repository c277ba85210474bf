"""Plans: the rows of a program in another order, fused, or as loops."""
