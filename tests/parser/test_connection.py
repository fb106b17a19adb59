"""Tests credentials and TLS on real servers, in every mode, and the text of a refusal."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from sluice.cdc_engine.errors import (
    AccessDeniedError,
    ConfigurationError,
    PositionLostError,
    ReplicaClashError,
    SourceConnectionError,
)
from sluice.cdc_engine.parser.connection import SourceConnection, answer_error
from sluice.cdc_engine.source.server import Source
from sluice.cdc_engine.source.session import session_error
from sluice.console.toolchain.database.server import DatabaseServer
from tests.certificates import write_certificate
from tests.fix_servers import ServerFactory
from tests.parser.fix_shop import insert, make_shop, run
from tests.parser.recording import capturing, source_of

SECRET = "s3cret-word"  # noqa: S105  of users that live for one test
GRANTS = "GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO"
PLUGINS = ["caching_sha2_password", "mysql_native_password"]


def open_and_close(source: Source) -> bool:
    """Returns whether the connection is encrypted."""
    connection = SourceConnection(source)
    try:
        assert connection.rows("SELECT 1 AS one") == [{"one": 1}]
        return connection.encrypted
    finally:
        connection.close()


@pytest.fixture
def users(mysql80: DatabaseServer) -> Iterator[DatabaseServer]:
    for plugin in PLUGINS:
        run(
            mysql80,
            f"DROP USER IF EXISTS '{plugin}'",
            f"CREATE USER '{plugin}' IDENTIFIED WITH {plugin} BY '{SECRET}'",
            f"{GRANTS} '{plugin}'",
        )
    yield mysql80
    run(mysql80, *(f"DROP USER '{plugin}'" for plugin in PLUGINS))


@pytest.mark.servers
@pytest.mark.parametrize("plugin", PLUGINS)
@pytest.mark.parametrize(("mode", "encrypted"), [("DISABLED", False), ("PREFERRED", True), ("REQUIRED", True)])
def test_both_authentications_with_and_without_tls(
    users: DatabaseServer, plugin: str, mode: str, encrypted: bool
) -> None:
    source = source_of(users, user=plugin, password=lambda: SECRET, tls_mode=mode)
    assert open_and_close(source) is encrypted


@pytest.mark.servers
@pytest.mark.parametrize("plugin", PLUGINS)
def test_a_dump_runs_over_tls(users: DatabaseServer, plugin: str) -> None:
    make_shop(users)
    source = source_of(users, user=plugin, password=lambda: SECRET, tls_mode="REQUIRED")
    with capturing(source) as capture:
        insert(users, range(5))
        run(users, "INSERT INTO shop.orders VALUES (9, REPEAT('large', 1000000))")
        capture.sink.wait_for_rows(6)
        assert len(capture.sink.events) == 6


@pytest.mark.servers
def test_the_certificate_is_verified_by_authority_and_by_identity(fresh_mysql80: ServerFactory, tmp_path: Path) -> None:
    ours, other = tmp_path / "ours", tmp_path / "other"
    ours.mkdir()
    other.mkdir()
    files, foreign = write_certificate(ours, "127.0.0.1"), write_certificate(other, "127.0.0.2")
    options = {"ssl_ca": files["ca"], "ssl_cert": files["server"], "ssl_key": files["server_key"]}
    server = fresh_mysql80({name: str(path) for name, path in options.items()})
    assert open_and_close(source_of(server, tls_mode="VERIFY_CA", ca_file=files["ca"]))
    assert open_and_close(source_of(server, tls_mode="VERIFY_IDENTITY", ca_file=files["ca"]))
    for mode in ("VERIFY_CA", "VERIFY_IDENTITY"):
        with pytest.raises(ConfigurationError, match="certificate"):
            open_and_close(source_of(server, tls_mode=mode, ca_file=foreign["ca"]))
    with pytest.raises(ConfigurationError, match="certificate"):
        open_and_close(source_of(server, tls_mode="VERIFY_IDENTITY", ca_file=files["ca"], host="localhost"))
    assert open_and_close(source_of(server, tls_mode="VERIFY_CA", ca_file=files["ca"], host="localhost"))
    with pytest.raises(ConfigurationError, match="TLS files"):
        open_and_close(source_of(server, tls_mode="VERIFY_CA", ca_file=tmp_path / "none.pem"))


@pytest.mark.servers
@pytest.mark.parametrize("mode", ["PREFERRED", "REQUIRED"])
def test_without_verification_no_authority_is_read(
    mysql80: DatabaseServer, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reading all authorities of the system takes some 30 ms, for each of an engine's sessions."""
    monkeypatch.setattr(ssl, "create_default_context", lambda *_a, **_k: pytest.fail("authorities were read"))
    assert open_and_close(source_of(mysql80, tls_mode=mode))


@pytest.mark.servers
def test_a_server_without_tls_is_refused_where_it_is_required(mariadb114: DatabaseServer) -> None:
    assert not open_and_close(source_of(mariadb114, tls_mode="PREFERRED"))
    with pytest.raises(ConfigurationError, match="REQUIRED"):
        open_and_close(source_of(mariadb114, tls_mode="REQUIRED"))


@pytest.mark.servers
def test_wrong_credentials_end_the_parser_and_show_no_secret(users: DatabaseServer) -> None:
    source = source_of(users, user=PLUGINS[0], password=lambda: f"not-{SECRET}")
    with capturing(source, wait=False) as capture:
        reason = capture.states.wait("CONFIGURATION")
    assert "1045" in reason
    assert SECRET not in reason + repr(source)


@pytest.mark.servers
def test_a_server_that_is_not_there_is_tried_again(mysql80: DatabaseServer) -> None:
    with capturing(source_of(mysql80, port=1), wait=False) as capture:
        assert "127.0.0.1:1" in capture.states.wait("RECONNECTING", 2)


@pytest.mark.parametrize(
    ("code", "text", "error"),
    [
        (1236, "Could not find first log file name in binary log index file", PositionLostError),
        (1236, "Cannot replicate because the source purged required binary logs", PositionLostError),
        (1236, "Client requested source to start replication from impossible position", PositionLostError),
        (1236, "A replica with the same server_uuid/server_id as this replica has connected", ReplicaClashError),
        (1053, "Server shutdown in progress", SourceConnectionError),
        (1045, "Access denied", AccessDeniedError),
        (1227, "Access denied; you need REPLICATION SLAVE", AccessDeniedError),
    ],
)
def test_an_error_in_the_dump_is_shown_with_its_number_and_message(
    code: int, text: str, error: type[Exception]
) -> None:
    source = Source(destination="shop", host="h", port=1, user="u")
    answer = b"\xff" + code.to_bytes(2, "little") + b"#HY000" + text.encode()
    assert type(answer_error(source, answer)) is error
    assert isinstance(answer_error(source, b"\xfe\x00\x00\x02\x00"), SourceConnectionError)


@pytest.mark.found
@pytest.mark.parametrize(
    ("code", "text"),
    [
        (1130, "Host '10.0.0.5' is not allowed to connect to this MySQL server"),
        (1524, "Plugin 'mysql_native_password' is not loaded"),
        (
            1862,
            "Your password has expired. To log in you must change it using a client that supports expired passwords.",
        ),
        (1820, "You must reset your password using ALTER USER statement before executing this statement."),
        (3955, "Access denied for user 'u'@'h'. Account is blocked for 1 day(s) due to 3 consecutive failed logins."),
        (4150, "User is blocked because of too many credential errors; unblock with 'ALTER USER / FLUSH PRIVILEGES'"),
        (4151, "Access denied, this account is locked"),
    ],
)
def test_an_account_that_is_locked_or_expired_is_refused_like_a_wrong_password(code: int, text: str) -> None:
    """Defect 1221: an expired password or a locked account counted as a lost connection. The engine showed RECONNECTING, and after some
    heartbeats it failed over to a standby source.
    """
    source = Source(destination="shop", host="h", port=1, user="u")
    error = session_error(source, code, text)
    assert isinstance(error, AccessDeniedError)
    assert f"u@h:1 was refused: {text} (error {code})" in str(error)


@pytest.mark.found
def test_a_server_that_requires_tls_is_a_matter_of_conf() -> None:
    """Defect 1222: with `tls: {mode: DISABLED}`, a server with require_secure_transport, such as Azure's, counted as a lost connection."""
    text = "Connections using insecure transport are prohibited while --require_secure_transport=ON."
    error = session_error(Source(destination="shop", host="h", port=1, user="u", tls_mode="DISABLED"), 3159, text)
    assert isinstance(error, ConfigurationError)
    assert "correct `tls` of the source in conf/" in str(error)
