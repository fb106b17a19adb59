"""Converts names of databases and tables to lower case as the servers do with lower_case_table_names: by Unicode 3.0, letter by letter.

Python's `lower` also converts letters of later Unicode versions, and treats two letters differently depending on their neighbors.
tests/table_meta compares this module with the servers.
"""

from __future__ import annotations

import functools

# Ranges (first, last) of letters that Python converts to lower case but the servers do not.
_LEFT_ALONE = (
    *((0x0220, 0x0220), (0x023A, 0x037F), (0x03CF, 0x03D8), (0x03F4, 0x03FF), (0x048A, 0x048A), (0x04C0, 0x04C0)),
    *((0x04C5, 0x04C5), (0x04C9, 0x04C9), (0x04CD, 0x04CD), (0x04F6, 0x04F6), (0x04FA, 0x052E), (0x10A0, 0x1CBF)),
    *((0x1E9E, 0x1E9E), (0x1EFA, 0x1EFE), (0x2132, 0x2132), (0x2183, 0x2183), (0x2C00, 0xA7F5), (0x10000, 0x10FFFF)),
)


def lowered(name: str) -> str:
    """Returns a name in lower case, as a server with lower_case_table_names stores the name. The result has the same number of
    characters.
    """
    return name.lower() if name.isascii() else "".join(map(_lowered, name))


@functools.cache
def _lowered(character: str) -> str:
    if any(first <= ord(character) <= last for first, last in _LEFT_ALONE):
        return character
    # For the capital I with a dot, Python returns two characters, of which the first one is i.
    return character.lower()[0]
