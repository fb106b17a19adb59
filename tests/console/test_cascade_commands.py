"""Tests how `check` and `status` name foreign keys that change rows without row events."""

from __future__ import annotations

import json

import pytest
import yaml

from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.instance.discovery import discover
from sluice.console.main import app
from sluice.console.toolchain.database.server import DatabaseServer
from tests.console.conftest import RUNNER, Installation
from tests.console.test_commands import source
from tests.console.test_status import running_engine

pytestmark = pytest.mark.servers

__all__ = ["source"]

FAMILY = (
    "CREATE TABLE p (id int PRIMARY KEY)",
    "CREATE TABLE c (id int PRIMARY KEY, p_id int)",
    "ALTER TABLE c ADD CONSTRAINT c_p FOREIGN KEY (p_id) REFERENCES p (id) ON DELETE CASCADE ON UPDATE SET NULL",
    "CREATE TABLE hidden (id int PRIMARY KEY, CONSTRAINT h_p FOREIGN KEY (id) REFERENCES p (id) ON DELETE CASCADE)",
    "CREATE TABLE e (id int PRIMARY KEY, CONSTRAINT e_h FOREIGN KEY (id) REFERENCES hidden (id) ON DELETE CASCADE)",
    "CREATE TABLE f (id int PRIMARY KEY, CONSTRAINT f_p FOREIGN KEY (id) REFERENCES p (id))",
)
SAID = {
    "apply": (
        "fkeys.c: c_p: (p_id) refers to fkeys.p (id) ON DELETE CASCADE ON UPDATE SET NULL",
        "so Sluice makes the same changes in the lake",
    ),
    "stop": ("fkeys.c: c_p", "so the table stops at the first such change"),
    "ignore": ("fkeys.c: c_p", "so rows of the lake DIFFER from those of the source"),
}


@pytest.mark.parametrize("word", SAID)
def test_cascade_of_children_is_named_by_check_and_status(
    installation: Installation, source: DatabaseServer, word: str
) -> None:
    with source.connect(autocommit=True) as connection, connection.cursor() as cursor:
        for statement in ("DROP DATABASE IF EXISTS fkeys", "CREATE DATABASE fkeys", "USE fkeys", *FAMILY):
            cursor.execute(statement)
    directory = installation.destination(source.port)
    conf = yaml.safe_load((installation.conf / "destinations/shop.yaml").read_text())
    installation.write(
        "destinations/shop.yaml", {**conf, "include": r"fkeys\..*", "exclude": r"fkeys\.hidden", "cascades": word}
    )
    checked = RUNNER.invoke(app, ["check", "--verbose"])
    assert "c_p" in checked.stdout, (checked.stdout, checked.exception)
    (found,) = (line for line in checked.stdout.splitlines() if "c_p" in line)
    assert all(part in found for part in SAID[word])
    assert ("foreign keys of shop" in found) == (word == "apply"), "what the lake does not follow has its own line"
    through = "If a foreign key changes rows of fkeys.hidden, which is not captured, the table STOPS (CASCADE_UNSEEN)"
    assert (through in checked.stdout) == (word == "apply")
    assert not any(name in checked.stdout for name in ("h_p", "f_p"))
    running_engine(directory)
    discover(load_config(installation.conf), "shop")
    assert all(part in RUNNER.invoke(app, ["status", "--verbose"]).stdout for part in SAID[word])
    brief = RUNNER.invoke(app, ["status"]).stdout
    assert "foreign key(s) change rows without row events" in brief
    assert "fkeys.c: c_p" not in brief
    (shop,) = json.loads(RUNNER.invoke(app, ["status", "--json"]).stdout)["destinations"]
    (reported,) = (each for each in shop["foreign_keys"] if "c_p" in each["sentence"])
    assert all(part in f"{reported['table']}: {reported['sentence']}" for part in SAID[word])
    assert reported["followed"] == (word == "apply")
