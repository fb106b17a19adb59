"""Tests that the documentation site builds without a warning, and that its generated pages match the commands and the configuration."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tests.docs import reference
from tests.docs.test_snippets import ROOT


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stdout + built.stderr
    assert (tmp_path / "reference" / "settings" / "index.html").exists()


@pytest.mark.parametrize("name", reference.pages())
def test_a_generated_page_is_current(name: str) -> None:
    written = (reference.FOLDER / name).read_text()
    assert written == reference.pages()[name], "run `python -m tests.docs.reference`"


@pytest.mark.parametrize("title", [*reference.FILES, *reference.SHARED])
def test_every_setting_has_a_description(title: str) -> None:
    model: type[BaseModel] = {**reference.FILES, **reference.SHARED}[title]
    bare = [key for key, field in reference.settings_of(model) if not _explained(field)]
    assert not bare, f"{title}: give {', '.join(bare)} a description in cdc_engine/config"


def _explained(field: FieldInfo) -> bool:
    """Returns whether a setting is explained. A setting whose type has its own section is explained there."""
    return bool(field.description) or field.annotation in reference.TITLES
