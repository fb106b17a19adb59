"""Defines the negative statuses that the binary JSON kernels return instead of an offset, and their messages."""

from __future__ import annotations

ROOM, CUT_OFF, IN_EACH_OTHER, LARGER, BACKWARDS, ENDLESS, LITERAL, KIND, NO_NUMBER, NO_DECIMAL, LEFT, NODES = range(
    -1, -13, -1
)
# ROOM, NODES and LEFT have no message. After ROOM or NODES, the caller repeats the call with more space for text or nodes. After LEFT,
# the Python parser (`json_diff`) handles the document.
MESSAGES = {
    CUT_OFF: "it is truncated",
    IN_EACH_OTHER: "its parts overlap",
    LARGER: "an object or array in it is larger than the size that it states",
    BACKWARDS: "an offset in it points backwards",
    ENDLESS: "a length in it has no end",
    LITERAL: "it has an unknown literal",
    KIND: "it has a value of an unknown type",
    NO_NUMBER: "it has an invalid number",
    NO_DECIMAL: "a decimal in it is not made of digits",
}
