"""Active numbers, real and complex: their types, and what operators do to them."""
