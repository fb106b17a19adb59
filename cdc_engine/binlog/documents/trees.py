"""Kernels that convert a binary JSON document to a tree of nodes, which `changes` modifies, and that print the tree.

`nodes` (int64, rows of NODE_FIELDS) contains the tree of one document, and the trees of the values that JSON differences (partial updates)
put into the document. The node of a scalar has the scalar's offset. The node of an object or array has the number of its first child, and
each child has the number of the next child. Keys and scalars stay in `buffer`. For a document that no server writes, for example with
unsorted keys, the kernels return LEFT, and the Python parser (`json_diff`) handles the document.
"""
# ruff: noqa: PLR0917 - a kernel takes each array as an argument

from __future__ import annotations

import numpy as np

from sluice.cdc_engine.binlog.compiled import Integer, kernel
from sluice.cdc_engine.binlog.documents import statuses
from sluice.cdc_engine.binlog.documents.containers import COUNT, GIVEN, KEY_BYTES, LAST, NODE, enter, step
from sluice.cdc_engine.binlog.documents.containers import KEY_OFFSET as STEP_KEY_OFFSET
from sluice.cdc_engine.binlog.documents.containers import KEY_SIZE as STEP_KEY_SIZE
from sluice.cdc_engine.binlog.documents.containers import KIND as STEP_KIND
from sluice.cdc_engine.binlog.documents.containers import OFFSET as STEP_OFFSET
from sluice.cdc_engine.binlog.documents.jsonb import DEPTH_MAX, LARGE_ARRAY, OPAQUE, SMALL_ARRAY, STRING
from sluice.cdc_engine.binlog.documents.print_documents import CLOSING, OPENING, print_comma, print_key, print_sign
from sluice.cdc_engine.binlog.documents.print_values import print_scalar
from sluice.cdc_engine.contracts import Bytes, Int64s

LEFT, NODES = statuses.LEFT, statuses.NODES
KIND, OFFSET, END, CHILD, NEXT, KEY_OFFSET, KEY_SIZE = range(7)
NODE_FIELDS = 7
NONE = -1
KNOWN = np.isin(np.arange(256), [*range(STRING + 1), OPAQUE])  # Indexed by kind: whether the format defines it.


@kernel
def keyed(nodes: Int64s, node: Integer) -> bool:
    """Returns whether the node is an object."""
    return bool(nodes[node, KIND] < SMALL_ARRAY)


@kernel
def scalar(nodes: Int64s, node: Integer) -> bool:
    return bool(nodes[node, KIND] > LARGE_ARRAY)


@kernel
def compared_keys(buffer: Bytes, at: Integer, size: Integer, other: Integer, other_size: Integer) -> Integer:
    """Compares the keys at `at` and at `other` as the server does: by length, then by their bytes. Returns a negative number, 0 or a
    positive number.
    """
    if size != other_size:
        return size - other_size
    for index in range(size):
        if buffer[at + index] != buffer[other + index]:
            return np.int64(buffer[at + index]) - np.int64(buffer[other + index])
    return np.int64(0)


@kernel
def tree(
    buffer: Bytes, begin: Integer, end: Integer, nodes: Int64s, used: Integer, stack: Int64s
) -> tuple[Integer, Integer]:
    """Builds the tree of the binary JSON document in `buffer` from `begin` to `end`. Returns (root, number of nodes in use). On failure,
    the root is LEFT (the kernel cannot process the document) or NODES (`nodes` is full).
    """
    if begin >= end:
        return np.int64(LEFT), used
    kind, at, depth, root, most = np.int64(buffer[begin]), begin + 1, np.int64(0), used, used + end - begin
    while used < most and depth < DEPTH_MAX:
        if used >= nodes.shape[0]:
            return np.int64(NODES), used
        if not KNOWN[kind]:
            return np.int64(LEFT), used
        nodes[used, KIND], nodes[used, OFFSET], nodes[used, END] = kind, at, end
        nodes[used, CHILD], nodes[used, NEXT] = NONE, NONE
        if depth > 0 and not linked(buffer, nodes, used, stack, depth - 1):
            return np.int64(LEFT), used
        if kind <= LARGE_ARRAY:
            if enter(buffer, kind, at, end, stack, depth) < 0:
                return np.int64(LEFT), used
            stack[depth, NODE], stack[depth, LAST] = used, NONE
            depth += 1
        used += 1
        while depth > 0 and stack[depth - 1, GIVEN] == stack[depth - 1, COUNT]:
            depth -= 1
        if depth == 0:
            return root, used
        if step(buffer, end, stack, depth - 1) < 0:
            return np.int64(LEFT), used
        kind, at = stack[depth - 1, STEP_KIND], stack[depth - 1, STEP_OFFSET]
    return np.int64(LEFT), used


@kernel
def linked(buffer: Bytes, nodes: Int64s, node: Integer, stack: Int64s, depth: Integer) -> bool:
    """Makes the node the last child of the open container at `depth`. Returns False if the container is an object and the node's key is not
    greater than the key of the child before it. No server writes such a document, because servers write keys in ascending order.
    """
    last = stack[depth, LAST]
    if stack[depth, KEY_BYTES]:
        at, size = stack[depth, STEP_KEY_OFFSET], stack[depth, STEP_KEY_SIZE]
        nodes[node, KEY_OFFSET], nodes[node, KEY_SIZE] = at, size
        if last != NONE and compared_keys(buffer, nodes[last, KEY_OFFSET], nodes[last, KEY_SIZE], at, size) >= 0:
            return False
    if last == NONE:
        nodes[stack[depth, NODE], CHILD] = node
    else:
        nodes[last, NEXT] = node
    stack[depth, LAST] = node
    return True


@kernel
def print_tree(
    buffer: Bytes, nodes: Int64s, root: Integer, stack: Int64s, out: Bytes, used: Integer, most: Integer
) -> Integer:
    """Prints a tree. Returns the offset after the text, or a negative status. The status is LEFT if the text would end after `most`, or if
    the tree has more levels than the server allows. It is a status of `print_scalar` if a value cannot be printed.
    """
    node, depth = root, np.int64(0)
    while used <= most and depth < DEPTH_MAX:
        if scalar(nodes, node):
            used = print_scalar(buffer, nodes[node, KIND], nodes[node, OFFSET], nodes[node, END], out, used)
        else:
            used = print_sign(OPENING, np.int64(keyed(nodes, node)), out, used)
            stack[depth, NODE], stack[depth, LAST] = node, NONE
            depth += 1
        while used >= 0 and depth > 0 and last_printed(nodes, stack, depth - 1):
            depth -= 1
            used = print_sign(CLOSING, np.int64(keyed(nodes, stack[depth, NODE])), out, used)
        if used < 0 or depth == 0:
            return used
        first = stack[depth - 1, LAST] == NONE
        node = nodes[stack[depth - 1, NODE], CHILD] if first else nodes[stack[depth - 1, LAST], NEXT]
        stack[depth - 1, LAST] = node
        if keyed(nodes, stack[depth - 1, NODE]):
            used = print_key(buffer, nodes[node, KEY_OFFSET], nodes[node, KEY_SIZE], first, out, used)
        elif not first:
            used = print_comma(out, used)
        if used < 0:
            return used
    return np.int64(LEFT)


@kernel
def last_printed(nodes: Int64s, stack: Int64s, depth: Integer) -> bool:
    """Returns whether all children of the open container at `depth` are printed."""
    last = stack[depth, LAST]
    after = nodes[stack[depth, NODE], CHILD] if last == NONE else nodes[last, NEXT]
    return bool(after == NONE)
