"""Tests a private database server: it starts empty, keeps its data over restarts and crashes, and leaves no process."""

from pathlib import Path

import pytest

from sluice.console.toolchain.artifacts import DATABASE_VERSIONS, MYSQL_9
from sluice.console.toolchain.cache import Cache
from sluice.console.toolchain.database.data_folder import provide_data_folder
from sluice.console.toolchain.database.server import DatabaseServer
from sluice.console.toolchain.database_packages import ServerHome, server_home
from sluice.console.toolchain.errors import SetupError
from tests.fix_servers import ServerFactory
from tests.waiting import wait_until_gone


def _fetch(server: DatabaseServer, statement: str) -> object:
    connection = server.connect()
    try:
        with connection.cursor() as cursor:
            cursor.execute(statement)
            return cursor.fetchone()
    finally:
        connection.close()


@pytest.mark.servers
@pytest.mark.parametrize("version", DATABASE_VERSIONS)
def test_server_is_a_source_of_row_changes(fresh_server: ServerFactory, version: str) -> None:
    server = fresh_server(version)
    settings = _fetch(server, "SELECT @@log_bin, @@binlog_format, @@binlog_row_image, @@server_id, @@port")
    assert settings == (1, "ROW", "FULL", 1, server.port)
    assert str(_fetch(server, "SELECT version()")[0]).startswith(version.partition("-")[2])  # type: ignore[index]
    pid = server.pid
    server.stop()
    assert not server.running
    assert wait_until_gone(pid, 1)


@pytest.mark.servers
def test_rows_survive_kill_and_restart(fresh_mysql80: ServerFactory) -> None:
    server = fresh_mysql80({"binlog_row_metadata": "FULL"})
    port, killed = server.port, server.pid
    _fetch(server, "CREATE DATABASE shop")
    _fetch(server, "CREATE TABLE shop.item (id INT PRIMARY KEY)")
    _fetch(server, "INSERT INTO shop.item VALUES (7)")
    server.kill()
    assert wait_until_gone(killed, 1)
    server.start()
    assert server.port == port
    assert _fetch(server, "SELECT id, @@binlog_row_metadata FROM shop.item") == (7, "FULL")
    server.restart({"binlog_row_metadata": "MINIMAL"})
    assert _fetch(server, "SELECT id, @@binlog_row_metadata FROM shop.item") == (7, "MINIMAL")


def test_mysql_9_without_apt_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SetupError, match=r"mysql-9 comes from Debian's package .* no apt-get"):
        server_home(Cache(tmp_path), MYSQL_9)
    assert not list(tmp_path.iterdir())


@pytest.mark.servers
def test_two_servers_of_one_kept_folder_are_unrelated(fresh_server: ServerFactory) -> None:
    first, second = fresh_server("mysql-8.0.31"), fresh_server("mysql-8.0.31")
    assert _fetch(first, "SELECT @@server_uuid") != _fetch(second, "SELECT @@server_uuid")


def test_a_data_folder_is_made_once_for_what_counts_at_its_birth(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path / "cache"))
    home, made = ServerHome("mysql-8.0.31", tmp_path / "home", ""), []
    home.folder.mkdir()

    def make(folder: Path, options: object) -> None:
        made.append(options)
        folder.mkdir()
        (folder / "auto.cnf").write_text("server-uuid=1")
        (folder / "ibdata1").write_text(str(options))

    for at, changes in enumerate([{}, {"server_id": 7}, {"innodb_page_size": 8192}, {"innodb_page_size": 8192}]):
        provide_data_folder(home, changes, tmp_path / str(at), make)
        assert [file.name for file in (tmp_path / str(at)).iterdir()] == ["ibdata1"]
    assert len(made) == 2
    assert "8192" in (tmp_path / "3" / "ibdata1").read_text()


def test_a_full_cache_does_not_prevent_a_server_from_starting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path / "cache"))
    home = ServerHome("mysql-8.0.31", tmp_path / "not there", "")
    provide_data_folder(home, {}, tmp_path / "data", lambda folder, _: folder.mkdir())
    assert (tmp_path / "data").exists()
