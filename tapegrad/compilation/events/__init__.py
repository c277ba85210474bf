"""What a function does to Tensors: operations that are listed as they come, and events made of these."""
