"""Tests transforms of row events and of rows from snapshots: what the function gets and may return, and which results stop the table."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.cdc_engine.binlog.entries.shown_rules import ShownRules
from sluice.cdc_engine.binlog.result_rows.decoder import ResultDecoder
from sluice.cdc_engine.binlog.row_rules.history_rows import ROW_END
from sluice.cdc_engine.binlog.row_rules.masks import ColumnMask
from sluice.cdc_engine.binlog.row_rules.rules import RowRules
from sluice.cdc_engine.binlog.row_rules.transform import KEEP, Transform, TransformFailedError
from sluice.cdc_engine.binlog.rows.decoder import RowDecoder
from sluice.cdc_engine.binlog.rows.refused_values import ValuePolicy
from sluice.cdc_engine.binlog.rows.shard_column import ShardColumn
from sluice.cdc_engine.contracts import RowEventKind, TableVersion
from sluice.cdc_engine.errors import ConsumerStoppedError, TableStoppedError
from tests.binlog.rows.event_bytes import AMOUNT, ID, KEYLESS, NOTE, ORDERS, Row, block, event
from tests.snapshot.test_row_rules_consumer import located

pytestmark = pytest.mark.seeds

INSERT, UPDATE, DELETE = RowEventKind.INSERT, RowEventKind.UPDATE, RowEventKind.DELETE
Function = Callable[[pa.RecordBatch], Any]


def doubled(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Changes a column and adds one."""
    note = pc.utf8_upper(rows["note"])
    size = pc.cast(pc.multiply(rows["amount"], 2), pa.int64())
    return pa.record_batch({"note": note, "size": size})


def even_only(rows: pa.RecordBatch) -> pa.RecordBatch:
    amount: Any = pc.fill_null(rows["amount"], pa.scalar(1, pa.int32()))
    odd: Any = pc.bit_wise_and(amount, 1)
    return pa.record_batch({KEEP: pc.equal(odd, pa.scalar(0, pa.int32()))})


def transform(function: Function = doubled, **fields: Any) -> Transform:
    given_fields = {"reads": ("amount", "note"), "writes": ("note", "size"), **fields}
    return Transform(function="shop_rows:f", identity="1", call=function, **given_fields)


EVEN = transform(even_only, reads=("amount",), writes=(), drops=True)


def decoded(
    rules: RowRules, *events: tuple[RowEventKind, list[Row]], table: TableVersion = ORDERS, **more: Any
) -> list[tuple[Any, ...]]:
    """Returns (operation, values…) of each image that remains."""
    present = more.pop("present", None)
    given_block = block([(table, kind, event(kind, images, present=present)) for kind, images in events])
    decoder = RowDecoder(table, policy=ValuePolicy(rules=rules), **more)
    found: list[tuple[Any, ...]] = []
    for batch in decoder.chunks(given_block, np.arange(len(events))):
        assert batch.schema == decoder.schema
        found += [tuple(row.values()) for row in batch.drop_columns(batch.schema.names[1:3]).to_pylist()]
    return found


def stops(function: Function, **fields: Any) -> str:
    """Applies a transform whose first row stops the table, and returns the reason of the stop."""
    with pytest.raises(TableStoppedError) as stopped:
        decoded(RowRules(transform=transform(function, **fields)), (INSERT, [(1, 5, "a"), (2, 6, "b")]))
    assert stopped.value.state == "TRANSFORM_FAILED"
    return stopped.value.reason


def test_a_function_changes_a_column_and_adds_one_in_every_image() -> None:
    found = decoded(
        RowRules(transform=transform()),
        (INSERT, [(1, 5, "a"), (2, None, None)]),
        (UPDATE, [(1, 5, "a"), (1, 6, "b")]),
        (UPDATE, [(1, 6, "b"), (9, 6, "b")]),  # The key changes, so both images remain.
        (DELETE, [(9, 6, "b")]),
    )
    assert found == [
        (1, 1, 5, "A", 10),
        (1, 2, None, None, None),
        (3, 1, 6, "B", 12),
        (2, 1, 6, "B", 12),
        (3, 9, 6, "B", 12),
        (4, 9, 6, "B", 12),
    ]


def test_columns_and_types_follow_what_the_function_returns_for_no_rows() -> None:
    decoder = RowDecoder(ORDERS, policy=ValuePolicy(rules=RowRules(transform=transform())))
    spark = {
        column.name: (each.spark, column.nullable) for column, each in zip(decoder.columns, decoder.types, strict=True)
    }
    assert spark == {"id": ("int", False), "amount": ("int", True), "note": ("string", True), "size": ("bigint", True)}
    never_null = dataclasses.replace(NOTE, nullable=False, default=("x",))
    strict = dataclasses.replace(ORDERS, columns=(ID, AMOUNT, never_null))
    written = RowDecoder(strict, policy=ValuePolicy(rules=RowRules(transform=transform()))).columns[2]
    assert (written.nullable, written.default) == (True, ()), "which the function's values need not keep"
    read = ResultDecoder(ORDERS, policy=ValuePolicy(rules=RowRules(transform=transform())))
    assert read.schema == pa.schema(list(decoder.schema)[3:])
    assert [column.name for column in read.columns] == ["id", "amount", "note"], "which the SELECT asks for"


@given(
    rows=st.lists(st.tuples(st.integers(-9, 9) | st.none(), st.sampled_from(["", "a", "äß"]) | st.none()), min_size=1),
    condition=st.sampled_from(["", "amount > 0", "note = 'a'"]),
    drops=st.booleans(),
)
def test_a_row_is_the_same_by_the_stream_and_by_a_snapshot(
    rows: list[tuple[int | None, str | None]], condition: str, drops: bool
) -> None:
    """A transformed row does not depend on the other rows in its batch. Otherwise, the chunks of a snapshot and the buffered changes would
    not fit together.
    """

    def both(batch: pa.RecordBatch) -> pa.RecordBatch:
        result = doubled(batch)
        return result.append_column(KEEP, even_only(batch)[KEEP]) if drops else result

    policy = ValuePolicy(rules=RowRules(condition=condition, transform=transform(both, drops=drops)))
    keyed = [(number, *row) for number, row in enumerate(rows)]
    decoder = RowDecoder(ORDERS, policy=policy)
    events = [(ORDERS, INSERT, event(INSERT, [row])) for row in keyed]
    streamed = [row for batch in decoder.chunks(block(events), np.arange(len(events))) for row in batch.to_pylist()]
    reader = ResultDecoder(ORDERS, policy=policy)
    half = len(keyed) // 2
    read = [row for part in (keyed[:half], keyed[half:]) if part for row in reader.batch(*located(part)).to_pylist()]
    assert read == [{name: value for name, value in row.items() if not name.startswith("_")} for row in streamed]


def test_a_dropped_row_leaves_and_enters_as_a_filtered_one() -> None:
    found = decoded(
        RowRules(transform=EVEN),
        (INSERT, [(1, 2, "a"), (2, 3, "b"), (3, None, "c")]),
        (UPDATE, [(1, 2, "a"), (1, 4, "a")]),  # The row stays within the condition.
        (UPDATE, [(2, 3, "b"), (2, 5, "b")]),  # The row stays outside the condition.
        (UPDATE, [(1, 4, "a"), (1, 5, "a")]),  # The row leaves the condition.
        (UPDATE, [(2, 5, "b"), (2, 6, "b")]),  # The row enters the condition.
        (UPDATE, [(2, 6, "b"), (7, 6, "b")]),  # its key changes within
        (DELETE, [(1, 5, "a"), (7, 6, "b")]),
    )
    assert found == [
        (1, 1, 2, "a"),
        (3, 1, 4, "a"),
        (4, 1, 4, "a"),
        (1, 2, 6, "b"),
        (2, 2, 6, "b"),
        (3, 7, 6, "b"),
        (4, 7, 6, "b"),
    ]


def test_images_of_dropped_rows_do_not_shift_the_events_of_the_others() -> None:
    images = [(1, 1, "a"), (2, 2, "b"), (3, 3, "c"), (4, 4, "d")]
    decoder = RowDecoder(ORDERS, policy=ValuePolicy(rules=RowRules(condition="amount > 1", transform=EVEN)))
    (batch,) = decoder.chunks(block([(ORDERS, INSERT, event(INSERT, [row])) for row in images]), np.arange(4))
    assert (batch["id"].to_pylist(), decoder.events_of(batch.num_rows).tolist()) == ([2, 4], [1, 3])


def test_a_function_sees_no_row_that_the_condition_leaves_out_and_masked_values_only() -> None:
    seen: list[Any] = []

    def looks(rows: pa.RecordBatch) -> pa.RecordBatch:
        seen.extend(rows.to_pylist())
        return pa.record_batch({"copy": rows["note"]})

    rules = RowRules(
        condition="amount > 5",
        masks=(ColumnMask(column="note", kind="truncate", chars=1),),
        transform=transform(looks, reads=("note",), writes=("copy",)),
    )
    assert decoded(rules, (INSERT, [(1, 9, "secret"), (2, 1, "other")])) == [(1, 1, 9, "s", "s")]
    assert {row["note"] for row in seen} == {"s"}


def test_a_table_without_a_key_gets_both_images() -> None:
    found = decoded(RowRules(transform=transform()), (UPDATE, [(1, 5, "a"), (1, 6, "b")]), table=KEYLESS)
    assert found == [(2, 1, 5, "A", 10), (3, 1, 6, "B", 12)]


def test_a_change_log_gets_the_image_before_an_update_too() -> None:
    found = decoded(RowRules(transform=transform()), (UPDATE, [(1, 5, "a"), (1, 6, "b")]), every_preimage=True)
    assert found == [(2, 1, 5, "A", 10), (3, 1, 6, "B", 12)]


def test_a_shard_column_stays_the_last_one_and_is_no_column_of_a_function() -> None:
    policy = ValuePolicy(rules=RowRules(transform=transform()), shard=ShardColumn(column="shard", name="one"))
    decoder = RowDecoder(ORDERS, policy=policy)
    (batch,) = decoder.chunks(block([(ORDERS, INSERT, event(INSERT, [(1, 5, "a")]))]), np.arange(1))
    assert (batch.schema, list(batch.to_pylist()[0].items())[-2:]) == (decoder.schema, [("size", 10), ("shard", "one")])
    taken = dataclasses.replace(policy, shard=ShardColumn(column="size", name="one"))
    for make in (RowDecoder, ResultDecoder):
        with pytest.raises(TableStoppedError, match="has a column size"):
            make(ORDERS, policy=taken)


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"reads": ("colour",)}, "reads the column colour, which the table does not have"),
        (
            {"writes": ("note", "size", "ID")},
            "writes the key column ID, and a row with a changed key cannot be found again",
        ),
    ],
)
def test_a_transform_that_does_not_fit_the_table_stops_it_by_name(fields: dict[str, Any], why: str) -> None:
    for make in (RowDecoder, ResultDecoder):
        with pytest.raises(TableStoppedError, match=f"the transform shop_rows:f {why}") as stopped:
            make(ORDERS, policy=ValuePolicy(rules=RowRules(transform=transform(**fields))))
        assert stopped.value.state == "ROWS_RULE"


def test_a_function_writes_no_column_that_conf_leaves_out() -> None:
    kept = np.array([0, 1], np.int32)
    policy = ValuePolicy(rules=RowRules(transform=transform(reads=("amount",))))
    with pytest.raises(TableStoppedError, match="writes the column note"):
        RowDecoder(ORDERS, kept, policy=policy)


def test_rows_of_a_system_versioned_table_are_not_dropped() -> None:
    ended = dataclasses.replace(ID, name="until", generated=ROW_END)
    versioned = dataclasses.replace(ORDERS, columns=(*ORDERS.columns, ended))
    with pytest.raises(TableStoppedError, match="system-versioned table: set `drops: false`"):
        RowDecoder(versioned, policy=ValuePolicy(rules=RowRules(transform=EVEN)))


def raises(_: pa.RecordBatch) -> Any:
    raise TransformFailedError("the function raised ValueError at shop_rows.py:7")


def late(rows: pa.RecordBatch) -> pa.RecordBatch:
    """A transform that returns another type for rows than for an empty batch."""
    kind = pa.int64() if not rows.num_rows else pa.int32()
    return pa.record_batch({"note": rows["note"], "size": pc.cast(rows["amount"], kind)})


def of_all(rows: pa.RecordBatch) -> pa.RecordBatch:
    total = pc.sum(rows["amount"]).as_py() if rows.num_rows else 0
    return pa.record_batch({"note": rows["note"], "size": pa.array([total] * rows.num_rows, pa.int64())})


CALLS = iter(range(1_000_000))


def of_chance(rows: pa.RecordBatch) -> pa.RecordBatch:
    return pa.record_batch(
        {"note": rows["note"], "size": pa.array([next(CALLS) for _ in range(rows.num_rows)], pa.int64())}
    )


def sized(rows: pa.RecordBatch, kind: pa.DataType) -> pa.RecordBatch:
    return pa.record_batch({"note": rows["note"], "size": pa.array([None] * rows.num_rows, kind)})


def not_text(rows: pa.RecordBatch) -> pa.RecordBatch:
    size = pa.array([b"\xff"] * rows.num_rows, pa.binary()).view(pa.string())
    return pa.record_batch({"note": rows["note"], "size": size})


def too_long(rows: pa.RecordBatch) -> pa.RecordBatch:
    size = pa.array([Decimal(123456789)] * rows.num_rows, pa.decimal128(9, 0)).view(pa.decimal128(5, 0))
    return pa.record_batch({"note": rows["note"], "size": size})


def test_a_date_that_python_does_not_have_is_compared_too() -> None:
    def far(rows: pa.RecordBatch) -> pa.RecordBatch:
        size = pa.array([10_000_000] * rows.num_rows, pa.int32()).view(pa.date32())
        return pa.record_batch({"note": rows["note"], "size": size})

    decoder = RowDecoder(ORDERS, policy=ValuePolicy(rules=RowRules(transform=transform(far))))
    inserted = block([(ORDERS, INSERT, event(INSERT, [(1, 5, "a"), (2, 6, "b")]))])
    (found,) = decoder.chunks(inserted, np.arange(1))
    assert found.column("size").view(pa.int32()).to_pylist() == [10_000_000] * 2


@pytest.mark.parametrize(
    ("function", "why"),
    [
        (raises, "the function raised ValueError at shop_rows.py:7"),
        (lambda _: None, "the function returned a NoneType: return a pyarrow.RecordBatch"),
        (lambda rows: pa.Table.from_batches([doubled(rows)]), "the function returned a Table"),
        (
            lambda rows: rows,
            "the function returned the columns amount, note instead of the columns note, size in conf/",
        ),
        (lambda rows: pa.record_batch({"note": rows["note"], "size": rows["note"].dictionary_encode()}), "can be bool"),
        (lambda rows: pa.record_batch({"note": rows["note"], "size": pa.nulls(rows.num_rows)}), "size as null"),
        (lambda rows: doubled(rows.slice(0, 1)), "the function returned 1 rows for 2 rows"),
        (late, "the function returned size as int32, and as int64 for an empty batch"),
        (not_text, "text that is not UTF-8"),
        (too_long, "a decimal with too many digits"),
        (
            lambda rows: sized(rows, pa.decimal128(5, 10)),
            "the function returned size as decimal128(5, 10), and columns in the lake can be",
        ),
        (of_all, "a different result for a row when the batch had this row alone"),
        (of_chance, "a different result for a row when the batch had this row alone"),
    ],
)
def test_a_function_that_fails_stops_the_table_by_name(function: Function, why: str) -> None:
    reason = stops(function)
    assert reason.startswith("the transform shop_rows:f failed: ")
    assert why in reason


def test_a_function_that_drops_must_say_so_in_booleans() -> None:
    as_numbers = stops(lambda rows: pa.record_batch({KEEP: rows["amount"]}), reads=("amount",), writes=(), drops=True)
    assert "the function returned _sluice_keep as int32: return booleans" in as_numbers
    assert "instead of the columns note, size, _sluice_keep in conf/" in stops(doubled, drops=True)


def test_a_row_of_which_the_function_does_not_say_whether_it_stays_is_not_dropped() -> None:
    """A comparison with NULL gives NULL."""

    def not_five(rows: pa.RecordBatch) -> pa.RecordBatch:
        return pa.record_batch({KEEP: pc.not_equal(rows["amount"], pa.scalar(5, pa.int32()))})

    rules = RowRules(transform=transform(not_five, reads=("amount",), writes=(), drops=True))
    assert decoded(rules, (INSERT, [(1, 5, "a"), (2, 6, "b")])) == [(1, 2, 6, "b")]
    with pytest.raises(TableStoppedError) as stopped:
        decoded(rules, (INSERT, [(1, 5, "a"), (2, None, "b"), (3, 6, "c")]))
    assert stopped.value.state == "TRANSFORM_FAILED"
    assert "NULL in _sluice_keep for 1 of 3 rows: return true or false for each row" in stopped.value.reason


def test_values_that_differ_from_themselves_are_no_sign_of_chance() -> None:
    def halves(rows: pa.RecordBatch) -> pa.RecordBatch:
        amount = pc.cast(rows["amount"], pa.float64())
        return pa.record_batch({"note": rows["note"], "size": pc.divide(pc.multiply(amount, 0.0), 0.0)})

    found = decoded(RowRules(transform=transform(halves)), (INSERT, [(1, 5, "a")]))
    assert str(found[0][-1]) == "nan"


@pytest.mark.parametrize("kind", [INSERT, UPDATE, DELETE])
def test_images_without_all_columns_stop_the_table(kind: RowEventKind) -> None:
    images: list[Row] = [(1, 5)] if kind is not UPDATE else [(1, 5), (1, 6)]
    with pytest.raises(
        TableStoppedError, match=r"transforms the rows of the table|leaves out|without the column"
    ) as stopped:
        decoded(RowRules(transform=transform()), (kind, images), present=0b011)
    assert stopped.value.state == "IMAGE_NOT_FULL"


def test_a_client_or_a_broker_does_not_get_rows_as_the_source_has_them() -> None:
    with pytest.raises(ConsumerStoppedError, match=r"transforms the rows of shop\.orders"):
        ShownRules(ORDERS, ORDERS.columns, ValuePolicy(rules=RowRules(transform=transform())))


def test_the_settings_of_rules_without_a_transform_equal_those_of_older_versions() -> None:
    """Digests of these settings are stored. If the settings of unchanged rules had another form after an upgrade, every table with rules
    would be re-snapshotted.
    """
    rules = RowRules(condition="a = 1", masks=(ColumnMask(column="b", kind="null"),))
    assert rules.as_settings() == {
        "condition": "a = 1",
        "masks": [{"column": "b", "kind": "null", "chars": 0, "salt": "", "may_be_missing": False}],
    }
    assert RowRules(transform=transform()).as_settings()["transform"] == {
        "function": "shop_rows:f",
        "reads": ("amount", "note"),
        "writes": ("note", "size"),
        "drops": False,
        "identity": "1",
    }
