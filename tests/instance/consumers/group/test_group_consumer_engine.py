"""Tests the engine of a group: it serves on the host that runs all its members, holds the lease meanwhile, and reports what prevents it."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.destination_files import lease_holder
from sluice.cdc_engine.errors import NotStartedError, SluiceError
from sluice.cdc_engine.ha.file_lease import LOCK_NAME, FileLease
from sluice.cdc_engine.instance.consumers.consumers import Consumers
from sluice.cdc_engine.instance.consumers.sending import Sending
from sluice.cdc_engine.instance.consumers.served import Serving
from sluice.cdc_engine.instance.engine import group_engine, lifecycle
from sluice.cdc_engine.instance.engine.group_engine import GroupEngine
from sluice.cdc_engine.instance.status import GroupFigures, MemberFigures
from sluice.cdc_engine.keeping import launcher
from sluice.cdc_engine.keeping.in_use import VARIABLE
from sluice.console.status.report import read_status
from sluice.console.toolchain.ports import free_port
from tests.instance.consumers.group.fix_members import Fake
from tests.waiting import wait_for

pytestmark = pytest.mark.usefixtures("at_once")


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifecycle, "STATUS_SECONDS", 0.02)


class Host:
    """A process with engines of some members. All hosts have the same conf/ and data."""

    def __init__(self, root: Path, port: int, *members: str) -> None:
        self.members = {name: Fake(name).consumers for name in members}
        (root / "destinations").mkdir(parents=True, exist_ok=True)
        (root / "sluice.yaml").write_text(f"data_dir: {root / 'data'}\n")
        for name in ("east", "west"):
            (root / "destinations" / f"{name}.yaml").write_text("source: {user: u}\n")
        server = f"{{port: {port}, time_zone: Europe/Vienna}}"
        (root / "destinations" / "all.yaml").write_text(f"members: [east, west]\ncanal_server: {server}\n")
        self.config = load_config(root)
        self.group = GroupEngine(self.config, "all", self.consumers_of)

    def consumers_of(self, name: str) -> Consumers:
        if name not in self.members:
            raise NotStartedError(f"process 1 on elsewhere reads {name}")
        return self.members[name]

    def status(self) -> dict[str, Any]:
        """Returns the status as it was written."""
        reported: dict[str, Any] = json.loads((self.group.directory / "status.json").read_text())
        return reported

    def held(self) -> bool:
        holder = lease_holder(self.group.directory)
        return holder is not None and holder.held


def is_in(group: GroupEngine, state: str) -> Callable[[], bool]:
    return lambda: group.status().state == state


def test_group_is_served_where_all_members_run_and_follows_them_to_another_host_with_its_consumers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_engine, "APART_SECONDS", 0.1)
    port = free_port()
    here, there = Host(tmp_path, port, "east"), Host(tmp_path, port, "west")
    here.group.start()
    there.group.start()
    try:
        reported = here.status()
        assert reported["state"] == "STARTING"
        assert "the group waits for its member" in reported["reason"]
        assert not here.held()
        here.members["west"] = there.members.pop("west")
        wait_for("it is served", is_in(here.group, "RUNNING"))
        wait_for("the other stands by", is_in(there.group, "STANDBY"))
        wait_for("its status file says so", lambda: here.status()["state"] == "RUNNING")
        assert here.group.consumers.statuses() == ()
        del here.members["west"]
        (trouble,) = here.group.status().troubles
        assert (
            trouble
            == "the member west does not run in this process: process 1 on elsewhere reads west; the group waits"
        )
        there.members = {name: Fake(name).consumers for name in ("east", "west")}
        here.members.clear()
        wait_for("it is served there", is_in(there.group, "RUNNING"))
        with pytest.raises(NotStartedError):
            str(here.group.consumers)
    finally:
        here.group.stop()
        there.group.stop()
    assert not here.held()


def test_group_whose_password_is_not_there_says_so_until_it_is_for_its_consumers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(tmp_path, free_port(), "east", "west")
    server = host.config.groups["all"].canal_server.model_copy(update={"user": "canal", "password_hash": "$GROUP_HASH"})
    host.group._group = host.config.groups["all"].model_copy(update={"canal_server": server})
    host.group.start()
    try:
        assert host.status()["state"] == "CONFIGURATION"
        assert "GROUP_HASH" in host.status()["reason"]
        assert any(problem.startswith("all is CONFIGURATION") for problem in read_status(host.config).problems)
        monkeypatch.setenv("GROUP_HASH", "e3619321c1a937c46a0d8bd1dac39f93b27d4458")
        wait_for("it is served", is_in(host.group, "RUNNING"))
    finally:
        host.group.stop()


def test_group_is_served_after_a_defect_for_its_consumers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host, failed = Host(tmp_path, free_port(), "east", "west"), threading.Event()

    def defect() -> None:
        failed.set()
        raise KeyError("a defect")

    with monkeypatch.context() as patched:
        patched.setattr(host.group._members, "missing", defect)
        host.group.start()
        assert failed.is_set()
        failed.clear()
        wait_for("the thread tries again", failed.is_set)
    try:
        wait_for("it is served", is_in(host.group, "RUNNING"))
    finally:
        host.group.stop()


@pytest.mark.found
def test_group_is_served_again_after_a_step_of_its_end_failed_for_its_consumers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 67: an error while a group's consumers were closed ended the status thread. The group was RUNNING, and nothing served it."""
    host = Host(tmp_path, free_port(), "east", "west")
    host.group.start()
    try:
        first = host.group.consumers
        monkeypatch.setattr(first, "close", mock.Mock(side_effect=OSError("a disk failed")))
        (host.group.directory / LOCK_NAME).unlink()
        wait_for("it is served by other consumers", lambda: others(host.group, first))
    finally:
        host.group.stop()


def others(group: GroupEngine, first: object) -> bool:
    with contextlib.suppress(SluiceError):
        return group.consumers is not first
    return False


@pytest.mark.found
def test_an_end_with_a_failed_step_carries_out_the_other_steps_for_consumers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 67: if the consumers could not be closed, the ledger stayed open."""
    host = Host(tmp_path, free_port(), "east", "west")
    host.group.start()
    monkeypatch.setattr(host.group.consumers, "close", mock.Mock(side_effect=OSError("a disk failed")))
    with pytest.raises(OSError, match="a disk failed"):
        host.group.stop()
    assert not host.held()
    with pytest.raises(NotStartedError):
        str(host.group.consumers)
    host.group.stop()


def test_brokers_get_no_more_messages_of_consumers_if_the_port_cannot_be_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host, end, ended = Host(tmp_path, free_port(), "east", "west"), Serving.end, mock.Mock()

    def fails(serving: Serving) -> None:
        end(serving)
        raise OSError("a socket failed")

    host.group.start()
    monkeypatch.setattr(Serving, "end", fails)
    monkeypatch.setattr(Sending, "end", ended)
    with pytest.raises(OSError, match="a socket failed"):
        host.group.stop()
    ended.assert_called_once_with()
    assert not host.held()


@pytest.mark.found
def test_a_defect_while_cursors_are_saved_does_not_end_the_saving_for_the_consumers_of_a_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 68: after an error that is not a SluiceError, the cursors of consumers were not saved any more until the engine ended."""
    host = Host(tmp_path, free_port(), "east", "west")
    host.group.start()
    try:
        saving = mock.Mock(side_effect=KeyError("a defect"))
        with monkeypatch.context() as patched:
            patched.setattr(host.group.consumers, "keep", saving)
            wait_for("the thread tries again", lambda: saving.call_count > 1)
    finally:
        host.group.stop()


@pytest.mark.found
def test_group_whose_brokers_cannot_begin_is_not_reported_as_running_for_its_consumers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 73: a group was RUNNING while its start failed again and again with an error that is not a SluiceError."""
    host = Host(tmp_path, free_port(), "east", "west")
    with monkeypatch.context() as patched:
        patched.setattr(Sending, "begin", mock.Mock(side_effect=RuntimeError("can't start new thread")))
        host.group.start()
        assert host.group.status().state == "STARTING"
    try:
        wait_for("it is served", is_in(host.group, "RUNNING"))
    finally:
        host.group.stop()


def test_group_is_kept_by_the_launcher_and_names_the_engines_of_consumers_that_it_waits_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    host = Host(tmp_path, free_port())
    monkeypatch.setenv("SLUICE_CONF", str(tmp_path))
    monkeypatch.setenv(VARIABLE, "")
    launcher.take_up("all")
    try:
        assert sorted(launcher.kept()) == ["all"]
        assert "the engine of east does not run" in host.status()["reason"]
        (directory := host.config.destination_dir("west")).mkdir(parents=True)
        other_host = FileLease(directory)
        assert other_host.try_acquire()
        wait_for(
            "it says who reads west", lambda: "`sluice instance release west` on that host" in host.status()["reason"]
        )
        launcher.give_up("all")
        launcher.take_up("all")
        assert sorted(launcher.kept()) == ["all"], "it goes where its members go"
    finally:
        launcher.put_away("all")
    assert not launcher.kept()


def test_group_says_how_far_the_clocks_of_its_sources_differ_consumer() -> None:
    members = (
        MemberFigures(name="east", ahead_seconds=-1.5),
        MemberFigures(name="north", trouble="the engine of the destination is POSITION_LOST: gone"),
        MemberFigures(name="west", ahead_seconds=0.5),
    )
    figures = GroupFigures(members=members)
    assert figures.clocks_differ_seconds == 2.0
    silent, clocks = figures.troubles(30.0)
    assert (
        silent == "the member north sends nothing: the engine of the destination is POSITION_LOST: gone; "
        "the group waits 30 s and continues without it"
    )
    assert "differ by 2.0 s" in clocks
