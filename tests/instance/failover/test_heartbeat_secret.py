"""Tests that a secret of the current source that cannot be read is a problem of this host, and never a reason to read another source."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.instance.failover import failover
from sluice.cdc_engine.instance.failover.failover import Failover, FailoverDependencies
from sluice.cdc_engine.instance.failover.takeover import TakeoverAnswer
from sluice.cdc_engine.parser.start_position import Epochs
from sluice.cdc_engine.source.in_use import address_in_use
from sluice.cdc_engine.source.server import Source
from sluice.console.toolchain.database.server import DatabaseServer

pytestmark = pytest.mark.secret

SECRET = "heartbeat-secret-61"  # noqa: S105
BY_FILE = "{host: 127.0.0.1, port: 1, user: root, password: {file: secret}}"
BY_TLS = "{host: 127.0.0.1, port: 2, user: root, tls: {mode: VERIFY_CA, ca_file: none.pem}}"


def requested(source: Source, _file: str) -> TakeoverAnswer:
    return TakeoverAnswer(address=source.address, facts=None, trouble="it is asked")


def watch_of(root: Path, monkeypatch: pytest.MonkeyPatch, *sources: str) -> Failover:
    """Returns the failover of the first source, with real heartbeats and a second source that is never able to take over."""
    monkeypatch.setattr(failover, "takeover_answer", requested)
    (root / "conf" / "destinations").mkdir(parents=True)
    (root / "conf" / "sluice.yaml").write_text(f"data_dir: {root}/data\n")
    conf = "".join(f"  - {source}\n" for source in sources)
    (root / "conf" / "destinations" / "shop.yaml").write_text(f"sources:\n{conf}heartbeat: {{retries: 1}}\n")
    config = load_config(root / "conf")
    dependencies = FailoverDependencies(
        directory=config.destination_dir("shop"),
        position=lambda: None,
        epochs=lambda: Epochs(highest=0),
        lacks=lambda: "",
        gives_way=lambda: None,
    )
    return Failover(config.destinations["shop"], dependencies)


def test_failover_a_secret_that_cannot_be_read_is_reported_and_never_counts_as_a_failure_of_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = watch_of(tmp_path, monkeypatch, BY_FILE, BY_TLS)
    assert not any(watch.beat_safely() for _ in range(5))
    assert watch.trouble().startswith(
        "Sluice cannot check whether 127.0.0.1:1 answers: the password of root@127.0.0.1:1"
    )
    assert "cannot be read: No such file" in watch.trouble()
    (tmp_path / "secret").write_text(SECRET)
    assert not any(watch.beat_safely() for _ in range(2))
    assert "127.0.0.1:1 did not answer 2 heartbeats in a row" in watch.trouble(), "from here the source itself is asked"
    assert "127.0.0.1:2 cannot take over: it is asked" in watch.trouble()
    (tmp_path / "secret").unlink()
    assert not any(watch.beat_safely() for _ in range(5))
    assert "cannot check whether" in watch.trouble()
    assert address_in_use(tmp_path / "data" / "shop") == ""
    assert SECRET not in watch.trouble()


def test_failover_tls_files_that_cannot_be_read_never_count_as_a_failure_of_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = watch_of(tmp_path, monkeypatch, BY_TLS, BY_FILE)
    assert not any(watch.beat_safely() for _ in range(5))
    assert "answers: the TLS files for 127.0.0.1:2 cannot be used" in watch.trouble()


@pytest.mark.servers
def test_failover_a_refused_password_never_counts_as_a_failure_of_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mysql80: DatabaseServer
) -> None:
    """The password was changed on the server, but not yet in the secret's file. A failover would be wrong: the source is available, and its
    replicas have the same accounts.
    """
    with mysql80.connect() as connection, connection.cursor() as cursor:
        cursor.execute("CREATE USER IF NOT EXISTS rotated IDENTIFIED BY 'new'")
    refused = f"{{host: 127.0.0.1, port: {mysql80.port}, user: rotated, password: {{file: secret}}}}"
    watch = watch_of(tmp_path, monkeypatch, refused, BY_TLS)
    (tmp_path / "secret").write_text("old")
    assert not any(watch.beat_safely() for _ in range(5))
    assert f"answers: rotated@127.0.0.1:{mysql80.port} was refused" in watch.trouble()
    (tmp_path / "secret").write_text("new")
    assert not any(watch.beat_safely() for _ in range(5))
    assert watch.trouble() == ""
