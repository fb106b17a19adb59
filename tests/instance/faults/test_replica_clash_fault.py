"""Tests two installations, or two copies of one, that read one server under the same destination name: which of them may dump its binlog,
and which waits.
"""

from __future__ import annotations

import copy
import shutil
from pathlib import Path

import pytest

from sluice.cdc_engine import limits
from sluice.cdc_engine.instance.engine.engine import Engine
from sluice.console.toolchain.database.server import DatabaseServer
from tests.instance.fix_destination import Captured, running
from tests.waiting import wait_for


@pytest.fixture(params=["mysql80", "mysql57", "mariadb114", "mariadb1011"])
def production(request: pytest.FixtureRequest, tmp_path: Path) -> Captured:
    server: DatabaseServer = request.getfixturevalue(request.param)
    return Captured(tmp_path / "production", server)


def installation(captured: Captured, root: Path, source: str = "") -> Captured:
    """Returns another installation that captures the same tables under the same destination name."""
    made = copy.copy(captured)
    made.conf, made.directory = root / "conf", root / "data" / "engine" / "shop"
    (made.conf / "destinations").mkdir(parents=True, exist_ok=True)
    (made.conf / "sluice.yaml").write_text(f"data_dir: {root}/data\nlake: {root}/lake\n")
    made.describe(source=source)
    return made


def is_running(engine: Engine) -> bool:
    return engine.status().state == "RUNNING"


@pytest.mark.servers
@pytest.mark.found
def test_two_installations_with_the_same_destination_name_read_one_server_side_by_side(
    production: Captured, tmp_path: Path
) -> None:
    """Defect 11: a replica's server id and uuid depended only on the destination's name, so two installations ended each other's dump."""
    test = installation(production, tmp_path / "test")
    with running(production) as one, running(test) as two:
        wait_for("both run", lambda: is_running(one) and is_running(two))
        production.insert([1, 2])
        assert production.take(one, 2) == [1, 2]
        assert test.take(two, 2) == [1, 2]
        assert (one.status().stream.connections, two.status().stream.connections) == (1, 1)


def copied(captured: Captured, root: Path, source: str = "") -> Captured:
    """Returns an installation that was copied from another one, with its id."""
    shutil.copytree(captured.directory.parent / "_sluice_tables", root / "data" / "engine" / "_sluice_tables")
    return installation(captured, root, source)


@pytest.mark.servers
@pytest.mark.found
def test_the_one_whose_dump_was_ended_waits_says_the_remedy_and_continues_by_itself(
    production: Captured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 11: a copy of an installation has the same identity as the original. Each of the two ended the other's dump, and REPLICA_CLASH
    never ended.
    """
    monkeypatch.setattr(limits, "REVIVE_SECONDS", 0.1)
    with running(production) as one:
        wait_for("it runs", lambda: is_running(one))
        copy_of_it = copied(production, tmp_path / "copy")
        with running(copy_of_it) as two:
            wait_for("the first waits", lambda: "The clients that dump the server's binlog" in one.status().reason)
            status = one.status()
            assert status.state == "REPLICA_CLASH"
            assert "set `server_id` in `source` of shop" in status.reason
            assert (
                "127.0.0.1:" in status.reason.split("The clients that dump the server's binlog")[1]
                or "localhost:" in status.reason
            )
            production.insert([1])
            assert copy_of_it.take(two, 1) == [1]
            assert two.status().stream.connections == 1, "the one that waits ends nobody's dump"
        wait_for("it goes on by itself", lambda: is_running(one))
        assert production.take(one, 1) == [1]


@pytest.mark.servers
@pytest.mark.found
def test_a_server_id_of_its_own_ends_the_clash_of_a_copy(production: Captured, tmp_path: Path) -> None:
    """Defect 11: on MySQL a configured `server_id` had no effect, because the uuid was still that of the name."""
    with running(production) as one:
        wait_for("it runs", lambda: is_running(one))
        source = f"{{user: root, port: {production.server.port}, server_id: 4711}}"
        copy_of_it = copied(production, tmp_path / "copy", source)
        with running(copy_of_it) as two:
            wait_for("both run", lambda: is_running(one) and is_running(two))
            production.insert([1])
            assert production.take(one, 1) == [1]
            assert copy_of_it.take(two, 1) == [1]
            assert (one.status().stream.connections, two.status().stream.connections) == (1, 1)
