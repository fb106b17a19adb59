"""Tests that tables with a change log have a second file per segment, which contains every before image. The first file does not change."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from sluice.cdc_engine.contracts import RowEventKind, TableChangeKind
from sluice.cdc_engine.staging import StagingRules, stage
from sluice.cdc_engine.staging.reader import is_whole
from sluice.spark_jobs.staged_files.read import read_staged_batch
from tests.binlog.rows.event_bytes import KEYLESS, ORDERS, block, event
from tests.staging.test_staging import DELETE, INSERT, UPDATE, batch, change, changes, files, rows_block, whole

LOGGED = {ORDERS.name, KEYLESS.name}


def operations(path: Path) -> list[tuple[int, int]]:
    found: Any = pq.read_table(path)
    return list(zip(found["_sluice_operation"].to_pylist(), found["id"].to_pylist(), strict=True))


def test_every_preimage_is_in_the_log_and_the_segment_stays_as_it_is_history(tmp_path: Path) -> None:
    given = rows_block(
        (ORDERS, INSERT, [(1, 10, "a")]),
        (ORDERS, UPDATE, [(1, 10, "a"), (1, 11, "a"), (1, 11, "a"), (2, 11, "a")]),
        (ORDERS, DELETE, [(2, 11, "a")]),
    )
    plain = stage(batch(whole(given)), "shop", 7, tmp_path / "plain").path
    path = stage(batch(whole(given)), "shop", 7, tmp_path / "logged", StagingRules(logged=LOGGED)).path
    (segment,) = changes(path)
    assert files(plain)[segment.file.name] == files(path)[segment.file.name]
    assert operations(path / segment.log) == [(1, 1), (2, 1), (3, 1), (2, 1), (3, 2), (4, 2)]
    assert segment.log_rows == 6
    assert read_staged_batch(path).tables[0].changes[0].log == segment.log


@pytest.mark.found
def test_fault_a_batch_without_the_file_of_a_change_log_is_not_whole_history(tmp_path: Path) -> None:
    """Defect 79: a batch whose only missing file was that of a change log was handed out again, and its run failed."""
    given = rows_block((ORDERS, INSERT, [(1, 10, "a")]))
    path = stage(batch(whole(given)), "shop", 7, tmp_path, StagingRules(logged=LOGGED)).path
    (segment,) = changes(path)
    assert is_whole(path)
    (path / segment.log).unlink()
    assert not is_whole(path)


def test_a_table_without_a_key_has_all_in_both_history(tmp_path: Path) -> None:
    given = rows_block((KEYLESS, UPDATE, [(1, 10, "a"), (1, 11, "a")]))
    (segment,) = changes(stage(batch(whole(given)), "shop", 7, tmp_path, StagingRules(logged=LOGGED)).path)
    assert segment.rows == segment.log_rows == 2


def test_the_log_ends_where_its_segment_does_history(tmp_path: Path) -> None:
    first, second = (rows_block((ORDERS, INSERT, [(key, 1, "a")]), start=at) for key, at in ((1, 4), (2, 90_000)))
    truncate = change(TableChangeKind.TRUNCATE, 80_000)
    path = stage(batch(whole(first), truncate, whole(second)), "shop", 7, tmp_path, StagingRules(logged=LOGGED)).path
    assert [operations(path / each.log) for each in changes(path)] == [[(1, 1)], [(1, 2)]]


def test_preimages_of_images_that_lack_columns_say_so_history(tmp_path: Path) -> None:
    """With MINIMAL, the before image has the key, and the after image has the changed columns."""
    whole_update = event(RowEventKind.UPDATE, [(1, 5, "x"), (1, 6, "x")])
    minimal = event(RowEventKind.DELETE, [(1,)], present=0b001)
    given = block([(ORDERS, RowEventKind.UPDATE, whole_update), (ORDERS, RowEventKind.DELETE, minimal)])
    (segment,) = changes(stage(batch(whole(given)), "shop", 7, tmp_path, StagingRules(logged=LOGGED)).path)
    found = pq.read_table(tmp_path / f"{_only(tmp_path)}" / segment.log)
    assert found["_sluice_operation"].to_pylist() == [2, 3, 4]
    assert found["_sluice_present_0"].to_pylist() == [0b111, 0b111, 0b001]


def _only(folder: Path) -> str:
    (found,) = folder.iterdir()
    return found.name
