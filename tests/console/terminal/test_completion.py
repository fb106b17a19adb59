"""Tests completion in the shell, through the program that the shell calls."""

from __future__ import annotations

import errno
from typing import NoReturn

import pytest

from sluice.console.main import COMPLETE_VARIABLE, main
from tests.console.conftest import Installation
from tests.orchestration.fix_location import write_tables


def completed(words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    monkeypatch.setenv(COMPLETE_VARIABLE, "complete_bash")
    monkeypatch.setenv("COMP_WORDS", words)
    monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
    with pytest.raises(SystemExit):
        main()
    printed = capsys.readouterr()
    assert printed.err == ""
    return printed.out.split()


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("sluice doc", ["doctor"]),
        ("sluice snapshot start ", ["shop"]),
        ("sluice snapshot start x", []),
        ("sluice snapshot start shop --tables shop.or", ["shop.orders"]),
        ("sluice snapshot start shop --tables shop.items,shop.or", ["shop.items,shop.orders"]),
        ("sluice position show ", ["shop"]),
    ],
)
def test_commands_destinations_and_tables_are_completed(
    installation: Installation,
    words: str,
    found: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_tables(installation.destination(1))  # The tables are shop.orders and shop.items.
    assert completed(words, monkeypatch, capsys) == found


def test_an_invalid_conf_completes_nothing(
    installation: Installation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    installation.destination(1)
    (installation.conf / "sluice.yaml").write_text("no_such_key: 1")
    assert completed("sluice snapshot start shop ", monkeypatch, capsys) == []


@pytest.mark.found
def test_files_of_another_user_complete_nothing(
    installation: Installation, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Defect 1156: if this user may not read data_dir, an error appeared in the middle of the line that the user wrote."""
    directory = installation.destination(1)
    write_tables(directory)

    def refused(path: object, *_: object) -> NoReturn:
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr("sluice.cdc_engine.table_meta.table_list.reading.read_tables", refused)
    assert completed("sluice history ", monkeypatch, capsys) == []
