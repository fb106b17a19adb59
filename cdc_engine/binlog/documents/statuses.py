"""Defines the negative statuses that the binary JSON kernels return instead of an offset, and their messages."""

from __future__ import annotations

ROOM, TRUNCATED, IN_EACH_OTHER, LARGER, BACKWARDS, ENDLESS, LITERAL, KIND, NO_NUMBER, NO_DECIMAL, LEFT, NODES = range(
    -1, -13, -1
)
# ROOM, NODES and LEFT have no message. After ROOM or NODES, the caller repeats the call with more space for text or nodes. After LEFT,
# the Python parser (`json_diff`) handles the document.
MESSAGES = {
    TRUNCATED: "the document is truncated",
    IN_EACH_OTHER: "parts of the document overlap, or it has too many levels of objects and arrays",
    LARGER: "an object or array in the document is larger than its stated size or than the document",
    BACKWARDS: "an offset in the document points into the header of the same object or array",
    ENDLESS: "a length in the document has more than five bytes",
    LITERAL: "the document has an unknown literal",
    KIND: "the document has a value of an unknown type",
    NO_NUMBER: "the document has an invalid number",
    NO_DECIMAL: "a decimal in the document has an invalid precision, scale or digit",
}
