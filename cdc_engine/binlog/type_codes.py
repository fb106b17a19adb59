"""Defines the type codes of columns in table map events, as in MySQL's field_types.h and MariaDB's mysql_com.h."""

from __future__ import annotations

import enum


class TypeCode(enum.IntEnum):
    """The type codes that a column in row events can have. Names that end in `2` are formats of MySQL 5.6 and later."""

    TINY = 1
    SHORT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    TIMESTAMP = 7
    LONGLONG = 8
    INT24 = 9
    DATE = 10
    TIME = 11
    DATETIME = 12
    YEAR = 13
    VARCHAR = 15
    BIT = 16
    TIMESTAMP2 = 17
    DATETIME2 = 18
    TIME2 = 19
    BLOB_COMPRESSED = 140  # BLOB_COMPRESSED and VARCHAR_COMPRESSED are the codes of MariaDB's COMPRESSED columns.
    VARCHAR_COMPRESSED = 141
    VECTOR = 242  # Since MySQL 9.
    JSON = 245
    NEWDECIMAL = 246
    ENUM = 247
    SET = 248
    TINY_BLOB = 249
    MEDIUM_BLOB = 250
    LONG_BLOB = 251
    BLOB = 252
    VAR_STRING = 253
    STRING = 254
    GEOMETRY = 255
