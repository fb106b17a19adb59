"""Tests that change logs and histories are maintained like current-state tables, with deltalake alone."""

from __future__ import annotations

import base64
import json
import os
import struct
import uuid
import zlib
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from sluice.spark_jobs import durable_lake
from sluice.spark_jobs.durable_lake import B85, Z85
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.maintain.rule import SMALL_FILES_MAX
from sluice.spark_jobs.maintain.side_tables import MaintainedSideTable, compact, planned, vacuum
from sluice.spark_jobs.maintain.tables import MaintainedTable
from sluice.spark_jobs.table_owner import Owner
from tests.spark.side_tables.fix_side_tables import NAME, LoggedTable, changes, insert
from tests.spark.staged import LEDGER_ID

FEATURES = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}


def test_a_log_and_a_history_of_many_small_files_are_joined_and_vacuumed_history(tmp_path: Path) -> None:
    logged = LoggedTable(tmp_path)
    files = SMALL_FILES_MAX + 2
    for index in range(1, files + 1):
        logged.write(logged.stage(changes([insert(index, 16 * index)])))
    current_state = MaintainedTable(
        owner=Owner(ledger_id=LEDGER_ID, destination="shop", table=NAME),
        path=logged.target.path,
        run="r",
        fence=BY_HAND,
    )
    for kind, path in (("log", logged.target.change_log), ("history", logged.target.history)):
        given = MaintainedSideTable(current_state=current_state, path=path, kind=kind)
        rows = count(path)
        plan = planned(given)
        assert plan is not None
        made = compact(given, plan)
        assert (made.name, made.act, made.before.files, made.after.files) == (f"{NAME}__{kind}", "compact", files, 1)
        gone = vacuum(given, 0)
        assert gone is not None
        assert gone.removed_files >= files
        assert len(list(Path(path).glob("*.parquet"))) == 1
        assert count(path) == rows == files
    assert planned(MaintainedSideTable(current_state=current_state, path=str(tmp_path / "nothing"), kind="log")) is None
    logged.write(logged.stage(changes([insert(1000, 16 * files + 16)])))
    assert len(logged.history()) == files + 1


def count(path: str) -> int:
    found = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(path)).execute("SELECT 1 FROM t")
    return pa.table(found.read_all()).num_rows


@pytest.mark.found
def test_a_vacuum_keeps_the_deletion_vectors_of_a_history_history(tmp_path: Path) -> None:
    """Defect 1056: if a user had switched on deletion vectors for a history, VACUUM deleted the vectors in use. The history could not be
    read any more.
    """
    logged = LoggedTable(tmp_path)
    logged.write(logged.stage(changes([insert(1, 16), insert(2, 16)])), change_log="")
    path = logged.target.history
    delete_first_row(path)
    assert [row[0] for row in logged.history()] == [2]
    owner = Owner(ledger_id=LEDGER_ID, destination="shop", table=NAME)
    current_state = MaintainedTable(owner=owner, path=logged.target.path, fence=BY_HAND)
    assert vacuum(MaintainedSideTable(current_state=current_state, path=path, kind="history"), 1)
    assert [row[0] for row in logged.history()] == [2]


def delete_first_row(path: str) -> None:
    """Commits a deletion vector of the first row of the table's newest file, as Spark would. The file of the vector is old, so VACUUM
    removes it unless VACUUM knows that it is in use.
    """
    version = deltalake.DeltaTable(path).version()
    actions = [json.loads(line) for line in commit_file(path, version).read_text().splitlines()]
    (add,) = [each["add"] for each in actions if "add" in each]
    # A bitmap with one container, which has the number 0: https://github.com/delta-io/delta/blob/master/PROTOCOL.md.
    bitmap = struct.pack("<IQIIIHHIH", 1681511377, 1, 0, 12346, 1, 0, 0, 16, 0)
    name, checksum = uuid.uuid4(), struct.pack(">I", zlib.crc32(bitmap))
    file = Path(path) / f"deletion_vector_{name}.bin"
    file.write_bytes(b"\x01" + struct.pack(">I", len(bitmap)) + bitmap + checksum)
    os.utime(file, (1, 1))
    encoded = base64.b85encode(name.bytes).decode().translate(str.maketrans(B85, Z85))
    vector: dict[str, Any] = {"storageType": "u", "pathOrInlineDv": encoded, "offset": 1, "cardinality": 1}
    versions = {"minReaderVersion": 3, "minWriterVersion": 7, **FEATURES}
    removed = {"path": add["path"], "deletionTimestamp": 1, "dataChange": True}
    added = {**add, "deletionVector": {**vector, "sizeInBytes": len(bitmap)}}
    made = [{"commitInfo": {"operation": "DELETE"}}, {"protocol": versions}, {"remove": removed}, {"add": added}]
    commit_file(path, version + 1).write_text("".join(f"{json.dumps(action)}\n" for action in made))


def commit_file(path: str, version: int) -> Path:
    return durable_lake.commit_file(Path(path), version)
