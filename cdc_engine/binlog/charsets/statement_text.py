"""Decodes the text of statements. Computes what the server stores for a literal: the server converts the literal from the client's charset
to the connection's charset, and then to the column's charset.

No other file decodes statements. `events.control` calls `statement_text`; `table_meta` calls the other functions for names, labels and
defaults. Bytes that are not a character in the text's charset become lone surrogates in the text (Python's "surrogateescape"), so that no
byte is lost and none is replaced by a guess.
"""

from __future__ import annotations

import dataclasses
import re

from sluice.cdc_engine.binlog.charsets.codecs import lexed_codec_of
from sluice.cdc_engine.binlog.charsets.collations import charset_of_name

UNKNOWN = "?"  # The server stores a question mark for a character that the target charset lacks.
_NO_CHARACTER = re.compile("[\ud800-\udfff]")
_BEYOND_BMP = re.compile("[\U00010000-\U0010ffff]")
# The number of bytes of a character beyond the BMP in utf8mb4. For a client with the charset utf8mb3, the server stores one question mark
# for each of these bytes.
_BYTES_BEYOND_BMP = 4
WIDE = {"ucs2": 2, "utf16": 2, "utf16le": 2, "utf32": 4}  # Charset → bytes of its shortest character.
_BMP_CHARSETS = {"utf8mb3", "ucs2"}
# In these one-byte charsets, a no-break space separates words of a statement; in all other charsets, it is part of a name.
BLANK_NO_BREAK_SPACE = frozenset(
    ("dec8", "latin1", "latin2", "latin5", "latin7", "hebrew", "greek", "cp1250", "armscii8", "geostd8")
) | {"cp866", "cp852", "keybcs2"}


_RAW = "\udfff"  # The first character of the text of a hexadecimal or bit literal: 0xE9, x'E9', b'11101001'.


def raw_literal(raw: bytes) -> str:
    """Returns a text that stands for `raw`, the bytes of a hexadecimal or bit literal. `Literals.stored` restores these bytes, and decodes
    them in the column's charset. The text begins with `_RAW`; no other text does.
    """
    return _RAW + raw.decode("ascii", "surrogateescape")


class LiteralUnknownError(Exception):
    """The stored value of a literal cannot be determined. The message says why."""


def statement_text(raw: bytes, client: str) -> str:
    """Decodes a statement before it is split into words. `client`: the text's charset; UTF-8 is used for `binary` and unknown charsets."""
    try:
        return raw.decode(lexed_codec_of(client)[0], "surrogateescape")
    except UnicodeDecodeError:  # UTF-16 and UTF-32 can fail here; the server refuses them as client charsets.
        return raw.decode("ascii", "surrogateescape")


def word_characters(client: str) -> dict[int, str]:
    """Returns the table (for str.translate) that corrects names and literals after the statement is split into words. It replaces the
    characters that `statement_text` decodes differently from the server, and is empty for most charsets. `client`: the charset of the
    statement.
    """
    return lexed_codec_of(client)[1]


def has_no_character(text: str) -> bool:
    """Returns whether the text has bytes that were not a character of its charset (lone surrogates)."""
    return bool(_NO_CHARACTER.search(text))


def shown(text: str) -> str:
    r"""Returns the text in printable form, for messages and files: \xNN for each byte that is not a character."""
    return _NO_CHARACTER.sub(lambda found: f"\\x{ord(found[0]) & 0xFF:02x}", text)


@dataclasses.dataclass(frozen=True)
class Literals:
    """Converts literals as the server does: from the client charset to the connection charset, and then to a column's charset. An empty
    charset means no conversion.
    """

    client: str = ""
    connection: str = ""

    @property
    def are_bytes(self) -> bool:
        """Whether the client's or the connection's charset is `binary`. If so, a column stores the bytes that a literal has in the
        statement.
        """
        return "binary" in (self.client, self.connection)

    def stored(self, text: str, charset: str) -> str:
        """Returns the text that a column of `charset` stores for the literal `text`. Raises LiteralUnknownError if this text cannot be
        determined.
        """
        if text.startswith(_RAW):
            return _padded(text[1:].encode("ascii", "surrogateescape"), charset).rstrip(" ")
        into_bytes = charset == "binary" and self.connection in WIDE
        if text.isascii() and charset not in WIDE and not into_bytes:
            return text
        if self.are_bytes:
            return _padded(_encoded(text, self.client), charset)
        if self.client == "utf8mb3":
            text = _BEYOND_BMP.sub(UNKNOWN * _BYTES_BEYOND_BMP, text)
        if has_no_character(text):
            raise LiteralUnknownError(f"the statement has bytes that are not valid in {self.client or 'utf8mb4'}")
        text = in_charset(text, self.connection)
        # A binary column stores the bytes that the text has in the connection charset.
        return raw_in(as_bytes(text, self.connection), charset) if charset == "binary" else in_charset(text, charset)


def _padded(raw: bytes, charset: str) -> str:
    """Decodes a literal's bytes as a column of `charset` stores them: the server adds zero bytes in front until the first character is
    complete. Raises LiteralUnknownError if the bytes are not valid in `charset`.
    """
    return raw_in(bytes(-len(raw) % WIDE.get(charset, 1)) + raw, charset)


def in_charset(text: str, charset: str) -> str:
    """Returns the text with each character that the charset lacks replaced by a question mark. Returns the text unchanged if `charset` is
    empty, `binary` or unknown.
    """
    known = charset_of_name(charset)
    if text.isascii() or known is None or not known.codec:
        return text
    if charset in _BMP_CHARSETS:
        return _BEYOND_BMP.sub(UNKNOWN, text)
    return "".join(character if _has(known.codec, character) else UNKNOWN for character in text)


def raw_in(raw: bytes, charset: str) -> str:
    """Decodes bytes that a column of `charset` stores unchanged. Raises LiteralUnknownError for bytes that are not valid in `charset`."""
    try:
        text = raw.decode(_codec(charset))
    except UnicodeDecodeError as error:
        raise LiteralUnknownError(
            f"the bytes {raw[:40].hex()} of the statement are not characters of {charset}"
        ) from error
    if charset in _BMP_CHARSETS and _BEYOND_BMP.search(text):
        raise LiteralUnknownError(f"the bytes {raw[:40].hex()} of the statement are not characters of {charset}")
    return text


def as_bytes(text: str, charset: str) -> bytes:
    """Encodes a text in a charset. Raises LiteralUnknownError if the charset lacks a character."""
    try:
        return text.encode(_codec(charset))
    except UnicodeEncodeError as error:
        raise LiteralUnknownError(f"{text[:40]!r} has a character that {charset} does not have") from error


def _encoded(text: str, client: str) -> bytes:
    """Encodes a text as the bytes that it has in the binlog event. `client`: the charset from which the text was decoded."""
    try:
        return text.encode(_codec(client), "surrogateescape")
    except UnicodeEncodeError as error:
        raise LiteralUnknownError(f"the statement has bytes that are not a character of {client}") from error


def _codec(charset: str) -> str:
    known = charset_of_name(charset) if charset else None
    return (known.codec if known else "") or "utf_8"


def _has(codec: str, character: str) -> bool:
    try:
        character.encode(codec)
    except UnicodeEncodeError:
        return False
    return True
