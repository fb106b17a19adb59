"""Tests a file of conf/destinations with `members`, which is a group: its valid settings, and the message for each mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.config import SluiceConfig, load_config
from sluice.cdc_engine.config.conf_files import file_of, read_conf_files
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.keeping.in_use import choose

MEMBER = "source: {user: u}\n"
GROUP = "members: [east, west]\ncanal_server: {port: 11111}\n"


def written(conf: Path, **files: str) -> Path:
    (conf / "destinations").mkdir(parents=True, exist_ok=True)
    (conf / "sluice.yaml").write_text(f"data_dir: {conf / 'data'}\n")
    for name, text in files.items():
        (conf / "destinations" / f"{name}.yaml").write_text(text)
    return conf


def read(conf: Path, **files: str) -> SluiceConfig:
    return load_config(written(conf, east=MEMBER, west=MEMBER, **files))


def test_group_is_read_together_with_the_destinations_and_is_none_of_them(tmp_path: Path) -> None:
    config = read(tmp_path, all=GROUP + "include: shop\\..*\nwait_seconds: 30\n")
    assert sorted(config.destinations) == ["east", "west"]
    group = config.groups["all"]
    assert (group.members, group.include, group.wait_seconds) == (("east", "west"), r"shop\..*", 30.0)
    assert config.groups_of("east") == ("all",)
    assert config.groups_of("all") == ()
    assert config.ledger_location("all").address.endswith(":11111")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "members: [east, north]\ncanal_server: {port: 1}\n",
            "the destination north does not exist; conf/destinations has east, west",
        ),
        ("members: [east, other]\ncanal_server: {port: 1}\n", "other is a group too; list the members"),
        ("members: [east, east]\ncanal_server: {port: 1}\n", "names a destination twice"),
        ("members: []\ncanal_server: {port: 1}\n", "at least 1 item"),
        (
            "members: [east, west]\n",
            "a group has no lake, so it needs consumers: set a canal_server with a port, or brokers",
        ),
        (
            GROUP + "source: {user: u}\n",
            "source: a group has no source of its own; write these settings in the files of the members",
        ),
        (
            GROUP + "failover: by_time\nstart: {}\n",
            "failover, start: a group has no source of its own; write these settings",
        ),
        (GROUP + "tables: {}\nmerge: spark\n", "tables, merge: a group has no lake and no tables"),
        (GROUP + "wait_seconds: 0.1\n", "greater than or equal to 2"),
        (
            "members: [east]\ncanal_server: {port: 1, fetch_unit: entries}\n",
            "the fetch size of a group is always in kibibytes",
        ),
        (GROUP + "membres: [x]\n", "Extra inputs are not permitted"),
    ],
)
def test_group_mistakes_are_reported_with_their_file_and_what_to_do(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as reported:
        read(tmp_path, all=text, other=GROUP)
    assert "destinations/all.yaml: " in str(reported.value)
    assert said in str(reported.value)


def test_group_brokers_have_numbers_of_their_own(tmp_path: Path) -> None:
    broker = "{kind: rabbitmq, servers: 127.0.0.1:5672, topic: t, client_id: 5}"
    with pytest.raises(ConfigurationError, match="two brokers have the same client_id"):
        read(tmp_path, all=f"members: [east]\nbrokers: [{broker}, {broker}]\n")


def transactional(*named: tuple[int, str]) -> str:
    settings = "kind: kafka, servers: k, topic: t"
    brokers = [f"{{{settings}, client_id: {number}, transactional_id: '{name}'}}" for number, name in named]
    return f"brokers: [{', '.join(brokers)}]\n"


@pytest.mark.parametrize(
    ("files", "who"),
    [
        ({"shop": MEMBER + transactional((1, "x"), (2, "x"))}, "1 of shop and 2 of shop"),
        ({"shop": MEMBER + transactional((1, "x")), "crm": MEMBER + transactional((1, "x"))}, "1 of crm and 1 of shop"),
        ({"shop": MEMBER + transactional((1, "x")), "all": GROUP + transactional((3, "x"))}, "3 of all and 1 of shop"),
    ],
)
def test_brokers_of_destinations_and_groups_have_transactional_ids_of_their_own(
    tmp_path: Path, files: dict[str, str], who: str
) -> None:
    sentence = (
        f"the brokers with client_id {who} have the same transactional_id x, so each broker would fence the other"
    )
    with pytest.raises(ConfigurationError, match=sentence):
        read(tmp_path, **files)


def test_brokers_with_different_transactional_ids_or_without_transactions_are_valid(tmp_path: Path) -> None:
    shop, crm = transactional((1, "x"), (2, "y"), (3, "")), transactional((1, "z"), (2, ""))
    assert sorted(read(tmp_path, shop=MEMBER + shop, crm=MEMBER + crm).destinations) == ["crm", "east", "shop", "west"]


def test_group_whose_member_goes_is_not_begun_and_says_why_while_the_other_members_continue(tmp_path: Path) -> None:
    conf = written(tmp_path, east=MEMBER, west=MEMBER, all=GROUP)
    before = choose(read_conf_files(conf), None, main_may_change=True)
    assert before.digest("east") == before.files.digest("east") + "+all", "it begins anew where it becomes a member"
    (conf / "destinations" / "west.yaml").unlink()
    now = choose(read_conf_files(conf), before.files, main_may_change=False)
    assert sorted(now.config.destinations) == ["east"]
    assert not now.config.groups
    assert "the destination west does not exist" in now.refused[file_of("all")]
    assert "the destination is not started" in now.refused[file_of("all")]
    assert (now.digest("all"), now.digest("east")) == ("", now.files.digest("east"))


def test_group_that_becomes_wrong_continues_as_it_was(tmp_path: Path) -> None:
    conf = written(tmp_path, east=MEMBER, west=MEMBER, all=GROUP)
    before = choose(read_conf_files(conf), None, main_may_change=True)
    written(conf, all=GROUP + "merge: spark\n")
    now = choose(read_conf_files(conf), before.files, main_may_change=False)
    assert now.config.groups["all"].members == ("east", "west")
    assert "no lake" in now.refused[file_of("all")]
