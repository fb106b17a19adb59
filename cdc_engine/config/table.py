"""Defines the settings of one table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from sluice.cdc_engine.config.locations import TablePath
from sluice.cdc_engine.config.operation import AssetOfTable
from sluice.cdc_engine.config.rows import MaskConfig, TransformConfig
from sluice.cdc_engine.source.settings import Strict


class SchemaChangesConfig(Strict):
    """What the lake does when a table changes in the source: a policy for each kind of change. `hold`: the table stops until an operator
    approves the change (`sluice schema approve`). `stop`: the table stops until conf/ has another policy and an operator resumes the table.
    """

    add: Literal["apply", "hold", "stop"] = Field("apply", description="ADD COLUMN.")
    drop: Literal["keep", "apply", "hold", "stop"] = Field(
        "keep",
        description=(
            "DROP COLUMN. `keep`: the column and its values stay in the lake. Rows that are written afterwards have NULL "
            "in the column. `apply`: the column is dropped in the lake (Delta column mapping)."
        ),
    )
    rename: Literal["hold", "apply", "new_column", "stop"] = Field(
        "hold",
        description=(
            "RENAME COLUMN. `apply`: the column is renamed in the lake (Delta column mapping). `new_column`: the lake "
            "gets a column with the new name and the values of the old column, and the old column stays."
        ),
    )
    widen: Literal["apply", "rewrite", "hold", "stop"] = Field(
        "rewrite",
        description=(
            "A change of a column to a type that can represent all old values. `rewrite`: Sluice rewrites the table with "
            "the new type. `apply`: Delta type widening, which deltalake and Polars cannot read."
        ),
    )
    convert: Literal["hold", "apply", "new_column", "stop"] = Field(
        "hold",
        description=(
            "A change of a column to a type that cannot represent all old values. `apply`: Spark casts the existing "
            "values in the lake. `new_column`: a new column replaces the column, and is NULL in existing rows. The old "
            "values stay in the column `NAME_until_POSITION`."
        ),
    )
    key: Literal["hold", "apply", "stop"] = Field("hold", description="A change of the columns of the primary key.")
    truncate: Literal["apply", "ignore", "hold", "stop"] = Field(
        "apply", description="TRUNCATE TABLE. `apply`: all rows in the lake are deleted."
    )
    drop_table: Literal["ignore", "apply", "hold", "stop"] = Field(
        "ignore",
        description="DROP TABLE. `apply`: all rows in the lake are deleted. `ignore`: the rows in the lake stay.",
    )
    drop_partition: Literal["hold", "ignore", "stop"] = Field(
        "hold", description="DROP PARTITION and TRUNCATE PARTITION, which delete rows without row events."
    )


class TableConfig(AssetOfTable, Strict):
    """Settings of one table. The keys of `tables` are "database.table"."""

    removed: ClassVar[Mapping[str, str]] = {"mirror": "use the setting current_state"}
    key: tuple[str, ...] = Field(
        (),
        description=(
            "Columns that identify a row. Default: the primary key. If a table has neither `key` nor a primary key, the "
            "lake keeps it as a change log."
        ),
    )
    deletes: Literal["hard", "soft"] = Field(
        "hard",
        description="`hard`: deleted rows are removed. `soft`: deleted rows stay, with `_sluice_deleted` set to true.",
    )
    deletion_vectors: bool = Field(
        True,
        description=(
            "Whether merges write deletion vectors. `false`: merges rewrite whole files (copy-on-write). Every Delta "
            "reader can read such a table, but merges take several times longer."
        ),
    )
    merge: Literal["", "auto", "spark", "small"] = Field(
        "", description="How the table is merged. Default: the destination's `merge`."
    )
    path: TablePath = Field("", description="Path of the Delta table. Default: `table_path` of the destination.")
    partition_by: tuple[str, ...] = Field((), description="Partition columns. Used when the Delta table is created.")
    cluster_by: tuple[str, ...] = Field(
        (), description="Columns for Delta's liquid clustering. OPTIMIZE sorts rows by these columns."
    )
    change_feed: bool = Field(False, description="Whether Sluice enables Delta's change data feed for the table.")
    current_state: bool = Field(
        True,
        description="Whether the table has a current-state table in the lake. `false`: it has only its change log or history.",
    )
    change_log: bool = Field(
        False,
        description="Whether Sluice also writes the change log `<path>__log`, with the row before and after each change.",
    )
    history: bool = Field(
        False,
        description="Whether Sluice also writes the history `<path>__history`, with every version of every row (SCD2).",
    )
    zero_dates: Literal["null", "error", "text"] = Field(
        "null",
        description=(
            "How dates such as 0000-00-00 are stored. `null`: as NULL. `error`: such a date counts as a value that cannot "
            "be decoded (`undecodable`). `text`: as text, and the column of the lake is a string."
        ),
    )
    undecodable: Literal["stop", "quarantine"] = Field(
        "stop",
        description="What happens to a value that cannot be decoded. `stop`: the table stops. `quarantine`: Sluice "
        "stores the value in the quarantine table, and the row gets NULL.",
    )
    charsets: dict[str, str] = Field(
        {},
        description=(
            "Maps a column to the character set of its bytes, if the source declares another character set for the "
            "column."
        ),
    )
    rows: str = Field(
        "",
        description="Condition that selects the rows to capture, for example `country = 'DE' AND (amount > 100 OR note IS NULL)`.",
    )
    masks: dict[str, MaskConfig] = Field(
        {}, description="Column → `hash`, `null` or `truncate:4`. Applies to the lake and to all consumers."
    )
    transform: TransformConfig | None = Field(
        None, description="Your own Python function that changes rows of the table before they reach the lake."
    )
    cascades: Literal["", "apply", "stop", "ignore"] = Field(
        "",
        description=(
            "What Sluice does if foreign keys change rows of this table without row events. Default: the destination's "
            "`cascades`."
        ),
    )
    snapshot: Literal["", "initial", "when_needed", "when_stopped", "never"] = Field(
        "", description="When Sluice takes a snapshot of this table by itself. Default: the destination's `snapshot`."
    )
    schema_changes: SchemaChangesConfig = Field(
        SchemaChangesConfig(), description="Policies that differ from the destination's `schema_changes`."
    )

    @field_validator("charsets")
    @classmethod
    def _in_lower_case(cls, charsets: dict[str, str]) -> dict[str, str]:
        lowered = {column.lower(): charset for column, charset in charsets.items()}
        if len(lowered) < len(charsets):
            raise ValueError("charsets has a column twice (names are case-insensitive): remove one")
        return lowered

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
                "is false: remove these settings, or remove current_state"
            )
        return self

    @model_validator(mode="after")
    def _nothing_unmasked(self) -> TableConfig:
        if self.has_rules and self.undecodable == "quarantine":
            raise ValueError(
                "rows, masks and transform require undecodable: stop. With undecodable: quarantine, Sluice would store the values of "
                "masked columns, and could not check the condition `rows` for a row with an undecodable value"
            )
        if len({column.lower() for column in self.masks}) < len(self.masks):
            raise ValueError("masks has a column twice (names are case-insensitive): remove one")
        written = {column.lower() for column in self.transform.writes} if self.transform else set()
        if self.history and (taken := sorted(written & {"valid_from", "valid_to", "is_current"})):
            raise ValueError(
                f"the transform writes {taken[0]}, which the table's history uses for a column of its own: choose "
                "another name"
            )
        if unmasked := [column for column in self.masks if column.lower() in written]:
            raise ValueError(
                f"the transform writes {unmasked[0]}, which is masked, and would replace the mask: remove the column "
                "from writes or from masks"
            )
        return self
