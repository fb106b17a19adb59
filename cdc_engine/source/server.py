"""Describes the server to read from, and the identity of this replica on it. `instance` creates these values from the configuration."""

from __future__ import annotations

import dataclasses
import hashlib
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from sluice.cdc_engine.source.tunnel import Bastion

TlsMode = Literal["DISABLED", "PREFERRED", "REQUIRED", "VERIFY_CA", "VERIFY_IDENTITY"]

NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "sluice:destination")
INSTALLATION_CHARS = 8  # The number of characters of the installation's id in the host name.
HOST_CHARS = 60  # The maximum length of a host name that every server accepts.
SERVER_ID_FIRST = 1 << 30  # Derived ids are above the ids that people usually configure, and below 2³¹.


def no_password() -> str:
    return ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A server and this replica's identity on it. `password`: called for each new connection; its result is not stored. `installation`: the
    id of the installation, or empty for a reader that does not dump. `server_id` 0: derived from installation and destination. `bastion`:
    the host through which the server is reached.
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
    bastion: Bastion | None = None

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def replica_id(self) -> int:
        """The server id with which this replica registers. It is always the same for one destination of one installation."""
        digest = hashlib.sha256(self._identity.encode()).digest()
        return self.server_id or SERVER_ID_FIRST + int.from_bytes(digest[:4], "little") % SERVER_ID_FIRST

    @property
    def replica_uuid(self) -> str:
        """The uuid with which this replica registers. MySQL ends an older dump with the same uuid. A configured server id is part of it, so
        that a new server id resolves a clash.
        """
        return str(uuid.uuid5(NAMESPACE, f"{self._identity}/{self.server_id}" if self.server_id else self._identity))

    @property
    def replica_host(self) -> str:
        """The host in SHOW REPLICAS, which identifies MariaDB replicas, because they have no uuid."""
        return "-".join(filter(None, ["sluice", self.installation[:INSTALLATION_CHARS], self.destination]))[:HOST_CHARS]

    @property
    def clash_remedy(self) -> str:
        """The remedy for the state REPLICA_CLASH, as the end of a sentence."""
        return (
            f"set `server_id` in `source` of {self.destination} in conf/destinations to a number that no "
            "other replica of the server has, or stop the other replica; the engine connects again by itself"
        )

    def named(self, name: str) -> Source:
        """Returns the same source with another replica identity, for another dump of the same destination."""
        installation = f"{self.installation}/{self.server_id}" if self.server_id else self.installation
        return dataclasses.replace(self, destination=name, server_id=0, installation=installation)

    @property
    def _identity(self) -> str:
        """The text from which the identity is derived. Hosts that share a ledger have the same installation, so the dump of a takeover
        replaces the failed host's dump.
        """
        return "/".join(filter(None, [self.installation, self.destination]))
