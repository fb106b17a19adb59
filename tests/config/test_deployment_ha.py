"""Tests that each conf of docs/deployment.md can be loaded, and that configurations that cannot work are refused."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest

from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.contracts import DestinationDir
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.records.location import as_location
from sluice.console.check import check_spark
from sluice.console.stack.spark_server import several_sparks
from sluice.console.stack.stack import Stack
from sluice.console.toolchain.errors import ServerError

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
    location = as_location(config.destination_dir("shop"))
    assert (location.kind, location.destination, location.source) == (kind, "shop", ("db", 3307))
    assert location.is_shared == location.is_apart == (kind != "file")
    assert str(location.directory) == "/srv/sluice/engine/shop"


def test_ha_a_folder_knows_where_its_ledger_is_also_in_another_process(tmp_path: Path) -> None:
    directory = load_config(write(tmp_path, CONFS[1])).destination_dir("shop")
    sent = copy.deepcopy(directory)  # pickle copies in the same way.
    assert sent == directory
    assert as_location(sent) == as_location(directory)
    assert as_location(sent).kind == "zookeeper"
    assert as_location(Path(directory)).kind == "file"
    assert isinstance(directory / "staging", Path)
    assert (directory / "staging").location is None
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


def problem_of(conf: Path) -> str:
    return several_sparks(load_config(conf), conf)


@pytest.mark.found
@pytest.mark.parametrize("text", [each for each in CONFS if "lake:" in each])
def test_ha_each_conf_of_the_page_has_one_spark(tmp_path: Path, text: str) -> None:
    """Defect 22: the page described one Spark for each host. In S3, such a Spark can overwrite a commit of the other host's Spark."""
    assert problem_of(write(tmp_path, text)) == ""


def with_spark(kind: str, spark: str) -> str:
    """Returns the page's conf/ for hosts whose ledger is of this kind, with other settings of Spark."""
    page = next(each for each in CONFS if f"kind: {kind}" in each)
    found: str = page.replace("spark:\n  remote: sc://spark:15002\n", f"{spark}\n")
    assert found != page
    return found


OWN_LOG_STORE = "spark.delta.logStore.s3a.impl io.delta.storage.S3SingleDriverLogStore\n"


@pytest.mark.found
@pytest.mark.parametrize("kind", ["zookeeper", "sql"])
@pytest.mark.parametrize(
    ("spark", "defaults"),
    [
        ("", OWN_LOG_STORE),
        ("spark: {remote: 'sc://localhost:15099'}", ""),
        ("spark: {master: 'local[2]'}", ""),
    ],
    ids=["another log store", "not started", "master"],
)
def test_ha_several_hosts_with_a_spark_each_on_one_lake_in_s3_are_refused(
    tmp_path: Path, kind: str, spark: str, defaults: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 22: `check` accepted such a conf/. A host that was suspended during a commit then replaced a commit on which others built."""
    shared = with_spark(kind, spark)
    conf = write(tmp_path, shared)
    if defaults:
        (conf / "spark-defaults.conf").write_text(defaults)
    found = next(check_spark(load_config(conf), conf))
    (problem,) = found.problems
    assert "the lake is in S3" in problem
    assert "Start one Spark Connect server" in problem
    monkeypatch.setattr(Stack, "_parts", list)
    with pytest.raises(ServerError, match="one Spark Connect server"):
        Stack(load_config(conf), conf, print).require_startable()
    local = shared.replace("s3://bucket/lake", "/mnt/lake").replace("s3://bucket/staged", "/mnt/staged")
    assert problem_of(write(tmp_path / "local", local)) == "", "a disk is no store"
    alone = re.sub(r"meta:\n(  .*\n)+", "meta: {kind: file}\n", shared)
    assert problem_of(write(tmp_path / "file", alone)) == "", "one host"


@pytest.mark.found
def test_ha_several_hosts_may_have_a_spark_each_if_it_commits_conditionally(tmp_path: Path) -> None:
    """Defect 1010: a Spark for each host was refused, although the Spark that Sluice starts cannot replace a commit in S3."""
    assert problem_of(write(tmp_path, with_spark("sql", ""))) == ""
