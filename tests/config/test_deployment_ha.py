"""Each conf of docs/deployment.md is read as it stands there, and what cannot work is refused."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest

from cdc_engine.config import load_config
from cdc_engine.contracts import DestinationDir
from cdc_engine.documents.places import as_place
from cdc_engine.errors import ConfigurationError

PAGE = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text()
CONFS = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)


def write(root: Path, text: str) -> Path:
    (root / "conf" / "destinations").mkdir(parents=True)
    (root / "conf" / "sluice.yaml").write_text(text)
    (root / "conf" / "destinations" / "shop.yaml").write_text("source: {user: sluice, host: db, port: 3307}\n")
    return root / "conf"


def test_ha_the_conf_of_engines_in_processes_of_their_own_is_read(tmp_path: Path) -> None:
    engine = load_config(write(tmp_path, CONFS[3])).engine
    assert (engine.kind, engine.addresses) == ("remote", ("engine1:4267", "engine2:4267"))
    assert engine.tls


@pytest.mark.parametrize(("text", "kind"), list(zip(CONFS[:3], ("file", "zookeeper", "sql"), strict=True)))
def test_ha_each_conf_of_the_page_is_read(tmp_path: Path, text: str, kind: str) -> None:
    config = load_config(write(tmp_path, text))
    place = as_place(config.destination_dir("shop"))
    assert (place.kind, place.destination, place.source) == (kind, "shop", ("db", 3307))
    assert place.is_shared == place.is_apart == (kind != "file")
    assert str(place.directory) == "/srv/sluice/engine/shop"


def test_ha_a_folder_knows_where_its_ledger_is_also_in_another_process(tmp_path: Path) -> None:
    directory = load_config(write(tmp_path, CONFS[1])).destination_dir("shop")
    sent = copy.deepcopy(directory)  # as pickle does
    assert sent == directory
    assert as_place(sent) == as_place(directory)
    assert as_place(sent).kind == "zookeeper"
    assert as_place(Path(directory)).kind == "file"
    assert isinstance(directory / "staging", Path)
    assert (directory / "staging").place is None
    assert isinstance(directory, DestinationDir)


@pytest.mark.parametrize(
    ("meta", "said"),
    [
        ("{kind: sql}", "kind sql needs the url"),
        ("{kind: zookeeper}", "kind zookeeper needs hosts"),
        ("{kind: mixed}", "kind mixed needs hosts"),
        ("{kind: redis}", "meta.kind"),
    ],
)
def test_ha_a_meta_that_cannot_work_is_refused(tmp_path: Path, meta: str, said: str) -> None:
    with pytest.raises(ConfigurationError, match=said):
        load_config(write(tmp_path, f"meta: {meta}\n"))
