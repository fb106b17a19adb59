"""Tests what an installation with a hundred destinations does once, and not for each destination again."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from sluice.cdc_engine.config import load_config
from tests.scale.fix_many_tables import counted

pytestmark = pytest.mark.scale

DESTINATIONS = 100


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """A folder conf/ with a hundred destinations."""
    folder = tmp_path / "conf"
    (folder / "destinations").mkdir(parents=True)
    (folder / "sluice.yaml").write_text(yaml.safe_dump({"data_dir": "data", "lake": "lake"}))
    for number in range(DESTINATIONS):
        text = yaml.safe_dump({"source": {"host": "db", "user": "u"}, "include": rf"d{number}\..*"})
        (folder / "destinations" / f"d{number}.yaml").write_text(text)
    return folder


@pytest.mark.found
def test_the_start_of_an_engine_does_not_parse_the_files_of_all_destinations_again(conf: Path) -> None:
    """Defect 39: each of a hundred engines parsed the files of all destinations twice at its start. Each time took 0.06 s."""
    with counted() as first:
        load_config(conf)
    with counted() as again:
        found = load_config(conf)
    assert len(found.destinations) == DESTINATIONS
    assert again.named["yaml_value"] == 0 < first.named["yaml_value"]
    assert again.calls < first.calls / 5


def test_a_changed_file_is_parsed_although_the_others_are_the_same(conf: Path) -> None:
    load_config(conf)
    (conf / "destinations" / "d7.yaml").write_text(
        yaml.safe_dump({"source": {"host": "db2", "user": "u"}, "include": "x"})
    )
    assert load_config(conf).destinations["d7"].source.host == "db2"
