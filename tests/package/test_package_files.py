"""Tests in a checkout which files of the package and of the user's conf/ are used, and that the extras are defined and installed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from sluice.extras import Extra, require
from sluice.package_files import checkout, conf_file, package_file
from tests.style.sources import ROOT


def test_a_file_of_the_user_s_conf_is_taken_instead_of_the_package_s(tmp_path: Path) -> None:
    assert conf_file(tmp_path, "dagster.yaml") == package_file("conf/dagster.yaml")
    assert package_file("conf/dagster.yaml").samefile(ROOT / "conf" / "dagster.yaml")
    (tmp_path / "dagster.yaml").write_text("")
    assert conf_file(tmp_path, "dagster.yaml") == tmp_path / "dagster.yaml"


def test_a_checkout_knows_its_root() -> None:
    assert checkout() == ROOT


def test_every_extra_is_defined_in_pyproject_and_installed_here() -> None:
    defined = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {extra.extra for extra in Extra} == {name for name, packages in defined.items() if packages}
    for extra in Extra:
        require(extra, ValueError)


@pytest.mark.found
def test_the_guide_names_every_extra_that_adds_packages() -> None:
    """Defect 1192: the guide left out the extra `s3`, and said that `azure` adds nothing. `sluice sql` needs both for its stores."""
    page = (ROOT / "docs/guides/install-from-the-package.md").read_text()
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| `")]
    adds = {name: what for names, what in rows for name in re.findall(r"`(\w+)`", names)}
    assert {name for name, what in adds.items() if not what.startswith("nothing")} == {extra.extra for extra in Extra}


def test_a_missing_library_is_one_sentence_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Extra.KAFKA, "modules", ("no_such_package.within",))
    with pytest.raises(LookupError, match=r"^Kafka needs a package .*: pip install 'sluice\[kafka\]'$"):
        require(Extra.KAFKA, LookupError)
