"""Connects to ZooKeeper, and defines the paths of Sluice's nodes. In the engine, only this module, `zookeeper` and the lease in ZooKeeper
(`ha.zookeeper_lock`) use kazoo.

A connection belongs to one process, so a forked run opens its own connection. Each request has a time-out, because kazoo would wait without
a limit until a server answers.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import ssl
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, KazooException, NoAuthError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KeeperState
from kazoo.security import CREATOR_ALL_ACL

from sluice.cdc_engine.contracts import ZooKeeperServers
from sluice.cdc_engine.environment import filled
from sluice.cdc_engine.errors import ConfigurationError, NotSharedError
from sluice.extras import Extra, require

DESTINATIONS = "/otter/canal/destinations"  # The same path as in Canal, so that Canal's tools find the nodes.
CLUSTER = "/otter/canal/cluster"
OWN = "sluice"  # The node under a destination's node that contains everything for which Canal has no node.
ANSWER_SECONDS_MAX = 10.0
CONNECT_SECONDS_MAX = 10.0
SYSTEM_AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"
KERBEROS = "kerberos"  # The module that pure-sasl imports for GSSAPI.
# The most bytes that Sluice writes to a node; more are an error. ZooKeeper refuses nodes that are larger than jute.maxbuffer, by default 1
# MiB.
NODE_BYTES_MAX = 1_000_000

_ADVICE = (
    (AuthFailedError, " (the login was refused: correct meta.user, meta.password and meta.sasl in conf/)"),
    (NoAuthError, " (another user owns this node: log in as that user, or change the ACL of the node)"),
)

logging.getLogger("kazoo").setLevel(logging.CRITICAL)  # Hides kazoo's own log, because callers report its errors.


@dataclasses.dataclass
class _Shared:
    """A client that the threads of one process share. `lock` is held while the client connects, which may take half a minute."""

    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)
    client: Any = None


# (servers, process id) → the shared client. An entry is never removed, because a thread may be waiting for its lock.
_shared: dict[tuple[ZooKeeperServers, int], _Shared] = {}
_lock = threading.Lock()


def destination_path(destination: str, *parts: str) -> str:
    """Returns the path of a node: /otter/canal/destinations/<destination>, and then `parts`, separated by slashes."""
    return "/".join((DESTINATIONS, destination, *parts))


def new_client(servers: ZooKeeperServers, session_seconds: float) -> Any:
    """Returns a new, connected client with a separate session.

    Raises NotSharedError if no server answers, SecretUnavailableError if the password cannot be read, and ConfigurationError if a library
    for SASL is missing or a certificate cannot be read.
    """
    client = KazooClient(
        hosts=servers.hosts,
        timeout=session_seconds,
        connection_retry={"max_delay": 1.0, "max_tries": -1},
        **_login(servers),
        **_tls(servers),
    )
    try:
        client.start(timeout=CONNECT_SECONDS_MAX)
    except KazooTimeoutError as error:
        end(client)
        raise NotSharedError(
            f"no ZooKeeper of {servers} answers within {CONNECT_SECONDS_MAX:g} s: start ZooKeeper, or correct "
            "the address, the login and the certificates in conf/"
        ) from error
    return client


def _login(servers: ZooKeeperServers) -> dict[str, Any]:
    """Returns kazoo's arguments for the login. If there is a login, only the same user can access the nodes that Sluice creates."""
    if not servers.user and not servers.sasl:
        return {}
    password = filled(servers.password, "meta.password")
    if not servers.sasl:
        return {"auth_data": [("digest", f"{servers.user}:{password}")], "default_acl": CREATOR_ALL_ACL}
    require(Extra.SASL, ConfigurationError)
    if servers.sasl == "GSSAPI" and find_spec(KERBEROS) is None:
        raise ConfigurationError(
            "meta.sasl GSSAPI needs a package that is not installed: pip install 'pure-sasl[GSSAPI]'"
        )
    named = {"username": servers.user, "password": password} if servers.user else {}
    return {"sasl_options": {"mechanism": servers.sasl, **named}, "default_acl": CREATOR_ALL_ACL}


def _tls(servers: ZooKeeperServers) -> dict[str, Any]:
    """Returns kazoo's arguments for TLS. The certificate and the name of the server are always verified. Raises ConfigurationError if a
    file cannot be read, because kazoo would not report the reason.
    """
    if not servers.tls:
        return {}
    for path in (servers.ca_file, servers.certificate_file, servers.key_file):
        if path is not None and not os.access(path, os.R_OK):
            raise ConfigurationError(
                f"meta.tls: the file {path} cannot be read: correct the name or the permissions of the file"
            )
    return {
        "use_ssl": True,
        "verify_certs": True,
        "check_hostname": True,
        "ca": str(servers.ca_file or ssl.get_default_verify_paths().cafile or SYSTEM_AUTHORITIES),
        "certfile": str(servers.certificate_file) if servers.certificate_file else None,
        "keyfile": str(servers.key_file) if servers.key_file else None,
    }


def shared_client(servers: ZooKeeperServers, session_seconds: float) -> Any:
    """Returns the client that all threads of this process share, for requests that need no separate session. Replaces the client if it can
    never connect again.
    """
    with _lock:
        shared = _shared.setdefault((servers, os.getpid()), _Shared())
    # Holds a lock of this client only, so that servers that do not answer do not delay requests to other servers.
    with shared.lock:
        if is_over(shared.client):
            over, shared.client = shared.client, None
            end(over)
        if shared.client is None:
            shared.client = new_client(servers, session_seconds)
        return shared.client


def is_over(client: Any) -> bool:
    """Returns True if a client can never connect again, because its login was refused or it was closed. The caller then opens a new
    client, which reads the password again.
    """
    return client is not None and client.client_state in (KeeperState.AUTH_FAILED, KeeperState.CLOSED)


def end_shared_clients() -> None:
    """Closes the shared clients of this process. The next request opens a new client."""
    with _lock:
        mine = [shared for key, shared in _shared.items() if key[1] == os.getpid()]
    for shared in mine:
        with shared.lock:
            client, shared.client = shared.client, None
        if client is not None:
            end(client)


def end(client: Any) -> None:
    """Closes a client and its session, even if it never connected."""
    for step in (client.stop, client.close):
        with contextlib.suppress(KazooException, KazooTimeoutError):
            step()


def answer(request: Any) -> Any:
    """Waits for the result of an asynchronous request. Raises kazoo's errors, and kazoo's time-out error."""
    return request.get(timeout=ANSWER_SECONDS_MAX)


@contextlib.contextmanager
def as_not_shared_error(what: str) -> Iterator[None]:
    """Raises kazoo's errors as NotSharedError. `what` begins the message, for example "the ledger of shop in ZooKeeper cannot be read"."""
    try:
        yield
    except (KazooException, KazooTimeoutError) as error:
        advice = next((text for kind, text in _ADVICE if isinstance(error, kind)), "")
        raise NotSharedError(f"{what}: {str(error) or type(error).__name__}{advice}; Sluice tries again") from error
