"""The one decorator of the kernels: numba's compiler, with the types of the function kept for the type checker."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar, cast

import numba

Integer: TypeAlias = Any  # int64 within a kernel, an int for its caller
Function = TypeVar("Function", bound=Callable[..., Any])


def compiled(function: Function) -> Function:
    """Compiles at the first call and keeps the code on disk (`cache`); it runs without the interpreter's lock (`nogil`)."""
    return cast("Function", numba.njit(cache=True, nogil=True)(function))
