"""Tests VECTOR next to character columns on MySQL 9, whose table maps have a character set for VECTOR columns too."""

from __future__ import annotations

import itertools
import struct
from pathlib import Path
from typing import Any

import pytest

from sluice.console.toolchain.database.server import DatabaseServer
from tests.fidelity.pipeline import Pipeline, binlog_end, images, row_metadata, run

pytestmark = [pytest.mark.servers, pytest.mark.spark]

DATABASE = "vectors"
KINDS = {
    "v": ("VECTOR(3)", "STRING_TO_VECTOR('[1,2.5,-3]')", struct.pack("<3f", 1, 2.5, -3)),
    "l": ("VARCHAR(30) CHARACTER SET latin1", "'é latin'", "é latin"),
    "u": ("VARCHAR(30) CHARACTER SET utf8mb4", "'漢é😀'", "漢é😀"),
    "t": ("TEXT CHARACTER SET utf8mb4", "'漢 text'", "漢 text"),
    "b": ("VARBINARY(30)", "x'e900ff'", b"\xe9\x00\xff"),
    "e": ("ENUM('é','b') CHARACTER SET latin1", "'é'", "é"),
    "s": ("SET('漢','d') CHARACTER SET utf8mb4", "'漢'", "漢"),
    "g": ("GEOMETRY", "NULL", None),
    "i": ("INT UNSIGNED", "4000000000", 4000000000),
}
# The first layouts are all orders of a VECTOR among character and binary columns. The others contain each form of the charset fields, and
# other types that these fields count.
LAYOUTS = tuple(
    dict.fromkeys(
        (
            *("".join(order) for order in itertools.permutations("vlub")),
            *("".join(order) for order in itertools.permutations("vlu")),
            *(
                "vu",
                "uv",
                "vl",
                "lv",
                "v",
                "vv",
                "vuu",
                "uuv",
                "uvu",
                "vll",
                "llv",
                "lvl",
                "vvu",
                "uvv",
                "vlllu",
                "ulllv",
            ),
            *("vtbbb", "bbbtv", "ves", "esv", "evs", "evlsu", "sveul", "giveu", "vigul", "ugvil", "vuuuul", "luuuuv"),
        )
    )
)


def columns_of(layout: str) -> dict[str, tuple[str, str, Any]]:
    """Returns a mapping of each column to its declared type, a literal, and the value in the lake."""
    return {f"{kind}{index}": KINDS[kind] for index, kind in enumerate(layout)}


@pytest.mark.found
@pytest.mark.parametrize("metadata", ["FULL", "MINIMAL"])
def test_a_vector_column_moves_no_character_set(mysql9: DatabaseServer, tmp_path: Path, metadata: str) -> None:
    """Defect 31: a VECTOR column next to a character column stopped the destination, or gave a column the character set of another one."""
    tables = [
        f"CREATE TABLE t_{layout} (id INT PRIMARY KEY, "
        + ", ".join(f"{name} {declared}" for name, (declared, _, _) in columns_of(layout).items())
        + ")"
        for layout in LAYOUTS
    ]
    run(mysql9, f"DROP DATABASE IF EXISTS {DATABASE}", f"CREATE DATABASE {DATABASE}", f"USE {DATABASE}", *tables)
    seeded = Pipeline.of(mysql9, DATABASE, tmp_path / "seeded")
    with mysql9.connect() as connection:
        reported = Pipeline(mysql9, DATABASE, tmp_path / "told", binlog_end(connection))
    rows = [
        f"INSERT INTO t_{layout} VALUES (1, {', '.join(literal for _, literal, _ in columns_of(layout).values())})"
        for layout in LAYOUTS
    ]
    with row_metadata(mysql9, metadata):
        run(mysql9, "FLUSH TABLES", f"USE {DATABASE}", *rows)
    # With FULL metadata, a table map describes a whole schema. This schema is used if the history does not know the table.
    for pipeline in (seeded, reported) if metadata == "FULL" else (seeded,):
        staged = pipeline.staged()
        for layout in LAYOUTS:
            (row,) = images(staged, f"t_{layout}").to_pylist()
            expected = {name: value for name, (_, _, value) in columns_of(layout).items()}
            assert {name: row[name] for name in expected} == expected, layout
