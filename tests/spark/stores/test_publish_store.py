"""Tests a new table in a store that consists of the files that its snapshot uploaded. One commit makes the table, so it is whole or
absent, whichever process is killed.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from benchmarks.servers.azurite.server import AzuriteServer
from benchmarks.servers.fake_gcs.server import FakeGcsServer
from benchmarks.servers.s3 import S3Server
from sluice.object_stores.errors import StoreError
from sluice.object_stores.folder import StoreFolder
from sluice.object_stores.stored_files import StoredFiles
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.fence import Fence
from sluice.spark_jobs.snapshot import whole_files
from sluice.spark_jobs.snapshot.publication import Publication, PublishedSnapshot
from sluice.spark_jobs.snapshot.publish import BEFORE, publish
from sluice.spark_jobs.snapshot.table_files import FilesInStore
from sluice.spark_jobs.tables.table_in_store import TableInStore, left_files, uploaded_name
from tests.spark.conftest import Lake
from tests.spark.snapshot.test_publish_snapshot import ORDERS, Holding, Reading, image
from tests.spark.snapshot.test_whole_files_snapshot import MARKS, NAME, SINCE, NoSpark, hold, reading_in
from tests.spark.staged import DELETE, INSERT, UPDATE_AFTER, Changes

pytestmark = [pytest.mark.servers, pytest.mark.store]
FIRST = "_delta_log/00000000000000000000.json"


@pytest.fixture
def s3_root(s3_store: S3Server, monkeypatch: pytest.MonkeyPatch) -> tuple[str, dict[str, str]]:
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")  # The server refuses checksums of parts.
    return f"s3://{s3_store.bucket}/{uuid.uuid4().hex[:12]}", s3_store.options


@pytest.fixture
def azure_root(azurite: AzuriteServer) -> tuple[str, dict[str, str]]:
    return f"{azurite.root}/{uuid.uuid4().hex[:12]}", azurite.options


@dataclasses.dataclass
class StoreReading:
    """A table whose rows a snapshot reads, with its path in a store. If `uploads` is True, the chunks are in the store too."""

    reading: Reading
    uploads: bool

    @property
    def lake(self) -> Lake:
        return self.reading.lake

    @property
    def table(self) -> StoreFolder:
        return StoreFolder(self.lake.path(NAME), self.lake.storage_options)

    @property
    def data_files(self) -> list[str]:
        return [name for name in self.table.sizes() if name.endswith(".parquet")]

    def publication(self, index: int) -> Publication:
        given = self.reading.publication(index, SINCE)
        return dataclasses.replace(given, chunks=self._uploaded(given.chunks), changes=self._uploaded(given.changes))

    def publish(self, index: int, spark: Any = None) -> PublishedSnapshot:
        session: Any = spark or NoSpark()
        return publish(session, self.publication(index), self.lake.storage_options, self.reading.records)

    def _uploaded(self, files: StoredFiles) -> StoredFiles:
        if not self.uploads:
            return files
        url = f"{self.lake.root}/staged/{files.folder.name}"
        stored = StoredFiles(folder=files.folder, url=url, options=self.lake.storage_options)
        for name in files.names():
            stored.put(files.folder / name, name)
        return stored


@pytest.fixture
def google_root(fake_gcs: FakeGcsServer) -> tuple[str, dict[str, str]]:
    return f"gs://{fake_gcs.bucket}/{uuid.uuid4().hex[:12]}", fake_gcs.options


@pytest.fixture(params=["s3", "azure", "google"])
def root(request: pytest.FixtureRequest) -> tuple[str, dict[str, str]]:
    found: tuple[str, dict[str, str]] = request.getfixturevalue(f"{request.param}_root")
    return found


@pytest.fixture
def reading(tmp_path: Path, root: tuple[str, dict[str, str]]) -> StoreReading:
    """Starts a snapshot of shop.orders, with nothing buffered yet."""
    found = reading_in(tmp_path)
    found.lake.root, found.lake.storage_options = root
    return StoreReading(found, uploads=False)


@pytest.mark.parametrize("uploads", [False, True], ids=["from the host", "within the store"])
def test_store_a_new_table_consists_of_what_was_read(reading: StoreReading, uploads: bool) -> None:
    reading.uploads = uploads
    for number, first in enumerate((0, 10, 20)):
        reading.reading.chunk(number, [{"id": first + each, "value": "read"} for each in range(5)])
    reading.reading.chunk(3, [])
    reading.reading.chunk(4, [{"id": 70, "value": "all of it goes"}])
    hold(reading.reading, [image(UPDATE_AFTER, 100, 11, "held"), image(DELETE, 100, 12), image(DELETE, 100, 70)], 1)
    hold(reading.reading, [image(INSERT, 200, 99, "new")], 2)
    done = reading.publish(300)
    assert done.way == "files", done.reason
    assert (done.label, done.delta_version, done.files, done.rows) == (300, 0, 4, 15)
    rows = reading.lake.rows(NAME, "id", "value", "_sluice_order_key", "_sluice_operation")
    assert [row for row in rows if row[1] != "read"] == [(11, "held", 100, "update"), (99, "new", 200, "insert")]
    assert rows[0] == (0, "read", SINCE, "snapshot")
    assert {row[0] for row in rows} == {*range(5), 10, 11, 13, 14, *range(20, 25), 99}
    read = {path.stat().st_size for path in (reading.lake.folder / f"{NAME}-chunks").iterdir()}
    sizes = {size for name, size in reading.table.sizes().items() if name.endswith(".parquet")}
    assert len(sizes & read) == 1, "two chunks, of the same size, are as they were read"
    assert reading.lake.log(NAME).vacuum(retention_hours=0, enforce_retention_duration=False, dry_run=True) == []
    bounds = pa.table(reading.lake.log(NAME).get_add_actions(flatten=True))
    assert set(bounds["min.id"].to_pylist()) == {0, 10, 11, 20}


class KilledError(BaseException):
    """The simulated kill, after which nothing is cleaned up."""


def killed_at(point: str, patch: pytest.MonkeyPatch) -> None:
    """Makes the publication end at `point`, as if its process were killed."""
    put_file, put_new = StoreFolder.put_file, StoreFolder.put_new
    uploaded: list[str] = []

    def upload(folder: StoreFolder, file: Path, name: str = "") -> None:
        if point == "after a file" and len(uploaded) == 2:
            raise KilledError
        put_file(folder, file, name)
        uploaded.append(name)

    def commit(folder: StoreFolder, name: str, content: bytes) -> bool:
        if point == "before the commit":
            raise KilledError
        put_new(folder, name, content)
        raise KilledError

    patch.setattr(FilesInStore, "parallel", 1)
    patch.setattr(FilesInStore, "remove", lambda _: None)
    patch.setattr(StoreFolder, "put_file", upload)
    patch.setattr(StoreFolder, "put_new", commit)


@pytest.mark.parametrize("point", ["after a file", "before the commit"])
def test_store_fault_what_a_killed_publication_uploaded_goes_with_the_next_one(
    reading: StoreReading, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    for number in range(3):
        reading.reading.chunk(number, [{"id": number, "value": "read"}])
    with monkeypatch.context() as patch:
        killed_at(point, patch)
        with pytest.raises(KilledError):
            reading.publish(100)
    left = reading.data_files
    assert len(left) == (2 if point == "after a file" else 3)
    assert set(left) == set(left_files(left))
    assert reading.table.read(FIRST) is None
    assert reading.publish(100).way == "files"
    assert not set(left) & set(reading.data_files)
    assert len(reading.data_files) == 3
    assert reading.lake.rows(NAME, "id") == [(0,), (1,), (2,)]


def test_store_fault_the_table_of_a_killed_publication_is_found_by_the_next_one(
    reading: StoreReading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 1011: the next publication found the table of the killed one, and let Spark read and write all rows again."""
    for number in range(3):
        reading.reading.chunk(number, [{"id": number, "value": "read"}])
    with monkeypatch.context() as patch:
        killed_at("after the commit", patch)
        with pytest.raises(KilledError):
            reading.publish(100)
    left = reading.data_files
    done = reading.publish(100)
    assert (done.way, done.delta_version, done.rows, done.files) == ("files", 0, 3, 3)
    assert (done.reason, reading.data_files) == (BEFORE, left)
    assert reading.reading.records.kept[NAME].version == 0
    # Rows that were read again are in another folder. The existing table does not consist of these files, so the publication needs Spark.
    given = reading.publication(100)
    again = dataclasses.replace(
        given, chunks=StoredFiles(folder=given.chunks.folder.rename(given.chunks.folder.with_name("again")))
    )
    with pytest.raises(AttributeError):  # There is no such Spark.
        publish(NoSpark(), again, reading.lake.storage_options, reading.reading.records)  # type: ignore[arg-type]


def test_store_fault_a_commit_whose_answer_was_lost_is_not_made_again(
    reading: StoreReading, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading.reading.chunk(1, [{"id": 1, "value": "read"}])
    put_new = StoreFolder.put_new

    def repeated(folder: StoreFolder, name: str, content: bytes) -> bool:
        return put_new(folder, name, content) and put_new(folder, name, content)

    monkeypatch.setattr(StoreFolder, "put_new", repeated)
    done = reading.publish(100)
    assert (done.way, done.delta_version) == ("files", 0)
    assert reading.lake.rows(NAME, "id") == [(1,)]


def test_store_fault_files_stay_if_it_is_unknown_whether_they_are_a_table(
    reading: StoreReading, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading.reading.chunk(1, [{"id": 1, "value": "read"}])
    put_new = StoreFolder.put_new

    def unanswered(folder: StoreFolder, name: str, content: bytes) -> bool:
        put_new(folder, name, content)
        raise StoreError("the store does not answer")

    monkeypatch.setattr(StoreFolder, "put_new", unanswered)
    with pytest.raises(StoreError):
        reading.publish(100)
    assert reading.lake.rows(NAME, "id") == [(1,)]


def test_store_identity_a_table_that_another_program_makes_meanwhile_stays(
    reading: StoreReading, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading.reading.chunk(1, [{"id": 1, "value": "read"}])
    put_new = StoreFolder.put_new

    def late(folder: StoreFolder, name: str, content: bytes) -> bool:
        monkeypatch.setattr(StoreFolder, "put_new", put_new)
        folder.write(name, b"of another program")
        return put_new(folder, name, content)

    monkeypatch.setattr(StoreFolder, "put_new", late)
    with pytest.raises(TableError, match="another program created the Delta table"):
        reading.publish(100)
    assert reading.table.read(FIRST) == b"of another program"
    assert reading.data_files == []


def test_store_identity_a_path_of_a_new_table_that_has_files_is_left_to_spark(reading: StoreReading) -> None:
    reading.reading.chunk(1, [{"id": 1, "value": "read"}])
    reading.table.write("notes.txt", b"of somebody")
    with pytest.raises(AttributeError):  # There is no such Spark.
        reading.publish(100)
    assert list(reading.table.sizes()) == ["notes.txt"]


def test_s3_a_store_that_refuses_the_client_of_the_run_is_left_to_spark_before_anything_is_uploaded(
    tmp_path: Path, s3_root: tuple[str, dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = reading_in(tmp_path)
    found.lake.root, options = s3_root
    found.lake.storage_options = options
    reading = StoreReading(found, uploads=False)
    reading.reading.chunk(1, [{"id": 1, "value": "read"}])
    given = reading.publication(100)
    assert whole_files.why_no_commit(given, options) == ""
    why = whole_files.why_no_commit(given, {**options, "aws_secret_access_key": "another-secret"})
    assert "the run has no access of its own to the store" in why
    assert "another-secret" not in why
    monkeypatch.setattr(StoreFolder, "why_no_put_new", lambda *_: "no such profile")
    with pytest.raises(AttributeError):  # no such Spark
        reading.publish(100)
    assert reading.table.sizes() == {}


def fenced(refusal: Callable[[], str]) -> NoSpark:
    spark = NoSpark()
    spark.fence = Fence(refusal)
    return spark


def test_store_a_publication_that_is_late_makes_no_table_ha(reading: StoreReading) -> None:
    reading.reading.chunk(1, [{"id": 1, "value": "read"}])
    with pytest.raises(TableError, match="does not hold the run lock"):
        reading.publish(100, fenced(lambda: "this run does not hold the run lock of shop any more"))
    assert reading.table.sizes() == {}
    assert reading.publish(100).rows == 1


def test_store_a_run_that_stands_still_removes_no_file_of_the_table_that_another_run_makes_ha(
    reading: StoreReading, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run lists the files of a killed run and passes the fence. Then it is suspended, and another run publishes the table."""
    reading.reading.chunk(1, [{"id": 1, "value": "read"}])
    with monkeypatch.context() as patch:
        killed_at("before the commit", patch)
        with pytest.raises(KilledError):
            reading.publish(100)
    published: list[PublishedSnapshot] = []

    def meanwhile() -> str:
        if not published:
            published.append(reading.publish(100))
        return ""

    TableInStore(NAME, reading.table, Fence(meanwhile)).clear()
    assert [each.way for each in published] == ["files"]
    assert reading.lake.rows(NAME, "id") == [(1,)]


@pytest.mark.spark
def test_store_spark_continues_with_a_table_that_consists_of_what_was_read(
    lake: Lake, root: tuple[str, dict[str, str]]
) -> None:
    """A table that consists of uploaded files has the same rows as a table that Spark wrote. A later merge into it works too."""
    lake.root, lake.storage_options = root
    holds = Holding(lake.folder / "held")
    found = {}
    for number, way in enumerate(("auto", "spark")):
        holds.begin(f"shop.{way}")
        reading = Reading(lake, f"shop.{way}", ORDERS, holds, marks=MARKS)
        reading.chunk(1, [{"id": key, "value": "read"} for key in range(5)])
        hold(reading, [image(DELETE, 100, 3), image(INSERT, 100, 9, "held")], 100 + number)
        found[way] = reading.publish(100, since=SINCE, merge=way)
    assert [found[way].way for way in ("auto", "spark")] == ["files", "spark"]
    columns = ("id", "value", "_sluice_order_key", "_sluice_operation")
    assert lake.rows("shop.auto", *columns) == lake.rows("shop.spark", *columns)
    lake.merge({"shop.auto": [Changes(ORDERS, [image(UPDATE_AFTER, 200, 1, "later")])]})
    assert lake.rows("shop.auto", "id", "value")[1] == (1, "later")


@pytest.mark.spark
def test_store_spark_makes_a_table_where_a_killed_publication_left_files(
    lake: Lake, root: tuple[str, dict[str, str]]
) -> None:
    """The snapshot that uploaded the files was canceled, so no publication removes them."""
    lake.root, lake.storage_options, lake.way = *root, "spark"
    StoreFolder(lake.path(NAME), lake.storage_options).write(uploaded_name("0123456789ab", "0" * 32, 1), b"")
    lake.merge({NAME: [Changes(ORDERS, [image(INSERT, 10, 1, "merged")])]})
    assert lake.rows(NAME, "id") == [(1,)]
