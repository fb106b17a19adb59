"""Tests which records of the schema history apply at a position. Order keys decide within an epoch of one server. Otherwise executed sets
decide, if they are known.
"""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.cdc_engine.position import Position
from sluice.cdc_engine.table_meta.history.kept.holding import holds_at, needed
from sluice.cdc_engine.table_meta.history.kept.repository import HistoryRecord, RecordKind
from tests.scale.fix_many_tables import counted

ONE = "3e11fa47-71ca-11e1-9e33-c80aa9429562"
OTHER = "4e11fa47-71ca-11e1-9e33-c80aa9429562"


def at(offset: int, executed: int, *, epoch: int = 1) -> Position:
    """Returns a position: in epoch 1 on server ONE, and in later epochs on server OTHER. `executed` is the number of the last executed
    transaction of server ONE, or 0 if the executed set is unknown.
    """
    server = ONE if epoch == 1 else OTHER
    gtid_set = f"{ONE}:1-{executed}" if executed else ""
    return Position(epoch=epoch, file="b.000001", offset=offset, gtid_set=gtid_set, server_uuid=server)


def record(kind: RecordKind, position: Position, table: str = "orders") -> HistoryRecord:
    return HistoryRecord(
        kind=kind, position=position, database="shop", table="" if kind is RecordKind.SERVER else table
    )


STATEMENT = record(RecordKind.DDL, at(900, 5))  # This is the sixth transaction.


@pytest.mark.parametrize(
    ("position", "holds"),
    [
        (at(899 - 16, 5), False),
        (at(900, 6), True),
        (at(5000, 4, epoch=2), False),
        (at(5000, 5, epoch=2), False),
        (at(100, 6, epoch=2), True),
        (at(100, 0, epoch=2), True),
    ],
)
def test_ddl_a_statement_applies_at_positions_that_have_executed_it(position: Position, *, holds: bool) -> None:
    assert holds_at(STATEMENT, position) == holds


@pytest.mark.parametrize("kind", [RecordKind.SERVER, RecordKind.DATABASE, RecordKind.SNAPSHOT])
def test_ddl_a_schema_snapshot_is_valid_from_its_position_on(kind: RecordKind) -> None:
    taken = record(kind, at(900, 5))
    assert [holds_at(taken, at(100, executed, epoch=2)) for executed in (4, 5, 6)] == [False, True, True]


def test_ddl_an_epoch_of_another_server_is_no_numbering() -> None:
    """Order keys of one epoch are comparable only on one server. A consumer's own stream may have begun the epoch on another server than
    the live stream.
    """
    elsewhere = dataclasses.replace(at(100, 6), server_uuid=OTHER)
    assert holds_at(STATEMENT, elsewhere)
    assert not holds_at(STATEMENT, dataclasses.replace(at(5000, 5), server_uuid=OTHER))


def test_ddl_all_that_anyone_continues_from_is_kept() -> None:
    """The consumer has moved to the other server, on which offsets cannot be compared. By its executed set, it is before the first
    statement. So this statement, and the snapshot of the table before it, are kept.
    """
    server, table = record(RecordKind.SERVER, at(4, 2)), record(RecordKind.SNAPSHOT, at(4, 2))
    first, second, third = (record(RecordKind.DDL, at(100 * n, n)) for n in (5, 7, 9))
    records, lake, consumer = [server, table, first, second, third], at(850, 8), at(9000, 4, epoch=2)
    assert needed(records, [lake]) == [server, second, third]
    assert needed(records, [lake, consumer]) == records
    assert needed(records, [lake, at(9000, 6, epoch=2)]) == [server, first, second, third]


def plainly_needed(records: list[HistoryRecord], positions: list[Position]) -> list[HistoryRecord]:
    """Returns what `needed` must return. Follows the definition: compares each record with each position."""
    kept: set[int] = set()
    for position in positions:
        last = dict[tuple[bool, str, str], int]()
        for index, each in enumerate(records):
            if holds_at(each, position):
                last[each.kind is RecordKind.SERVER, each.database, each.table] = index
            else:
                kept.add(index)
        kept.update(last.values())
    return [each for index, each in enumerate(records) if index in kept]


positions = st.builds(
    at, st.integers(1, 9).map(lambda n: n * 100), st.integers(0, 3), epoch=st.integers(1, 2)
) | st.integers(1, 9).map(lambda n: dataclasses.replace(at(n * 100, 0), server_uuid=""))
histories = st.lists(
    st.builds(
        record,
        st.sampled_from([RecordKind.SERVER, RecordKind.SNAPSHOT, RecordKind.DDL]),
        positions,
        st.sampled_from("ab"),
    )
)


@pytest.mark.found
def test_ddl_positions_with_one_order_key_and_different_executed_sets_keep_the_records_of_each() -> None:
    """Defect 1027: if the executed set of one of two positions with the same order key was unknown, records that the other position needs
    were removed.
    """
    records = [record(RecordKind.SERVER, at(300, 2)), record(RecordKind.SERVER, at(700, 3))]
    known, unknown = at(100, 1, epoch=2), at(100, 0, epoch=2)
    assert needed(records, [known, unknown]) == needed(records, [unknown, known]) == records
    assert needed(records, [unknown]) == records[-1:]


@given(histories, st.lists(positions))
def test_ddl_what_is_kept_is_what_each_position_needs(records: list[HistoryRecord], positions: list[Position]) -> None:
    assert needed(records, positions) == plainly_needed(records, positions)


@pytest.mark.scale
@pytest.mark.found
def test_ddl_many_positions_cost_no_more_than_many_records() -> None:
    """Defect 27: each position was compared with each record, which took 9 s at a start with 3,000 tables whose snapshots were open."""
    records = [record(RecordKind.SNAPSHOT, at(100 * n, n), f"t{n}") for n in range(1, 1001)]
    positions = [at(100 * n + 50, n) for n in range(1, 1001)]
    with counted() as found:
        assert needed(records, positions) == records
    assert found.calls < 50 * len(records)
