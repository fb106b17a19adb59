"""Defines the schema of a table as the schema history stores it: with the declared types and charsets, which determine the layout of row
images.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import operator
from collections.abc import Mapping
from typing import Any

from sluice.cdc_engine.binlog.charsets.collations import charset_of_name
from sluice.cdc_engine.binlog.row_rules.history_rows import HIDDEN_END, HIDDEN_START, ROW_END
from sluice.cdc_engine.contracts import Column, StatementSession, TableVersion
from sluice.cdc_engine.table_meta.ddl.declared_type import MYSQL, MYSQL_5, declared_type

# Storage engines whose tables store no rows, or show rows of other tables or servers. Rows of such a table can change without row events of
# the table.
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
WITHOUT_TRANSACTIONS = frozenset(("MYISAM", "MEMORY", "ARIA", "CSV", "ARCHIVE")) | ROWS_ELSEWHERE
# Storage engine or alias → canonical name, or "" if the storage engine supports foreign keys. Other storage engines keep their names.
_ENGINE_NAMES = {"MERGE": "MRG_MYISAM", "HEAP": "MEMORY", "MARIA": "ARIA"} | dict.fromkeys(
    ("INNODB", "NDB", "NDBCLUSTER"), ""
)
# The length of a schema version: 64 bits of a digest in hexadecimal. With 64 bits, two schemas of one table practically never have the same
# version.
VERSION_DIGITS = 16
# Returns the values of a column's fields, in the order of the fields. `dataclasses.astuple` would copy each value, which takes seconds for
# thousands of tables.
_VALUES_OF_COLUMN = operator.attrgetter(*(field.name for field in dataclasses.fields(Column)))
_SYSTEM_DATABASES = {"mysql", "sys", "information_schema", "performance_schema"}


def is_of_users(database: str) -> bool:
    """Returns whether a database is a database of users, and not one of the server's own databases."""
    return database.lower() not in _SYSTEM_DATABASES


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeclaredColumn:
    """A column as it is declared.

    - `type`: the type as text, for example `int unsigned`. Different spellings of one type (INTEGER, INT) have the same text.
    - `charset`: the charset of a text, enum or set; `binary` for byte strings; otherwise empty.
    - `generated`: "virtual", "stored", "unknown" if only a table map is known, or a constant such as ROW_START for the times of a row in a
      table with system versioning. Empty for an ordinary column. Row images contain generated and invisible columns too.
    - `default`: a tuple with the value that a row gets if its INSERT omits the column. (None,) is NULL. () means that the value is unknown.
    - `comment`: ignored when columns are compared.
    """

    name: str
    type: str
    charset: str = ""
    nullable: bool = True
    generated: str = ""
    visible: bool = True
    default: tuple[str | None, ...] = ()
    comment: str = dataclasses.field(default="", compare=False)

    def column(self) -> Column:
        """Returns the column with the type code and metadata of row images."""
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
        record = {**vars(self), "default": list(self.default)}
        return record if self.comment else {name: value for name, value in record.items() if name != "comment"}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> DeclaredColumn:
        """Converts the result of `to_json` back to a column. Earlier versions of Sluice stored no default, so the default is unknown in
        their records.
        """
        return cls(**{**record, "default": tuple(record.get("default", ()))})


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForeignKey:
    """A foreign key of a table. `columns` refer to the columns `referenced` of `parent` (database, table). `referenced` is empty if the
    foreign key refers to the parent's primary key.

    `on_delete` and `on_update` are CASCADE, SET NULL, or empty for actions that change no row. `doubt` tells why the definition is
    uncertain, or is empty.
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
        """Parses the JSON of `to_json`. Raises KeyError, TypeError or ValueError if the record has another structure."""
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
    """The schema of a table.

    - `charset`: the default for new columns.
    - `key`: the columns of the primary key, in the order of the key. `foreign_keys`: ordered by name.
    - `engine`: the name of the storage engine in capitals. Empty for engines that support foreign keys.
    - `from_create`: the CREATE TABLE was in the stream while the table was captured, so the stream had row events for all of the table's
      rows.
    """

    database: str
    table: str
    charset: str
    columns: tuple[DeclaredColumn, ...]
    key: tuple[str, ...] = ()
    foreign_keys: tuple[ForeignKey, ...] = ()
    engine: str = ""
    from_create: bool = dataclasses.field(default=False, compare=False)  # Ignored when schemas are compared.
    comment: str = dataclasses.field(default="", compare=False)

    @functools.cached_property
    def comments(self) -> dict[str, str]:
        """The comments that are not empty, by column. The comment of the table itself is under ""."""
        found = {"": self.comment, **{column.name: column.comment for column in self.columns}}
        return {name: comment for name, comment in found.items() if comment}

    def with_comments(self, comments: Mapping[str, str]) -> TableSchema:
        """Returns the schema with other comments. `comments` has the comment of each column by its name, and the table's comment under "".
        A schema from a table map has no comments of its own.
        """
        columns = tuple(dataclasses.replace(each, comment=comments.get(each.name, "")) for each in self.columns)
        return dataclasses.replace(self, columns=columns, comment=comments.get("", ""))

    def version(self) -> TableVersion:
        """Returns the table version of the schema. Each call returns the same object."""
        return self._version

    @functools.cached_property
    def _version(self) -> TableVersion:
        return table_version(self.database, self.table, tuple(column.column() for column in self.columns), self.key)

    def to_json(self) -> dict[str, Any]:
        return {
            "charset": self.charset,
            "key": list(self.key),
            "columns": [column.to_json() for column in self.columns],
            "foreign_keys": [key.to_json() for key in self.foreign_keys],
            **({"engine": self.engine} if self.engine else {}),
            **({"from_create": True} if self.from_create else {}),
            **({"comment": self.comment} if self.comment else {}),
        }

    @classmethod
    def from_json(cls, database: str, table: str, record: dict[str, Any]) -> TableSchema:
        """Parses the JSON of `to_json`. Raises KeyError or TypeError if the record has another structure."""
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
            comment=record.get("comment", ""),
        )


# The hidden columns with the times of a row, in a table WITH SYSTEM VERSIONING that declares no such columns. The server places them after
# all other columns.
ROW_TIMES = (
    DeclaredColumn(name="row_start", type="timestamp(6)", nullable=False, generated=HIDDEN_START, visible=False),
    DeclaredColumn(name="row_end", type="timestamp(6)", nullable=False, generated=HIDDEN_END, visible=False),
)


def with_row_times(schema: TableSchema) -> TableSchema:
    """Adds the columns for a row's begin and end times (ROW_TIMES) to the schema of a table with system versioning, unless the table
    declares such columns. The server adds the end column to the key; the returned schema's key does not have it.
    """
    ends = {column.name for column in schema.columns if column.generated == ROW_END}
    key = tuple(name for name in schema.key if name not in ends)
    return dataclasses.replace(schema, key=key, columns=schema.columns if ends else (*schema.columns, *ROW_TIMES))


def kept_engine(engine: str) -> str:
    """Returns the canonical name of a storage engine in capitals, or "" for a storage engine that supports foreign keys, such as InnoDB."""
    name = engine.upper()
    return _ENGINE_NAMES.get(name, name)


def has_transactions(engine: str) -> bool:
    """Returns whether a ROLLBACK undoes changes of a table with this engine. An unknown engine counts as one with transactions."""
    return kept_engine(engine) not in WITHOUT_TRANSACTIONS


def rows_elsewhere(engine: str) -> str:
    """Returns the engine's canonical name if its tables do not store their own rows, otherwise ""."""
    name = kept_engine(engine)
    return name if name in ROWS_ELSEWHERE else ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Stopped:
    """What the schema history stores about a stopped table. `state` (a TableState) and `reason` say why the table stopped. `schema` is the
    table's schema in the source, which the history follows while the table is stopped, or None if unknown. `gone` tells whether the table
    was dropped.
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
        """Parses the JSON of `to_json`. Raises KeyError or TypeError if the record has another structure."""
        schema = record.get("schema")
        return cls(
            state=record["state"],
            reason=record["reason"],
            schema=None if schema is None else TableSchema.from_json(database, table, schema),
            gone=bool(record.get("gone")),
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class DroppedTable:
    """What the schema history stores about a table that does not exist any more. `schema` is the table's last schema, which the lake's
    table may still have, or None if unknown.
    """

    schema: TableSchema | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DdlServerFacts:
    """The facts about a server that determine how its DDL is parsed: its flavour ("mysql" or "mariadb"), its default charset, and whether
    it converts table names to lower case.

    - `explicit_timestamps`: explicit_defaults_for_timestamp for a session that does not set it. None if unknown.
    - `system_time_zone`: the server's name for the zone SYSTEM, empty if unknown. `system_zone`: the name of the same zone in the zone
      database, empty if no such zone was found. For UTC and GMT, it is empty because no search is needed.
    - `inline_references`: REFERENCES in a column definition creates a foreign key.
    - `match_ends`: the server ignores ON DELETE and ON UPDATE after MATCH (before MySQL 8.0 and MariaDB 10.5).
    - `logs_cascades`: row changes by foreign keys are in the binlog (MySQL 9.6 and later, if innodb_native_foreign_keys is OFF).
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

    @property
    def dialect(self) -> str:
        """The flavour for parsing the server's statements: `flavour`, or MYSQL_5 for a MySQL before 8.0."""
        return MYSQL_5 if self.flavour == MYSQL and self.match_ends else self.flavour

    def known(self, session: StatementSession) -> StatementSession:
        """Returns the session with the server's flavour, with the server's explicit_defaults_for_timestamp if the session's value is
        unknown, and with the server's named zone instead of SYSTEM.
        """
        explicit = self.explicit_timestamps if session.explicit_timestamps is None else session.explicit_timestamps
        zone = session.time_zone
        if zone == "SYSTEM":  # The server's abbreviation of its zone is ambiguous, unless it is UTC or GMT.
            named = "UTC" if self.system_time_zone in {"UTC", "GMT"} else self.system_zone
            zone = named or f"SYSTEM, {self.system_time_zone}"
        return dataclasses.replace(session, explicit_timestamps=explicit, time_zone=zone, flavour=self.flavour)


def table_version(database: str, table: str, columns: tuple[Column, ...], key: tuple[str, ...]) -> TableVersion:
    """Makes a table version whose `version` is a digest of the columns and the key. Equal schemas get equal versions, whether they come
    from a statement, a table map or the server.
    """
    content = [[_VALUES_OF_COLUMN(column) for column in columns], key]
    digest = hashlib.sha256(json.dumps(content, ensure_ascii=True).encode()).hexdigest()
    return TableVersion(database=database, table=table, columns=columns, key=key, version=digest[:VERSION_DIGITS])
