"""The server to read from, and this replica's identity on it, as plain values. Made by `instance` from the configuration."""

from __future__ import annotations

import dataclasses
import hashlib
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Literal

TlsMode = Literal["DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"]

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "sluice:destination")
SERVER_ID_FIRST = 1 << 30  # derived ids lie above those that people give, and below 2³¹


def no_password() -> str:
    return ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """`password` is asked for each time a connection opens and kept nowhere. `server_id` 0: derived from the destination's name."""

    destination: str
    host: str
    port: int
    user: str
    password: Callable[[], str] = dataclasses.field(default=no_password, repr=False)
    tls_mode: TlsMode = "PREFERRED"
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    server_id: int = 0

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def replica_id(self) -> int:
        """The server id this replica registers with; the same for ever for one name."""
        digest = hashlib.sha256(self.destination.encode()).digest()
        return self.server_id or SERVER_ID_FIRST + int.from_bytes(digest[:4], "little") % SERVER_ID_FIRST

    @property
    def replica_uuid(self) -> str:
        return str(uuid.uuid5(NAMESPACE, self.destination))

    @property
    def replica_host(self) -> str:
        """What SHOW REPLICAS names as our host; by it MariaDB, which knows no uuid, tells us from others."""
        return f"sluice-{self.destination}"[:60]
