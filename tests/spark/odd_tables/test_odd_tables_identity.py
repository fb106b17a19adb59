"""Tests odd tables on a real server and a real Spark: reserved names, and paths that clash. The other tables continue."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path

import pytest

from sluice.cdc_engine import destination_files
from sluice.cdc_engine.errors import TableStoppedError
from sluice.cdc_engine.meta.resume_requests import request
from sluice.cdc_engine.snapshot.record import SnapshotRecord, wanted
from sluice.cdc_engine.snapshot.records import SnapshotRecords
from sluice.cdc_engine.states import SnapshotState
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.equality.values import Verdict
from sluice.orchestration.base.ports import Ports
from sluice.orchestration.run.maintain_run import MaintainRequest, run_maintenance
from sluice.orchestration.run.spark_merge import spark_merge
from tests.instance.fix_destination import running
from tests.spark.odd_tables.test_raising_tables import Raising

pytestmark = [pytest.mark.servers, pytest.mark.spark]

STRAY_SECONDS = 90 * 86_400  # Older than any file that VACUUM keeps.


class Odd(Raising):
    """A pipeline in which a test looks up the snapshot record of each table by the table's name."""

    @property
    def records(self) -> SnapshotRecords:
        return SnapshotRecords(self.captured.directory)

    def snapshot(self, table: str) -> SnapshotRecord:
        found = self.records.get(f"{self.captured.database}.{table}")
        assert found is not None
        return found

    def read_rows(self) -> None:
        """Runs the snapshot job, and ignores that the job fails if a table stops."""
        with contextlib.suppress(TableStoppedError):
            super().read_rows()

    def retry(self, table: str) -> None:
        """Does what `sluice snapshot resume` does."""
        self.records.update(f"{self.captured.database}.{table}", lambda now: now.retried())

    def stray(self, table: str, name: str) -> Path:
        """Creates an old file in the folder of a table. The Delta log of the table does not contain this file."""
        path = Path(self.location(table)) / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"stray")
        then = time.time() - STRAY_SECONDS
        os.utime(path, (then, then))
        return path


@pytest.mark.found
def test_a_column_with_a_reserved_name_stops_its_table_and_the_printed_advice_leads_to_an_equal_lake(
    mysql80: DatabaseServer, tmp_path: Path, spark_server: SparkConnectServer
) -> None:
    """Defect 25: if a table had a column named `_sluice_operation`, the whole destination stopped. This also happened while a snapshot read
    the table.
    """
    shop = Odd(tmp_path, mysql80, spark_server)
    base = shop.captured.database
    for name in ("read", "streamed", "plain"):
        own = "" if name == "plain" else ", `_sluice_operation` INT DEFAULT 1"
        shop.captured.run(f"CREATE TABLE {base}.{name} (id INT PRIMARY KEY{own})")
        shop.captured.run(f"INSERT INTO {base}.{name} (id) VALUES (1), (2)")
    tables = ", ".join(f"{base}.{name}: {{snapshot: initial}}" for name in ("read", "plain"))
    shop.captured.describe(f"tables: {{{tables}}}")
    with running(shop.captured) as engine:
        shop.captured.run(f"INSERT INTO {base}.streamed (id) VALUES (3)", f"INSERT INTO {base}.plain VALUES (3)")
        stopped = shop.merge_all(engine)
        shop.read_rows()
        shop.merge(engine)
        shop.read_rows()
        assert set(stopped) == {"streamed"}
        assert stopped["streamed"][0] == "TYPE_UNSUPPORTED"
        assert shop.snapshot("read").state is SnapshotState.FAILED
        for reason in (stopped["streamed"][1], shop.snapshot("read").reason):
            assert "_sluice_operation" in reason
            assert "column_exclude" in reason
        assert shop.snapshot("plain").state is SnapshotState.PUBLISHED
        assert shop.compared()["plain"].verdict is Verdict.EQUAL
    excluded = ",".join(f"{base}.{name}:_sluice_operation" for name in ("read", "streamed"))
    shop.captured.describe(f"tables: {{{tables}}}", f"column_exclude: '{excluded}'")
    with running(shop.captured) as engine:
        request(shop.captured.directory, base, "streamed")
        shop.retry("read")
        shop.captured.run(f"INSERT INTO {base}.streamed (id) VALUES (4)", f"INSERT INTO {base}.read (id) VALUES (4)")
        shop.settle(engine)
        shop.records.begin(wanted(f"{base}.streamed", None, time.time()))  # The initial snapshot of its rows.
        shop.settle(engine)
        shop.merge(engine)
        shop.require_equal()


@pytest.mark.found
def test_tables_whose_paths_clash_stop_and_vacuum_leaves_them_out(
    mysql80: DatabaseServer, tmp_path: Path, spark_server: SparkConnectServer
) -> None:
    """Test for defect 25: a run and a snapshot refuse tables whose paths clash, and name them. VACUUM of the outer table removes no file of
    the inner one.
    """
    shop = Odd(tmp_path, mysql80, spark_server)
    base = shop.captured.database
    shop.captured.run(*(f"CREATE TABLE {base}.{name} (id INT PRIMARY KEY)" for name in ("outer_one", "calm")))
    with running(shop.captured) as engine:
        shop.captured.run(f"INSERT INTO {base}.outer_one VALUES (1)", f"INSERT INTO {base}.calm VALUES (1)")
        assert shop.merge_all(engine) == {}
    inside = {name: f"{shop.config.lake}/{base}/outer_one/{name}" for name in ("inner_one", "inner_read")}
    tables = ", ".join(f"{base}.{name}: {{path: {path}, snapshot: never}}" for name, path in inside.items())
    shop.captured.describe(f"tables: {{{tables}}}")
    with running(shop.captured) as engine:
        for name in inside:
            shop.captured.run(f"CREATE TABLE {base}.{name} (id INT PRIMARY KEY)")
        shop.captured.run(f"INSERT INTO {base}.inner_read VALUES (1)")
        shop.records.begin(wanted(f"{base}.inner_read", None, time.time()))
        for name in ("inner_one", "outer_one", "calm"):
            shop.captured.run(f"INSERT INTO {base}.{name} VALUES (2)")
        stopped = shop.merge_all(engine)
        shop.read_rows()
        shop.merge(engine)
        shop.read_rows()
        assert set(stopped) == {"inner_one"}
        assert stopped["inner_one"][0] == "MERGE_FAILED"
        assert shop.snapshot("inner_read").state is SnapshotState.FAILED
        for reason in (stopped["inner_one"][1], shop.snapshot("inner_read").reason):
            assert f"is inside {shop.config.lake}/{base}/outer_one" in reason
            assert "set another `path`" in reason
        assert "sluice snapshot resume" in shop.snapshot("inner_read").reason
        shop.require_equal(*inside)
        kept, gone = shop.stray("outer_one", "inner_one/part.parquet"), shop.stray("calm", "part.parquet")
        ports = Ports(host=lambda: None, files=lambda: destination_files, merge=spark_merge)  # type: ignore[arg-type,return-value]
        vacuum = MaintainRequest(destination="shop", optimize=False, vacuum=True)
        looked = run_maintenance(ports, shop.config, vacuum, print)
        assert set(looked.failed) == {f"{base}.outer_one"}
        assert "VACUUM did not process the table" in looked.failed[f"{base}.outer_one"]
        assert kept.exists()
        assert not gone.exists()
    shop.captured.describe()
    with running(shop.captured) as engine:
        request(shop.captured.directory, base, "inner_one")
        shop.retry("inner_read")
        shop.settle(engine)
        shop.merge(engine)
        shop.require_equal()
