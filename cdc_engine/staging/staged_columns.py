"""How the wanted columns of a table version are written into a manifest."""

from __future__ import annotations

from cdc_engine.binlog.rows.decoder import RowDecoder
from cdc_engine.binlog.rows.refused_values import QUARANTINE
from cdc_engine.staging.manifest import StagedColumn


def staged_columns(decoder: RowDecoder) -> tuple[StagedColumn, ...]:
    """The decoder's columns with Spark's type names, in table order."""
    pairs = zip(decoder.columns, decoder.types, strict=True)
    return tuple(
        StagedColumn(
            name=column.name,
            type=each.spark,
            nullable=column.nullable or each.null_beside_source or decoder.policy.undecodable == QUARANTINE,
            mysql_type=column.mysql_type,
        )
        for column, each in pairs
    )
