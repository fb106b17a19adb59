"""Maps the id or name of a collation, or the name of a charset, to a `Charset`: its name, its bytes per character and its codec.

`column_types` decodes values with the codec. `table_meta` decodes labels with the codec, and computes the length of a column in bytes from
the bytes per character. The ids are those that MySQL 8.0 and MariaDB 11.4 list in information_schema. If both servers have an id, the id
means the same collation on both, so this module needs only one table. PyMySQL's table is not used, because it has only the ids of MySQL
5.7.

`codecs` makes the codecs.
"""

from __future__ import annotations

import dataclasses

from sluice.cdc_engine.binlog.charsets.codecs import codec_of

Ranges = tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True)
class Charset:
    """A character set. `bytes_max`: bytes of its longest character. `codec`: name for bytes.decode; empty for `binary`."""

    name: str
    bytes_max: int
    codec: str


BINARY = Charset("binary", 1, "")

# Charset → bytes of its longest character, and the ranges of its collations' ids (first, last).
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

_ALIASES = {"utf8": "utf8mb3"}  # A name that MySQL 5.7 and MariaDB print → the charset's name.

CHARSETS: dict[str, Charset] = {
    name: BINARY if name == "binary" else Charset(name, bytes_max, codec_of(name))
    for name, (bytes_max, _) in _COLLATIONS.items()
}
_BY_ID = {
    number: CHARSETS[name]
    for name, (_, ranges) in _COLLATIONS.items()
    for first, last in ranges
    for number in range(first, last + 1)
}


def charset_of_id(collation_id: int) -> Charset | None:
    """Returns the charset of a collation id (as in a table map), or None for an id that neither MySQL 8.0 nor MariaDB 11.4 lists."""
    return _BY_ID.get(collation_id)


def charset_of_name(name: str) -> Charset | None:
    """Returns the charset with this name, or None. Case does not matter. `utf8` is utf8mb3."""
    lower = name.lower()
    return CHARSETS.get(_ALIASES.get(lower, lower))


def charset_of_collation(collation: str) -> Charset | None:
    """Returns the charset of a collation. The collation's name begins with the charset's name. Returns None for an unknown name, and for
    MariaDB's collations that fit several charsets.
    """
    return charset_of_name(collation.partition("_")[0])
