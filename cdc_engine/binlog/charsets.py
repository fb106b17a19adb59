"""MySQL's character sets: from a collation's id or name to the charset, its bytes per character and the codec that reads it.

Called by `column_types` (decoding) and `table_meta` (lengths in bytes, labels). The table of ids is what MySQL 8.0 and MariaDB 11.4 list
in information_schema; they agree wherever both have an id, so one table serves both. (PyMySQL's table ends where MySQL 5.7 does.)

Python's codecs differ from the server's conversion in a few characters, and `latin1` is no Python codec at all: MySQL's is cp1252 with its
five holes filled. So the codec of a charset is a name of our own, "mysql_<charset>", registered here: Python's nearest codec with those
characters put right. tests/binlog/test_charsets.py holds every one against a real server. Bytes that are no character raise
UnicodeDecodeError, never a replacement character.
"""

from __future__ import annotations

import codecs
import dataclasses
import functools
from typing import Any

Ranges = tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True)
class Charset:
    """`bytes_max`: bytes of its widest character. `codec`: name for bytes.decode, empty where no exact codec is known."""

    name: str
    bytes_max: int
    codec: str


BINARY = Charset("binary", 1, "")

# charset → bytes per character, ids of its collations (first and last of each run)
_COLLATIONS: dict[str, tuple[int, Ranges]] = {
    "armscii8": (1, ((32, 32), (64, 64), (1056, 1056), (1088, 1088))),
    "ascii": (1, ((11, 11), (65, 65), (1035, 1035), (1089, 1089))),
    "big5": (2, ((1, 1), (84, 84), (1025, 1025), (1108, 1108))),
    "binary": (1, ((63, 63),)),
    "cp1250": (1, ((26, 26), (34, 34), (44, 44), (66, 66), (99, 99), (1050, 1050), (1090, 1090))),
    "cp1251": (1, ((14, 14), (23, 23), (50, 52), (1074, 1075))),
    "cp1256": (1, ((57, 57), (67, 67), (1081, 1081), (1091, 1091))),
    "cp1257": (1, ((29, 29), (58, 59), (1082, 1083))),
    "cp850": (1, ((4, 4), (80, 80), (1028, 1028), (1104, 1104))),
    "cp852": (1, ((40, 40), (81, 81), (1064, 1064), (1105, 1105))),
    "cp866": (1, ((36, 36), (68, 68), (1060, 1060), (1092, 1092))),
    "cp932": (2, ((95, 96), (1119, 1120))),
    "dec8": (1, ((3, 3), (69, 69), (1027, 1027), (1093, 1093))),
    "eucjpms": (3, ((97, 98), (1121, 1122))),
    "euckr": (2, ((19, 19), (85, 85), (1043, 1043), (1109, 1109))),
    "gb18030": (4, ((248, 250),)),
    "gb2312": (2, ((24, 24), (86, 86), (1048, 1048), (1110, 1110))),
    "gbk": (2, ((28, 28), (87, 87), (1052, 1052), (1111, 1111))),
    "geostd8": (1, ((92, 93), (1116, 1117))),
    "greek": (1, ((25, 25), (70, 70), (1049, 1049), (1094, 1094))),
    "hebrew": (1, ((16, 16), (71, 71), (1040, 1040), (1095, 1095))),
    "hp8": (1, ((6, 6), (72, 72), (1030, 1030), (1096, 1096))),
    "keybcs2": (1, ((37, 37), (73, 73), (1061, 1061), (1097, 1097))),
    "koi8r": (1, ((7, 7), (74, 74), (1031, 1031), (1098, 1098))),
    "koi8u": (1, ((22, 22), (75, 75), (1046, 1046), (1099, 1099))),
    "latin1": (1, ((5, 5), (8, 8), (15, 15), (31, 31), (47, 49), (94, 94), (1032, 1032), (1071, 1071))),
    "latin2": (1, ((2, 2), (9, 9), (21, 21), (27, 27), (77, 77), (1033, 1033), (1101, 1101))),
    "latin5": (1, ((30, 30), (78, 78), (1054, 1054), (1102, 1102))),
    "latin7": (1, ((20, 20), (41, 42), (79, 79), (1065, 1065), (1103, 1103))),
    "macce": (1, ((38, 38), (43, 43), (1062, 1062), (1067, 1067))),
    "macroman": (1, ((39, 39), (53, 53), (1063, 1063), (1077, 1077))),
    "sjis": (2, ((13, 13), (88, 88), (1037, 1037), (1112, 1112))),
    "swe7": (1, ((10, 10), (82, 82), (1034, 1034), (1106, 1106))),
    "tis620": (1, ((18, 18), (89, 89), (1042, 1042), (1113, 1113))),
    "ucs2": (
        2,
        (
            (35, 35),
            (90, 90),
            (128, 151),
            (159, 159),
            (640, 642),
            (1059, 1059),
            (1114, 1114),
            (1152, 1152),
            (1174, 1174),
            (2560, 2815),
        ),
    ),
    "ujis": (3, ((12, 12), (91, 91), (1036, 1036), (1115, 1115))),
    "utf16": (4, ((54, 55), (101, 127), (672, 674), (1078, 1079), (1125, 1125), (1147, 1147), (2816, 3071))),
    "utf16le": (4, ((56, 56), (62, 62), (1080, 1080), (1086, 1086))),
    "utf32": (4, ((60, 61), (160, 191), (736, 738), (1084, 1085), (1184, 1184), (1206, 1206), (3072, 3327))),
    "utf8mb3": (
        3,
        (
            (33, 33),
            (76, 76),
            (83, 83),
            (192, 223),
            (576, 578),
            (1057, 1057),
            (1107, 1107),
            (1216, 1216),
            (1238, 1238),
            (2048, 2303),
        ),
    ),
    "utf8mb4": (
        4,
        ((45, 46), (224, 247), (255, 323), (608, 610), (1069, 1070), (1248, 1248), (1270, 1270), (2304, 2559)),
    ),
}

# charset → Python's nearest codec, and characters it reads otherwise than the server
_CODECS: dict[str, tuple[str, dict[str, str]]] = {
    "ascii": ("ascii", {}),
    "big5": ("big5", {}),
    "cp1250": ("cp1250", {}),
    "cp1251": ("cp1251", {}),
    "cp1256": ("cp1256", {}),
    "cp1257": ("cp1257", {}),
    "cp850": ("cp850", {}),
    "cp852": ("cp852", {}),
    "cp866": ("cp866", {"№": "ⁿ", "¤": "²"}),
    "cp932": ("cp932", {}),
    "eucjpms": ("euc_jp", {"〜": "～", "‖": "∥", "−": "－", "¢": "￠", "£": "￡", "¬": "￢"}),  # noqa: RUF001 - that they look alike is the point
    "euckr": ("cp949", {}),
    "gb18030": ("gb18030", {"\ue7c7": "ḿ"}),
    "gb2312": ("gb2312", {}),
    "gbk": ("gbk", {}),
    "greek": ("iso8859_7", {"‘": "ʽ", "’": "ʼ"}),  # noqa: RUF001 - that they look alike is the point
    "hebrew": ("iso8859_8", {"¯": "‾"}),
    "koi8r": ("koi8_r", {}),
    "koi8u": ("koi8_u", {"∙": "•"}),
    "latin1": ("cp1252", {}),
    "latin2": ("iso8859_2", {}),
    "latin5": ("iso8859_9", {}),
    "latin7": ("iso8859_13", {}),
    "macce": ("mac_latin2", {}),
    "macroman": ("mac_roman", {}),
    "sjis": ("shift_jis", {"＼": "\\"}),  # noqa: RUF001 - that they look alike is the point
    "tis620": ("tis_620", {}),
    "ucs2": ("utf_16_be", {}),
    "ujis": ("euc_jp", {"＼": "\\"}),  # noqa: RUF001 - that they look alike is the point
    "utf16": ("utf_16_be", {}),
    "utf16le": ("utf_16_le", {}),
    "utf32": ("utf_32_be", {}),
    "utf8mb3": ("utf_8", {}),
    "utf8mb4": ("utf_8", {}),
}
_LATIN1_HOLES = "\x81\x8d\x8f\x90\x9d"  # cp1252 has no characters there; MySQL keeps them as control characters

_ALIASES = {"utf8": "utf8mb3"}  # the name that MySQL 5.7 and MariaDB print
_CODEC_PREFIX = "mysql_"


def _charset(name: str) -> Charset:
    python_codec, differences = _CODECS.get(name, ("", {}))
    ours = differences or name == "latin1"
    return Charset(name, _COLLATIONS[name][0], f"{_CODEC_PREFIX}{name}" if ours else python_codec)


CHARSETS: dict[str, Charset] = {name: BINARY if name == "binary" else _charset(name) for name in _COLLATIONS}
_BY_ID = {
    number: CHARSETS[name]
    for name, (_, ranges) in _COLLATIONS.items()
    for first, last in ranges
    for number in range(first, last + 1)
}


def charset_of_id(collation_id: int) -> Charset | None:
    """The charset of a collation's number in a table map; None for a number no known server has."""
    return _BY_ID.get(collation_id)


def charset_of_name(name: str) -> Charset | None:
    """The charset of that name, in any case; None where there is none. `utf8` is utf8mb3."""
    lower = name.lower()
    return CHARSETS.get(_ALIASES.get(lower, lower))


def charset_of_collation(collation: str) -> Charset | None:
    """The charset a collation belongs to: its name begins with it. None for MariaDB's collations that fit several charsets."""
    return charset_of_name(collation.partition("_")[0])


def _fill_hole(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return chr(error.object[error.start]), error.start + 1


def _exact_codec(codec_name: str) -> codecs.CodecInfo | None:
    """Python asks this for every codec name it does not know."""
    charset = codec_name.removeprefix(_CODEC_PREFIX)
    if charset == codec_name or charset not in _CODECS:
        return None
    base, differences = _CODECS[charset]
    errors = "mysql_latin1_hole" if charset == "latin1" else "strict"
    reading = str.maketrans(differences)
    writing = {ord(server): python for python, server in differences.items()}

    def decode(data: Any, _errors: str = "strict") -> tuple[str, int]:
        octets = bytes(data)
        return octets.decode(base, errors).translate(reading), len(octets)

    def encode(text: str, given: str = "strict") -> tuple[bytes, int]:
        if charset == "latin1":
            return b"".join(_encode_latin1(character) for character in text), len(text)
        return codecs.encode(text.translate(writing), base, given), len(text)

    return codecs.CodecInfo(encode=encode, decode=decode, name=codec_name)


@functools.cache
def _encode_latin1(character: str) -> bytes:
    return bytes([ord(character)]) if character in _LATIN1_HOLES else character.encode("cp1252")


codecs.register_error("mysql_latin1_hole", _fill_hole)
codecs.register(_exact_codec)
