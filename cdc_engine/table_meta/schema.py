"""A table's schema as the history keeps it: declared types and charsets, from which its row images' layout follows. Pure values.

Made by `snapshot` and `evolution`, compared with table maps by `fitting`, written and read by `repository`.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import Any

from cdc_engine.binlog.charsets.collations import charset_of_name
from cdc_engine.binlog.rows.history_rows import HIDDEN_END, HIDDEN_START, ROW_END
from cdc_engine.contracts import Column, StatementSession, TableVersion
from cdc_engine.table_meta.ddl.declared_type import declared_type

# engines whose tables keep no rows, or whose rows are those of other tables or servers: they are not what row events say
ROWS_ELSEWHERE = frozenset(
    (
        "BLACKHOLE",
        "MERGE",
        "MRG_MYISAM",
        "FEDERATED",
        "FEDERATEDX",
        "CONNECT",
        "SPIDER",
        "SPHINX",
        "OQGRAPH",
        "SEQUENCE",
    )
)
# other names of engines, and those that have foreign keys
_ENGINE_NAMES = {"MERGE": "MRG_MYISAM", "HEAP": "MEMORY", "MARIA": "ARIA"} | dict.fromkeys(
    ("INNODB", "NDB", "NDBCLUSTER"), ""
)
VERSION_DIGITS = 16  # 64 bits of a digest: no table ever has so many versions that two meet


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeclaredColumn:
    """`type`: canonical text of `declared`. `charset`: of texts, enums and sets, `binary` of byte strings, else empty.

    `generated`, `default`: as in contracts.Column. Generated and invisible columns are in the row images of both servers, in their place.
    """

    name: str
    type: str
    charset: str = ""
    nullable: bool = True
    generated: str = ""
    visible: bool = True
    default: tuple[str | None, ...] = ()

    def column(self) -> Column:
        """The column as row images have it."""
        declared = declared_type(self.type)
        charset = charset_of_name(self.charset)
        type_code, metadata = declared.layout(charset.bytes_max if charset else 1)
        return Column(
            name=self.name,
            type_code=type_code,
            metadata=metadata,
            unsigned=declared.unsigned,
            charset=self.charset,
            labels=declared.labels,
            nullable=self.nullable,
            mysql_type=self.type,
            default=() if self.default == (None,) and not self.nullable else self.default,
            generated=self.generated,
        )

    def to_json(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "default": list(self.default)}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> DeclaredColumn:
        """Inverse of `to_json`; a record of before defaults were kept has none that is known."""
        return cls(**{**record, "default": tuple(record.get("default", ()))})


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForeignKey:
    """Of the table that has `columns`. `parent`: (database, table) of the `referenced` columns, which are empty for its primary key.

    `on_delete`, `on_update`: CASCADE, SET NULL, or empty for what changes no row. `doubt`: why it may not be there any more, or empty.
    """

    name: str
    columns: tuple[str, ...]
    parent: tuple[str, str]
    referenced: tuple[str, ...]
    on_delete: str = ""
    on_update: str = ""
    doubt: str = ""

    def to_json(self) -> dict[str, Any]:
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> ForeignKey:
        """Inverse of `to_json`; raises KeyError, TypeError or ValueError on a record of another shape."""
        database, table = record["parent"]
        return cls(
            **{
                **record,
                "columns": tuple(record["columns"]),
                "parent": (database, table),
                "referenced": tuple(record["referenced"]),
            }
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableSchema:
    """`charset`: default of columns to come. `key`: the primary key's columns in its order. `foreign_keys`: by name.

    `engine`: in capitals; empty for those that have foreign keys, and where none was said, which is taken for InnoDB. `from_create`: the
    stream had its CREATE TABLE while it was captured, so every row of it came as a row event.
    """

    database: str
    table: str
    charset: str
    columns: tuple[DeclaredColumn, ...]
    key: tuple[str, ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()
    engine: str = ""
    from_create: bool = dataclasses.field(default=False, compare=False)  # equal schemas may have come by other ways

    def version(self) -> TableVersion:
        return table_version(self.database, self.table, tuple(column.column() for column in self.columns), self.key)

    def to_json(self) -> dict[str, Any]:
        return {
            "charset": self.charset,
            "key": list(self.key),
            "columns": [column.to_json() for column in self.columns],
            "foreign_keys": [key.to_json() for key in self.foreign_keys],
            **({"engine": self.engine} if self.engine else {}),
            **({"from_create": True} if self.from_create else {}),
        }

    @classmethod
    def from_json(cls, database: str, table: str, record: dict[str, Any]) -> TableSchema:
        """Inverse of `to_json`; raises KeyError or TypeError on a record of another shape."""
        columns = tuple(DeclaredColumn.from_json(column) for column in record["columns"])
        return cls(
            database=database,
            table=table,
            charset=record["charset"],
            columns=columns,
            key=tuple(record["key"]),
            foreign_keys=tuple(ForeignKey.from_json(key) for key in record["foreign_keys"]),
            engine=record.get("engine", ""),
            from_create=bool(record.get("from_create")),
        )


# the times of its rows, of a table WITH SYSTEM VERSIONING that names no columns for them; the server has them after all others
ROW_TIMES = (
    DeclaredColumn(name="row_start", type="timestamp(6)", nullable=False, generated=HIDDEN_START, visible=False),
    DeclaredColumn(name="row_end", type="timestamp(6)", nullable=False, generated=HIDDEN_END, visible=False),
)


def with_row_times(schema: TableSchema) -> TableSchema:
    """A system-versioned table with the columns that hold the times of its rows, and its key as the user said it."""
    ends = {column.name for column in schema.columns if column.generated == ROW_END}
    key = tuple(name for name in schema.key if name not in ends)
    return dataclasses.replace(schema, key=key, columns=schema.columns if ends else (*schema.columns, *ROW_TIMES))


def kept_engine(engine: str) -> str:
    """An engine's name as `TableSchema.engine` has it."""
    name = engine.upper()
    return _ENGINE_NAMES.get(name, name)


def rows_elsewhere(engine: str) -> str:
    """The engine, as `TableSchema.engine` has it, where its tables do not keep their rows; else empty."""
    name = kept_engine(engine)
    return name if name in ROWS_ELSEWHERE else ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stopped:
    """A table that cannot go on; `state` and `reason` as in TableChange. `schema`: what it has behind the stop, None where not known.

    `gone`: there is no such table any more.
    """

    state: str
    reason: str
    schema: TableSchema | None = None
    gone: bool = False

    def to_json(self) -> dict[str, Any]:
        there = {"state": self.state, "reason": self.reason, "schema": self.schema and self.schema.to_json()}
        return {**there, "gone": True} if self.gone else there

    @classmethod
    def from_json(cls, database: str, table: str, record: dict[str, Any]) -> Stopped:
        """Inverse of `to_json`; raises KeyError or TypeError on a record of another shape."""
        schema = record.get("schema")
        return cls(
            state=record["state"],
            reason=record["reason"],
            schema=None if schema is None else TableSchema.from_json(database, table, schema),
            gone=bool(record.get("gone")),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dropped:
    """There is no such table any more. `schema`: its last, which the lake's table may still have."""

    schema: TableSchema


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerFacts:
    """What decides how the source's DDL is read: "mysql" or "mariadb", its default charset, and whether it folds table names.

    `explicit_timestamps`, `system_time_zone`: what a session has that does not say (explicit_defaults_for_timestamp) or says SYSTEM; None
    and empty where not known. `system_zone`: what SYSTEM is, as a zone with rules. `inline_references`: REFERENCES of a column makes a
    foreign key. `match_ends`: of a foreign key's definition what stands after MATCH is not read (before MySQL 8.0, MariaDB 10.5).
    `logs_cascades`: what a foreign key does to rows is in the binlog (MySQL 9.6 and above, unless innodb_native_foreign_keys is ON).
    """

    flavour: str
    charset: str
    lower_case_names: bool = False
    explicit_timestamps: bool | None = None
    system_time_zone: str = ""
    system_zone: str = ""
    inline_references: bool = False
    match_ends: bool = False
    logs_cascades: bool = False

    def known(self, session: StatementSession) -> StatementSession:
        """With what the server's settings say of the session."""
        explicit = self.explicit_timestamps if session.explicit_timestamps is None else session.explicit_timestamps
        zone = session.time_zone
        if zone == "SYSTEM":  # known by a short name that several zones have, but for these
            named = "UTC" if self.system_time_zone in {"UTC", "GMT"} else self.system_zone
            zone = named or f"SYSTEM, {self.system_time_zone}"
        return dataclasses.replace(session, explicit_timestamps=explicit, time_zone=zone, flavour=self.flavour)


def table_version(database: str, table: str, columns: tuple[Column, ...], key: tuple[str, ...]) -> TableVersion:
    """A TableVersion whose `version` is a digest of columns and key: equal schemas have equal versions, wherever they were learnt."""
    content = [[dataclasses.astuple(column) for column in columns], key]
    digest = hashlib.sha256(json.dumps(content, ensure_ascii=True).encode()).hexdigest()
    return TableVersion(database=database, table=table, columns=columns, key=key, version=digest[:VERSION_DIGITS])
