"""Tests the command that fetches a binlog file: its arguments, which results are kept, and its limits. Messages must not contain the
arguments.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import IO

import pytest

from sluice.cdc_engine import limits
from sluice.cdc_engine.config.locations import ArchiveFetchConfig
from sluice.cdc_engine.errors import PositionLostError, SourceConnectionError
from sluice.cdc_engine.parser.positions import scan_ddl
from sluice.cdc_engine.parser.stream.dump import NoHistory
from sluice.cdc_engine.position import Position
from sluice.cdc_engine.source.archive import FETCH_LOCK, PART, Archive
from sluice.cdc_engine.source.archive_fetch import ArchiveFetch
from sluice.cdc_engine.source.server import Source
from tests.parser.test_start_position import MYSQL, WITHOUT_GTID
from tests.waiting import wait_for

pytestmark = pytest.mark.seeds

FILE = "binlog.000042"
SOURCE = Source(host="127.0.0.1", port=3306, user="reader", destination="shop")
WRITE = "import sys; open(sys.argv[2], 'w').write(' '.join(sys.argv[1:2] + sys.argv[3:]))"


def never() -> bool:
    return False


def accepted(_stream: IO[bytes]) -> None:
    """Accepts every file."""


def archive(folder: Path, *command: str) -> Archive:
    found = Archive(str(folder), ArchiveFetch(command=command))
    folder.mkdir(exist_ok=True)
    found.files()
    return found


def names_in(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir())


def python(program: str, *arguments: str) -> Sequence[str]:
    return (sys.executable, "-c", program, *arguments)


def test_a_fetched_file_is_kept_under_its_name_and_no_shell_reads_the_arguments(tmp_path: Path) -> None:
    words = "$(touch owned); `touch owned`"
    found = archive(tmp_path / "archive", *python(WRITE, "{file}", "{path}", words))
    (tmp_path / "archive" / f"{FILE}{PART}").write_text("of a killed fetch")
    (tmp_path / "archive" / f"binlog.000041{PART}").write_text("of a killed fetch")
    others = ["binlog.000043.part", f"notes{PART}", "video.part"]
    for other in others:
        (tmp_path / "archive" / other).write_text("not of a fetch")
    assert not found.has(FILE)
    found.fetch(FILE, accepted, never)
    assert found.has(FILE)
    assert (tmp_path / "archive" / FILE).read_text() == f"{FILE} {words}"
    assert names_in(tmp_path / "archive") == sorted([FETCH_LOCK, FILE, *others])
    with found.open(FILE) as stream:
        assert stream.read().startswith(FILE.encode())
    archive(tmp_path / "archive", "/no/such/program").fetch(FILE, accepted, never)  # The file is there.


@pytest.mark.parametrize(
    ("program", "sentence"),
    [
        ("raise SystemExit(3)", "failed with status 3"),
        ("", "wrote no file"),
        ("import time; time.sleep(600)", r"did not end within 0\.5 s"),
    ],
)
def test_a_command_that_fails_leaves_nothing_and_its_arguments_stay_hidden(
    tmp_path: Path, program: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "ARCHIVE_FETCH_SECONDS_MAX", 0.5 if "600" in program else 60)
    found = archive(tmp_path, *python(program, "{file}", "{path}", "s3cret"))
    with pytest.raises(SourceConnectionError, match=sentence) as error:
        found.fetch(FILE, accepted, never)
    assert FILE in str(error.value)
    assert "s3cret" not in str(error.value)
    assert not found.has(FILE)
    assert names_in(tmp_path) == [FETCH_LOCK]


def test_a_file_that_is_refused_is_not_kept(tmp_path: Path) -> None:
    def refuse(_stream: IO[bytes]) -> None:
        raise PositionLostError("it is another server's")

    with pytest.raises(SourceConnectionError, match="wrote is refused: it is another server's"):
        archive(tmp_path, *python(WRITE, "{file}", "{path}")).fetch(FILE, refuse, never)
    assert names_in(tmp_path) == [FETCH_LOCK]


@pytest.mark.parametrize("name", ["--output=x.000001", "../binlog.000001", "binlog", "a b.000001"])
def test_no_command_gets_a_name_that_it_may_misread(tmp_path: Path, name: str) -> None:
    with pytest.raises(SourceConnectionError, match="cannot get a file of this name"):
        archive(tmp_path, *python(WRITE, "{file}", "{path}")).fetch(name, accepted, never)


CHILD = (
    "import subprocess, sys; p = subprocess.Popen(['sleep', '600']); open(sys.argv[1], 'w').write(str(p.pid)); p.wait()"
)


def test_a_command_ends_with_its_children_when_its_file_is_no_longer_needed(tmp_path: Path) -> None:
    noted, ended = tmp_path / "pid", threading.Event()
    found = archive(tmp_path / "archive", *python(CHILD, str(noted), "{file}", "{path}"))
    errors: list[BaseException] = []

    def fetch() -> None:
        try:
            found.fetch(FILE, accepted, ended.is_set)
        except InterruptedError as error:
            errors.append(error)

    thread = threading.Thread(target=fetch)
    thread.start()
    pid = wait_for("the child runs", lambda: noted.exists() and int(noted.read_text() or 0))
    second: list[BaseException] = []
    waiting = threading.Thread(target=lambda: second.extend(_given_up(found)))
    waiting.start()
    waiting.join(60)
    assert [type(each) for each in second] == [InterruptedError], "one fetch at a time"
    ended.set()
    thread.join(60)
    assert len(errors) == 1
    wait_for("the child is gone", lambda: not _runs(pid))


class NoConnection:
    """A connection that must not be used."""

    def __init__(self, _source: object) -> None:
        """Connects to nothing."""

    def close(self) -> None:
        """Does nothing."""


def test_a_consumer_that_ends_ends_the_command_that_gets_what_it_must_read_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a consumer's position is in purged files, Sluice fetches these files and reads their statements before the consumer's stream
    begins.
    """
    noted, ended = tmp_path / "pid", threading.Event()
    found = archive(tmp_path / "archive", *python(CHILD, str(noted), "{file}", "{path}"))
    begin = Position(epoch=1, file="binlog.000002", offset=4, server_uuid=MYSQL.server_uuid, gtid_set="")
    facts = dataclasses.replace(WITHOUT_GTID, logs=WITHOUT_GTID.logs[-1:])
    assert facts.logs[0].file > begin.file
    monkeypatch.setattr(scan_ddl, "SourceConnection", NoConnection)
    monkeypatch.setattr(scan_ddl, "read_facts", lambda _connection, _file: facts)
    errors: list[BaseException] = []

    def scan() -> None:
        try:
            scan_ddl.scan_ddl(SOURCE, begin, NoHistory(), found, given_up=ended.is_set)
        except InterruptedError as error:
            errors.append(error)

    thread = threading.Thread(target=scan, daemon=True)
    thread.start()
    pid = wait_for("the child runs", lambda: noted.exists() and int(noted.read_text() or 0))
    ended.set()
    thread.join(60)
    assert len(errors) == 1
    wait_for("the child is gone", lambda: not _runs(pid))


def _given_up(found: Archive) -> list[BaseException]:
    try:
        found.fetch(FILE, accepted, lambda: True)
    except InterruptedError as error:
        return [error]
    return []


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ([], "at least 1 item"),
        (["fetch", "{file}"], "must contain"),
        (["fetch", "{path}"], "must contain"),
        (["fetch", "", "{file}", "{path}"], "none of them empty"),
    ],
)
def test_a_command_names_the_file_and_its_path(command: list[str], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        ArchiveFetchConfig(command=tuple(command))
