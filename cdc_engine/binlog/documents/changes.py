"""Kernels that apply JSON differences to documents and print the results, all rows of a column at once. Called by `rows.diffs`.

`json_diff` describes the format of differences, and applies differences in Python. Tests compare the kernels with `json_diff`. The kernels
return LEFT for a difference that they cannot apply, for example because its path has a key with escapes. For a row with such a difference,
the caller uses `json_diff`.
"""
# ruff: noqa: PLR0917 - a kernel takes each array as an argument

from __future__ import annotations

import numpy as np

from sluice.cdc_engine.binlog.compiled import Integer, kernel
from sluice.cdc_engine.binlog.documents import statuses
from sluice.cdc_engine.binlog.documents.json_diff import INSERT, REMOVE, REPLACE
from sluice.cdc_engine.binlog.documents.jsonb import TEXT_FACTOR, TEXT_SPARE
from sluice.cdc_engine.binlog.documents.paths import CELL, MEMBER, UNREAD, child_and_before, children, led_to, leg
from sluice.cdc_engine.binlog.documents.print_documents import DONE
from sluice.cdc_engine.binlog.documents.trees import (
    CHILD,
    END,
    KEY_OFFSET,
    KEY_SIZE,
    KIND,
    NEXT,
    NONE,
    OFFSET,
    compared_keys,
    keyed,
    print_tree,
    scalar,
    tree,
)
from sluice.cdc_engine.binlog.little_endian import little_endian
from sluice.cdc_engine.binlog.located_values import LocatedValues
from sluice.cdc_engine.contracts import Bytes, Int32s, Int64s

LEFT = statuses.LEFT
DOLLAR = ord("$")
# Indexed by the first byte of a length-encoded integer, minus 0xFB: the number of bytes of the integer after the first byte. -1 means that
# the first byte is not valid.
LENGTH_BYTES = np.array([-1, 2, 3, 8, -1], np.int64)


@kernel
def print_changes(
    buffer: Bytes,
    before: LocatedValues,
    logged: LocatedValues,
    row: Integer,
    offsets: Int32s,
    out: Bytes,
    nodes: Int64s,
    stack: Int64s,
) -> tuple[Integer, Integer]:
    """Applies the `logged` differences of each row, from `row` on, to the row's document `before`, and prints the results.

    Writes the texts to `out`, back to back, and the end of row n's text to `offsets[n + 1]`. `nodes`, `stack`: scratch memory. Returns
    (DONE, number of rows) if all rows are printed. Otherwise returns (status, row): why a row is not printed, and the index of the first
    such row. Neither a document nor a row's differences may be NULL.
    """
    used = np.int64(offsets[row])
    while row < logged.starts.shape[0]:
        used = print_changed(buffer, before, logged, row, used, out, nodes, stack)
        if used < 0:
            return used, row
        offsets[row + 1] = used
        row += 1
    return np.int64(DONE), row


@kernel
def print_changed(
    buffer: Bytes,
    before: LocatedValues,
    logged: LocatedValues,
    row: Integer,
    used: Integer,
    out: Bytes,
    nodes: Int64s,
    stack: Int64s,
) -> Integer:
    begin, before_end = before.starts[row], before.starts[row] + before.sizes[row]
    at, end = logged.starts[row], logged.starts[row] + logged.sizes[row]
    most = used + TEXT_FACTOR * (before_end - begin + end - at) + TEXT_SPARE
    root, count = tree(buffer, begin, before_end, nodes, np.int64(0), stack)
    if root < 0:
        return root
    while at < end:
        at, count = apply(buffer, at, end, root, nodes, count, stack)
        if at < 0:
            return at
    return print_tree(buffer, nodes, root, stack, out, used, most)


@kernel
def apply(
    buffer: Bytes, at: Integer, end: Integer, root: Integer, nodes: Int64s, count: Integer, stack: Int64s
) -> tuple[Integer, Integer]:
    """Applies the difference at `at` to the tree `root`. Returns (offset after the difference, number of nodes in use); on failure, a
    negative status replaces the offset.
    """
    operation = np.int64(buffer[at])
    path, size = packed(buffer, at + 1, end)
    if path < 0 or operation > REMOVE:
        return np.int64(LEFT), count
    path_end, node = path + size, np.int64(NONE)
    at = path_end
    if operation != REMOVE:
        value, size = packed(buffer, path_end, end)
        if value < 0:
            return np.int64(LEFT), count
        at = value + size
        node, count = tree(buffer, value, at, nodes, count, stack)
        if node < 0:
            return node, count
    done = changed(buffer, path, path_end, operation, root, node, nodes)
    return (at if done else np.int64(LEFT)), count


@kernel
def packed(buffer: Bytes, at: Integer, end: Integer) -> tuple[Integer, Integer]:
    """Reads the length-encoded length at `at`. Returns (start, size) of the value after the length. The start is -1 if the length is not
    valid or the value ends after `end`.
    """
    if at >= end:
        return np.int64(-1), np.int64(0)
    size = np.int64(buffer[at])
    at += 1
    if size >= 0xFB:
        width = LENGTH_BYTES[size - 0xFB]
        if width < 0 or at + width > end:
            return np.int64(-1), np.int64(0)
        size = little_endian(buffer, at, width)
        at += width
    if size < 0 or size > end - at:
        return np.int64(-1), np.int64(0)
    return at, size


@kernel
def changed(
    buffer: Bytes, at: Integer, end: Integer, operation: Integer, root: Integer, node: Integer, nodes: Int64s
) -> bool:
    """Applies one difference to the document `root`. The difference's path is in the buffer from `at` to `end`. `node`: the difference's
    new value, or NONE for the operation REMOVE. Returns False if the difference cannot be applied.
    """
    if at >= end or buffer[at] != DOLLAR:
        return False
    at, here = at + 1, root
    while at < end:
        kind, first, second, at = leg(buffer, at, end)
        if kind == UNREAD:
            return False
        if at == end and operation == INSERT:
            return insert(buffer, nodes, here, kind, first, second, node)
        if at == end and operation == REMOVE:
            return remove(buffer, nodes, here, kind, first, second)
        here = led_to(buffer, nodes, here, kind, first, second)
        if here == NONE:
            return False
    if operation != REPLACE:
        return False
    for field in (KIND, OFFSET, END, CHILD):
        nodes[here, field] = nodes[node, field]
    return True


@kernel
def insert(
    buffer: Bytes, nodes: Int64s, parent: Integer, kind: Integer, first: Integer, second: Integer, node: Integer
) -> bool:
    """Inserts `node` into `parent` as a new child. `kind`, `first` and `second` are the last part of the path in a JSON difference, such as
    `.name` (MEMBER) or `[3]` (CELL). For MEMBER, `first` and `second` are the offset and size of the key. For CELL, `first` is the index.

    In an object, the order of the keys determines the position of `node`. In an array, `node` is inserted before the cell with the index.
    An index before the first cell means the first cell, and an index after the last cell means the end. Returns False if `kind` does not
    fit the parent (MEMBER needs an object, CELL an array), or if the object already has the key.
    """
    if scalar(nodes, parent) or keyed(nodes, parent) != (kind == MEMBER):
        return False
    left = max(np.int64(0), children(nodes, parent) + first) if kind == CELL and first < 0 else first
    before, after = np.int64(NONE), nodes[parent, CHILD]
    while after != NONE:
        if kind == MEMBER:
            order = compared_keys(buffer, nodes[after, KEY_OFFSET], nodes[after, KEY_SIZE], first, second)
            if order == 0:
                return False
        else:
            order = np.int64(0) - left
        if order >= 0:
            break
        before, after, left = after, nodes[after, NEXT], left - 1
    if kind == MEMBER:
        nodes[node, KEY_OFFSET], nodes[node, KEY_SIZE] = first, second
    nodes[node, NEXT] = after
    follow(nodes, parent, before, node)
    return True


@kernel
def remove(buffer: Bytes, nodes: Int64s, parent: Integer, kind: Integer, first: Integer, second: Integer) -> bool:
    node, before = child_and_before(buffer, nodes, parent, kind, first, second)
    if node == NONE:
        return False
    follow(nodes, parent, before, nodes[node, NEXT])
    return True


@kernel
def follow(nodes: Int64s, parent: Integer, before: Integer, node: Integer) -> None:
    """Links `node` into `parent` as the child that follows the child `before`, or as the first child if `before` is NONE."""
    if before == NONE:
        nodes[parent, CHILD] = node
    else:
        nodes[before, NEXT] = node
