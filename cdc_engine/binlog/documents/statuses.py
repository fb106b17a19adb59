"""What the kernels of binary JSON answer instead of a place where they cannot go on: numbers below zero, and what they mean."""

from __future__ import annotations

ROOM, CUT_OFF, IN_EACH_OTHER, LARGER, BACKWARDS, ENDLESS, LITERAL, KIND, NO_NUMBER, NO_DECIMAL, LEFT, NODES = range(
    -1, -13, -1
)
# ROOM and NODES: it goes on with more room for text, or for nodes. LEFT: the reader in Python is to say what becomes of it.
MESSAGES = {
    CUT_OFF: "it is cut off",
    IN_EACH_OTHER: "its parts lie in each other",
    LARGER: "an object or array in it is larger than itself",
    BACKWARDS: "an offset in it points backwards",
    ENDLESS: "a length in it has no end",
    LITERAL: "it has an unknown literal",
    KIND: "it has a value of an unknown type",
    NO_NUMBER: "it has a number that is none",
    NO_DECIMAL: "a decimal in it is not made of digits",
}
