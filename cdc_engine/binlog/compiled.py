"""Decorators that compile kernels with numba and keep the function's types for the type checker.

`kernel` is for functions that neither allocate nor keep arrays. numba then does not count references to arrays, which
costs an atomic operation per array and call: 60 % of the time of a scan of small transactions (measured: 272 instead of
107 ns per event). `_nrt` is numba's name for this. Functions that allocate use `compiled`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import numba

Integer: TypeAlias = Any  # A kernel sees an int64, its caller an int.
Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compiles at the first call, caches the code on disk (`cache`), and releases the interpreter's lock while it runs (`nogil`)."""
    return cast("Function", numba.njit(cache=True, nogil=True)(function))


def kernel(function: Function) -> Function:
    """Compiles a function that allocates nothing. Otherwise like `compiled`."""
    compiler: Any = numba.njit  # numba's stubs lack `_nrt`.
    return cast("Function", compiler(cache=True, nogil=True, _nrt=False)(function))
