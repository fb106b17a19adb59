"""Kernels that iterate over the objects and arrays of a binary JSON document. Called by `print_documents` and `trees`.

A stack (int64, STACK_SHAPE) has the containers that the caller's loop has entered and not left, so the loop needs no recursion. The kernels
follow only offsets that point forwards, and read no entry outside the document. They return 0 or a negative status.
"""
# ruff: noqa: PLR0917 - a kernel takes each array as an argument

from __future__ import annotations

import numpy as np

from sluice.cdc_engine.binlog.compiled import Integer, kernel
from sluice.cdc_engine.binlog.documents import statuses
from sluice.cdc_engine.binlog.documents.jsonb import DEPTH_MAX, INT16, INT32, LITERAL, SMALL_ARRAY, UINT16, UINT32
from sluice.cdc_engine.binlog.little_endian import little_endian
from sluice.cdc_engine.contracts import Bytes, Int64s

TRUNCATED, LARGER, BACKWARDS = statuses.TRUNCATED, statuses.LARGER, statuses.BACKWARDS
# Fields of an open container: its offset, the first valid offset of content, the number of its values, the number of values visited, the
# width of its offsets, and the bytes of a key entry (0: an array). Then come fields of the container's current value: its kind, its offset,
# and the offset and size of its key. The fields NODE and LAST are for the callers.
AT, CONTENT, COUNT, GIVEN, WIDTH, KEY_BYTES, KIND, OFFSET, KEY_OFFSET, KEY_SIZE, NODE, LAST = range(12)
STACK_SHAPE = (DEPTH_MAX + 1, 12)
# Kind of a value → the smallest width (bytes) of a container's offsets with which the container's entry contains the value itself. With a
# smaller width, the entry contains the offset of the value. 8 means always the offset, because offsets have at most four bytes.
INLINED_WIDTH = np.full(256, 8, np.int64)
INLINED_WIDTH[[INT32, UINT32]] = 4
INLINED_WIDTH[[LITERAL, INT16, UINT16]] = 2


@kernel
def enter(buffer: Bytes, kind: Integer, at: Integer, end: Integer, stack: Int64s, depth: Integer) -> Integer:
    """Opens the object or array (`kind`) at `at`: checks its header and fills the stack's entry at `depth`. Returns 0, or a negative status
    if the container is not within the document, which ends at `end`.
    """
    width = np.int64(4) if kind & 1 else np.int64(2)
    if at + 2 * width > end:
        return TRUNCATED
    count, size = little_endian(buffer, at, width), little_endian(buffer, at + width, width)
    key_bytes = width + 2 if kind < SMALL_ARRAY else np.int64(0)
    content = 2 * width + count * (key_bytes + 1 + width)
    if content > size or at + size > end:
        return LARGER
    stack[depth, AT], stack[depth, CONTENT], stack[depth, COUNT] = at, content, count
    stack[depth, GIVEN], stack[depth, WIDTH], stack[depth, KEY_BYTES] = 0, width, key_bytes
    return 0


@kernel
def step(buffer: Bytes, end: Integer, stack: Int64s, depth: Integer) -> Integer:
    """Moves to the next value of the open container at `depth`, and writes the value's fields to the stack. The caller checks that a value
    remains. Returns 0, or a negative status if an offset in the container is not valid.
    """
    at, content, width = stack[depth, AT], stack[depth, CONTENT], stack[depth, WIDTH]
    index, key_bytes = stack[depth, GIVEN], stack[depth, KEY_BYTES]
    stack[depth, GIVEN] = index + 1
    if key_bytes:
        entry = at + 2 * width + index * key_bytes
        offset, size = little_endian(buffer, entry, width), little_endian(buffer, entry + width, 2)
        if offset < content:
            return BACKWARDS
        if at + offset + size > end:
            return TRUNCATED
        stack[depth, KEY_OFFSET], stack[depth, KEY_SIZE] = at + offset, size
    entry = at + 2 * width + stack[depth, COUNT] * key_bytes + index * (1 + width)
    kind, value_offset = np.int64(buffer[entry]), entry + 1
    if width < INLINED_WIDTH[kind]:
        offset = little_endian(buffer, value_offset, width)
        if offset < content:
            return BACKWARDS
        value_offset = at + offset
    stack[depth, KIND], stack[depth, OFFSET] = kind, value_offset
    return 0
