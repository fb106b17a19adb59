"""Tests that deploy/Dockerfile fits the package: the build gets the files that the wheel needs, and each command in the image exists."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest
import typer.main

from sluice.console.main import app
from tests.deploy.dockerfile import Instruction, is_sent, read_dockerfile
from tests.style.sources import ROOT

DOCKERFILE = ROOT / "deploy" / "Dockerfile"
IGNORE = DOCKERFILE.with_name("Dockerfile.dockerignore")
WHEEL, IMAGE = read_dockerfile(DOCKERFILE)
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_the_build_gets_what_is_in_the_wheel_and_nothing_of_a_users_conf() -> None:
    wheel = PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]
    needed = [*wheel, "pyproject.toml", "uv.lock", PROJECT["project"]["readme"]]
    assert [path for path in needed if not is_sent(path, IGNORE)] == []
    for path in (
        "conf/sluice.yaml",
        "conf/destinations/shop.yaml",
        "tests/conftest.py",
        ".git/config",
        "data/meta.json",
    ):
        assert not is_sent(path, IGNORE), path


def test_the_build_uses_the_uv_of_the_checkout() -> None:
    (version,) = re.findall(r"^UV_VERSION=(\S+)$", (ROOT / "sluice").read_text(), re.MULTILINE)
    assert any(f"uv=={version}" in text for text in WHEEL.all("RUN"))


def test_the_image_has_extras_of_the_package_and_set_up_has_its_options() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    assert set(IMAGE.assigned("ARG")["EXTRAS"].split(",")) <= set(extras)
    (line,) = [part for text in IMAGE.all("RUN") for part in text.split(" && ") if part.startswith("sluice ")]
    _, name, *words = shlex.split(line)
    command = typer.main.get_command(app).get_command(None, name)  # type: ignore[attr-defined]
    options = {option for parameter in command.params for option in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= options


def test_no_program_in_the_image_is_root_and_each_finds_its_files() -> None:
    (user,) = IMAGE.all("USER")
    number, _, group = user.partition(":")
    assert int(number) == int(group) >= 10000
    assert any(f"useradd --uid {number} " in text for text in IMAGE.all("RUN"))
    paths = ("SLUICE_CACHE", "SLUICE_CONF", "DAGSTER_HOME", "NUMBA_CACHE_DIR")
    assert all(Path(IMAGE.environment[name]).is_absolute() for name in paths)
    assert IMAGE.environment["NUMBA_CPU_NAME"] == "haswell"


def test_stages_continued_lines_and_comments_are_read(tmp_path: Path) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text("# syntax=x\nFROM a AS b\nRUN one \\\n    && two\n\nFROM c\nARG X=1\n# why\nENV Y=$X \\\n    Z=\n")
    first, second = read_dockerfile(file)
    assert (first.base, first.name, first.instructions) == ("a", "b", (Instruction("RUN", "one && two"),))
    assert (second.base, second.name, second.environment) == ("c", "", {"Y": "1", "Z": ""})


@pytest.mark.parametrize(
    ("path", "sent"), [("a/b.py", True), ("a/__pycache__/b.pyc", False), ("c", False), ("d/e", True), ("d/f", False)]
)
def test_the_last_pattern_that_matches_decides(tmp_path: Path, path: str, sent: bool) -> None:
    ignore = tmp_path / "ignore"
    ignore.write_text("# why\n*\n!a\n!d/e\n**/__pycache__\n")
    assert is_sent(path, ignore) is sent
