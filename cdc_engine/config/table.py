"""What conf/ says of one table: how it is merged, where it is, and what of its changes the lake follows."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from cdc_engine.config.operation import AssetOfTable
from cdc_engine.config.places import TablePath
from cdc_engine.config.rows import MaskConfig
from cdc_engine.source.settings import Strict


class SchemaChangesConfig(Strict):
    """What the lake does when a table changes in the source: a word for each kind of change, as docs/operations.md explains them.

    `hold`: the table waits for `sluice schema approve`. `stop`: it waits until this file says another word and it is resumed.
    """

    add: Literal["apply", "hold", "stop"] = "apply"
    drop: Literal["keep", "apply", "hold", "stop"] = Field(
        "keep", description="keep: the column stays, NULL from then on"
    )
    rename: Literal["hold", "apply", "new_column", "stop"] = "hold"
    widen: Literal["apply", "rewrite", "hold", "stop"] = Field(
        "rewrite", description="apply: Delta type widening, which deltalake and Polars refuse to read"
    )
    convert: Literal["hold", "apply", "new_column", "stop"] = Field(
        "hold", description="a type that holds other values"
    )
    key: Literal["hold", "apply", "stop"] = Field("hold", description="the columns of the primary key")
    truncate: Literal["apply", "ignore", "hold", "stop"] = "apply"
    drop_table: Literal["ignore", "apply", "hold", "stop"] = Field("ignore", description="apply: the rows go")
    drop_partition: Literal["hold", "ignore", "stop"] = Field(
        "hold", description="DROP or TRUNCATE PARTITION: rows that no row event names"
    )


class TableConfig(AssetOfTable, Strict):
    """How one table is merged. Keys of the mapping in a destination are "database.table"."""

    key: tuple[str, ...] = Field(
        (), description="key columns; empty: the primary key; none at all: changes are appended"
    )
    deletes: Literal["hard", "soft"] = "hard"
    deletion_vectors: bool = Field(
        True, description="off: copy-on-write, readable by every Delta reader, merges several times slower"
    )
    merge: Literal["", "auto", "spark", "small"] = Field("", description="the destination's word, if empty")
    path: TablePath = Field("", description="Delta path; empty: as the destination's table_path says")
    partition_by: tuple[str, ...] = Field((), description="columns that a table is partitioned by when it is made")
    cluster_by: tuple[str, ...] = Field((), description="columns of Delta's liquid clustering, which OPTIMIZE sorts by")
    change_feed: bool = Field(False, description="Delta's change data feed, from then on")
    mirror: bool = Field(True, description="off: no table with its rows, only its change_log or its history")
    change_log: bool = Field(
        False, description="also a table with every change, before and after, appended to: <path>__log"
    )
    history: bool = Field(False, description="also a table with every version of every row: <path>__history")
    zero_dates: Literal["null", "error", "text"] = Field(
        "null",
        description="dates that are none: NULL; refused as undecodable; or the column is the text that SELECT prints",
    )
    undecodable: Literal["stop", "quarantine"] = Field(
        "stop",
        description="a value that cannot be decoded: the table stops, or the value goes to quarantine and the row on with NULL",
    )
    charsets: dict[str, str] = Field(
        {}, description="column: charset that its bytes really have, where the source declares another"
    )
    rows: str = Field(
        "", description="only rows that meet this condition: country = 'DE' AND (amount > 100 OR note IS NULL)"
    )
    masks: dict[str, MaskConfig] = Field(
        {}, description="column: hash, null or truncate:4, for all who read the table or consume its changes"
    )
    cascades: Literal["", "apply", "stop", "ignore"] = Field("", description="the destination's word, if empty")
    snapshot: Literal["", "initial", "when_needed", "when_stopped", "never"] = Field(
        "", description="the destination's word, if empty"
    )
    schema_changes: SchemaChangesConfig = Field(
        SchemaChangesConfig(), description="the words that differ from the destination's"
    )

    @property
    def tells_rows(self) -> bool:
        """Whether the lake says which rows there are: a change log alone does not."""
        return self.mirror or self.history

    @model_validator(mode="after")
    def _one_layout(self) -> TableConfig:
        if self.partition_by and self.cluster_by:
            raise ValueError("Delta partitions a table or clusters it: leave partition_by or cluster_by out")
        return self

    @model_validator(mode="after")
    def _something(self) -> TableConfig:
        if not self.mirror and not (self.change_log or self.history):
            raise ValueError("mirror: false leaves nothing of the table: say change_log or history, or exclude it")
        if not self.mirror and (self.partition_by or self.cluster_by or self.change_feed or self.deletes == "soft"):
            raise ValueError("partition_by, cluster_by, change_feed and deletes are of the mirror, and mirror is false")
        return self

    @model_validator(mode="after")
    def _nothing_unmasked(self) -> TableConfig:
        if (self.rows or self.masks) and self.undecodable == "quarantine":
            raise ValueError(
                "rows and masks go with undecodable: stop only: quarantine would keep the values of a masked column, and a row whose value "
                "cannot be decoded is neither within the condition nor outside"
            )
        if len({column.lower() for column in self.masks}) < len(self.masks):
            raise ValueError("masks names a column twice: names of columns have no case")
        return self
