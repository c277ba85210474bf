"""Arrays of active numbers, or of floats in their place, and expressions of them as records."""
