"""Defines the settings of one table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from sluice.cdc_engine.config.locations import TablePath
from sluice.cdc_engine.config.operation import AssetOfTable
from sluice.cdc_engine.config.rows import MaskConfig, TransformConfig
from sluice.cdc_engine.source.settings import Strict


class SchemaChangesConfig(Strict):
    """What the lake does when a table changes in the source: a policy for each kind of change.

    `hold`: the table waits for `sluice schema approve`. `stop`: the table waits until the policy is another one and the
    table is resumed.
    """

    add: Literal["apply", "hold", "stop"] = Field("apply", description="ADD COLUMN.")
    drop: Literal["keep", "apply", "hold", "stop"] = Field(
        "keep", description="DROP COLUMN. `keep`: the column stays and is NULL from then on."
    )
    rename: Literal["hold", "apply", "new_column", "stop"] = Field(
        "hold",
        description=(
            "RENAME COLUMN. `apply`: the column is renamed in the lake (Delta column mapping). `new_column`: the "
            "new name becomes a new column, and the old one stays."
        ),
    )
    widen: Literal["apply", "rewrite", "hold", "stop"] = Field(
        "rewrite",
        description="A change of a column to a type that can represent all old values. `rewrite`: Sluice rewrites the "
        "column. `apply`: Delta type widening, which deltalake and Polars cannot read.",
    )
    convert: Literal["hold", "apply", "new_column", "stop"] = Field(
        "hold",
        description=(
            "A change of a column to a type that cannot represent all old values. `apply`: Spark casts the "
            "existing values."
        ),
    )
    key: Literal["hold", "apply", "stop"] = Field("hold", description="A change of the columns of the primary key.")
    truncate: Literal["apply", "ignore", "hold", "stop"] = Field(
        "apply", description="TRUNCATE TABLE. `apply`: all rows in the lake are deleted."
    )
    drop_table: Literal["ignore", "apply", "hold", "stop"] = Field(
        "ignore", description="DROP TABLE. `apply`: the rows are deleted."
    )
    drop_partition: Literal["hold", "ignore", "stop"] = Field(
        "hold", description="DROP PARTITION and TRUNCATE PARTITION, which delete rows without row events."
    )


class TableConfig(AssetOfTable, Strict):
    """Settings of one table. The keys of `tables` are "database.table"."""

    removed: ClassVar[Mapping[str, str]] = {"mirror": "use the setting current_state"}
    key: tuple[str, ...] = Field(
        (), description="Key columns. Default: the primary key. A table without any key is kept as a change log."
    )
    deletes: Literal["hard", "soft"] = Field(
        "hard",
        description="`hard`: deleted rows are removed. `soft`: deleted rows stay, with `_sluice_deleted` set to true.",
    )
    deletion_vectors: bool = Field(
        True,
        description=(
            "Whether merges write deletion vectors. `false`: merges rewrite whole files (copy-on-write), which "
            "every Delta reader can read and which takes several times longer."
        ),
    )
    merge: Literal["", "auto", "spark", "small"] = Field(
        "", description="Which program merges the table. Default: the destination's `merge`."
    )
    path: TablePath = Field("", description="Path of the Delta table. Default: `table_path` of the destination.")
    partition_by: tuple[str, ...] = Field((), description="Partition columns. Used when the Delta table is created.")
    cluster_by: tuple[str, ...] = Field(
        (), description="Columns for Delta's liquid clustering. OPTIMIZE sorts rows by these columns."
    )
    change_feed: bool = Field(False, description="Enables Delta's change data feed.")
    current_state: bool = Field(True, description="`false`: no current-state table, only `change_log` or `history`.")
    change_log: bool = Field(
        False, description="Also writes a table `<path>__log` with every change: the row before and after the change."
    )
    history: bool = Field(
        False, description="Also writes a table `<path>__history` with every version of every row (SCD2)."
    )
    zero_dates: Literal["null", "error", "text"] = Field(
        "null",
        description="How dates such as 0000-00-00 are stored. `null`: as NULL. `error`: as `undecodable` defines for a "
        "value that cannot be decoded. `text`: as text, and the column is a string.",
    )
    undecodable: Literal["stop", "quarantine"] = Field(
        "stop",
        description="What happens to a value that cannot be decoded. `stop`: the table stops. `quarantine`: Sluice "
        "stores the value in the quarantine table, and the row gets NULL.",
    )
    charsets: dict[str, str] = Field(
        {}, description="Column → the character set that its bytes really have, if the source declares another one."
    )
    rows: str = Field(
        "",
        description="Condition of the rows that are captured, for example `country = 'DE' AND (amount > 100 OR note IS "
        "NULL)`.",
    )
    masks: dict[str, MaskConfig] = Field(
        {}, description="Column → `hash`, `null` or `truncate:4`. Applies to the lake and to all consumers."
    )
    transform: TransformConfig | None = Field(
        None, description="Your own Python function that changes rows of the table before they reach the lake."
    )
    cascades: Literal["", "apply", "stop", "ignore"] = Field("", description="Default: the destination's `cascades`.")
    snapshot: Literal["", "initial", "when_needed", "when_stopped", "never"] = Field(
        "", description="Default: the destination's `snapshot`."
    )
    schema_changes: SchemaChangesConfig = Field(
        SchemaChangesConfig(), description="Policies that differ from the destination's `schema_changes`."
    )

    @property
    def shows_rows(self) -> bool:
        """Whether the lake shows which rows exist now. A change log alone does not show this."""
        return self.current_state or self.history

    @property
    def has_rules(self) -> bool:
        """Whether rows in the lake may differ from the source, because of a row filter, masks or a transform."""
        return bool(self.rows.strip() or self.masks or self.transform)

    @model_validator(mode="after")
    def _one_layout(self) -> TableConfig:
        if self.partition_by and self.cluster_by:
            raise ValueError("a Delta table cannot have both partition_by and cluster_by: remove one of the two")
        return self

    @model_validator(mode="after")
    def _something(self) -> TableConfig:
        if not self.current_state and not (self.change_log or self.history):
            raise ValueError(
                "current_state: false leaves no table in the lake: set change_log or history, or exclude the table"
            )
        if not self.current_state and (
            self.partition_by or self.cluster_by or self.change_feed or self.deletes == "soft"
        ):
            raise ValueError(
                "partition_by, cluster_by, change_feed and deletes apply to the current-state table, and current_state "
                "is false"
            )
        return self

    @model_validator(mode="after")
    def _nothing_unmasked(self) -> TableConfig:
        if self.has_rules and self.undecodable == "quarantine":
            raise ValueError(
                "rows, masks and transform require undecodable: stop: quarantine would store the values of masked columns, and "
                "whether a row with an undecodable value meets the condition is unknown"
            )
        if len({column.lower() for column in self.masks}) < len(self.masks):
            raise ValueError("masks has a column twice: column names are case-insensitive")
        written = {column.lower() for column in self.transform.writes} if self.transform else set()
        if self.history and (taken := sorted(written & {"valid_from", "valid_to", "is_current"})):
            raise ValueError(
                f"the transform writes {taken[0]}, which the table's history uses for a column of its own: choose "
                "another name"
            )
        if unmasked := [column for column in self.masks if column.lower() in written]:
            raise ValueError(
                f"the transform writes {unmasked[0]}, which is masked, and would replace the mask: remove one of the two"
            )
        return self
