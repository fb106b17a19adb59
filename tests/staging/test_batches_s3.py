"""Tests staged batches in an object store: they are complete or absent, removed according to the ledger, and downloaded by runs.

The stores are an S3 server, Azurite, fake-gcs-server, and pyarrow's own store in a folder, which replaces a store in tests of crashes.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from benchmarks.servers.azurite.server import ACCOUNT, AzuriteServer
from benchmarks.servers.fake_gcs.server import FakeGcsServer
from benchmarks.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server
from sluice.cdc_engine.contracts import DestinationDir, LedgerLocation, OutstandingBatch
from sluice.cdc_engine.errors import LedgerLostError, StagingError
from sluice.cdc_engine.instance.engine.kept_state import refuse_lost_ledger
from sluice.cdc_engine.staging.batches import StagedBatches
from sluice.cdc_engine.table_meta.history.kept.repository import SchemaRepository
from sluice.console.lake.store import store_findings
from sluice.object_stores.folder import StoreFolder
from sluice.spark_jobs.errors import SparkJobError, StagedBatchError
from sluice.spark_jobs.staged_files.local_copy import FETCHED, local_copy
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.uploaded_files import UploadedFiles, UploadSettings
from tests.fix_ledgers import LEDGER, MemoryLedger
from tests.orchestration.fix_location import make_config
from tests.spark.staged import INSERT, Changes, Image, Schema, stage
from tests.staging.test_stager_contract import no_more, orders, record, staging

NAMED = {"aws_access_key_id": "$LAKE_ACCESS", "aws_secret_access_key": "$LAKE_SECRET"}
OTHER = "ffffffffffff"


@dataclasses.dataclass
class Store:
    """A prefix in a store. `options` has the storage options with their values. `named` has the same options as conf/ has them, with names
    of variables instead of secrets.
    """

    url: str
    options: dict[str, str]
    named: dict[str, str]

    def directory(self, root: Path, host: str = "host") -> DestinationDir:
        location = LedgerLocation(
            destination="shop",
            directory=root / host / "shop",
            staging=self.url,
            storage_options=tuple(self.named.items()),
        )
        return DestinationDir.of(location)

    def batch(self, name: str, ledger: str = LEDGER.ledger_id) -> StoreFolder:
        return StoreFolder(f"{self.url}/shop/{ledger}/{name}", self.options)


@pytest.fixture
def folder_store(tmp_path: Path) -> Store:
    return Store((tmp_path / "store").as_uri(), {}, {})


@pytest.fixture
def s3_prefix(s3_store: S3Server, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("LAKE_ACCESS", ACCESS_KEY)
    monkeypatch.setenv("LAKE_SECRET", SECRET_KEY)
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    url = f"s3://{s3_store.bucket}/{uuid.uuid4().hex[:12]}"
    return Store(url, s3_store.options, {**s3_store.options, **NAMED})


@pytest.fixture
def google_prefix(fake_gcs: FakeGcsServer, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("LAKE_ACCOUNT", fake_gcs.options["google_service_account_key"])
    url = f"gs://{fake_gcs.bucket}/{uuid.uuid4().hex[:12]}"
    return Store(url, fake_gcs.options, {"google_service_account_key": "$LAKE_ACCOUNT"})


@pytest.fixture
def azure_prefix(azurite: AzuriteServer, monkeypatch: pytest.MonkeyPatch) -> Store:
    monkeypatch.setenv("LAKE_KEY", azurite.options["azure_storage_account_key"])
    url = f"abfss://{azurite.container}@{ACCOUNT}.dfs.core.windows.net/{uuid.uuid4().hex[:12]}"
    return Store(url, azurite.options, {**azurite.options, "azure_storage_account_key": "$LAKE_KEY"})


def staged_at(directory: Path, delivery: int = 7) -> tuple[Path, OutstandingBatch]:
    """Stages a batch of three rows in the folder, and returns the ledger's record of it."""
    part = orders(1, 2, 3)
    made = staging(directory, MemoryLedger(LEDGER))(part, record(part, delivery), no_more)
    known = dataclasses.replace(record(part, delivery), path=str(made.path.relative_to(directory)), rows=3)
    return made.path, known


def require_life_of_a_batch(store: Store, tmp_path: Path) -> None:
    """Checks a batch from its staging to its removal, as a run on the same host and a run on another host see it."""
    directory = store.directory(tmp_path)
    batches = StagedBatches(directory)
    assert batches.trace() == ""
    folder, known = staged_at(directory)
    batches.publish(folder, LEDGER.ledger_id)
    stored = store.batch(folder.name)
    assert stored.sizes() == {file.name: file.stat().st_size for file in folder.iterdir()}
    assert batches.is_whole(known)
    with local_copy(folder, stored.url, store.options) as here:
        assert here == folder
    elsewhere = store.directory(tmp_path, "another") / known.path
    with local_copy(elsewhere, stored.url, store.options) as here:
        downloaded = read_staged_batch(here, stored.url)
        (segment,) = downloaded.tables[0].changes
        assert segment.stored == f"{stored.url}/{segment.file.name}"
        assert pq.read_table(segment.file).num_rows == 3
        assert (here / "manifest.json").stat().st_mtime <= json.loads((here / "manifest.json").read_text())[
            "staged_at_us"
        ] / 1e6
    assert not list(elsewhere.parent.iterdir())
    batches.publish(folder, OTHER)
    batches.remove_others(LEDGER.ledger_id, [known.path])
    assert batches.is_whole(known)
    batches.remove_others(LEDGER.ledger_id, [])
    assert not batches.is_whole(known)
    assert not folder.exists()
    assert str(batches.trace()) == f"{store.url}/shop"
    with (
        pytest.raises(StagedBatchError, match="not staged to its end, or the batch was removed"),
        local_copy(folder, stored.url, store.options),
    ):
        pass
    batches.remove(folder, OTHER)
    assert batches.trace() == ""


@pytest.mark.servers
def test_s3_a_batch_is_whole_until_it_is_acked_and_others_are_left_alone(s3_prefix: Store, tmp_path: Path) -> None:
    require_life_of_a_batch(s3_prefix, tmp_path)


@pytest.mark.servers
@pytest.mark.store
def test_google_a_batch_is_whole_until_it_is_acked(google_prefix: Store, tmp_path: Path) -> None:
    require_life_of_a_batch(google_prefix, tmp_path)


@pytest.mark.servers
@pytest.mark.store
def test_azure_a_batch_is_whole_until_it_is_acked(azure_prefix: Store, tmp_path: Path) -> None:
    require_life_of_a_batch(azure_prefix, tmp_path)


def test_s3_a_batch_is_the_same_in_a_store_that_is_a_folder(folder_store: Store, tmp_path: Path) -> None:
    require_life_of_a_batch(folder_store, tmp_path)


@pytest.mark.parametrize("location", ["folder_store", pytest.param("s3_prefix", marks=pytest.mark.servers)])
def test_s3_ha_a_batch_that_another_host_removes_in_the_same_moment_is_removed(
    location: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """This host listed the files of the batch before the other host removed them."""
    store: Store = request.getfixturevalue(location)
    (tmp_path / "batch").mkdir()
    for name in ("manifest.json", "rows.parquet"):
        (tmp_path / "batch" / name).write_text("{}")
    ours, theirs = store.batch("1-1"), store.batch("1-1")
    ours.put(tmp_path / "batch")
    seen = ours.sizes()
    assert len(seen) == 2
    monkeypatch.setattr(ours, "sizes", lambda: seen)
    theirs.remove(first="manifest.json")
    ours.remove(first="manifest.json")
    assert theirs.sizes() == {}


def test_s3_fault_what_was_put_in_part_is_no_batch(
    folder_store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process crashes between two files, and while it puts the batch again over an older one of the same name."""
    directory = folder_store.directory(tmp_path)
    folder, known = staged_at(directory)
    batches, put = StagedBatches(directory), StoreFolder._put

    def breaks(self: StoreFolder, file: Path, name: str) -> None:
        if name == "manifest.json":
            raise KeyboardInterrupt
        put(self, file, name)

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(StoreFolder, "_put", breaks)
            with pytest.raises(KeyboardInterrupt):
                batches.publish(folder, LEDGER.ledger_id)
        assert folder_store.batch(folder.name).sizes()
        assert not batches.is_whole(known)
        batches.publish(folder, LEDGER.ledger_id)
        assert batches.is_whole(known)
    segment = next(file.name for file in folder.glob("*.parquet"))
    (tmp_path / "store" / "shop" / LEDGER.ledger_id / folder.name / segment).write_bytes(b"short")
    assert not batches.is_whole(known)


def test_s3_fault_what_an_older_run_derived_on_this_host_is_not_taken_for_the_stores(
    folder_store: Store, tmp_path: Path
) -> None:
    """The older run was killed before it could upload its derived changes. A run on another host derived them again, and merged those."""
    folder = stage(
        tmp_path / "staging", {"shop.orders": [Changes(Schema({"id": "int"}), [Image(INSERT, 1, {"id": 1})])]}
    )
    stored = folder_store.batch(folder.name)
    stored.put(folder, last="manifest.json")
    for name in ("derived.json", "orders.0.parquet"):
        (folder / "derived").mkdir(exist_ok=True)
        (folder / "derived" / name).write_text("old.")
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "derived.json").write_text("new.")
    stored.put(tmp_path / "new", last="derived.json", below="derived/")
    with local_copy(folder, stored.url, {}) as here:
        assert here == folder
        assert {file.name: file.read_text() for file in (here / "derived").iterdir()} == {"derived.json": "new."}


def test_s3_a_lost_ledger_is_seen_by_what_the_store_has(folder_store: Store, tmp_path: Path) -> None:
    directory = folder_store.directory(tmp_path)
    folder, _ = staged_at(directory)
    StagedBatches(directory).publish(folder, OTHER)
    shutil.rmtree(directory)
    with pytest.raises(LedgerLostError, match=r"store/shop.* exists"):
        refuse_lost_ledger(MemoryLedger(), SchemaRepository(directory / "schema.jsonl"), directory)


def test_s3_files_that_a_run_uploads_for_spark_stay_until_its_sessions_close(
    folder_store: Store, tmp_path: Path
) -> None:
    rows = tmp_path / "rows"
    rows.mkdir()
    pq.write_table(pa.table({"n": [1, 2]}), rows / "one.parquet")
    url = f"{folder_store.url}/_sluice_uploaded/shop"
    left = StoreFolder(f"{url}/1000000000-killed", {})
    left.put(rows)
    uploaded = UploadedFiles(UploadSettings(url=url))
    urls = [uploaded.location(rows), uploaded.location(rows / "one.parquet")]
    assert all(location.startswith(f"{url}/") for location in urls)
    assert StoreFolder(urls[0], {}).sizes() == {"_uploaded": 0, "one.parquet": (rows / "one.parquet").stat().st_size}
    assert not left.sizes()
    uploaded.close()
    assert StoreFolder(url, {}).sizes() == {}
    assert UploadedFiles(UploadSettings()).location(rows) == rows.as_uri()


@pytest.mark.servers
@pytest.mark.parametrize("trouble", ["refused", "away"])
def test_s3_a_store_that_fails_is_reported_without_credentials_and_nothing_is_lost(
    s3_prefix: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    directory = s3_prefix.directory(tmp_path)
    folder, known = staged_at(directory)
    batches = StagedBatches(directory)
    batches.publish(folder, LEDGER.ledger_id)
    monkeypatch.setenv("LAKE_SECRET", "another-secret")
    options = {**s3_prefix.options, "aws_secret_access_key": "another-secret"}
    if trouble == "away":
        s3_prefix.named["aws_endpoint_url"] = options["aws_endpoint_url"] = "http://127.0.0.1:1"
    failing, fresh = (StagedBatches(s3_prefix.directory(tmp_path, host)) for host in ("host", "another"))
    reported = []
    for act in (lambda: failing.publish(folder, LEDGER.ledger_id), lambda: failing.is_whole(known), fresh.trace):
        with pytest.raises(StagingError) as raised:
            act()
        reported.append(str(raised.value))
    with pytest.raises(SparkJobError) as away, local_copy(folder, s3_prefix.batch(folder.name).url, options):
        pass
    assert not isinstance(away.value, StagedBatchError)
    monkeypatch.delenv("LAKE_SECRET")
    with pytest.raises(StagingError, match="LAKE_SECRET"):
        failing.is_whole(known)
    for secret in (SECRET_KEY, ACCESS_KEY, "another-secret"):
        assert secret not in f"{reported} {away.value} {failing._location!r} {directory!r} {s3_prefix.batch('x')!r}"
    monkeypatch.setenv("LAKE_SECRET", SECRET_KEY)
    failing.remove(tmp_path / "staging" / "gone", LEDGER.ledger_id)
    assert batches.is_whole(known)


@pytest.mark.servers
def test_s3_check_tests_the_store_of_staging(s3_prefix: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = {"staging": s3_prefix.url, "storage_options": s3_prefix.named}
    config = make_config(tmp_path).model_copy(update=said)
    assert store_findings(config, starts_spark=False) == ([], [])
    monkeypatch.setenv("LAKE_SECRET", "another-secret")
    (problem,), _ = store_findings(config, starts_spark=False)
    assert problem.startswith(f"staging {s3_prefix.url} cannot be written: ")
    assert "another-secret" not in problem


def test_s3_local_copies_of_a_killed_run_are_removed_by_the_next(folder_store: Store, tmp_path: Path) -> None:
    directory = folder_store.directory(tmp_path)
    folder, known = staged_at(directory)
    StagedBatches(directory).publish(folder, LEDGER.ledger_id)
    elsewhere = folder_store.directory(tmp_path, "another") / known.path
    left = elsewhere.with_name(f"1-1-1-1{FETCHED}")
    left.mkdir(parents=True)
    with local_copy(elsewhere, folder_store.batch(folder.name).url, {}):
        assert not left.exists()
