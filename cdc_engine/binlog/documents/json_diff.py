"""Applies the JSON differences that an update logs instead of the whole document (partial JSON). Called by `rows.diffs`, for the rows that
the kernels in the module `changes` cannot process.

The format is that of sql-common/json_diff.cc (write_binary), without the length before the differences. Each difference has an operation (1
byte), the length of a path (length-encoded) and the path's text. All operations except REMOVE also have the length of a binary JSON value
and the value. The differences are applied in order. A difference that cannot be applied raises JsonFormatError; a MySQL replica also fails
at such a difference.
"""

from __future__ import annotations

import json
import re
from typing import TypeAlias

from sluice.cdc_engine.binlog.documents import jsonb
from sluice.cdc_engine.binlog.documents.jsonb import DEPTH_MAX, JsonFormatError
from sluice.cdc_engine.binlog.events.byte_cursor import ByteCursor
from sluice.cdc_engine.errors import BinlogFormatError

REPLACE, INSERT, REMOVE = range(3)
# One leg of a path. A path is $ and then legs: members (.plain, ."quoted as in JSON") and cells ([3], [last], [last-3]).
LEG = re.compile(
    r'\.(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>[^\s."\[*]+))|\[(?:(?P<index>[0-9]{1,10})|last(?:-(?P<back>[0-9]{1,10}))?)\]',
    re.DOTALL,
)
Node: TypeAlias = "dict[str, Node] | list[Node] | str"  # A scalar is represented by the text that the server prints.
Container: TypeAlias = "dict[str, Node] | list[Node]"
Leg: TypeAlias = "str | int"  # The key of a member, or the index of a cell; -1 is the last cell.


def changed(document: bytes, differences: bytes) -> str:
    """Applies the differences to a binary JSON document and returns the result as text. Raises JsonFormatError if that is impossible."""
    holder: list[Node] = [_tree(document)]
    cursor = ByteCursor(differences, "a JSON difference")
    try:
        while cursor.left:
            _apply(holder, cursor)
    except BinlogFormatError as error:
        raise JsonFormatError(str(error)) from None
    return _printed(holder[0], 1)


def _tree(document: bytes) -> Node:
    node: Node = jsonb.read(
        document, lambda keys, values: values if keys is None else dict(zip(keys, values, strict=True))
    )
    return node


def _apply(holder: list[Node], cursor: ByteCursor) -> None:
    """Reads one difference and applies it to the document. `holder`: a list whose only value is the document."""
    operation = cursor.integer(1)
    path = cursor.text(cursor.packed())
    legs = legs_of(path)
    if operation == REMOVE:
        _remove(holder, legs, path)
    elif operation == REPLACE:
        _replace(holder, legs, path, _tree(cursor.take(cursor.packed())))
    elif operation == INSERT:
        _insert(holder, legs, path, _tree(cursor.take(cursor.packed())))
    else:
        raise JsonFormatError(f"the difference has the unknown operation {operation} at {path}")


def legs_of(path: str) -> list[Leg]:
    """Parses a path into its legs. Raises JsonFormatError if the path is invalid or matches several values."""
    legs: list[Leg] = []
    at = 1
    while at < len(path) and (found := LEG.match(path, at)):
        legs.append(_leg(found, path))
        at = found.end()
    if at != len(path) or not path.startswith("$"):
        raise JsonFormatError(f"the difference has a path {path!r} that cannot be read")
    return legs


def _leg(found: re.Match[str], path: str) -> Leg:
    if found["plain"] is not None:
        return found["plain"]
    if found["index"] is not None:
        return int(found["index"])
    if found["quoted"] is None:
        return -1 - int(found["back"] or 0)
    try:
        key = str(json.loads(f'"{found["quoted"]}"', strict=False))
        key.encode()
    except ValueError:
        raise JsonFormatError(f"the difference has a path {path!r} with a key that is not a JSON string") from None
    return key


def _replace(holder: list[Node], legs: list[Leg], path: str, value: Node) -> None:
    parent, leg = _container_of(holder, legs, path)
    _put(parent, leg, value)


def _insert(holder: list[Node], legs: list[Leg], path: str, value: Node) -> None:
    parent, leg = _parent(holder, legs, path)
    if isinstance(parent, list):
        parent.insert(_cell(leg, len(parent)), value)
    elif leg in parent:
        raise JsonFormatError(f"the difference inserts a value at {path}, where the document has a value already")
    else:
        _put(parent, leg, value)


def _remove(holder: list[Node], legs: list[Leg], path: str) -> None:
    parent, leg = _parent(holder, legs, path)
    if not _has(parent, leg):
        raise _missing(path)
    if isinstance(parent, dict):
        del parent[str(leg)]
    else:
        del parent[_cell(leg, len(parent))]


def _parent(holder: list[Node], legs: list[Leg], path: str) -> tuple[Container, Leg]:
    """Returns (object or array, last leg of the path): the object or array whose member or cell the last leg names. Raises JsonFormatError
    if the document does not have this object or array.
    """
    if not legs:
        raise _missing(path)
    node = _value(*_container_of(holder, legs[:-1], path))
    if not isinstance(node, str) and isinstance(node, dict) == isinstance(legs[-1], str):
        return node, legs[-1]
    raise _missing(path)


def _container_of(holder: list[Node], legs: list[Leg], path: str) -> tuple[Container, Leg]:
    """Returns (container of the value at a path, the value's leg in the container). For the path `$`, returns (`holder`, 0)."""
    parent: Container = holder
    last: Leg = 0
    for leg in legs:
        node = _value(parent, last)
        if isinstance(node, str | dict) and leg in (0, -1):
            continue  # MySQL treats a value that is not an array as an array with one cell: `[0]` and `[last]` address the value.
        if isinstance(node, str) or not _has(node, leg):
            raise _missing(path)
        parent, last = node, leg
    return parent, last


def _has(node: Container, leg: Leg) -> bool:
    if isinstance(node, dict) or isinstance(leg, str):
        return isinstance(node, dict) and leg in node
    return -len(node) <= leg < len(node)


def _value(parent: Container, leg: Leg) -> Node:
    return parent[str(leg)] if isinstance(parent, dict) else parent[_cell(leg, len(parent))]


def _put(parent: Container, leg: Leg, value: Node) -> None:
    if isinstance(parent, dict):
        parent[str(leg)] = value
    else:
        parent[_cell(leg, len(parent))] = value


def _cell(leg: Leg, count: int) -> int:
    """Returns the index of a cell in an array with `count` values. A negative `leg` counts from the end. As on the server, a leg before the
    first cell means the first cell.
    """
    return int(leg) if int(leg) >= 0 else max(0, count + int(leg))


def _missing(path: str) -> JsonFormatError:
    return JsonFormatError(f"the difference changes {path}, which the document does not have")


def _printed(node: Node, depth: int) -> str:
    if isinstance(node, str):
        return node
    if depth > DEPTH_MAX:
        raise JsonFormatError("the document is nested too deeply")
    if isinstance(node, list):
        return jsonb.printed(None, [_printed(value, depth + 1) for value in node])
    keys = sorted(node, key=_order)
    return jsonb.printed(keys, [_printed(node[key], depth + 1) for key in keys])


def _order(key: str) -> tuple[int, bytes]:
    """Returns the sort key for a key of an object: the server sorts keys by length and then by their bytes."""
    raw = key.encode()
    return len(raw), raw
