"""Kernels that parse the paths of JSON differences leg by leg, and find the node in a document's tree to which a leg leads. Called by
`changes`.

A path is $, then members (.plain, ."quoted") and cells ([3], [last], [last-3]). The Python parser (`json_diff`) handles other forms
and quoted keys with escapes.
"""
# ruff: noqa: PLR0917 - a kernel takes each array as an argument

from __future__ import annotations

import numpy as np

from sluice.cdc_engine.binlog.compiled import Integer, kernel
from sluice.cdc_engine.binlog.documents.trees import (
    CHILD,
    KEY_OFFSET,
    KEY_SIZE,
    NEXT,
    NONE,
    compared_keys,
    keyed,
    scalar,
)
from sluice.cdc_engine.contracts import Bytes, Int64s

UNREAD, MEMBER, CELL = range(3)
DOT, QUOTE, BACKSLASH, OPEN, CLOSE, HYPHEN, ZERO, NINE = (ord(sign) for sign in '."\\[]-09')
ENDS_PLAIN = np.isin(np.arange(256), [*range(0x21), DOT, QUOTE, BACKSLASH, OPEN, ord("*"), 0x7F])
ENDS_QUOTED = np.isin(np.arange(256), [QUOTE, BACKSLASH])
LAST_WORD = np.frombuffer(b"last", np.uint8)
INDEX_DIGITS_MAX = 10


@kernel
def leg(buffer: Bytes, at: Integer, end: Integer) -> tuple[Integer, Integer, Integer, Integer]:
    """Parses one leg of a JSON path, such as `.name` or `[3]`. Returns (kind, first, second, offset after the leg). For a MEMBER, `first`
    and `second` are the offset and the size of the member's key. For a CELL, `first` is the cell's index, which is negative if it counts
    from the end. The kind UNREAD means that the kernel cannot parse the leg.
    """
    unread = (np.int64(UNREAD), np.int64(0), np.int64(0), np.int64(end))
    if at + 1 >= end or (buffer[at] != DOT and buffer[at] != OPEN):
        return unread
    if buffer[at] == OPEN:
        number, offset = cell_number(buffer, at + 1, end)
        return (np.int64(CELL), number, np.int64(0), offset) if offset > at else unread
    quoted = buffer[at + 1] == QUOTE
    start = at + 2 if quoted else at + 1
    offset = start
    while offset < end and not (ENDS_QUOTED[buffer[offset]] if quoted else ENDS_PLAIN[buffer[offset]]):
        offset += 1
    if not quoted:
        return (np.int64(MEMBER), start, offset - start, offset) if offset > start else unread
    if offset < end and buffer[offset] == QUOTE:
        return np.int64(MEMBER), start, offset - start, offset + 1
    return unread


@kernel
def cell_number(buffer: Bytes, at: Integer, end: Integer) -> tuple[Integer, Integer]:
    """Parses the rest of a cell's leg: `3]`, `last]` or `last-3]`. Returns (index of the cell, offset after the leg). An index that counts
    from the end is negative: -1 for `last`. The offset is -1 if the leg cannot be parsed.
    """
    word = np.int64(0)
    while word < LAST_WORD.shape[0] and at + word < end and buffer[at + word] == LAST_WORD[word]:
        word += 1
    from_end = word == LAST_WORD.shape[0]
    at += word if from_end else 0
    digits = not from_end or (at < end and buffer[at] == HYPHEN)
    if from_end and digits:
        at += 1
    number, first = np.int64(0), at
    while digits and at < end and ZERO <= buffer[at] <= NINE and at - first < INDEX_DIGITS_MAX:
        number = number * 10 + np.int64(buffer[at]) - ZERO
        at += 1
    if at >= end or buffer[at] != CLOSE or (digits and at == first):
        return number, np.int64(-1)
    return (-1 - number if from_end else number), at + 1


@kernel
def led_to(buffer: Bytes, nodes: Int64s, node: Integer, kind: Integer, first: Integer, second: Integer) -> Integer:
    """Returns the node that a leg of a path addresses below `node`, or NONE if there is none. If `kind` is MEMBER, the leg is a key, and
    `first` and `second` are its offset and size. If `kind` is CELL, the leg is an index, `first`. As on the server, the cells 0 and -1 of a
    value that is not an array are the value itself.
    """
    if kind == CELL and (scalar(nodes, node) or keyed(nodes, node)):
        return node if -1 <= first <= 0 else np.int64(NONE)
    found, _ = child_and_before(buffer, nodes, node, kind, first, second)
    return found


@kernel
def child_and_before(
    buffer: Bytes, nodes: Int64s, node: Integer, kind: Integer, first: Integer, second: Integer
) -> tuple[Integer, Integer]:
    """Returns (the child of `node` that a leg of a path addresses, the child before that child). A child that does not exist is NONE. If
    `kind` is MEMBER, the leg is a key, and `first` and `second` are its offset and size. If `kind` is CELL, the leg is an index, `first`.
    An object has only members, and an array only cells.
    """
    before = np.int64(NONE)
    if scalar(nodes, node) or keyed(nodes, node) != (kind == MEMBER):
        return np.int64(NONE), before
    found, left = nodes[node, CHILD], first
    if kind == CELL and first < 0:
        left = children(nodes, node) + first
        if left < 0:
            return np.int64(NONE), before
    while found != NONE:
        if kind == MEMBER:
            if compared_keys(buffer, nodes[found, KEY_OFFSET], nodes[found, KEY_SIZE], first, second) == 0:
                break
        elif left == 0:
            break
        before, found, left = found, nodes[found, NEXT], left - 1
    return found, before


@kernel
def children(nodes: Int64s, node: Integer) -> Integer:
    count, child = np.int64(0), nodes[node, CHILD]
    while child != NONE:
        count, child = count + 1, nodes[child, NEXT]
    return count
