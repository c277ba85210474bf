"""Machine code: sources written out, compiled by Numba, cached on disk, called by address."""
