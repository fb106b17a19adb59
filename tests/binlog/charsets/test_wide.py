"""Tests charsets with several bytes per character: the kernel decodes values as Python's codec does, and leaves invalid bytes to the
codec.
"""

from __future__ import annotations

import random

import numpy as np
import pytest

from sluice.cdc_engine.binlog.charsets import wide
from sluice.cdc_engine.binlog.charsets.collations import CHARSETS
from sluice.cdc_engine.binlog.column_types import ValueRefusedError, transcoding
from tests.binlog.plain_kernels import Guarded, GuardedRoom, plain
from tests.binlog.rows.test_column_types import values

WIDE = sorted(name for name, charset in CHARSETS.items() if charset.bytes_max > 1 and charset.codec != "utf_8")
WORDS = ("plain", "日本語 カナ ｶﾅ", "한국어", "简体 繁體", "Grüße €", "😀", "〜∥－", "Ω\\~", "")  # noqa: RUF001
PLAIN = plain(wide)


def named_records(name: str) -> list[bytes]:
    """Returns, encoded in the charset, a string of each script that the charset has, and 300 strings of random characters."""
    codec = CHARSETS[name].codec
    kept = [word for word in WORDS if has(codec, word)]
    characters = [chr(point) for point in range(0x20, 0xFFFF, 7) if has(codec, chr(point))]
    chance = random.Random(3)  # noqa: S311 - test data
    return [word.encode(codec) for word in (*kept, *("".join(chance.choices(characters, k=9)) for _ in range(300)))]


def has(codec: str, text: str) -> bool:
    try:
        return text.encode(codec).decode(codec) == text
    except UnicodeError:
        return False


@pytest.mark.parametrize("name", WIDE)
def test_texts_are_what_the_codec_reads(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    items, codec = named_records(name), CHARSETS[name].codec
    if name != "gb18030":
        monkeypatch.setattr(transcoding, "_codec", lambda *_: pytest.fail("left to the codec"))
    found = transcoding.decoder(name, "c")(values(None, *items))
    found.validate(full=True)
    assert found.to_pylist() == [None, *(item.decode(codec) for item in items)]


@pytest.mark.parametrize("name", WIDE)
def test_bytes_that_are_no_character_are_refused_by_their_row(name: str) -> None:
    codec = CHARSETS[name].codec
    whole = next(word.encode(codec) for word in ("日本", "한국", "简体") if has(codec, word))
    with pytest.raises(ValueRefusedError, match="of the value is not valid") as refused:
        transcoding.decoder(name, "c")(values(whole, None, whole[:-1], whole))
    assert refused.value.row == 2


@pytest.mark.parametrize("name", WIDE)
def test_damaged_text_is_never_read_or_written_outside(name: str) -> None:
    chance = random.Random(5)  # noqa: S311 - test data
    codec = CHARSETS[name].codec
    for _ in range(150):
        data = bytearray(b"".join(chance.choices(texts_of_words(codec), k=3)) or b"a")
        for _ in range(chance.randrange(3)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        del data[len(data) - chance.randrange(3) :]
        room, offsets, size = GuardedRoom(3 * len(data)), [0, 0], np.array([len(data)])
        unit, lowest_first = wide.UNITS.get(codec, (0, False))
        left = PLAIN.transcode_wide(
            Guarded(data), np.array([0]), size, unit, lowest_first, wide.tables(codec), offsets, room
        )
        if left < 0:
            assert room.data[: offsets[1]].decode() == bytes(data).decode(codec)


def texts_of_words(codec: str) -> list[bytes]:
    return [word.encode(codec) for word in WORDS if has(codec, word)]
