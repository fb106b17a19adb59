"""Implements the client: it subscribes, gets batches, acks or rolls them back, and reconnects when the connection or the server ends.

    connect ─▶ subscribe ─▶ roll back ─▶ get ─▶ Batch ─▶ ack
       ▲                                  │
       └──────── connection gone ◀────────┘     the server sends unacked batches again: at least once

Use a client from one thread only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import socket
import ssl
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from sluice.canal_client import messages
from sluice.canal_client.batch import NOTHING, Batch, RowChange
from sluice.canal_client.channel import Channel, Login
from sluice.canal_client.errors import BatchGoneError, CanalConnectionError, CanalProtocolError, CanalServerError
from sluice.canal_client.messages import PacketType
from sluice.canal_client.servers import Address, ClusterServers, FixedServers, Servers

PORT, CLIENT_ID, BATCH_SIZE = 11111, 1001, 1000
MILLISECONDS = 2  # Canal's code for milliseconds as the unit of a get's time-out.
NO_WAIT = -1
ANSWER_SECONDS = 60.0
# The time-out of each get that `batches` sends, in seconds. It is short, so that `batches` soon notices that nothing has arrived for
# `idle_seconds`.
WAIT_SECONDS = 1.0
PAUSE_SECONDS, PAUSE_SECONDS_MAX = 0.1, 5.0
# The error message of a server that currently does not serve the destination contains one of these texts. The client then tries the next
# server.
NOT_HERE = ("should start first", "can't find destination")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClientSettings:
    """The settings of a client.

    - `table_filter` has comma-separated regular expressions for database.table. They select some of the tables that the server captures.
    - `batch_size` is the maximum size of a batch: a number of entries, or a number of KiB if the server limits batches by memory, as
      Sluice's server does.
    - `tls` is False for a connection without TLS, True to trust the certificate authorities of the system, the path of a file with the
      authorities to trust, or an SSL context.
    - `retry_seconds` is how long `batches` and `changes` try to reconnect before they raise an error.
    """

    table_filter: str = ""
    batch_size: int = BATCH_SIZE
    client_id: int = CLIENT_ID
    user: str = ""
    password: str = dataclasses.field(default="", repr=False)
    tls: bool | str | Path | ssl.SSLContext = False
    retry_seconds: float = 300.0


DEFAULT_SETTINGS = ClientSettings()


class CanalClient:
    """Reads one destination of Sluice's server or of Canal's. `servers` has the addresses of the destination's servers, or is an object
    that finds them. If `servers` is None, the client connects to `host` and `port`.
    """

    def __init__(
        self,
        destination: str,
        host: str = "127.0.0.1",
        port: int = PORT,
        settings: ClientSettings = DEFAULT_SETTINGS,
        *,
        servers: Servers | Sequence[Address] | None = None,
    ) -> None:
        self.destination, self.client_id = destination, settings.client_id
        self.table_filter, self.batch_size = settings.table_filter, settings.batch_size
        self._login = Login(user=settings.user, password=settings.password, tls=_tls_of(settings.tls))
        if servers is None:
            self._servers: Servers = FixedServers([(host, port)])
        else:
            self._servers = FixedServers(servers) if isinstance(servers, Sequence) else servers
        self._retry_seconds = settings.retry_seconds
        self._channel: Channel | None = None
        # Whether an ack or a rollback was sent after the server's last answer. If the server refuses this ack or rollback, the next get
        # receives the refusal as its answer.
        self._unanswered = False
        # When the server began to refuse acks (monotonic seconds), or 0 if the server did not refuse the last ack.
        self._refused_since = 0.0

    @classmethod
    def cluster(cls, destination: str, zookeeper: str, settings: ClientSettings = DEFAULT_SETTINGS) -> CanalClient:
        """Returns a client that finds the destination's server in ZooKeeper ("zk1:2181,zk2:2181"). If several clients have the same id,
        only one of these clients reads at a time.
        """
        return cls(destination, settings=settings, servers=ClusterServers(zookeeper, destination, settings.client_id))

    def __enter__(self) -> CanalClient:
        self.connect()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def connected_to(self) -> str:
        """The server to which the client is connected, as host:port, or ""."""
        return self._channel.address if self._channel is not None else ""

    def connect(self) -> None:
        """Connects to the first server that has the destination, and subscribes. The server then repeats the batches that were not acked.
        Does nothing if the client is connected and still holds the reservation of its id (`Servers.enter`).

        Raises CanalConnectionError if no server that has the destination can be reached, CanalAuthenticationError if a server refuses the
        login, CanalServerError if a server refuses the subscription, and CanalProtocolError if a server does not speak Canal's protocol.
        """
        if self._channel is not None and self._servers.allowed:
            return
        self.disconnect()
        # Calls `enter` before it connects, because `enter` may wait while another client with this id reads, and the server closes a
        # connection on which nothing is sent.
        self._servers.enter(socket.gethostname())
        try:
            self._connect_to_one()
        except BaseException:
            self._servers.leave()
            raise

    def _connect_to_one(self) -> None:
        failed: list[CanalConnectionError | CanalServerError] = []
        for host, port in self._servers.addresses():
            try:
                self._begin(Channel(host, port, self._login))
            except (CanalConnectionError, CanalServerError) as error:
                if isinstance(error, CanalServerError) and not _stands_by(error):
                    raise
                failed.append(error)
            else:
                return
        why = "; ".join(map(str, failed)) or "the list of servers is empty"
        raise CanalConnectionError(f"no server of the destination {self.destination} can be used: {why}") from (
            failed[-1] if failed else None
        )

    def _connected(self) -> Channel:
        self.connect()
        if self._channel is None:
            raise CanalConnectionError(f"the client has no connection for {self.destination}: call connect() again")
        return self._channel

    def _begin(self, channel: Channel) -> None:
        try:
            request = messages.Sub(
                destination=self.destination, client_id=str(self.client_id), filter=self.table_filter
            )
            channel.request(PacketType.SUBSCRIPTION, request, PacketType.ACK, messages.Ack, ANSWER_SECONDS)
            channel.send(PacketType.CLIENTROLLBACK, self._rollback_of(0))
        except BaseException:
            channel.close()
            raise
        self._channel, self._unanswered = channel, False

    def disconnect(self) -> None:
        """Closes the connection. The server keeps the cursor. After a reconnect, the server repeats the batches that were not acked."""
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.close()
            self._servers.leave()

    def close(self) -> None:
        self.disconnect()
        self._servers.close()

    def unsubscribe(self) -> None:
        """Makes the server delete the cursor that it has for the client's id, and disconnects. The server chooses where the next
        subscription of this id begins, as for a new client.
        """
        request = messages.Sub(destination=self.destination, client_id=str(self.client_id), filter=self.table_filter)
        with self._talking() as channel:
            channel.request(PacketType.UNSUBSCRIPTION, request, PacketType.ACK, messages.Ack, ANSWER_SECONDS)
        self.disconnect()

    def get(self, batch_size: int = 0, *, wait_seconds: float = 0.0) -> Batch:
        """Returns the next batch, which must be acked or rolled back. Returns an empty batch if nothing arrives within `wait_seconds`; 0
        means that the call does not wait. If `batch_size` is 0, the size in the client's settings is used. After an error, the next call
        reconnects. Raises CanalConnectionError, CanalServerError or CanalProtocolError, and the errors of `connect` if the client must
        reconnect.
        """
        wait_ms = int(wait_seconds * 1000)
        request = messages.Get(
            destination=self.destination,
            client_id=str(self.client_id),
            fetch_size=batch_size or self.batch_size,
            timeout=wait_ms or NO_WAIT,
            unit=MILLISECONDS,
        )
        with self._talking() as channel:
            found = channel.request(
                PacketType.GET, request, PacketType.MESSAGES, messages.Messages, ANSWER_SECONDS + wait_seconds
            )

        if self._unanswered:
            self._unanswered, self._refused_since = False, 0.0

        def settle(batch: Batch, well: bool) -> None:
            self._settle(batch, channel, well=well)

        return Batch(found.batch_id, tuple(found.messages), settle)

    def batches(self, *, idle_seconds: float | None = None, ack: bool = True) -> Iterator[Batch]:
        """Yields batches that are not empty: without end, or until nothing has arrived for `idle_seconds`.

        With `ack`, the client acks a batch when the loop requests the next one. If the loop's body raises an error, the server sends the
        batch again. Without `ack`, the body must call `batch.ack()`. The client reconnects when the connection ends. It also reconnects
        when the server refuses an ack. The server may refuse the ack because another engine now serves the destination; that engine sends
        the batch again.

        Raises CanalConnectionError after `retry_seconds` without a server, CanalServerError if the server refuses a request or refuses acks
        for `retry_seconds`, CanalAuthenticationError if the server refuses the login, and CanalProtocolError if the server does not speak
        Canal's protocol.
        """
        last = time.monotonic()
        while idle_seconds is None or time.monotonic() - last < idle_seconds:
            batch = self._next(WAIT_SECONDS if idle_seconds is None else min(WAIT_SECONDS, idle_seconds))
            if batch:
                yield batch
                last = time.monotonic()
                if ack:
                    # A failed ack is ignored: the client reconnects at the next get, and the server then sends the batch again.
                    with contextlib.suppress(BatchGoneError, CanalConnectionError):
                        batch.ack()

    def changes(self, *, idle_seconds: float | None = None) -> Iterator[RowChange]:
        """Yields the row changes of all batches. Each batch is acked after its last change."""
        for batch in self.batches(idle_seconds=idle_seconds):
            yield from batch.changes()

    def _next(self, wait_seconds: float) -> Batch:
        deadline, pause = time.monotonic() + self._retry_seconds, PAUSE_SECONDS
        while True:
            try:
                return self.get(wait_seconds=wait_seconds)
            except (CanalConnectionError, CanalServerError) as error:
                if self._refused_ack(error):
                    deadline = min(deadline, self._refused_since + self._retry_seconds)
                elif not isinstance(error, CanalConnectionError) and not _stands_by(error):
                    raise
                if time.monotonic() >= deadline:
                    raise
            time.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  so that not all clients reconnect at once
            pause = min(2 * pause, PAUSE_SECONDS_MAX)

    def _refused_ack(self, error: CanalConnectionError | CanalServerError) -> bool:
        """Returns whether `error`, which a get received, may be the server's refusal of the ack or rollback before the get. The server
        answers an ack or rollback only to refuse it, so the next get reads this answer as its own. If the result is True, the caller
        reconnects and repeats the get. If the server refused the get itself, the repeated get fails with the same error.
        """
        unanswered, self._unanswered = self._unanswered, False
        if not unanswered or not isinstance(error, CanalServerError):
            return False
        self._refused_since = self._refused_since or time.monotonic()
        return True

    @contextlib.contextmanager
    def _talking(self) -> Iterator[Channel]:
        """Yields the connection. Closes it after an error, because answers can no longer be matched to requests."""
        try:
            yield self._connected()
        except (CanalConnectionError, CanalServerError, CanalProtocolError):
            self.disconnect()
            raise

    def _settle(self, batch: Batch, channel: Channel, *, well: bool) -> None:
        if batch.id == NOTHING:
            return
        if channel is not self._channel or not self._servers.allowed:
            raise BatchGoneError(
                f"batch {batch.id} can no longer be acked or rolled back, because its connection has ended or another client with this id "
                "reads: the server sends the batch again"
            )
        ident = {"destination": self.destination, "client_id": str(self.client_id), "batch_id": batch.id}
        with self._talking():
            if well:
                channel.send(PacketType.CLIENTACK, messages.ClientAck(**ident))
            else:
                channel.send(PacketType.CLIENTROLLBACK, self._rollback_of(0))
        self._unanswered = True

    def _rollback_of(self, batch_id: int) -> object:
        """Returns a request to roll back a batch. The id 0 stands for all batches."""
        return messages.ClientRollback(destination=self.destination, client_id=str(self.client_id), batch_id=batch_id)


def _stands_by(error: CanalServerError) -> bool:
    return any(sentence in error.said for sentence in NOT_HERE)


def _tls_of(given: bool | str | Path | ssl.SSLContext) -> ssl.SSLContext | None:
    if isinstance(given, ssl.SSLContext):
        return given
    if isinstance(given, bool):
        return ssl.create_default_context() if given else None
    return ssl.create_default_context(cafile=str(given))
