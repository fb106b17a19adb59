"""Runs kernels as plain Python over memory that refuses reads beyond its end, because the compiled code does not check bounds."""

from __future__ import annotations

import importlib.util
import sys
import types
from collections.abc import Callable
from typing import Any, SupportsIndex
from unittest import mock

import numba
import numpy as np

from sluice.cdc_engine.binlog import compiled


class Guarded:
    """Bytes that may be read from 0 to their end only, one at a time."""

    def __init__(self, data: bytes | bytearray) -> None:
        self._data = data
        self.shape = (len(data),)

    def __getitem__(self, index: SupportsIndex) -> np.int64:
        assert 0 <= int(index) < len(self._data), f"read of byte {int(index)} of {len(self._data)}"
        return np.int64(self._data[int(index)])


class GuardedRoom(Guarded):
    """Bytes that may be read and written from 0 to their end only. A written value must fit into one byte."""

    def __init__(self, size: int) -> None:
        self.data = bytearray(size)
        super().__init__(self.data)

    def __setitem__(self, index: SupportsIndex, value: SupportsIndex) -> None:
        assert 0 <= int(index) < len(self.data), f"write of byte {int(index)} of {len(self.data)}"
        self.data[int(index)] = int(value)


def plain(*kernels: types.ModuleType) -> types.ModuleType:
    """Loads the modules of kernels from source without compiling them, and returns the last one. A module can import the modules before
    it, which are not compiled either.
    """

    def as_it_is(function: Any) -> Any:
        return function

    def not_compiled(*_: object, **__: object) -> Callable[[Any], Any]:
        return as_it_is

    loaded: dict[str, types.ModuleType] = {}
    for kernel in kernels:
        spec = importlib.util.find_spec(kernel.__name__)
        assert spec is not None
        assert spec.loader is not None
        loaded[kernel.__name__] = importlib.util.module_from_spec(spec)
        with (
            mock.patch.object(numba, "njit", not_compiled),
            mock.patch.object(compiled, "kernel", as_it_is),
            mock.patch.dict(sys.modules, loaded),
        ):
            spec.loader.exec_module(loaded[kernel.__name__])
    return loaded[kernels[-1].__name__]
