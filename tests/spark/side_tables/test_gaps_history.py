"""Tests that a change log or a history that missed changes reports or corrects the gap, and that an error names what prevents the write."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Any

import deltalake
import pytest
from deltalake import TableFeatures
from deltalake.exceptions import CommitFailedError, DeltaError

from sluice.cdc_engine.states import HEALED_BY_ROWS, TableState
from sluice.object_stores.stored_files import StoredFiles
from sluice.spark_jobs.errors import TableError
from sluice.spark_jobs.fence import BY_HAND
from sluice.spark_jobs.maintain.side_tables import MaintainedSideTable, vacuum
from sluice.spark_jobs.maintain.tables import MaintainedTable
from sluice.spark_jobs.side_tables import change_log, columns, history, side_table, write
from sluice.spark_jobs.side_tables.history import History
from sluice.spark_jobs.side_tables.side_table import SideTable, side_app_id_of
from sluice.spark_jobs.snapshot import publish
from sluice.spark_jobs.snapshot.publication import Publication
from sluice.spark_jobs.staged_batch import app_id_of
from sluice.spark_jobs.table_owner import OWNER_PROPERTY, Owner
from sluice.spark_jobs.tables.delta_table import DeltaTable
from tests.spark.side_tables.fix_side_tables import NAME, ORDERS, LoggedTable, changes, delete, insert, update
from tests.spark.staged import LEDGER_ID, TIME_US, SchemaChange, Segment, Truncate


@pytest.fixture
def logged(tmp_path: Path) -> LoggedTable:
    return LoggedTable(tmp_path)


def both(logged: LoggedTable, directory: Path, **wanted: Any) -> None:
    logged.merge(directory)
    logged.write(directory, **wanted)


def log(logged: LoggedTable) -> list[tuple[Any, ...]]:
    return logged.rows(logged.target.change_log, "operation, order_key", 'order_key, "row"')


def test_a_run_that_dies_before_the_rows_of_a_beginning_history_leaves_nothing_out_history(
    logged: LoggedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged.merge(logged.stage(changes([insert(1, 16, "a"), insert(2, 32, "b")])))
    directory = logged.stage(changes([update(1, 48, "A")]))
    logged.merge(directory)
    make = SideTable.make

    def dies(self: SideTable, *given: Any) -> None:
        make(self, *given)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(SideTable, "make", dies)
        with pytest.raises(KeyboardInterrupt):
            logged.write(directory, change_log="")
    logged.write(directory)
    assert logged.history() == [(1, "a", 16, 48, False), (1, "A", 48, None, True), (2, "b", 32, None, True)]


def test_settings_that_were_out_of_conf_for_a_while_leave_a_gap_row_history(logged: LoggedTable) -> None:
    both(logged, logged.stage(changes([insert(1, 16, "a"), insert(2, 16, "b"), insert(3, 16, "c")])))
    both(
        logged,
        logged.stage(changes([update(1, 32, "A"), delete(2, 48, "b"), insert(4, 64, "d")])),
        change_log="",
        history="",
    )
    last = logged.stage(changes([update(4, 80, "D")]))
    logged.merge(last)
    for _ in range(2):
        logged.write(last)
    assert logged.history() == [
        (1, "a", 16, 32, False),
        (1, "A", 32, None, True),
        (2, "b", 16, 64, False),
        (3, "c", 16, None, True),
        (4, "d", 64, 80, False),
        (4, "D", 80, None, True),
    ]
    assert log(logged) == [("insert", 16)] * 3 + [("gap", 80), ("update", 80)]


@pytest.mark.found
@pytest.mark.parametrize("maintained", [False, True])
def test_what_another_program_restored_is_compared_with_its_table_or_has_a_gap_history(
    logged: LoggedTable, maintained: bool
) -> None:
    """Defect 1052: a RESTORE keeps the transactions of a table, so nobody noticed that a history or a change log had lost rows. Rows that
    were deleted since the restored version stayed open for ever.
    """
    both(logged, logged.stage(changes([insert(1, 16, "a"), insert(2, 16, "b"), insert(3, 16, "c")])))
    both(logged, logged.stage(changes([update(1, 32, "A"), delete(2, 48, "b")])))
    owner = Owner(ledger_id=LEDGER_ID, destination="shop", table=NAME)
    current_state = MaintainedTable(owner=owner, path=logged.target.path, records=logged.records, fence=BY_HAND)
    for kind, path in logged.paths.items():
        deltalake.DeltaTable(path).restore(1)
        if maintained:
            assert vacuum(MaintainedSideTable(current_state=current_state, path=path, kind=kind), 168)
    directory = logged.stage(changes([update(3, 64, "C")]))
    logged.merge(directory)
    for _ in range(2):
        logged.write(directory)
    assert logged.history() == [
        (1, "a", 16, 32, False),
        (1, "A", 32, None, True),
        (2, "b", 16, 48, False),
        (3, "c", 16, 64, False),
        (3, "C", 64, None, True),
    ]
    assert log(logged) == [("insert", 16)] * 3 + [("gap", 64), ("update", 64)]


@pytest.mark.found
@pytest.mark.parametrize("restored_later", [False, True])
def test_fault_a_run_that_ends_after_it_has_compared_a_restored_history_undoes_no_change_history(
    logged: LoggedTable, monkeypatch: pytest.MonkeyPatch, restored_later: bool
) -> None:
    """Defect 1052: the history counted as restored until the record of the batch was stored. If the run ended before that, the next run
    made the history equal to the rows from before the batch, and skipped the batch's changes.
    """
    both(logged, logged.stage(changes([insert(1, 16, "a"), insert(2, 16, "b"), insert(3, 16, "c")])))
    both(logged, logged.stage(changes([update(1, 32, "A"), delete(2, 48, "b")])))
    directory, apply = logged.stage(changes([update(3, 64, "C"), delete(1, 64, "A")])), History.apply
    logged.merge(directory)
    if not restored_later:
        deltalake.DeltaTable(logged.target.history).restore(1)

    def dies(self: History, segment: Any, user_metadata: str) -> bool:
        assert apply(self, segment, user_metadata)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(History, "apply", dies)
        with pytest.raises(KeyboardInterrupt):
            logged.write(directory)
    if restored_later:
        deltalake.DeltaTable(logged.target.history).restore(1)
    for _ in range(2):
        logged.write(directory)
    versions = [(1, "a", 16, 32, False), (1, "A", 32, 64, False), (2, "b", 16, 48, False)]
    if restored_later:
        versions = [(1, "a", 16, 64, False), (2, "b", 16, 64, False)]
    assert logged.history() == [*versions, (3, "c", 16, 64, False), (3, "C", 64, None, True)]


@pytest.mark.found
def test_spark_compares_a_restored_history_with_a_large_table_history(logged: LoggedTable) -> None:
    """Defect 1052: only the rows of the batch were counted, so deltalake compared tables of any size in the memory of the run."""
    both(logged, logged.stage(changes([insert(1, 16, "a"), insert(2, 16, "b")])))
    share, lacked = logged.share(logged.stage(changes([update(1, 32, "A")]))), list[int]()
    for _ in range(2):
        lacked.append(write._lacked_rows(share.table(logged.target.history, history.KIND), share))
        deltalake.DeltaTable(logged.target.history).restore(0)
    assert lacked == [0, 2]


@pytest.mark.parametrize("statement", [Truncate(96), SchemaChange(96, ORDERS)], ids=["truncate", "schema"])
def test_a_gap_that_ends_with_a_statement_alone_is_made_good_too_history(
    logged: LoggedTable, statement: Segment
) -> None:
    both(logged, logged.stage(changes([insert(1, 16, "a")])))
    both(logged, logged.stage(changes([update(1, 32, "A"), insert(2, 48, "b")])), change_log="", history="")
    directory = logged.stage(statement)
    for _ in range(2):
        logged.write(directory)
    gone = isinstance(statement, Truncate)
    assert logged.history() == [
        (1, "a", 16, 32, False),
        (1, "A", 32, 96 if gone else None, not gone),
        (2, "b", 48, 96 if gone else None, not gone),
    ]


def test_where_nothing_is_left_out_there_is_no_gap_history(logged: LoggedTable) -> None:
    both(logged, logged.stage(changes([insert(1, 16)])))
    both(logged, logged.stage(changes([insert(2, 32)])))
    assert log(logged) == [("insert", 16), ("insert", 32)]
    assert deltalake.DeltaTable(logged.target.history).version() == 2


def test_a_re_snapshot_has_one_row_in_the_log_of_its_table_and_no_gap_history(logged: LoggedTable) -> None:
    both(logged, logged.stage(changes([insert(1, 16)])))
    both(logged, logged.stage(changes([insert(2, 64)])), change_log="")  # This has the effect of a publication at 64.
    given = Publication(
        snapshot_id="0123456789ab",
        owner=Owner(ledger_id=LEDGER_ID, destination="shop", table=NAME),
        target=logged.target,
        columns=(),
        key=("id",),
        chunks=StoredFiles(folder=logged.folder),
        rows=2,
        changes=StoredFiles(folder=logged.folder),
        cascades=StoredFiles(folder=logged.folder / "cascades"),
        order_key=64,
        read_at_us=TIME_US,
        run="r",
        epoch=1,
        start={},
        end={},
    )
    for _ in range(2):  # The publication is repeated.
        publish._append_read_row(BY_HAND, given, 64, {})
    both(logged, logged.stage(changes([insert(3, 80)])))
    assert log(logged) == [("insert", 16), ("read", 64), ("insert", 80)]


def test_a_log_of_a_table_that_another_ledger_took_over_continues_with_its_rows_history(logged: LoggedTable) -> None:
    """After `position set` and `lake accept`, both tables have another owner, and no position of this owner."""
    both(logged, logged.stage(changes([insert(1, 16, "a"), insert(2, 16, "b")])))
    logged.merge(logged.stage(changes([update(1, 32, "A")])))
    owner = Owner(ledger_id="ba9876543210", destination="shop", table=NAME)
    current_state = deltalake.DeltaTable(logged.target.path)
    current_state.alter.set_table_properties({OWNER_PROPERTY: owner.to_text()}, raise_if_not_exists=False)
    for kind, path in (("log", logged.target.change_log), ("history", logged.target.history)):
        name = side_app_id_of("shop", owner.ledger_id, kind, NAME)
        deltalake.DeltaTable(path).alter.set_table_name(name)
    both(logged, logged.stage(changes([update(2, 1 << 50, "B")]), ledger_id=owner.ledger_id))
    at = 1 << 50
    assert logged.history() == [
        (1, "a", 16, 32, False),
        (1, "A", 32, None, True),
        (2, "b", 16, at, False),
        (2, "B", at, None, True),
    ]
    assert log(logged) == [("insert", 16), ("insert", 16), ("gap", at), ("update", at)]


def taking(logged: LoggedTable) -> tuple[History, DeltaTable]:
    table = SideTable(
        NAME, logged.target.history, side_app_id_of("shop", LEDGER_ID, "history", NAME), {}, fence=BY_HAND
    ).open()
    owner = Owner(ledger_id=LEDGER_ID, destination="shop", table=NAME)
    current_state = DeltaTable(NAME, logged.target.path, app_id_of(owner), {})
    current_state.refresh()
    return History(table=table, folder=logged.folder), current_state


def test_a_publication_at_the_position_of_a_history_is_not_that_of_another_ledger_history(logged: LoggedTable) -> None:
    logged.write(logged.stage(changes([insert(1, 96, "a")])))
    for note in ("b", "c"):
        logged.merge(logged.stage(changes([insert(1, 96 if note == "b" else 112, note)])))
        given, current_state = taking(logged)
        assert given.take(current_state, current_state.snapshot.version, ["id"], (96, TIME_US), "{}")
    found = sorted(logged.history(), key=lambda row: str(row[1]))
    assert found == [(1, "a", 96, 96, False), (1, "b", 96, 112, False), (1, "c", 112, None, True)]


def test_a_current_state_table_that_deltalake_cannot_read_is_refused_without_spark_history(
    logged: LoggedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged.merge(logged.stage(changes([insert(1, 16)])))
    deltalake.DeltaTable(logged.target.path).alter.add_feature(
        TableFeatures.DeletionVectors, allow_protocol_versions_increase=True
    )
    monkeypatch.setattr(history, "FEATURES", frozenset())
    given, current_state = taking(logged)
    with pytest.raises(
        TableError, match="the current-state table, which has the features deletionVectors that only Spark can read"
    ):
        given.take(current_state, current_state.snapshot.version, ["id"], (16, TIME_US), "{}")


@pytest.mark.parametrize(
    ("error", "own", "for_good"),
    [
        (DeltaError("Generic error: it is broken"), True, False),
        (OSError(28, "No space left on device"), False, False),
        (OSError("Generic S3 error: error sending request"), False, False),
        (CommitFailedError("Unsupported table features required: [RowTracking]"), True, True),
        (CommitFailedError("a concurrent transaction"), True, False),
    ],
)
def test_only_what_the_lake_says_of_itself_delays_all_tables_history(
    logged: LoggedTable, monkeypatch: pytest.MonkeyPatch, error: Exception, own: bool, for_good: bool
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(change_log, "write_deltalake", fails)
    with pytest.raises(TableError) as refused:
        logged.write(logged.stage(changes([insert(1, 16)])))
    assert (refused.value.own, refused.value.for_good) == (own, for_good)


def test_no_state_that_a_re_snapshot_resolves_names_log_or_history_history() -> None:
    """Otherwise such a table would be re-snapshotted forever."""
    texts = [inspect.getsource(each) for each in (change_log, columns, history, side_table, write)]
    words = {node.value for text in texts for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}
    assert "IMAGE_NOT_FULL" in words
    assert not words & {TableState(each).value for each in HEALED_BY_ROWS}
