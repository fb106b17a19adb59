"""Describes a server to read, and the identity with which the engine registers as a replica of the server."""

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
INSTALLATION_CHARS = 8  # The replica's host name contains this many characters of the installation's id.
# The most characters in the replica's host name; a longer name is cut. Every server accepts this length.
HOST_CHARS = 60
# The smallest server id that Sluice derives; the largest is below 2³¹. So derived ids are above the ids that people usually configure.
SERVER_ID_FIRST = 1 << 30


def no_password() -> str:
    return ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source:
    """A server to read, and the identity with which the engine registers as its replica.

    - `password`: returns the password. Called for each new connection, because the password may change.
    - `installation`: the id of the installation. Empty for a session that does not read the binlog.
    - `server_id`: the replica's server id. 0 means that it is derived from `installation` and `destination`.
    - `bastion`: the host through which the server is reached, or None.
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
        """The server id with which the engine registers as a replica. A destination of an installation always has the same server id."""
        digest = hashlib.sha256(self._identity.encode()).digest()
        return self.server_id or SERVER_ID_FIRST + int.from_bytes(digest[:4], "little") % SERVER_ID_FIRST

    @property
    def replica_uuid(self) -> str:
        """The uuid with which the engine registers as a replica. MySQL ends an older binlog dump with the same uuid. If conf/ sets a server
        id, the uuid is derived from it too. So an operator who sets another server id also gets another uuid.
        """
        return str(uuid.uuid5(NAMESPACE, f"{self._identity}/{self.server_id}" if self.server_id else self._identity))

    @property
    def replica_host(self) -> str:
        """The host name that SHOW REPLICAS shows for the engine. On MariaDB, where replicas have no uuid, the host name identifies the
        engine.
        """
        return "-".join(filter(None, ["sluice", self.installation[:INSTALLATION_CHARS], self.destination]))[:HOST_CHARS]

    @property
    def clash_remedy(self) -> str:
        """What to do in the state REPLICA_CLASH, as the end of a sentence."""
        return (
            f"set `server_id` in `source` of {self.destination} in conf/destinations to a number that no "
            "other replica of the server has, or stop the other replica; the engine connects again by itself"
        )

    def named(self, name: str) -> Source:
        """Returns this source with `name` in place of its destination. A second binlog dump of the same destination then registers as
        another replica.
        """
        installation = f"{self.installation}/{self.server_id}" if self.server_id else self.installation
        return dataclasses.replace(self, destination=name, server_id=0, installation=installation)

    @property
    def _identity(self) -> str:
        """The text from which server id and uuid are derived. Hosts that share a ledger have the same installation id. So after a takeover,
        the new host registers as the same replica, and the server ends the binlog dump of the failed host.
        """
        return "/".join(filter(None, [self.installation, self.destination]))
