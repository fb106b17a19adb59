"""Implements a lock in ZooKeeper by two nodes: an ephemeral node, like Canal's running node, and a counter that rises with each holder.

The counter is the holder's token. Both nodes are written in one transaction, so no token is used twice. The lock has a ZooKeeper session
of its own, which ends when the lock is released. When kazoo reports a lost connection (SUSPENDED, LOST), the holder gives up the lock at
once. A holder that was suspended for longer than its session finds out from its clock that the session is over, before a server reports
this.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import socket
import threading
import time
from typing import Any

from kazoo.client import KazooState
from kazoo.exceptions import BadVersionError, KazooException, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from sluice.cdc_engine.contracts import Holder, ZooKeeperServers
from sluice.cdc_engine.errors import MetaError
from sluice.cdc_engine.ha.session import CONFIRM_PART, LeaseSession, now
from sluice.cdc_engine.records.zookeeper_client import (
    answer,
    as_not_shared_error,
    end,
    is_over,
    new_client,
    shared_client,
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Nodes:
    """The paths of a lock's nodes in ZooKeeper. `held` is the ephemeral node that exists while the lock is held, with the text `payload`.
    `counter` is a node whose version is the token. `present` are ephemeral nodes with which a host shows that it wants the lock.
    """

    servers: ZooKeeperServers
    held: str
    counter: str
    payload: str
    present: tuple[str, ...] = ()


class ZooKeeperLock:
    """A lock in ZooKeeper that only one process of all hosts can hold at a time. While the lock is held, `token` is greater than the tokens
    of all earlier holders; otherwise it is 0.
    """

    def __init__(self, nodes: Nodes, seconds: float) -> None:
        self._nodes = nodes
        self._session = LeaseSession(seconds)
        self._client: Any = None
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self.token = 0

    @property
    def held(self) -> bool:
        """Whether this object holds the lock and no other process can have taken it."""
        return bool(self.token) and self._session.trusted

    def try_acquire(self) -> bool:
        """Takes the lock if it is free, without waiting. Returns whether this object holds the lock. Raises MetaError if no server
        answers.
        """
        if self.held:
            return True
        self._forget()
        with as_not_shared_error(f"the lock {self._nodes.held} in ZooKeeper {self._nodes.servers} cannot be taken"):
            client = self._connected()
            self._appear(client)
            requested_at = now()
            token = self._create(client)
        if not token:
            return False
        self.token = token
        self._session.begin(requested_at)
        if client.state != KazooState.CONNECTED:
            self._session.end()
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._confirm, args=(client, self._ending), daemon=True)
        self._thread.name = "confirm-lease"
        self._thread.start()
        return True

    def release(self) -> None:
        """Releases the lock, if it is held, and ends the ZooKeeper session."""
        client, self._client = self._client, None
        was_held = bool(self.token)
        self._forget()
        if client is None:
            return
        if was_held and client.connected:
            with contextlib.suppress(KazooException, KazooTimeoutError):
                if self._is_ours(client):
                    answer(client.delete_async(self._nodes.held))
        end(client)

    def confirm(self) -> bool:
        """Queries ZooKeeper, and returns whether this object still holds the lock. Raises MetaError if no server answers."""
        client = self._client
        if client is None or not self.token:
            return False
        try:
            with as_not_shared_error(
                f"the lock {self._nodes.held} in ZooKeeper {self._nodes.servers} cannot be confirmed"
            ):
                return self._confirm_once(client) and self.held
        except MetaError:
            # Returns False if the last confirmation is too old (`LeaseSession.trusted`), because another process may soon hold the lock.
            if not self.held:
                return False
            raise

    def holder(self) -> Holder | None:
        """Returns the current or last holder, or None if there never was one. Raises MetaError if no server answers."""
        return read_lock(self._nodes, self._session.seconds)

    def _connected(self) -> Any:
        if is_over(self._client):
            over, self._client = self._client, None
            end(over)
        if self._client is None:
            client = new_client(self._nodes.servers, self._session.seconds)
            client.add_listener(self._hear)
            self._client = client
        elif not self._client.connected:
            raise MetaError(f"ZooKeeper {self._nodes.servers} does not answer; Sluice tries again")
        return self._client

    def _appear(self, client: Any) -> None:
        """Creates the nodes `present`, with which this host shows that it wants the lock, and the parents of all nodes."""
        for path in (*self._nodes.present, self._nodes.held, self._nodes.counter):
            answer(client.ensure_path_async(path.rpartition("/")[0]))
        for path in self._nodes.present:
            with contextlib.suppress(NodeExistsError):
                answer(client.create_async(path, b"", ephemeral=True))

    def _create(self, client: Any) -> int:
        """Takes the lock by creating its node. Returns the token, or 0 if another process holds the lock."""
        answer(client.ensure_path_async(self._nodes.counter))
        stat = answer(client.exists_async(self._nodes.counter))
        step = client.transaction()
        step.create(self._nodes.held, self._nodes.payload.encode(), ephemeral=True)
        step.set_data(self._nodes.counter, self._record(stat.version + 1), version=stat.version)
        created, counted = answer(step.commit_async())
        # If the existing node is this object's own, an earlier attempt created it, and only ZooKeeper's answer was lost. Removes the node
        # and creates it again, so that the node and the returned token are from the same transaction.
        if isinstance(created, NodeExistsError) and self._is_ours(client):
            answer(client.delete_async(self._nodes.held))
            return self._create(client)
        if isinstance(created, NodeExistsError) or isinstance(counted, BadVersionError):
            return 0
        for failed in (created, counted):
            if isinstance(failed, Exception):
                raise failed
        return int(stat.version + 1)

    def _is_ours(self, client: Any) -> bool:
        try:
            data, stat = answer(client.get_async(self._nodes.held))
        except NoNodeError:
            return False
        session = client.client_id  # The id of the session, or None while kazoo has no session.
        return session is not None and bool(stat.ephemeralOwner == session[0]) and data == self._nodes.payload.encode()

    def _confirm(self, client: Any, ending: threading.Event) -> None:
        """Confirms at intervals that this object holds the lock, until the lock is lost or released. The lock counts as lost if another
        program changed the content of its node, which is how Canal's administrators move a destination.
        """
        while not ending.wait(self._session.seconds * CONFIRM_PART):
            # If no server answers, the loop continues. `held` becomes False before the lock expires (`LeaseSession.trusted`).
            with contextlib.suppress(KazooException, KazooTimeoutError):
                if not self._confirm_once(client):
                    return

    def _confirm_once(self, client: Any) -> bool:
        """Returns whether this object still owns the lock's node, and records the result in the session."""
        requested_at = now()
        # Synchronizes the server with the leader first, because a server that has lost contact with the leader returns old data.
        answer(client.sync_async(self._nodes.held))
        if not self._is_ours(client):
            self._session.end()
            return False
        self._session.confirm(requested_at)
        return True

    def _hear(self, state: str) -> None:
        if state != KazooState.CONNECTED:
            self._session.end()

    def _record(self, token: int) -> bytes:
        holder = Holder(pid=os.getpid(), host=socket.gethostname(), since=time.time(), token=token)
        record = dataclasses.asdict(holder)
        del record["held"]
        return json.dumps(record).encode()

    def _forget(self) -> None:
        self._ending.set()
        self._session.end()
        if self._thread is not None:
            self._thread.join()
        self._thread, self.token = None, 0


def read_lock(nodes: Nodes, seconds: float) -> Holder | None:
    """Returns the current or last holder of a lock. Returns None if there never was a holder, or if the content of the lock's node
    `counter` cannot be parsed. Raises MetaError if no server answers.
    """
    with as_not_shared_error(f"the lock {nodes.held} in ZooKeeper {nodes.servers} cannot be read"):
        client = shared_client(nodes.servers, seconds)
        try:
            data, _ = answer(client.get_async(nodes.counter))
        except NoNodeError:
            return None
        held = answer(client.exists_async(nodes.held)) is not None
    try:
        return Holder(**json.loads(data), held=held)
    except (ValueError, TypeError):
        return None
