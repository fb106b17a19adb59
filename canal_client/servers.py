"""Finds the servers of a destination: fixed addresses that are tried in order, or the servers that a cluster registers in ZooKeeper.

In a Canal cluster, the server that reads a destination registers itself at `…/<destination>/running`. If several clients have the same id,
only the client that holds the node `…/<destination>/<client id>/running` may read; the other clients wait until this node is free.
ZooKeeper removes a `running` node when the session of its holder ends.
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Sequence
from typing import Any, Protocol

from sluice.canal_client.errors import CanalConnectionError
from sluice.extras import Extra, require

ROOT = "/otter/canal/destinations"
SESSION_SECONDS = 30.0
CONNECT_SECONDS = 10.0
Address = tuple[str, int]


class Servers(Protocol):
    """Finds the servers of a destination. The methods raise CanalConnectionError if there is no server, or if ZooKeeper does not answer."""

    def addresses(self) -> Sequence[Address]:
        """Returns the addresses of the destination's servers, in the order in which the client tries them."""

    def enter(self, local_address: str) -> None:
        """Reserves the client's id, and waits while another client has it. The client calls this before it connects to a server.
        `local_address` is the client's address, which the reservation shows.
        """

    @property
    def allowed(self) -> bool:
        """Whether this client still holds the reservation of its id."""

    def leave(self) -> None: ...
    def close(self) -> None: ...


class FixedServers:
    """Fixed addresses: one server, or several servers of which one has the destination at a time."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = tuple(addresses)

    def addresses(self) -> Sequence[Address]:
        return self._addresses

    def enter(self, local_address: str) -> None:
        """Does nothing: fixed servers need no reservation."""

    @property
    def allowed(self) -> bool:
        return True

    def leave(self) -> None:
        """Does nothing: fixed servers need no reservation."""

    def close(self) -> None:
        """Does nothing: fixed servers have no open connection to close."""


class ClusterServers:
    """Finds the servers of a cluster in ZooKeeper. `hosts` has the form "zk1:2181,zk2:2181". `wait_seconds` is how long `enter` waits while
    another client has the id; None means without limit. The first request connects to ZooKeeper. The constructor raises
    CanalConnectionError if the library for ZooKeeper is not installed.
    """

    def __init__(self, hosts: str, destination: str, client_id: int, *, wait_seconds: float | None = None) -> None:
        require(Extra.ZOOKEEPER, CanalConnectionError)
        self._hosts, self._destination, self._client_id = hosts, destination, client_id
        self._path = f"{ROOT}/{destination}"
        self._running = f"{self._path}/{client_id}/running"
        self._wait_seconds = wait_seconds
        self._zookeeper: Any = None
        # The number of ZooKeeper sessions that have ended, which identifies the current session.
        self._session = 0
        # The session in which this client reserved the id, or -1 if the client has no reservation.
        self._entered = -1
        self._lock = threading.Lock()

    def addresses(self) -> Sequence[Address]:
        with self._translated():
            running = self._address(self._answer_to("get", f"{self._path}/running"))
            others = self._answer_to("get_children", f"{self._path}/cluster") or ()
        found = [running] if running else []
        found += [each for name in others if (each := _address_of(name)) is not None and each not in found]
        if not found:
            raise CanalConnectionError(
                f"no server of {self._destination} is registered in ZooKeeper {self._hosts}: start a server"
            )
        return found

    def enter(self, local_address: str) -> None:
        from kazoo.exceptions import NodeExistsError  # noqa: PLC0415  only a cluster needs kazoo

        payload = {"active": True, "address": local_address, "clientId": self._client_id}
        data = json.dumps(payload, separators=(",", ":")).encode()
        deadline = None if self._wait_seconds is None else time.monotonic() + self._wait_seconds
        self.leave()
        while True:
            with self._translated():
                zookeeper = self._connected()
                session, gone = self._session, threading.Event()
                try:
                    zookeeper.create(self._running, data, ephemeral=True, makepath=True)
                except NodeExistsError:
                    running = zookeeper.exists(self._running, watch=lambda _event, gone=gone: gone.set())
                    if running is None:
                        continue
                    if running.ephemeralOwner == (zookeeper.client_id or [None])[0]:
                        # The node is of this client's own session: the client created the node earlier, but lost the connection before
                        # ZooKeeper's answer.
                        self._entered = session
                        return
                else:
                    self._entered = session
                    return
            if not gone.wait(None if deadline is None else max(0.0, deadline - time.monotonic())):
                raise CanalConnectionError(
                    f"another client with the id {self._client_id} reads {self._destination}: stop that "
                    "client, or use another id"
                )

    @property
    def allowed(self) -> bool:
        return self._zookeeper is not None and self._entered == self._session

    def leave(self) -> None:
        entered, self._entered = self._entered == self._session, -1
        if entered and self._zookeeper is not None:
            # Ignores errors, because ZooKeeper removes the node when the session ends.
            with contextlib.suppress(Exception):
                self._zookeeper.delete(self._running)

    def close(self) -> None:
        self.leave()
        with self._lock:
            zookeeper, self._zookeeper = self._zookeeper, None
        if zookeeper is not None:
            zookeeper.stop()
            zookeeper.close()

    def _address(self, data: Any) -> Address | None:
        if not data:
            return None
        record = json.loads(data[0])
        return _address_of(str(record.get("address", ""))) if record.get("active", True) else None

    def _answer_to(self, what: str, path: str) -> Any:
        from kazoo.exceptions import NoNodeError  # noqa: PLC0415  as above

        try:
            return getattr(self._connected(), what)(path)
        except NoNodeError:
            return None

    def _connected(self) -> Any:
        from kazoo.client import KazooClient  # noqa: PLC0415  as above

        with self._lock:
            if self._zookeeper is None:
                made = KazooClient(hosts=self._hosts, timeout=SESSION_SECONDS)
                made.add_listener(self._session_changed)
                try:
                    made.start(timeout=CONNECT_SECONDS)
                except BaseException:
                    made.stop()
                    made.close()
                    raise
                self._zookeeper = made
            return self._zookeeper

    def _session_changed(self, state: str) -> None:
        # SUSPENDED counts as the end of the session, because another client may get the `running` node before this client notices that its
        # session ended.
        if state != "CONNECTED":
            self._session += 1

    @contextlib.contextmanager
    def _translated(self) -> Any:
        from kazoo.exceptions import KazooException  # noqa: PLC0415  as above
        from kazoo.handlers.threading import KazooTimeoutError  # noqa: PLC0415

        try:
            yield
        except (KazooException, KazooTimeoutError, ValueError) as error:
            said = str(error) or type(error).__name__
            raise CanalConnectionError(
                f"a request to ZooKeeper {self._hosts} for the destination {self._destination} failed ({said}): check that ZooKeeper "
                "runs and can be reached"
            ) from error


def _address_of(text: str) -> Address | None:
    host, _, port = text.rpartition(":")
    return (host, int(port)) if host and port.isdigit() else None
