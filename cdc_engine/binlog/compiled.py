"""The two decorators of the kernels: numba's compiler, with the types of the function kept for the type checker.

`kernel` is for what allocates nothing and keeps nothing: numba then need not count references to its arrays. Counting costs an atomic
operation for each array at each call between kernels: measured, 60 % of the time of a scan of small transactions (272 instead of 107 ns
an event). `_nrt` is numba's name for it. A function that allocates is `compiled`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import numba

Integer: TypeAlias = Any  # int64 within a kernel, an int for its caller
Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compiles at the first call and keeps the code on disk (`cache`); it runs without the interpreter's lock (`nogil`)."""
    return cast("Function", numba.njit(cache=True, nogil=True)(function))


def kernel(function: Function) -> Function:
    """As `compiled`, for a function that allocates nothing."""
    compiler: Any = numba.njit  # its stubs leave `_nrt` out
    return cast("Function", compiler(cache=True, nogil=True, _nrt=False)(function))
