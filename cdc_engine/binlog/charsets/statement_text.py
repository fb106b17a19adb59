"""Decodes the text of statements, and computes what the server stores for a literal: client charset → connection
charset → column charset.

This is the only place that decodes statements. `events.control` calls `statement_text`; `table_meta` calls the rest for
names, labels and defaults. Bytes that are not a character stay in the text as lone surrogates (Python's
"surrogateescape"), so that no byte is lost or guessed.
"""

from __future__ import annotations

import dataclasses
import re

from sluice.cdc_engine.binlog.charsets.codecs import lexed_codec_of
from sluice.cdc_engine.binlog.charsets.collations import charset_of_name

UNKNOWN = "?"  # A server stores this for a character that a charset does not have.
_NO_CHARACTER = re.compile("[\ud800-\udfff]")
_BEYOND_BMP = re.compile("[\U00010000-\U0010ffff]")
# The bytes of such a character in utf8mb4. A utf8mb3 client gets one question mark for each byte.
_BYTES_BEYOND_BMP = 4
WIDE = {"ucs2": 2, "utf16": 2, "utf16le": 2, "utf32": 4}  # Charset → the least number of bytes of a character.
_BMP_CHARSETS = {"utf8mb3", "ucs2"}
# In these one-byte charsets a no-break space separates words; in others it is part of a name.
BLANK_NO_BREAK_SPACE = frozenset(
    ("dec8", "latin1", "latin2", "latin5", "latin7", "hebrew", "greek", "cp1250", "armscii8", "geostd8")
) | {"cp866", "cp852", "keybcs2"}


_RAW = "\udfff"  # The prefix of a literal that gives bytes as numbers: 0xE9, x'E9', b'11101001'.


def raw_literal(raw: bytes) -> str:
    """Returns a literal of bytes as text. `Literals.stored` decodes it once the column's charset is known."""
    return _RAW + raw.decode("ascii", "surrogateescape")


class LiteralUnknownError(Exception):
    """The stored value of a literal cannot be determined. The message says why."""


def statement_text(raw: bytes, client: str) -> str:
    """Decodes a statement for splitting into words. `client`: charset of the text. If it is `binary` or unknown, names are UTF-8."""
    try:
        return raw.decode(lexed_codec_of(client)[0], "surrogateescape")
    except UnicodeDecodeError:  # This happens only with charsets that no client can have.
        return raw.decode("ascii", "surrogateescape")


def word_characters(client: str) -> dict[int, str]:
    """Returns the translation (str.translate) of names and literals after the text was split."""
    return lexed_codec_of(client)[1]


def has_no_character(text: str) -> bool:
    """Returns whether some bytes of the text are not a character."""
    return bool(_NO_CHARACTER.search(text))


def shown(text: str) -> str:
    r"""Returns the text for messages and files, with \xNN for bytes that are not a character."""
    return _NO_CHARACTER.sub(lambda found: f"\\x{ord(found[0]) & 0xFF:02x}", text)


@dataclasses.dataclass(frozen=True)
class Literals:
    """The charsets that a session's literals pass through. Empty ones change nothing."""

    client: str = ""
    connection: str = ""

    @property
    def are_bytes(self) -> bool:
        """Whether a column stores literals unchanged."""
        return "binary" in (self.client, self.connection)

    def stored(self, text: str, charset: str) -> str:
        """Returns what a literal becomes in a column of `charset`. Raises LiteralUnknownError."""
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
            raise LiteralUnknownError(f"it has bytes that are not valid in {self.client or 'utf8mb4'}")
        text = in_charset(text, self.connection)
        # A binary column stores the text's bytes in the connection's charset.
        return raw_in(as_bytes(text, self.connection), charset) if charset == "binary" else in_charset(text, charset)


def _padded(raw: bytes, charset: str) -> str:
    """Decodes bytes as a column stores them. Multi-byte characters are padded at the front. Raises LiteralUnknownError."""
    return raw_in(bytes(-len(raw) % WIDE.get(charset, 1)) + raw, charset)


def in_charset(text: str, charset: str) -> str:
    """Returns the text with a question mark for each character that the charset does not have."""
    known = charset_of_name(charset)
    if text.isascii() or known is None or not known.codec:
        return text
    if charset in _BMP_CHARSETS:
        return _BEYOND_BMP.sub(UNKNOWN, text)
    return "".join(character if _has(known.codec, character) else UNKNOWN for character in text)


def raw_in(raw: bytes, charset: str) -> str:
    """Decodes bytes that a column of `charset` stores unchanged. Raises LiteralUnknownError if they are not valid in it."""
    try:
        text = raw.decode(_codec(charset))
    except UnicodeDecodeError as error:
        raise LiteralUnknownError(f"its bytes {raw[:40].hex()} are no characters of {charset}") from error
    if charset in _BMP_CHARSETS and _BEYOND_BMP.search(text):
        raise LiteralUnknownError(f"its bytes {raw[:40].hex()} are no characters of {charset}")
    return text


def as_bytes(text: str, charset: str) -> bytes:
    """Encodes a text in a charset. Raises LiteralUnknownError."""
    try:
        return text.encode(_codec(charset))
    except UnicodeEncodeError as error:
        raise LiteralUnknownError(f"{text[:40]!r} is not in {charset}") from error


def _encoded(text: str, client: str) -> bytes:
    """Returns the event's bytes from which a text was decoded."""
    try:
        return text.encode(_codec(client), "surrogateescape")
    except UnicodeEncodeError as error:
        raise LiteralUnknownError(f"it has bytes that are no character of {client}") from error


def _codec(charset: str) -> str:
    known = charset_of_name(charset) if charset else None
    return (known.codec if known else "") or "utf_8"


def _has(codec: str, character: str) -> bool:
    try:
        character.encode(codec)
    except UnicodeEncodeError:
        return False
    return True
