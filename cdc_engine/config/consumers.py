"""What conf/ says of who is told of a destination's changes beside the lake: the server of Canal's protocol; handlers around each batch."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from cdc_engine import limits
from cdc_engine.source.settings import LocalPath, Strict

EVERYWHERE = {"0.0.0.0", "::"}  # noqa: S104  what is listened on is no address to come to


class CanalServerConfig(Strict):
    """The server of Canal's protocol for one destination; destinations that name the same host and port share it."""

    port: int = Field(0, ge=0, le=65535, description="11111 is Canal's; 0: no server, and no consumers beside the lake")
    host: str = Field("127.0.0.1", description="address to listen on; another than the loopback wants a user")
    user: str = Field("", description="whom clients must be; empty: anyone")
    password_hash_env: str = Field(
        "",
        description="environment variable with hex(SHA1(SHA1(password))), as Canal's canal.passwd; empty: no password",
    )
    certificate_file: LocalPath | None = Field(None, description="PEM with the server's chain: TLS, and nothing else")
    key_file: LocalPath | None = None
    time_zone: str = Field("UTC", description="in which TIMESTAMP values are shown; Canal takes that of its machine")
    window_bytes_max: int = Field(
        limits.WINDOW_BYTES_MAX,
        ge=limits.READ_BUFFER_BYTES,
        description="row events kept for consumers in memory; one behind them reads the source by itself",
    )
    connections_max: int = Field(
        64,
        ge=1,
        le=4096,
        description="clients at once; another one is refused with a sentence. Connections that have not authenticated do not count",
    )


class HandlerConfig(Strict):
    """One that is installed, called around each batch."""

    name: str = Field(min_length=1, description="of an entry point of the group sluice.handlers")
    options: dict[str, Any] = Field({}, description="given to it; a text $NAME is that variable of the environment")
