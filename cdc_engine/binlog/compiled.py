"""How the scan's kernels are compiled: they allocate nothing and keep nothing, so numba need not count references to their arrays.

Counting costs an atomic operation for each array at each call between kernels: measured, 60 % of the time of a scan of small
transactions (272 instead of 107 ns an event). `_nrt` is numba's name for it. A kernel that allocates must not be compiled with this.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba as nb

Kernel = TypeVar("Kernel", bound=Callable[..., object])


def kernel(function: Kernel) -> Kernel:
    """Compiled at its first call, or read from numba's cache on disk; runs without the interpreter's lock."""
    compiler: Any = nb.njit  # its stubs leave `_nrt` out
    return cast("Kernel", compiler(cache=True, nogil=True, _nrt=False)(function))
