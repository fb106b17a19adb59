"""Opens a session on the source: a connection of PyMySQL with additional commands and TLS. Translates the server's errors to Sluice's.
`parser.connection` reads the binlog over a session, and `snapshot.reader` selects rows. These two modules read large amounts of data
directly from the session's socket.
"""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable
from typing import Any

import pymysql
from pymysql.cursors import DictCursor

from sluice.cdc_engine import limits
from sluice.cdc_engine.errors import AccessDeniedError, ConfigurationError, SluiceError, SourceConnectionError
from sluice.cdc_engine.source.server import Source
from sluice.cdc_engine.source.tunnel import Tunnel, explained

# The server's error codes for a refused login or privilege, which a retry does not resolve. Among them: the host may not log in (1130), the
# account's plugin is not loaded (1524), the password has expired (1820, 1862), and the account is locked, for example after wrong passwords
# (3118 and 3955 of MySQL, 4150 and 4151 of MariaDB).
ACCESS_DENIED = frozenset(
    {1044, 1045, 1130, 1227, 1251, 1396, 1524, 1698, 1820, 1862, 2059, 2061, 3118, 3955, 4150, 4151}
)
# Parts of the server's messages about TLS, in lower case. The server refuses a session without TLS, or has none itself, or the client
# refuses the server's certificate.
OF_TLS = ("certificate", "ssl is required", "insecure transport")
# Removes limits that a server may set for every session. With the first limit, rows would be missing from every answer, also columns and
# tables from what Sluice reads of the schema. With the second, the server would refuse to read a large table.
NO_ROW_LIMITS = "SET sql_select_limit = 18446744073709551615, sql_big_selects = 1"


class SourceSession(pymysql.connections.Connection):
    """A connection of PyMySQL with additional commands. The attribute declarations are for members that PyMySQL's type stubs lack."""

    _execute_command: Callable[[int, bytes], None]
    _sock: Any
    _tunnel: Tunnel | None = None

    def connect_through(self, tunnel: Tunnel) -> None:
        """Connects to the server through a tunnel. Closing the session also closes the tunnel."""
        with explained(tunnel):
            self.connect(tunnel.socket)
        self._tunnel = tunnel

    def _force_close(self) -> None:
        """Closes the connection and its tunnel. PyMySQL calls it whenever a connection ends."""
        super()._force_close()  # type: ignore[misc]
        if self._tunnel is not None:
            self._tunnel.close()

    def _create_ssl_ctx(self, given: ssl.SSLContext | dict[str, Any]) -> ssl.SSLContext:
        """Returns `given` if it is a TLS context, otherwise a context that verifies nothing. PyMySQL's own method loads all certificate
        authorities of the system even if nothing is verified, which takes 27 ms per session.
        """
        return given if isinstance(given, ssl.SSLContext) else _unverified()

    def command(self, command: int, payload: bytes) -> None:
        self._execute_command(command, payload)

    def answer(self) -> bytes:
        """Returns the next packet of the server's answer. Raises pymysql.err.MySQLError for an error packet."""
        packet: Any = self._read_packet()  # type: ignore[no-untyped-call]
        return bytes(packet.get_all_data())

    def take_socket(self) -> Any:
        """Returns the socket, so that the caller reads from it without PyMySQL. No bytes are lost, because PyMySQL's buffer is empty
        between an answer and the next command.
        """
        return self._sock

    def silent_for(self, seconds: float) -> None:
        """Makes a read fail if the server sends nothing for `seconds`. Without a tunnel, also enables TCP keepalive probes, which detect a
        lost server before `seconds` have passed.
        """
        self._sock.settimeout(seconds)
        if self._tunnel is not None:  # Enables no probes: ssh itself checks whether the bastion still answers.
            return
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, limits.KEEPALIVE_IDLE_SECONDS)
        self._sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, limits.KEEPALIVE_AGAIN_SECONDS)

    def drop(self) -> None:
        """Closes the connection without COM_QUIT, which is not allowed during a binlog dump or before the end of a result."""
        self._force_close()


def open_session(
    source: Source,
    read_timeout: float = limits.READ_TIMEOUT_SECONDS,
    connect_timeout: float = limits.CONNECT_TIMEOUT_SECONDS,
) -> SourceSession:
    """Connects to the source and logs in, with autocommit and the charset utf8mb4.

    Raises pymysql.err.MySQLError or OSError if the server refuses the login or does not answer, ConfigurationError if TLS files or keys
    cannot be used or a package for the account's plugin is missing, and SourceConnectionError if the bastion does not connect.
    """
    try:
        session = SourceSession(
            host=source.host,
            port=source.port,
            user=source.user,
            password=source.password().encode(),  # Passed as bytes, because PyMySQL would encode a str as latin-1.
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=connect_timeout,
            read_timeout=read_timeout,
            write_timeout=limits.READ_TIMEOUT_SECONDS,
            cursorclass=DictCursor,
            init_command=NO_ROW_LIMITS,
            program_name="sluice",
            defer_connect=source.bastion is not None,
            **_tls(source),
        )
        if source.bastion is not None:
            session.connect_through(Tunnel(source.bastion, source.host, source.port))
    except RuntimeError as error:  # PyMySQL needs another package for the account's plugin, such as ed25519 of MariaDB.
        raise ConfigurationError(
            f"{source.user}@{source.address} cannot log in: {error}; install this package into the environment of Sluice (`pip install`), "
            "or alter the account to another plugin"
        ) from error
    return session


def error_code(error: pymysql.err.MySQLError) -> int:
    """Returns the error number of an exception from the server or the client library, or 0 if the exception has no number."""
    return error.args[0] if error.args and isinstance(error.args[0], int) else 0


def session_error(source: Source, code: int, text: str) -> SluiceError:
    """Converts an error of the server to one of Sluice's errors, by the error number. For errors of TLS, the text decides, because their
    numbers have several meanings. The message never contains a password.
    """
    where, message = f"{source.user}@{source.address}", text.lower()
    if code in ACCESS_DENIED:
        return AccessDeniedError(f"{where} was refused: {text} (error {code}); check user, password and grants")
    if any(part in message for part in OF_TLS):
        return ConfigurationError(
            f"TLS with {source.address} in mode {source.tls_mode} failed: {text}; correct `tls` of the source in conf/, or the "
            "server's certificate"
        )
    return SourceConnectionError(f"{where}: {text} (error {code})")


def _tls(source: Source) -> dict[str, Any]:
    """Returns PyMySQL's arguments for the source's TLS mode. If the arguments contain an SSLContext, PyMySQL refuses a server without TLS,
    and does not send the user name to it.
    """
    if source.tls_mode == "DISABLED":
        return {"ssl_disabled": True}
    if source.tls_mode == "PREFERRED" and source.certificate_file is None:
        return {}
    try:
        context = _unverified() if source.tls_mode in ("PREFERRED", "REQUIRED") else _verified(source)
        if source.certificate_file:
            context.load_cert_chain(source.certificate_file, source.key_file)
    except OSError as error:
        raise ConfigurationError(
            f"the TLS files for {source.address} cannot be used ({error}): correct ca_file, certificate_file "
            "and key_file under `tls` of the source in conf/"
        ) from error
    return {"ssl": context}


def _verified(source: Source) -> ssl.SSLContext:
    """Returns a context that verifies the server's certificate with `ca_file`, or with the system's authorities. Raises OSError if a file
    cannot be used.
    """
    context = ssl.create_default_context(cafile=str(source.ca_file) if source.ca_file else None)
    # Turns off strict verification, which requires that a certificate states its key usage. The certificates that MySQL generates do not
    # state it.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = source.tls_mode == "VERIFY_IDENTITY"
    return context


def _unverified() -> ssl.SSLContext:
    """Returns a context that encrypts but does not verify the server. The context loads no certificate authorities."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
