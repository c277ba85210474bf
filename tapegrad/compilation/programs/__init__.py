"""Programs: buffers for all that a call computes, and rows forward and in reverse."""
