"""Tests that a command ends with one message, and not with a traceback, if the operating system or another program fails."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, NoReturn

import pytest

from sluice.cdc_engine.config.operation import HOURS_MAX
from sluice.cdc_engine.errors import ConfFilesError
from sluice.console.commands import maintain
from sluice.console.main import app, main, spoken
from sluice.console.toolchain.errors import SetupError
from tests.console.conftest import RUNNER, Installation


def ended(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> tuple[object, str, str]:
    """Runs a command as a shell does. Returns the exit code, and what the command printed to stdout and to stderr."""
    monkeypatch.setattr(sys, "argv", ["sluice", *words])
    monkeypatch.delenv("SLUICE_DEBUG", raising=False)
    with pytest.raises(SystemExit) as done:
        main()
    printed = capsys.readouterr()
    return done.value.code, printed.out, printed.err.replace("\n", " ")


def process_of(
    *words: str, stdout: IO[bytes] | int = subprocess.PIPE, **variables: str
) -> subprocess.CompletedProcess[bytes]:
    """Runs a command in a process of its own, with additional environment variables."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables}
    command = [sys.executable, "-m", "sluice.console.main", *words]
    return subprocess.run(command, env=environment, stdout=stdout, stderr=subprocess.PIPE, check=False)


@pytest.mark.found
def test_a_data_dir_of_another_user_is_one_message(
    installation: Installation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Defect 1133: as another user than the one of Sluice, `status`, `down` and most other commands ended with a traceback."""
    installation.destination(1)
    path = installation.data / "conf-in-use" / "engine.json"

    def refused(*_: object, **__: object) -> NoReturn:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    for words in (("status", "--json"), ("instance", "list", "--json"), ("maintain", "shop", "--json")):
        with monkeypatch.context() as patch:
            patch.setattr("sluice.cdc_engine.keeping.in_use.kept_file", refused)
            code, out, err = ended(patch, capsys, *words)
        assert (code, out) == (1, "")
        assert f"{path}: Permission denied; run `sluice` as the user that started Sluice" in err


@pytest.mark.found
def test_doctor_names_an_archive_that_it_cannot_write(
    installation: Installation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Defect 1133: `doctor --archive` with a folder that does not exist ended with a traceback."""
    installation.destination(1)
    archive = tmp_path / "missing" / "report.tar.gz"
    code, out, err = ended(monkeypatch, capsys, "doctor", "--archive", str(archive))
    assert (code, out) == (1, "")
    assert f"{archive}: No such file or directory; " in err
    assert "free space" in spoken(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/data/x"))


@pytest.mark.found
def test_instance_edit_says_what_to_do_if_the_editor_fails(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 1134: `instance edit` ended with a traceback of click if the editor failed or does not exist."""
    installation.destination(1)
    for editor in ("false", "/missing/editor"):
        monkeypatch.setenv("VISUAL", editor)
        answer = RUNNER.invoke(app, ["instance", "edit", "shop"])
        assert isinstance(answer.exception, SetupError)
        assert "set VISUAL to your editor, or give the new text with `--file`" in str(answer.exception)


@pytest.mark.found
def test_maintain_refuses_a_retention_without_an_end(installation: Installation) -> None:
    """Defect 1150: `maintain --vacuum --retention-hours inf` ended with an OverflowError."""
    installation.destination(1)
    assert maintain.HOURS_MAX == HOURS_MAX
    for hours in ("inf", "nan", "1e308"):
        answer = RUNNER.invoke(app, ["maintain", "shop", "--vacuum", "--retention-hours", hours])
        assert answer.exit_code == 2, answer.exception
        assert "--retention-hours" in answer.stderr


@pytest.mark.found
@pytest.mark.parametrize("line", ["includes: x", "include: 'caf\\351'"])
def test_instance_edit_keeps_a_text_that_is_refused(
    installation: Installation, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, line: str
) -> None:
    """Defect 1153: a text that conf/ refuses was lost, and a text that is not UTF-8 caused a traceback too."""
    installation.destination(1)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    editor = tmp_path / "editor.sh"
    editor.write_text(f'#!/bin/sh\nprintf "{line}\\n" >>"$1"\n')
    editor.chmod(0o700)
    monkeypatch.setenv("VISUAL", str(editor))
    before = (installation.conf / "destinations" / "shop.yaml").read_bytes()
    answer = RUNNER.invoke(app, ["instance", "edit", "shop"])
    assert isinstance(answer.exception, ConfFilesError)
    (kept,) = tmp_path.glob("sluice-shop-*.yaml")
    assert f"correct it there, then run `sluice instance edit shop --file {kept}`" in answer.stderr
    assert kept.read_bytes() == before + line.replace("\\351", "\xe9").encode("latin-1") + b"\n"
    assert (installation.conf / "destinations" / "shop.yaml").read_bytes() == before
    kept.write_bytes(before + b"exclude: x\n")
    assert RUNNER.invoke(app, ["instance", "edit", "shop", "--file", str(kept)]).exit_code == 0


@pytest.mark.found
def test_a_full_disk_behind_the_output_is_named(installation: Installation) -> None:
    """Defect 1154: `status > /dev/full` only said `[Errno 28] No space left on device`."""
    installation.destination(1)
    for words in (("status", "--json"), ("instance", "list")):
        with Path("/dev/full").open("wb") as full:
            ended_with = process_of(*words, stdout=full)
        assert ended_with.returncode == 1
        assert ended_with.stderr.decode().replace("\n", "") == (
            "No space left on device; free space on the disk to which the output of the command goes, or on the disk of data_dir"
        )


@pytest.mark.found
def test_every_character_is_printed_in_every_locale(installation: Installation) -> None:
    """Defect 1155: in a locale that is not UTF-8, such as ISO-8859-1, `status`, `check` and most tables ended with a UnicodeEncodeError."""
    installation.destination(1)
    for encoding in ("latin-1", "ascii"):
        shown = process_of("status", PYTHONIOENCODING=encoding)
        assert shown.stderr == b""
        assert "✗ shop is STOPPED" in shown.stdout.decode()
