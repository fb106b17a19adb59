"""Tests that every mistake in the files of conf/ is reported, and that no file, key or folder of conf/ is ignored silently."""

from __future__ import annotations

import errno
import os
import re
from pathlib import Path
from typing import NoReturn

import pytest

from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.config.conf_files import read_conf_files
from sluice.cdc_engine.errors import ConfFilesError, ConfigurationError
from sluice.console.conf_check import conf_problems
from sluice.console.doctor.report import collect

GOOD = "source: {host: 192.0.2.1, user: sluice}\n"


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """Returns a conf/ with one destination."""
    directory = tmp_path / "conf"
    (directory / "destinations").mkdir(parents=True)
    (directory / "sluice.yaml").write_text("data_dir: data\nlake: lake\n")
    (directory / "destinations" / "shop.yaml").write_text(GOOD)
    return directory


@pytest.mark.found
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (
            "include: 2026-02-30\n",
            "the value is no timestamp; if it is a text, put it into quotation marks (line 2, column 10)",
        ),
        (
            "include: !!int secret\n",
            "the value is no int; if it is a text, put it into quotation marks (line 2, column 10)",
        ),
        (
            "include: !!bool secret\n",
            "the value is no bool; if it is a text, put it into quotation marks (line 2, column 10)",
        ),
        (f"include: {'[' * 3000}\n", "too many brackets or levels are nested"),
    ],
)
def test_a_value_that_yaml_cannot_convert_is_reported_with_its_line(conf: Path, text: str, reason: str) -> None:
    """Defect 1130: `include: 2026-02-30` ended each command, and the reading of a changed conf/ in the engines, with a traceback."""
    (conf / "destinations" / "shop.yaml").write_text(GOOD + text)
    with pytest.raises(ConfFilesError) as refused:
        load_config(conf)
    assert f"shop.yaml cannot be read: {reason}" in refused.value.problems
    assert "secret" not in str(refused.value)
    assert "the file is not YAML" in collect(conf)["conf"]["destinations/shop.yaml"]


@pytest.mark.found
def test_a_value_that_contains_itself_is_refused(conf: Path) -> None:
    """Defect 1151: `check` and `doctor` ended with a RecursionError if a value of conf/ contains itself by an alias."""
    for text, column in (("columns: &a [*a]\n", 14), ("columns: &a {b: [*a]}\n", 18)):
        (conf / "destinations" / "shop.yaml").write_text(GOOD + text)
        reason = f"the value contains itself; write the value instead of the alias (line 2, column {column})"
        with pytest.raises(ConfFilesError, match=re.escape(reason)):
            load_config(conf)
        conf_problems(conf)
        assert "the file is not YAML" in collect(conf)["conf"]["destinations/shop.yaml"]


@pytest.mark.found
def test_a_key_that_appears_twice_is_a_problem_of_conf(conf: Path) -> None:
    """Defect 1131: of two keys `include` in one file, the first was ignored silently, so its tables were never captured."""
    twice = 'tables:\n  shop.a: {rows: "a > 1"}\n  shop.a: {rows: "a > 2"}\n'
    for text, position in (("include: a\\..*\ninclude: b\\..*\n", "line 3, column 1"), (twice, "line 4, column 3")):
        (conf / "destinations" / "shop.yaml").write_text(GOOD + text)
        load_config(conf)
        (problem,) = conf_problems(conf)
        assert f"destinations/shop.yaml: the key in {position} appears twice: remove one of the two" in problem
    merged = "source: &main {host: h, user: u}\nreader: {<<: *main, host: other}\n"
    (conf / "destinations" / "shop.yaml").write_text(merged)
    reader = load_config(conf).destinations["shop"].reader
    assert reader is not None
    assert (reader.host, reader.user) == ("other", "u")
    assert conf_problems(conf) == []


@pytest.mark.found
def test_a_link_to_a_missing_file_or_folder_is_not_taken_for_no_file(conf: Path) -> None:
    """Defect 1132: sluice.yaml as a link to a missing file counted as no file, so an engine began in the default folders; a link
    destinations/ to a missing folder counted as no destination.
    """
    (conf / "sluice.yaml").unlink()
    (conf / "sluice.yaml").symlink_to("/missing/sluice.yaml")
    with pytest.raises(ConfFilesError, match=r"sluice.yaml cannot be read: .*No such file"):
        load_config(conf)
    (conf / "sluice.yaml").unlink()
    assert list(load_config(conf).destinations) == ["shop"], "a file that does not exist means the defaults"
    (conf / "destinations").rename(conf / "away")
    (conf / "destinations").symlink_to("/missing/destinations")
    with pytest.raises(ConfigurationError, match=r"destinations cannot be read \(No such file or directory\)"):
        load_config(conf)
    (conf / "destinations").unlink()
    assert not load_config(conf).destinations


@pytest.mark.found
def test_a_folder_that_this_user_may_not_read_is_named(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect 1132: a folder destinations/ without permission counted as no destination; conf/ without permission caused a traceback."""

    def refused(path: Path, *_: object) -> NoReturn:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    for method, named in (("iterdir", "conf/destinations"), ("lstat", "conf")):
        with monkeypatch.context() as patch:
            patch.setattr(Path, method, refused)
            with pytest.raises(ConfigurationError, match=rf"{named} cannot be read \(Permission denied\)"):
                read_conf_files(conf)


@pytest.mark.found
def test_only_the_name_of_a_file_names_a_destination(conf: Path) -> None:
    """Defect 1138: with `name: other` in shop.yaml, `check` and the folders in data_dir disagreed on the name. `destinations` in
    sluice.yaml was ignored silently.
    """
    (conf / "destinations" / "shop.yaml").write_text(f"name: other\n{GOOD}")
    (conf / "sluice.yaml").write_text("data_dir: data\ndestinations: {crm: {source: {user: u}}}\n")
    with pytest.raises(ConfFilesError) as refused:
        load_config(conf)
    assert list(refused.value.problems) == [
        "sluice.yaml: destinations: describe each of them in its own file conf/destinations/NAME.yaml, and remove this key",
        "destinations/shop.yaml: name: the file's name is the destination's name; remove this key",
    ]


@pytest.mark.found
def test_check_names_a_file_that_sluice_does_not_read(conf: Path) -> None:
    """Defect 1139: a file destinations/crm.yml was ignored without a message, also by `sluice check`."""
    assert conf_problems(conf) == []
    (conf / "destinations" / "crm.yml").write_text(GOOD)
    assert conf_problems(conf) == [
        "destinations/crm.yml is not read: give the file a name that ends in .yaml",
    ]


@pytest.mark.found
def test_an_empty_sluice_conf_means_conf_in_the_working_directory(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Defect 1158: with `SLUICE_CONF=`, as a service manager sets an unknown variable, the working directory was conf/, and no destination
    was found.
    """
    monkeypatch.chdir(conf.parent)
    for value in ("", "conf", str(conf)):
        monkeypatch.setenv("SLUICE_CONF", value)
        assert list(load_config().destinations) == ["shop"]
