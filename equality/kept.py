"""Stores the results of each table's last comparison in `equality.json`, so that the next comparison reads only chunks that have changed.

For each table, the file has the chunks, and the lake's sum of each chunk that was equal in source and lake. The sums are made of DuckDB's
hashes. Another version of DuckDB may hash differently, so a record is valid for one version of DuckDB only.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import duckdb

from sluice.cdc_engine.durable_files import keep_file
from sluice.equality.chunks import Chunks, chunks_from
from sluice.equality.table_plan import ComparisonPlan
from sluice.equality.tables import Sum

FILE_NAME = "equality.json"
FORMAT = 1


class KeptSums:
    """Reads and writes `equality.json` of one destination, which has the results of each table's last comparison. If the file cannot be
    read, the next comparison reads all chunks.
    """

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE_NAME

    def get(self, plan: ComparisonPlan, table_id: str) -> tuple[Chunks, dict[int, Sum]] | None:
        """Returns the stored chunks and sums of a table. Returns None if there are none, if they cannot be read, or if they are of another
        Delta table, key, set of columns or version of DuckDB.
        """
        record = self._read().get(plan.name)
        if record is None or record.get("made_of") != _made_of(plan, table_id):
            return None
        try:
            sums = {int(number): Sum(int(rows), int(hashes)) for number, rows, hashes in record["sums"]}
            return chunks_from(record["chunks"]), sums
        except (KeyError, TypeError, ValueError):
            return None

    def keep(
        self, plan: ComparisonPlan, table_id: str, chunks: Chunks, sums: Mapping[int, Sum], *, compared: set[int]
    ) -> None:
        """Stores the result of a comparison. `compared` has the numbers of the chunks that were compared, and `sums` the lake's sums of
        those that are equal in source and lake.

        A compared chunk that differs has no stored sum afterwards. The stored sums of the other chunks stay, unless `chunks` splits the
        table in another way than before.
        """
        before = self.get(plan, table_id)
        if before is not None and before[0] == chunks:
            sums = {**{number: each for number, each in before[1].items() if number not in compared}, **sums}
        record = {
            "made_of": _made_of(plan, table_id),
            "chunks": chunks.record(),
            "sums": [[number, each.rows, str(each.hashes)] for number, each in sorted(sums.items())],
        }
        self._write({**self._read(), plan.name: record})

    def keep_only(self, names: Collection[str]) -> None:
        """Removes the stored chunks and sums of all tables that are not in `names`."""
        tables = self._read()
        if tables.keys() - names:
            self._write({name: tables[name] for name in tables if name in names})

    def _write(self, tables: Mapping[str, Any]) -> None:
        keep_file(self._path, json.dumps({"format": FORMAT, "tables": tables}) + "\n")

    def _read(self) -> dict[str, Any]:
        try:
            record = json.loads(self._path.read_text(encoding="utf-8"))
            return dict(record["tables"]) if record["format"] == FORMAT else {}
        except (OSError, ValueError, KeyError, TypeError):
            return {}


def _made_of(plan: ComparisonPlan, table_id: str) -> str:
    """Returns a digest of the things that change a chunk or its sum although no row changes: DuckDB's version, the Delta table's id, the
    key and the columns.
    """
    columns = [(each.name, each.type, each.from_delta, each.select) for each in plan.columns]
    described = json.dumps([duckdb.__version__, table_id, plan.key, columns])
    return hashlib.sha256(described.encode()).hexdigest()[:16]
