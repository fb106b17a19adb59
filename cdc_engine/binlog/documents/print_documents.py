"""Kernels that print binary JSON documents as the server does, all rows of a column at once. Called by
`column_types.documents`.

`jsonb` describes the format, and tests compare these kernels with `jsonb`. `containers` iterates over the values. Entries of a damaged
document may share values, which could make its text very long. So the kernels refuse a document with more values than bytes, and a document
of n bytes with a text of more than TEXT_FACTOR * n + TEXT_SPARE bytes. No server writes such documents. A kernel that prints one document
or a part of it returns the offset after its text in `out`, or a negative status (`statuses`).
"""
# ruff: noqa: PLR0917 - a kernel takes each array as an argument

from __future__ import annotations

import numpy as np

from sluice.cdc_engine.binlog.compiled import Integer, kernel
from sluice.cdc_engine.binlog.documents import statuses
from sluice.cdc_engine.binlog.documents.containers import (
    COUNT,
    GIVEN,
    KEY_BYTES,
    KEY_OFFSET,
    KEY_SIZE,
    KIND,
    OFFSET,
    enter,
    step,
)
from sluice.cdc_engine.binlog.documents.jsonb import DEPTH_MAX, LARGE_ARRAY, TEXT_FACTOR, TEXT_SPARE
from sluice.cdc_engine.binlog.documents.print_values import print_plain, print_quoted, print_scalar
from sluice.cdc_engine.contracts import Bytes, Int32s, Int64s

DONE = 0
ROOM, IN_EACH_OTHER = statuses.ROOM, statuses.IN_EACH_OTHER
NULL = np.frombuffer(b"null", np.uint8)
# Index 0: the brackets of an array; index 1: the braces of an object.
OPENING, CLOSING = np.array([ord("["), ord("{")], np.uint8), np.array([ord("]"), ord("}")], np.uint8)


@kernel
def print_documents(
    buffer: Bytes, starts: Int64s, sizes: Int64s, row: Integer, offsets: Int32s, out: Bytes, stack: Int64s
) -> tuple[Integer, Integer]:
    """Prints the binary JSON documents of the rows from `row` on to `out`, back to back, beginning at `offsets[row]`. Writes the end of
    row n's text to `offsets[n + 1]`.

    Returns (status, row). The status is DONE, or the reason why the document of `row` is not printed: ROOM if `out` is full, or another
    status of `statuses` if the bytes of the value are not a document.
    """
    used = np.int64(offsets[row])
    while row < starts.shape[0]:
        if starts[row] >= 0:
            used = print_document(buffer, starts[row], starts[row] + sizes[row], out, used, stack)
            if used < 0:
                return used, row
        offsets[row + 1] = used
        row += 1
    return np.int64(DONE), row


@kernel
def print_document(buffer: Bytes, begin: Integer, end: Integer, out: Bytes, used: Integer, stack: Int64s) -> Integer:
    """Prints the binary JSON document in `buffer` from `begin` to `end` to `out`. Returns the offset after its text, or a negative status.
    As on the server, a document without bytes is the JSON null.
    """
    if begin == end:
        return print_plain(NULL, 0, NULL.shape[0], out, used)
    kind, at, depth, values = np.int64(buffer[begin]), begin + 1, np.int64(0), np.int64(0)
    most = used + TEXT_FACTOR * (end - begin) + TEXT_SPARE
    while used <= most and values < end - begin and depth <= DEPTH_MAX:
        values += 1
        if kind <= LARGE_ARRAY:
            status = enter(buffer, kind, at, end, stack, depth)
            used = print_sign(OPENING, stack[depth, KEY_BYTES], out, used) if status == 0 else status
            depth += 1
        else:
            used = print_scalar(buffer, kind, at, end, out, used)
        while used >= 0 and depth > 0 and stack[depth - 1, GIVEN] == stack[depth - 1, COUNT]:
            depth -= 1
            used = print_sign(CLOSING, stack[depth, KEY_BYTES], out, used)
        if used >= 0 and depth == 0:
            break
        if used >= 0:
            used = next_value(buffer, end, stack, depth - 1, out, used)
        if used < 0:
            return used
        kind, at = stack[depth - 1, KIND], stack[depth - 1, OFFSET]
    return used if depth == 0 and used <= most else np.int64(IN_EACH_OTHER)


@kernel
def print_sign(signs: Bytes, keyed: Integer, out: Bytes, used: Integer) -> Integer:
    """Writes the bracket or brace that opens or closes a container. `signs`: OPENING or CLOSING. `keyed`: whether the container is an
    object.
    """
    if used >= out.shape[0]:
        return ROOM
    out[used] = signs[1] if keyed else signs[0]
    return used + 1


@kernel
def next_value(buffer: Bytes, end: Integer, stack: Int64s, depth: Integer, out: Bytes, used: Integer) -> Integer:
    """Moves to the next value of the open container at `depth`, and prints the comma and the key that precede the value."""
    first = stack[depth, GIVEN] == 0
    status = step(buffer, end, stack, depth)
    if status < 0:
        return status
    if stack[depth, KEY_BYTES]:
        return print_key(buffer, stack[depth, KEY_OFFSET], stack[depth, KEY_SIZE], first, out, used)
    return used if first else print_comma(out, used)


@kernel
def print_comma(out: Bytes, used: Integer) -> Integer:
    if used + 2 > out.shape[0]:
        return ROOM
    out[used], out[used + 1] = ord(","), ord(" ")
    return used + 2


@kernel
def print_key(buffer: Bytes, at: Integer, size: Integer, first: bool, out: Bytes, used: Integer) -> Integer:
    """Writes a key and its colon, after a comma unless the key is the `first` one."""
    if not first:
        used = print_comma(out, used)
    if used >= 0:
        used = print_quoted(buffer, at, size, out, used)
    if used < 0:
        return used
    if used + 2 > out.shape[0]:
        return ROOM
    out[used], out[used + 1] = ord(":"), ord(" ")
    return used + 2
