"""Registers Python codecs that decode MySQL's character sets as the server does. `collations` gets the codec name of each charset from this
module.

Python's codecs differ from the server's conversion in a few characters. Python has no codec for some charsets, such as MySQL's `latin1`
(cp1252, with control characters for the five bytes that cp1252 does not define). For charsets with such differences, and for charsets
without a codec, this file registers codecs under the name "mysql_<charset>". tests/binlog/charsets compares every codec with real servers.

Invalid bytes raise UnicodeDecodeError. With the error handler "surrogateescape", invalid bytes become lone surrogates. Invalid bytes never
become a replacement character. There is one exception to the server's behaviour: in some charsets, Python has characters that the server
lacks, such as the euro sign in `greek`. The codecs decode these characters.
"""

from __future__ import annotations

import codecs
import functools
import re
from collections.abc import Callable

from sluice.cdc_engine.binlog.charsets.tables import BEYOND_PYTHON, ONE_BYTE

# Charset → (Python's nearest codec, map of the differences). The map has an entry for each difference: the character to which Python
# decodes the bytes → the character to which the server decodes them.
CODECS: dict[str, tuple[str, dict[str, str]]] = {
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
# The bytes for which Python's cp1252 has no characters. MySQL decodes each of them to the control character with the same number.
_LATIN1_HOLES = "\x81\x8d\x8f\x90\x9d"

CODEC_PREFIX = "mysql_"
# Codecs with this suffix decode the text of statements in the charsets LEXED. They decode the two-byte backslash of these charsets as
# U+FF3C instead of as a backslash, because in a statement only a one-byte backslash begins an escape sequence.
LEXED_SUFFIX = "_lexed"
LEXED = {"sjis", "ujis"}
# Charset with characters in BEYOND_PYTHON → pattern that divides bytes into pieces. A piece is a run of one-byte characters, or one
# multi-byte character. A piece that BEYOND_PYTHON lacks is decoded with Python's codec.
PIECES = {
    "big5": re.compile(rb"[\x00-\x80]+|[\x81-\xff].|.", re.DOTALL),
    **dict.fromkeys(
        ("ujis", "eucjpms"), re.compile(rb"[\x00-\x7f]+|\x8f[\xa1-\xfe]{2}|[\x8e\xa1-\xfe][\xa1-\xfe]|.", re.DOTALL)
    ),
}
# Charset → first bytes of characters that Python decodes differently from the server. A text that contains these bytes is decoded piece by
# piece.
MISREAD = {"eucjpms": b"\x8f\xa2"}
Decode = Callable[[bytes, str], str]
Encode = Callable[[str], bytes]


def codec_of(charset: str) -> str:
    """Returns the name of a charset's codec for bytes.decode, or an empty text if the charset has no codec."""
    python_codec, differences = CODECS.get(charset, ("", {}))
    ours = differences or charset == "latin1" or charset in BEYOND_PYTHON or charset in ONE_BYTE
    return f"{CODEC_PREFIX}{charset}" if ours else python_codec


def lexed_codec_of(charset: str) -> tuple[str, dict[int, str]]:
    """Returns (codec, table) for the text of a statement. First the codec decodes the statement. Then the statement is split into words,
    and the table (for str.translate) corrects the names and literals among the words.

    For example, the server splits swe7 text as if it were ASCII, so the codec is `ascii`, and the table replaces the ten signs that are
    letters in swe7.
    """
    if charset in LEXED:
        return f"{CODEC_PREFIX}{charset}{LEXED_SUFFIX}", {ord(wide): sign for wide, sign in CODECS[charset][1].items()}
    if charset == "swe7":
        return "ascii", {index: sign for index, sign in enumerate(ONE_BYTE["swe7"][:0x7F]) if sign != chr(index)}
    return codec_of(charset) or "utf_8", {}


def _exact_codec(codec_name: str) -> codecs.CodecInfo | None:
    """Returns the codec for a name that begins with CODEC_PREFIX, else None. Python calls this function for every codec name that it does
    not know.
    """
    charset = codec_name.removeprefix(CODEC_PREFIX).removesuffix(LEXED_SUFFIX)
    if not codec_name.startswith(CODEC_PREFIX) or (charset not in CODECS and charset not in ONE_BYTE):
        return None
    if charset in ONE_BYTE:
        decode, encode = _one_byte(charset)
    else:
        decode, encode = _corrected(charset, lexed=codec_name.endswith(LEXED_SUFFIX))
    return codecs.CodecInfo(
        decode=lambda data, errors="strict": (decode(bytes(data), errors), len(data)),
        encode=lambda text, _errors="strict": (encode(text), len(text)),
        name=codec_name,
    )


def _one_byte(charset: str) -> tuple[Decode, Encode]:
    table = ONE_BYTE[charset]
    writing = codecs.charmap_build(table)
    return (
        lambda octets, errors: codecs.charmap_decode(octets, errors, table)[0],
        lambda text: codecs.charmap_encode(text, "strict", writing)[0],
    )


def _corrected(charset: str, *, lexed: bool) -> tuple[Decode, Encode]:
    """Returns the (decode, encode) functions of a charset. The functions use Python's codec, correct the characters that the server maps
    differently, and add characters that Python lacks. With `lexed`, for the text of statements, the functions correct nothing, because the
    table of `lexed_codec_of` corrects names and literals later.
    """
    base, differences = CODECS[charset]
    differences = {} if lexed else differences
    reading = str.maketrans(differences)
    writing = {ord(server): python for python, server in differences.items()}
    beyond = BEYOND_PYTHON.get(charset, {})
    written = {character: octets for octets, character in beyond.items()}

    def decode(octets: bytes, errors: str) -> str:
        if not beyond:
            return octets.decode(base, "mysql_latin1_hole" if charset == "latin1" else errors).translate(reading)
        if MISREAD.get(charset, b"\xff\xff\xff\xff") not in octets:
            try:
                return octets.decode(base).translate(reading)
            except UnicodeDecodeError:
                pass
        pieces = PIECES[charset].finditer(octets)
        return "".join(beyond.get(piece[0]) or _piece(piece, base, errors).translate(reading) for piece in pieces)

    def encode(text: str) -> bytes:
        if charset == "latin1":
            return b"".join(_encode_latin1(character) for character in text)
        if not beyond:
            return text.translate(writing).encode(base)
        return b"".join(written.get(character) or character.translate(writing).encode(base) for character in text)

    return decode, encode


def _piece(piece: re.Match[bytes], base: str, errors: str) -> str:
    try:
        return piece[0].decode(base, errors)
    except UnicodeDecodeError as error:
        raise UnicodeDecodeError(base, piece.string, piece.start(), piece.end(), error.reason) from None


def _fill_hole(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return chr(error.object[error.start]), error.start + 1


@functools.cache
def _encode_latin1(character: str) -> bytes:
    return bytes([ord(character)]) if character in _LATIN1_HOLES else character.encode("cp1252")


codecs.register_error("mysql_latin1_hole", _fill_hole)
codecs.register(_exact_codec)
