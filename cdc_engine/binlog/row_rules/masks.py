"""Masks the values of columns: replaces each value by NULL, by its first characters, or by a digest."""

from __future__ import annotations

import dataclasses
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from sluice.cdc_engine.binlog.column_types.entry import AnyArray, ColumnType, buffer_of
from sluice.cdc_engine.binlog.row_rules.digests import DIGEST_CHARS, digests
from sluice.cdc_engine.contracts import Column

HASH, TRUNCATE, NULL = "hash", "truncate", "null"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ColumnMask:
    """The mask of a column in conf/. `kind`: HASH, TRUNCATE (to `chars` characters, or bytes for binary values), or NULL. `salt`: for HASH,
    the text that is hashed before each value.

    `may_be_missing`: whether a table version may lack the column. If False, such a version stops the table, because a renamed column would
    not be masked.
    """

    column: str
    kind: str
    chars: int = 0
    salt: str = dataclasses.field(default="", repr=False)
    may_be_missing: bool = False

    def refusal(self, of: ColumnType, *, in_key: bool) -> str:
        """Returns why this mask cannot be applied to a column of the type `of`, or an empty text if it can be applied. `in_key`: whether
        the column belongs to the key.
        """
        if in_key and self.kind != HASH:
            return (
                "the column belongs to the key, and several rows would get the same key; use hash, or remove the mask"
            )
        if self.kind == HASH and not _is_hashable(of.arrow):
            return (
                f"the type of the column in the lake is {of.spark}, and hash is for text, bytes and integers "
                "only; use null"
            )
        if self.kind == TRUNCATE and not (_is_text(of.arrow) or _is_binary(of.arrow)):
            return (
                f"the type of the column in the lake is {of.spark}, and truncate is for text and bytes only; use null"
            )
        return ""

    def shown_type(self, of: ColumnType) -> ColumnType:
        """Returns the type of the masked column. `of`: the column's type without the mask."""
        if self.kind == HASH:
            return dataclasses.replace(of, arrow=pa.string(), spark="string", by_zero_dates={})
        return of

    def shown_column(self, column: Column) -> Column:
        """Returns the column's description for the lake and consumers. The default and the labels are removed, because they contain
        unmasked values.
        """
        plain = dataclasses.replace(column, default=(), labels=())
        if self.kind == HASH:
            return dataclasses.replace(plain, mysql_type=f"char({DIGEST_CHARS})")
        return dataclasses.replace(plain, nullable=True) if self.kind == NULL else plain

    def shown(self, values: AnyArray) -> AnyArray:
        """Masks the values of a column. NULL stays NULL."""
        if self.kind == NULL:
            return cast("AnyArray", pa.nulls(len(values), values.type))
        if self.kind == TRUNCATE:
            return _truncated(values, self.chars)
        return hashed(values, self.salt.encode())

    def shown_text(self, text: str) -> str | None:
        """Returns a text value with the mask applied, or None if the mask's kind is NULL."""
        found = self.shown(pa.array([text], pa.string()))
        return cast("str | None", found[0].as_py())

    def shown_bytes(self, digits: str) -> str | None:
        """Returns a binary value with the mask applied, or None if the mask's kind is NULL. `digits` and the result are
        hexadecimal digits.
        """
        found: Any = self.shown(pa.array([bytes.fromhex(digits)], pa.binary()))[0].as_py()
        return found.hex() if isinstance(found, bytes) else found


def hashed(values: AnyArray, salt: bytes) -> AnyArray:
    """Returns a SHA-256 digest for each value, as 64 hexadecimal digits. The input of a digest is the salt, followed by the value's bytes
    or, for a number, its decimal digits. NULL stays NULL.
    """
    texts: Any = values if _is_binary(values.type) or _is_text(values.type) else values.cast(pa.string())
    if isinstance(texts, pa.ChunkedArray):
        texts = texts.combine_chunks()
    null = texts.is_null().to_numpy(zero_copy_only=False)
    offsets, data = _bytes_of(texts)
    out = digests(data, offsets, null, salt)
    ends = np.concatenate((np.zeros(1, np.int64), np.cumsum(~null) * DIGEST_CHARS)).astype(np.int32)
    validity = None if not null.any() else buffer_of(np.packbits(~null, bitorder="little"))
    return pa.Array.from_buffers(pa.string(), len(values), [validity, buffer_of(ends), buffer_of(out)])


def _bytes_of(texts: Any) -> tuple[Any, Any]:
    """Returns (offsets as int64, bytes) of an Arrow array of strings or binary values."""
    wide = pa.types.is_large_string(texts.type) or pa.types.is_large_binary(texts.type)
    _, offset_buffer, data = texts.buffers()
    kind: Any = np.int64 if wide else np.int32
    offsets = np.frombuffer(offset_buffer, kind, len(texts) + 1 + texts.offset)[texts.offset :].astype(np.int64)
    read = np.frombuffer(data, np.uint8) if data is not None and data.size else np.zeros(0, np.uint8)
    return offsets, read


def _truncated(values: AnyArray, chars: int) -> AnyArray:
    if _is_binary(values.type):
        return pc.binary_slice(values, 0, chars)
    return pc.utf8_slice_codeunits(values, 0, chars)


def _is_text(of: pa.DataType) -> bool:
    return pa.types.is_string(of) or pa.types.is_large_string(of)


def _is_binary(of: pa.DataType) -> bool:
    return pa.types.is_binary(of) or pa.types.is_large_binary(of)


def _is_hashable(of: pa.DataType) -> bool:
    whole = pa.types.is_integer(of) or (pa.types.is_decimal(of) and of.scale == 0)
    return whole or _is_text(of) or _is_binary(of)
