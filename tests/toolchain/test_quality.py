"""Tests what `./sluice test` runs: without arguments everything, with paths only the tests in them, and in a quick run no server."""

from __future__ import annotations

import json
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from sluice.console import quality
from sluice.console.quality import (
    QUICK_TESTS,
    SLOW_MARKS,
    STATIC_CHECKS,
    CheckChoice,
    checks_of,
    failed_tests,
    run_quality,
    workers_of,
)
from tests.marks import STARTS, refuse_starts

ROOT = Path(__file__).parents[2]
FILE, FOLDER = "tests/sink/test_filters.py", "tests/sink"


def test_without_arguments_everything_is_run() -> None:
    checks = checks_of(CheckChoice())
    assert list(checks) == [*STATIC_CHECKS, "tests"]
    assert not {"-m", "-k", "--cov"} & set(checks["tests"])
    assert CheckChoice().is_whole
    assert (ROOT / ".ci" / "run").read_text().endswith("\n./sluice test --quick\nexec ./sluice test --not-quick\n"), (
        "continuous integration runs the quick checks, and then all others"
    )


@pytest.mark.parametrize("arguments", [["-x"], ["-k", "gtid"], ["--durations=5"]])
def test_options_of_pytest_leave_nothing_out(arguments: list[str]) -> None:
    assert checks_of(CheckChoice(arguments=arguments))["tests"][-len(arguments) :] == tuple(arguments)
    assert CheckChoice(arguments=arguments).is_whole


@pytest.mark.parametrize("arguments", [[FILE], [f"{FILE}::test_x"], [FOLDER, "-x"]])
def test_paths_are_run_alone(arguments: list[str]) -> None:
    assert list(checks_of(CheckChoice(arguments=arguments))) == ["tests"]
    assert list(checks_of(CheckChoice(arguments=arguments, everything=True))) == [*STATIC_CHECKS, "tests"]
    assert CheckChoice(arguments=arguments, everything=True).is_whole


def test_one_file_needs_no_workers_and_a_folder_does() -> None:
    assert checks_of(CheckChoice(arguments=[FILE]))["tests"][1:3] == ("-n", "0")
    assert checks_of(CheckChoice(arguments=[FOLDER]))["tests"][2] != "0"


def test_a_quick_run_leaves_servers_out() -> None:
    checks = checks_of(CheckChoice(quick=True))
    assert QUICK_TESTS in checks["tests"]
    assert "types" not in checks
    assert "--cov" in checks_of(CheckChoice(coverage=True))["tests"]


def test_a_quick_run_and_the_other_one_run_everything_once(tmp_path: Path) -> None:
    quick, other = checks_of(CheckChoice(quick=True)), checks_of(CheckChoice(not_quick=True))
    assert {*quick} | {*other} == {*checks_of(CheckChoice())}
    assert {*quick} & {*other} == {"tests"}
    assert CheckChoice(not_quick=True).is_whole, "its servers are set up"
    assert CheckChoice(not_quick=True).once_more
    marked = {"plain": (), "store": ("store",), "both": ("spark", "store"), **{mark: (mark,) for mark in SLOW_MARKS}}
    text = "import pytest\n"
    for name, marks in marked.items():
        text += "".join(f"@pytest.mark.{mark}\n" for mark in marks) + f"def test_{name}(): pass\n"
    (tmp_path / "test_one.py").write_text(text)
    (tmp_path / "pytest.ini").write_text("\n    ".join(["[pytest]\nmarkers =", *SLOW_MARKS, "store"]))
    selected = [
        set(re.findall(r"::test_(\w+)", _pytest_in(tmp_path, "-v", "-n", "0", "-m", words[words.index("-m") + 1])))
        for words in (quick["tests"], other["tests"])
    ]
    assert selected == [{"plain", "store"}, {*SLOW_MARKS, "both"}]


def _pytest_in(folder: Path, *options: str) -> str:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options]
    return subprocess.run(command, cwd=folder, check=False, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    ("cores", "gigabytes", "workers"),
    [(2, 16, 3), (2, 12, 3), (1, 16, 2), (8, 64, 4), (3, 12, 3), (2, 8, 2), (1, 2, 1)],
)
def test_workers_are_one_more_than_cores_where_the_memory_holds_them(cores: int, gigabytes: int, workers: int) -> None:
    assert workers_of(cores, gigabytes << 30) == workers


@pytest.mark.parametrize("wrong", ["lint", "types", "tests"])
def test_each_check_that_fails_fails_the_run_and_all_are_run(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], wrong: str
) -> None:
    """The type check is one of the programs. It runs in parallel, and its result is reported last."""
    programs = dict.fromkeys(("lint", "types", "tests"), ("platform", "--terse"))
    monkeypatch.setattr(quality, "set_up", lambda *_, **__: None)
    monkeypatch.setattr(quality, "provide_class_archive", lambda *_: True)
    monkeypatch.setattr(quality, "checks_of", lambda _: {**programs})
    assert run_quality(CheckChoice()) == 0
    monkeypatch.setattr(quality, "checks_of", lambda _: {**programs, wrong: ("json.tool", "no such file")})
    assert run_quality(CheckChoice()) == 1
    said = capfd.readouterr().err
    assert f"failed: {wrong}" in said
    assert said.count("types: passed") == (1 if wrong == "types" else 2)


def test_tests_write_bytecode_although_the_shell_forbids_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "reported.py").write_text("import sys\nraise SystemExit(sys.dont_write_bytecode)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv(quality.NO_BYTECODE_VARIABLE, "1")
    monkeypatch.setattr(quality, "checks_of", lambda _: {"tests": ("reported",)})
    monkeypatch.setattr(quality, "compile_kernels", lambda *_: False)
    assert run_quality(CheckChoice(quick=True)) == 0


def test_all_checkouts_share_what_the_type_check_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "reported.py").write_text("import os\nopen('folder', 'w').write(os.environ['MYPY_CACHE_DIR'])\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("SLUICE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(quality, "PROJECT_ROOT", tmp_path)
    monkeypatch.setattr(quality, "checks_of", lambda _: {quality.TYPES: ("reported",), "tests": ("platform",)})
    monkeypatch.setattr(quality, "compile_kernels", lambda *_: False)
    assert run_quality(CheckChoice(quick=True)) == 0
    assert (tmp_path / "folder").read_text() == str(tmp_path / "cache" / "types")


@pytest.mark.parametrize(("choice", "count"), [(CheckChoice(quick=True), 1), (CheckChoice(arguments=[FILE]), 0)])
def test_a_quick_run_compiles_the_kernels_once_before_its_workers_start(
    choice: CheckChoice, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled = list[object]()
    monkeypatch.setattr(quality, "compile_kernels", lambda *given: compiled.append(given))
    monkeypatch.setattr(quality, "checks_of", lambda _: {"tests": ("platform", "--terse")})
    assert run_quality(choice) == 0
    assert len(compiled) == count


Failing = Callable[..., int]


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Failing:
    """Returns a function that runs all tests, of which the tests `names` fail, and returns the exit code. The module `again` replaces the
    second run of these tests.
    """
    record = tmp_path / "lastfailed"
    record.write_text('{"of an earlier run": true}')

    def run(names: list[str], again: str, code: int = 1) -> int:
        text = json.dumps(dict.fromkeys(names, True))
        (tmp_path / "whole.py").write_text(
            f"import pathlib\npathlib.Path({str(record)!r}).write_text({text!r})\nraise SystemExit({code})\n"
        )
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        monkeypatch.setattr(quality, "set_up", lambda *_, **__: None)
        monkeypatch.setattr(quality, "provide_class_archive", lambda *_: True)
        monkeypatch.setattr(quality, "FAILED_LAST", record)
        monkeypatch.setattr(quality, "failed_tests", lambda: failed_tests(record))
        monkeypatch.setattr(quality, "AGAIN", (again,))
        monkeypatch.setattr(quality, "checks_of", lambda _: {"tests": ("whole",)})
        return run_quality(CheckChoice())

    return run


def test_a_few_tests_that_fail_and_pass_alone_are_reported(failing: Failing, capfd: pytest.CaptureFixture[str]) -> None:
    assert failing(["a.py::x", *(f"b.py::{number}" for number in range(9))], "platform") == 0
    assert "unsteady: a.py::x failed together with other tests and passed alone" in " ".join(
        capfd.readouterr().err.split()
    )


@pytest.mark.parametrize(
    ("count", "again"), [(1, "no_such_module"), (quality.UNSTEADY_FILES_MAX + 1, "platform"), (0, "platform")]
)
def test_what_fails_again_or_fails_often_fails_the_run(
    failing: Failing, capfd: pytest.CaptureFixture[str], count: int, again: str
) -> None:
    assert failing([f"{number}.py::a" for number in range(count)], again) == 1
    said = capfd.readouterr().err
    assert "failed: tests" in said
    assert "unsteady" not in said


def test_a_run_that_was_broken_off_is_not_saved_by_what_failed_before(
    failing: Failing, capfd: pytest.CaptureFixture[str]
) -> None:
    assert failing(["a.py::x"], "platform", code=2) == 1
    assert "unsteady" not in capfd.readouterr().err


@pytest.mark.parametrize("arguments", [[FILE], ["-x"], ["-k", "gtid"]])
def test_a_run_of_chosen_tests_shows_a_failure_at_once(arguments: list[str]) -> None:
    assert CheckChoice().once_more
    assert CheckChoice(quick=True).once_more
    assert not CheckChoice(arguments=arguments).once_more


def test_the_record_of_what_failed_is_pytests_own(tmp_path: Path) -> None:
    """The record is the file that `--last-failed` reads. It names each failed test and no passed test."""
    (tmp_path / "pytest.ini").touch()
    (tmp_path / "test_one.py").write_text("def test_good(): pass\ndef test_bad(): assert not 1\n")
    subprocess.run([sys.executable, "-m", "pytest", "-q", "-n", "2"], cwd=tmp_path, check=False, capture_output=True)
    record = tmp_path / quality.FAILED_LAST.relative_to(ROOT)
    assert failed_tests(record) == ["test_one.py::test_bad"]
    assert failed_tests(tmp_path / "nowhere") == []


@pytest.mark.parametrize(("start", "mark"), [(start, mark) for mark, starts in STARTS.items() for start in starts])
def test_a_quick_run_names_the_mark_that_a_test_with_a_server_lacks(start: str, mark: str) -> None:
    function = pkgutil.resolve_name(start)
    with refuse_starts(), pytest.raises(pytest.fail.Exception, match=f"add @pytest.mark.{mark} to the test"):
        pkgutil.resolve_name(start)()
    assert pkgutil.resolve_name(start) is function, "refused no longer"
