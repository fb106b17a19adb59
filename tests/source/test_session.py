"""Tests how a session ends if this host cannot log in with the plugin of the account."""

from __future__ import annotations

import socket
import struct
import sys
import threading
from collections.abc import Iterator

import pytest

from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.source.heartbeat import Heartbeat
from sluice.cdc_engine.source.server import Source
from sluice.cdc_engine.source.session import open_session

# The capabilities of MariaDB in a greeting that matter for a login: protocol 4.1, secure connection, plugins.
CAPABILITIES = 0x00000200 | 0x00008000 | 0x00080000
GREETING = (
    b"\x0a11.4.5-MariaDB\x00"
    + struct.pack("<I", 1)
    + b"01234567\x00"
    + struct.pack("<HBHHB", CAPABILITIES & 0xFFFF, 45, 2, CAPABILITIES >> 16, 21)
    + b"\x00" * 10
    + b"890123456789\x00mysql_native_password\x00"
)
SWITCH = b"\xfeclient_ed25519\x00" + b"s" * 32


@pytest.fixture
def server() -> Iterator[int]:
    """A server whose accounts use the plugin ed25519 of MariaDB. Yields its port."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def answer() -> None:
            while True:
                try:
                    client, _ = listening.accept()
                except OSError:
                    return
                with client:
                    client.sendall(len(GREETING).to_bytes(3, "little") + b"\x00" + GREETING)
                    client.recv(65536)
                    client.sendall(len(SWITCH).to_bytes(3, "little") + b"\x02" + SWITCH)
                    client.recv(65536)

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield int(listening.getsockname()[1])
        listening.shutdown(socket.SHUT_RDWR)
    thread.join()


@pytest.mark.found
def test_a_plugin_that_needs_another_package_is_a_matter_of_conf(server: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect 1223: with an account of MariaDB's plugin ed25519, `init` and `check` ended with a traceback (RuntimeError), and the engine
    called it a defect of Sluice.
    """
    monkeypatch.setitem(sys.modules, "nacl", None)
    source = Source(destination="shop", host="127.0.0.1", port=server, user="sluice", password=lambda: "open sesame")
    with pytest.raises(ConfigurationError, match=r"'pynacl' package is required.*another plugin") as error:
        open_session(source)
    assert "open sesame" not in str(error.value)
    with pytest.raises(ConfigurationError):
        Heartbeat(source, "SELECT 1").failure()
