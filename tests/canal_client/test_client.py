"""Tests the client with the real server in the same process: acks and rollbacks, loops, other programs on the port, restarts of the server,
TLS.
"""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from sluice.canal_client import (
    BatchGoneError,
    CanalAuthenticationError,
    CanalClient,
    CanalConnectionError,
    CanalProtocolError,
    CanalServerError,
    ClientSettings,
)
from sluice.canal_client.servers import Address as ServerAddress
from sluice.canal_client.servers import FixedServers
from sluice.cdc_engine.server.protocol.listener import Address, CanalListener
from sluice.console.toolchain.ports import free_port
from tests.canal_client.fix_served import Destination, inserted, listening
from tests.certificates import write_certificate

WHO: Any = {"user": "canal", "password": "canal"}


@pytest.fixture
def destination() -> Destination:
    return Destination(inserted(number) for number in range(1, 6))


@pytest.fixture
def listener(destination: Destination) -> Iterator[CanalListener]:
    made = listening(destination)
    yield made
    made.close()


def client_of(listener: CanalListener) -> CanalClient:
    return CanalClient(
        "example", port=listener.port, settings=ClientSettings(**WHO, table_filter=r"shop\..*", retry_seconds=30.0)
    )


def numbers(client: CanalClient) -> list[int]:
    return [change.row["id"] for change in client.changes(idle_seconds=0.01)]


def test_a_canal_client_gets_acks_and_rolls_back(listener: CanalListener, destination: Destination) -> None:
    with client_of(listener) as client:
        assert destination.filters == [r"shop\..*"]
        first, second = client.get(), client.get()
        assert [each.id for each in (first, second)] == [1, 2]
        first.ack()
        second.rollback()
        again = client.get()
        assert again.raw == second.raw
        assert destination.acked == 1
        again.ack()
        assert numbers(client) == [3, 4, 5]
        assert not client.get()
        assert len(client.get()) == 0
        client.get().ack()  # An empty batch needs no ack.
    assert destination.acked == 5


def test_a_canal_loop_acks_what_its_body_has_done_with_and_nothing_else(
    listener: CanalListener, destination: Destination
) -> None:
    with client_of(listener) as client:
        for batch in client.batches():
            if batch.id == 3:
                break  # This has the same effect as an error in the body.
        assert destination.acked == 2
    with client_of(listener) as client:
        assert numbers(client) == [3, 4, 5]


def test_a_canal_loop_that_acks_by_itself(listener: CanalListener, destination: Destination) -> None:
    with client_of(listener) as client:
        for batch in client.batches(idle_seconds=0.01, ack=False):
            if batch.id == 2:
                batch.ack()
            assert destination.acked == 0
            if batch.id == 1:
                batch.ack()
                client.get()  # The ack has no answer, so the next answer is read after it.
                break
    assert destination.acked == 1


def test_a_canal_client_continues_after_its_server_came_again(destination: Destination) -> None:
    port = free_port()
    first, found = listening(destination, port=port), []
    with client_of(first) as client:
        for batch in client.batches(idle_seconds=1):
            found += [change.row["id"] for change in batch.changes()]
            if found == [1, 2]:
                first.close()
                second = listening(destination, port=port)
    second.close()
    assert found == [1, 2, 2, 3, 4, 5]  # Changes that were not acked are sent again.


def test_a_canal_batch_of_a_connection_that_ended_cannot_be_acked(listener: CanalListener) -> None:
    with client_of(listener) as client:
        batch = client.get()
        client.disconnect()
        with pytest.raises(BatchGoneError, match="sends the batch again"):
            batch.ack()


def test_a_refused_canal_ack_is_reported_by_the_next_get_and_the_later_get_is_right(
    listener: CanalListener, destination: Destination
) -> None:
    with client_of(listener) as client:
        batch = client.get()
        destination.waiting.clear()
        batch.ack()
        with pytest.raises(CanalServerError, match="is not exist"):
            client.get()
        assert client.get().raw == batch.raw


def test_a_canal_loop_continues_after_an_ack_that_was_refused(
    listener: CanalListener, destination: Destination
) -> None:
    found: list[int] = []
    with client_of(listener) as client:
        for batch in client.batches(idle_seconds=0.01):
            if not found:
                destination.waiting.clear()  # This has the same effect as another engine that serves the same connection.
                destination.taken = destination.acked
            found += [change.row["id"] for change in batch.changes()]
    assert found == [1, 1, 2, 3, 4, 5]


def test_a_canal_loop_whose_acks_are_always_refused_ends_with_the_servers_message(
    listener: CanalListener, destination: Destination
) -> None:
    with CanalClient("example", port=listener.port, settings=ClientSettings(**WHO, retry_seconds=0.0)) as client:
        batches = client.batches()
        next(batches)
        destination.waiting.clear()
        with pytest.raises(CanalServerError, match="is not exist"):
            next(batches)


def test_the_reason_of_a_stopped_canal_consumer_is_raised_after_an_ack(
    listener: CanalListener, destination: Destination
) -> None:
    with client_of(listener) as client:
        batches = client.batches()
        next(batches)
        destination.said = "its position was purged"
        with pytest.raises(CanalServerError, match="purged"):
            next(batches)


def test_a_full_canal_server_says_so_and_the_next_one_is_tried(destination: Destination) -> None:
    full = CanalListener(Address(connections_max=1))
    full.serve("example", destination)
    other = listening(destination)
    servers = [("127.0.0.1", full.port), ("127.0.0.1", other.port)]
    with contextlib.closing(full), contextlib.closing(other), CanalClient("example", port=full.port):
        with pytest.raises(CanalConnectionError, match=r"503.*connections_max"):
            CanalClient("example", port=full.port).connect()
        with CanalClient("example", servers=servers, settings=ClientSettings(**WHO)) as second:
            assert second.connected_to.endswith(str(other.port))


class TableLocks(FixedServers):
    """Records the tables that it is queried for."""

    def __init__(self, port: int) -> None:
        super().__init__([("127.0.0.1", port)])
        self.calls: list[str] = []

    def addresses(self) -> Sequence[ServerAddress]:
        self.calls.append("addresses")
        return super().addresses()

    def enter(self, local_address: str) -> None:
        assert local_address
        self.calls.append("enter")

    def leave(self) -> None:
        self.calls.append("leave")


def test_a_canal_client_of_a_cluster_takes_the_lock_before_it_connects_and_releases_it(
    listener: CanalListener,
) -> None:
    servers = TableLocks(listener.port)
    with CanalClient("example", servers=servers, settings=ClientSettings(**WHO)):
        assert servers.calls == ["enter", "addresses"]
    assert servers.calls == ["enter", "addresses", "leave"]
    nobody = TableLocks(free_port())
    with pytest.raises(CanalConnectionError):
        CanalClient("example", servers=nobody, settings=ClientSettings(**WHO)).connect()
    assert nobody.calls == ["enter", "addresses", "leave"]


def test_a_canal_client_with_a_wrong_password_gets_the_error_at_once(listener: CanalListener) -> None:
    client = CanalClient("example", port=listener.port, settings=ClientSettings(**{**WHO, "password": "wrong"}))
    with pytest.raises(CanalAuthenticationError, match="'canal'"):
        next(client.batches())


def test_a_missing_canal_server_and_an_unknown_destination_are_named(listener: CanalListener) -> None:
    port = free_port()
    with pytest.raises(CanalConnectionError, match=f"127.0.0.1:{port}"):
        next(CanalClient("example", port=port, settings=ClientSettings(retry_seconds=0.0)).batches())
    client = CanalClient("other", port=listener.port, settings=ClientSettings(**WHO, retry_seconds=0.0))
    with pytest.raises(CanalConnectionError, match="can't find destination:other"):
        next(client.batches())


def test_what_the_canal_server_says_of_a_stopped_consumer_is_raised(
    listener: CanalListener, destination: Destination
) -> None:
    destination.said = "its position was purged"
    with client_of(listener) as client, pytest.raises(CanalServerError, match="purged"):
        next(client.batches())


def test_a_canal_client_tries_one_address_after_the_other(listener: CanalListener) -> None:
    servers = [("127.0.0.1", free_port()), ("127.0.0.1", listener.port)]
    with CanalClient("example", servers=servers, settings=ClientSettings(**WHO)) as client:
        assert client.connected_to == f"127.0.0.1:{listener.port}"
        client.unsubscribe()
        assert client.connected_to == ""


def test_a_server_of_another_protocol_is_no_canal_server() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def answer() -> None:
            with contextlib.closing(server.accept()[0]) as other:
                other.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(CanalProtocolError, match="does not speak Canal's protocol"):
            CanalClient("example", port=server.getsockname()[1]).connect()
        thread.join()


def test_a_canal_client_connects_by_tls_and_trusts_no_other_certificate(
    tmp_path: Path, destination: Destination
) -> None:
    files = write_certificate(tmp_path, "127.0.0.1")
    listener = CanalListener(Address(certificate_file=files["server"], key_file=files["server_key"]))
    listener.serve("example", destination)
    with contextlib.closing(listener):
        with pytest.raises(CanalConnectionError, match="TLS with"):
            CanalClient("example", port=listener.port, settings=ClientSettings(tls=True)).connect()
        context = ssl.create_default_context(cafile=str(files["ca"]))
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        with CanalClient("example", port=listener.port, settings=ClientSettings(tls=context)) as client:
            assert numbers(client) == [1, 2, 3, 4, 5]


def test_a_client_without_servers_is_refused() -> None:
    with pytest.raises(CanalConnectionError, match="the list of servers is empty"):
        CanalClient("example", servers=[]).connect()
