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
INSTALLATION_CHARS = 8  # of its id, in the host name
HOST_CHARS = 60  # the longest name that every server takes
SERVER_ID_FIRST = 1 << 30  # derived ids lie above those that people give, and below 2³¹


def no_password() -> str:
    return ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """`password` is asked for each time a connection opens and kept nowhere. `installation`: the id of the installation, or empty for
    who does not dump. `server_id` 0: derived from installation and destination.
    """

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
    installation: str = ""

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def replica_id(self) -> int:
        """The server id that this replica registers with; always the same for one destination of one installation."""
        digest = hashlib.sha256(self._identity.encode()).digest()
        return self.server_id or SERVER_ID_FIRST + int.from_bytes(digest[:4], "little") % SERVER_ID_FIRST

    @property
    def replica_uuid(self) -> str:
        """MySQL ends an older dump with the same uuid. A configured server id is part of it, so that another server id ends a clash."""
        return str(uuid.uuid5(NAMESPACE, f"{self._identity}/{self.server_id}" if self.server_id else self._identity))

    @property
    def replica_host(self) -> str:
        """The host in SHOW REPLICAS. MariaDB has no uuid for replicas and tells them apart by this name."""
        return "-".join(filter(None, ["sluice", self.installation[:INSTALLATION_CHARS], self.destination]))[:HOST_CHARS]

    @property
    def clash_remedy(self) -> str:
        """How a REPLICA_CLASH ends, as the end of a sentence."""
        return (
            f"set `server_id` in `source` of {self.destination} in conf/destinations of one of the two to a number that no replica has, or "
            "stop the other one; this engine connects again by itself"
        )

    def named(self, name: str) -> Source:
        """The same source for another dump of the same destination, which has a replica identity of its own."""
        installation = f"{self.installation}/{self.server_id}" if self.server_id else self.installation
        return dataclasses.replace(self, destination=name, server_id=0, installation=installation)

    @property
    def _identity(self) -> str:
        """Hosts that share a ledger have one installation, so a takeover replaces the dump of the dead host."""
        return "/".join(filter(None, [self.installation, self.destination]))
