"""Defines the settings of the server for Canal clients, and of the handlers that are called before and after each batch."""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from sluice.cdc_engine.source.settings import (
    LocalFile,
    OnlyWith,
    SecretReference,
    Strict,
    moved_secret,
    refuse_without_port,
)

EVERYWHERE = {"0.0.0.0", "::"}  # noqa: S104  an address to listen on, not one to connect to
OFFSET = re.compile(r"[+-]\d\d:?\d\d")


class RenderingConfig(Strict):
    """Which entries consumers receive, and how values are written in them."""

    time_zone: str = Field(
        "UTC",
        description=(
            "Time zone in which TIMESTAMP values are sent. Canal uses the time zone of the machine on which it runs."
        ),
    )
    decimals: Literal["declared", "canal"] = Field(
        "declared",
        description=(
            "How a DECIMAL value without a fraction is written. `declared`: with all digits of the column's scale "
            "(1.000000). `canal`: as Canal writes it (1.0)."
        ),
    )
    gtids: bool = Field(
        False,
        description=(
            "Whether GTIDs are sent, as by Canal with `gtidon`. With `true`, headers of entries have the executed GTID "
            "set (`gtid`) and the transaction's GTID (`curtGtid`, `curtGtidSn`, `curtGtidLct`), and flat messages have "
            "the executed GTID set (`gtid`)."
        ),
    )
    ddl: bool = Field(
        True,
        description="Whether DDL statements such as ALTER TABLE are sent. `false`: no statement of any kind is sent.",
    )
    other_statements: bool = Field(
        True,
        description=(
            "Whether statements of the type QUERY are sent: CREATE and DROP DATABASE, and statements that Sluice "
            "cannot read."
        ),
    )
    row_entries: bool = Field(
        True,
        description="Whether row changes are sent. `false`: only statements are sent. The lake gets the rows in any case.",
    )

    @field_validator("time_zone")
    @classmethod
    def _known_zone(cls, given: str) -> str:
        if not given or given.upper() == "UTC" or OFFSET.fullmatch(given):
            return given
        try:
            zoneinfo.ZoneInfo(given)
        except (ValueError, KeyError, OSError):
            raise ValueError(
                f"{given!r} is not a time zone: write a name with the letter case of the time zone database, such as Asia/Shanghai, or an "
                "offset such as +08:00"
            ) from None
        # `ZoneInfo` also finds zones in the Python package tzdata. pyarrow, which prints the values, does not.
        if not any(Path(folder, given).is_file() for folder in zoneinfo.TZPATH):
            raise ValueError(
                f"the operating system of this host lacks the time zone {given!r}: install its package tzdata and, for an earlier name of "
                "a zone, tzdata-legacy; or write the present name, or an offset such as +08:00"
            )
        return given


class CanalServerConfig(RenderingConfig):
    """A destination's settings of the server for Canal clients. Destinations with the same host and port share one server."""

    removed: ClassVar[Mapping[str, str]] = {
        **moved_secret("password_hash"),
        "window_bytes_max": "the window for consumers is as large as the destination's `ring.bytes_max`",
    }
    only_with: ClassVar[OnlyWith] = {"key_file": ("certificate_file", ())}

    transaction_entries: bool = Field(
        True,
        description=(
            "Whether the beginning and the end of every transaction are sent. `false`: they are sent again only "
            "after 5 s by the source's clock, or after 4096 transactions, so that a client's cursor still moves."
        ),
    )
    rows_query: bool = Field(
        False,
        description=(
            "Whether clients get the SQL text of each statement that changed rows, before the rows of the statement. The "
            "source must log the SQL text (`binlog_rows_query_log_events`; MariaDB's `binlog_annotate_row_events`). "
            "Sluice refuses `masks`, `rows` and column filters together with `rows_query`, because the SQL text has all "
            "values."
        ),
    )
    full_batches: bool = Field(
        False,
        description=(
            "When Sluice answers a client's get that has a time-out. `true`: when as many changes have arrived as the "
            "client requests, as in Canal. `false`: as soon as a change has arrived."
        ),
    )
    fetch_unit: Literal["kibibytes", "entries"] = Field(
        "kibibytes",
        description="Unit of the fetch size in a client's get: `kibibytes` of row events, as Canal's MEMSIZE, or "
        "`entries`, as Canal's ITEMSIZE.",
    )
    port: int = Field(
        0,
        ge=0,
        le=65535,
        description=(
            "Port of the server for Canal clients. 0: no server. Canal's own default is 11111. Destinations with the same "
            "host and port share a server."
        ),
    )
    host: str = Field(
        "127.0.0.1", description="Address on which the server listens. An address other than loopback requires `user`."
    )
    user: str = Field("", description="User name that clients must send. Empty: no authentication.")
    password_hash: SecretReference = Field(
        "",
        description=(
            "Hash of the clients' password, hex(SHA1(SHA1(password))), as in Canal's `canal.passwd`. Write it as `$NAME`, "
            "`{file: PATH}` or `{command: [PROGRAM]}`. Read when a client logs in. Empty: no password."
        ),
    )
    certificate_file: LocalFile | None = Field(
        None, description="PEM file with the server's certificate chain. The server then accepts TLS only."
    )
    key_file: LocalFile | None = Field(None, description="PEM file with the key of the certificate.")
    connections_max: int = Field(
        64,
        ge=1,
        le=4096,
        description=(
            "Maximum number of clients that are connected to the port at the same time. The next client gets an error "
            "that names this limit. Connections that have not authenticated do not count."
        ),
    )

    @model_validator(mode="after")
    def _has_a_port(self) -> CanalServerConfig:
        refuse_without_port(self)
        return self


class HandlerConfig(Strict):
    """An installed handler, which is called before and after each batch."""

    name: str = Field(min_length=1, description="Name of an entry point in the group `sluice.handlers`.")
    options: dict[str, Any] = Field(
        {},
        description="Options that the handler receives. A text `$NAME` is replaced with the value of the environment variable.",
    )
