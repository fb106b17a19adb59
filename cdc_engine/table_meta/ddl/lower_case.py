"""Lower case as the servers have it for names of databases and tables (lower_case_table_names): that of Unicode 3.0, letter by letter.

Python knows letters of after it, and two that become others by what stands around them. Held against the servers by tests/table_meta.
"""

from __future__ import annotations

import functools

# from first to last, letters that have a small one in Python and none in the servers
_LEFT_ALONE = (
    *((0x0220, 0x0220), (0x023A, 0x037F), (0x03CF, 0x03D8), (0x03F4, 0x03FF), (0x048A, 0x048A), (0x04C0, 0x04C0)),
    *((0x04C5, 0x04C5), (0x04C9, 0x04C9), (0x04CD, 0x04CD), (0x04F6, 0x04F6), (0x04FA, 0x052E), (0x10A0, 0x1CBF)),
    *((0x1E9E, 0x1E9E), (0x1EFA, 0x1EFE), (0x2132, 0x2132), (0x2183, 0x2183), (0x2C00, 0xA7F5), (0x10000, 0x10FFFF)),
)


def lowered(name: str) -> str:
    """As the servers write the name of a table where they fold names; it has as many characters as before."""
    return name.lower() if name.isascii() else "".join(map(_lowered, name))


@functools.cache
def _lowered(character: str) -> str:
    if any(first <= ord(character) <= last for first, last in _LEFT_ALONE):
        return character
    return character.lower()[0]  # of the capital I with a dot, the i
