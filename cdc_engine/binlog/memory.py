"""Provides functions that kernels need and that numba lacks. They copy bytes, load unaligned 64-bit words, and reverse the bytes of a word.

A loop that copies a hundred bytes takes twenty times as long as `copy_memory`, because the compiler does not know that the two arrays do
not overlap. The functions check no bounds: the caller ensures that all bytes are within the arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numba as nb
import numpy as np
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from sluice.cdc_engine.binlog.compiled import Integer
from sluice.cdc_engine.contracts import Bytes

WORD_BYTES = 8
_BYTE, _WORD = ir.IntType(8), ir.IntType(64)


def _pointer(context: Any, builder: Any, kind: Any, array: Any, at: Any) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    return builder.gep(builder.bitcast(data, _BYTE.as_pointer()), [at])


def _copy(_context: Any, target: Any, _target_at: Any, source: Any, _source_at: Any, _size: Any) -> Any:
    void: Any = types.void
    return void(target, types.int64, source, types.int64, types.int64), _generate_copy


def _generate_copy(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    target, target_at, source, source_at, size = arguments
    to = _pointer(context, builder, signature.args[0], target, target_at)
    make_copy: Any = cgutils.raw_memcpy  # numba has no type annotation for this function.
    make_copy(builder, to, _pointer(context, builder, signature.args[2], source, source_at), size, 1)
    return context.get_dummy_value()


def _load(_context: Any, buffer: Any, _at: Any) -> Any:
    word: Any = types.uint64
    return word(buffer, types.int64), _generate_load


def _generate_load(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
    pointer = _pointer(context, builder, signature.args[0], *arguments)
    return builder.load(builder.bitcast(pointer, _WORD.as_pointer()), align=1)


def _swap(_context: Any, _word: Any) -> Any:
    word: Any = types.uint64
    return word(types.uint64), _generate_swap


def _generate_swap(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
    return builder.bswap(arguments[0])


#: Copies source[source_at : source_at + size] to target[target_at :]. The arrays must not overlap.
copy_memory = cast("Callable[[Bytes, Integer, Bytes, Integer, Integer], None]", intrinsic(_copy))
#: Loads the eight bytes at an offset as a little-endian uint64. The offset need not be a multiple of eight.
word_at = cast("Callable[[Bytes, Integer], Any]", intrinsic(_load))
#: Reverses the bytes of a uint64.
swapped = cast("Callable[[Any], Any]", intrinsic(_swap))


@nb.njit(inline="always")
def any_high(bytes_: Bytes, end: Integer) -> bool:
    """Returns whether any of the first `end` bytes is not ASCII (128 or more)."""
    seen = np.uint64(0)
    words = end // WORD_BYTES
    for word in range(words):
        seen |= word_at(bytes_, word * WORD_BYTES)
    for at in range(words * WORD_BYTES, end):
        seen |= np.uint64(bytes_[at])
    return bool((seen & np.uint64(0x8080808080808080)) != 0)
