"""What compiled code is given: addresses, and words of memory."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

Address: TypeAlias = int  # of memory, or of an object
Words: TypeAlias = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
