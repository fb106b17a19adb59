"""Converts two things for the manifest of a staged batch: the captured columns of a table version, and the values that existing rows get
when a statement adds a column.
"""

from __future__ import annotations

from sluice.batch_manifest.values import LakeColumn
from sluice.cdc_engine.binlog.column_types.value_text import text_value
from sluice.cdc_engine.binlog.row_rules.transform import Transform
from sluice.cdc_engine.binlog.rows.decoder import RowDecoder
from sluice.cdc_engine.binlog.rows.refused_values import QUARANTINE
from sluice.cdc_engine.contracts import Int32s, TableChange, TableVersion
from sluice.cdc_engine.errors import TableStoppedError
from sluice.cdc_engine.states import TableState

RESERVED = "_sluice_"  # The prefix of Sluice's own columns, in any letter case.


def staged_columns(decoder: RowDecoder) -> tuple[LakeColumn, ...]:
    """Returns the columns of a decoder with their types in Spark, in the order of the table."""
    pairs = zip(decoder.columns, decoder.types, strict=True)
    return tuple(
        LakeColumn(
            name=column.name,
            type=each.spark,
            nullable=column.nullable or each.may_become_null or decoder.policy.undecodable == QUARANTINE,
            mysql_type=column.mysql_type,
        )
        for column, each in pairs
    )


def staged_fills(decoder: RowDecoder, fills: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """Converts `fills`, the values (column, value) that existing rows get in added columns, to texts for the manifest. Leaves out NULLs,
    and columns that are not captured. Raises TableStoppedError if the policy of the table refuses a value.
    """
    types = {column.name: each for column, each in zip(decoder.columns, decoder.types, strict=True)}
    staged = []
    for name, value in fills:
        if name not in types:
            continue
        try:
            shown = decoder.shown_fill(name, text_value(value, types[name]))
        except ValueError as error:
            version = decoder.version
            reason = f"the value that existing rows got in the added column {name} cannot be decoded: {error}"
            raise TableStoppedError(version.database, version.table, TableState.TYPE_UNSUPPORTED, reason) from None
        if shown is not None:
            staged.append((name, shown))
    return tuple(staged)


def refuse_transformed(change: TableChange, transform: Transform | None) -> None:
    """Raises TableStoppedError if a statement alters a column that the table's transform reads or writes, because the lake's rows were
    computed from the old column.
    """
    altered = [name for each in change.alterations for name in (each.column, each.new_name) if name]
    altered += [name for name, _ in change.fills]
    if transform is None or not (concerned := [name for name in altered if transform.concerns(name)]):
        return
    reason = (
        f"a statement altered the column {concerned[0]}, which the transform {transform.function} reads or "
        "writes, and the rows in the lake were computed from the old column"
    )
    raise TableStoppedError(change.database, change.table, TableState.DDL_UNSUPPORTED, reason)


def refuse_reserved(version: TableVersion, kept: Int32s | None) -> None:
    """Raises TableStoppedError if a column in the source has the prefix of Sluice's own columns. `kept` are the indices of the captured
    columns; None means all.
    """
    names = [each.name for index, each in enumerate(version.columns) if kept is None or index in kept]
    if reserved := [name for name in names if name.lower().startswith(RESERVED)]:
        reason = (
            f"Sluice adds columns that begin with {RESERVED}, and the table has {', '.join(reserved)}: "
            "exclude these columns with `column_exclude`, or rename them in the source and re-snapshot the "
            "table"
        )
        raise TableStoppedError(version.database, version.table, TableState.TYPE_UNSUPPORTED, reason)
