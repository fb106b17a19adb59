"""Tests that `sluice check` names all environment variables at once that conf/ requires and that are not set. It also names invalid rules
of brokers.
"""

from __future__ import annotations

import zoneinfo
from pathlib import Path

import pytest

from sluice.console.conf_check import conf_problems

MAIN = """
meta: {kind: sql, url: 'postgresql://sluice:$LEDGER_PASSWORD@db/sluice'}
alarms:
  - {kind: webhook, url: $HOOK, headers: {X-Token: $HOOK_TOKEN, X-Plain: 5$}}
  - {kind: email, server: 'mail:587', sender: a@b.example, to: [c@d.example], user: u, password: $MAIL_PASSWORD}
storage_options: {AWS_SECRET_ACCESS_KEY: $STORE_SECRET}
"""
SHOP = """
sources: [{user: root, password: $FIRST}, {user: root, port: 3307, password: $SECOND}]
canal_server: {port: 11111, user: canal, password_hash: $CANAL_HASH}
"""


@pytest.fixture
def conf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    made = tmp_path / "conf"
    (made / "destinations").mkdir(parents=True)
    (made / "sluice.yaml").write_text(MAIN)
    (made / "destinations" / "shop.yaml").write_text(SHOP)
    monkeypatch.setenv("FIRST", "it is set")
    return made


def test_each_variable_that_is_not_set_is_named_with_its_key(conf: Path) -> None:
    reported = {
        problem.removesuffix(" is not set") for problem in conf_problems(conf) if problem.endswith(" is not set")
    }
    variable = "the environment variable"
    assert reported == {
        f"sluice.yaml: meta.url: {variable} LEDGER_PASSWORD",
        f"sluice.yaml: alarms.0.url: {variable} HOOK",
        f"sluice.yaml: alarms.0.headers.X-Token: {variable} HOOK_TOKEN",
        f"sluice.yaml: alarms.1.password: {variable} MAIL_PASSWORD",
        f"destinations/shop.yaml: sources.1.password: {variable} SECOND",
        f"destinations/shop.yaml: canal_server.password_hash: {variable} CANAL_HASH",
    }


@pytest.mark.found
def test_a_variable_whose_name_has_a_hyphen_or_a_dot_is_named_too(conf: Path) -> None:
    """Defect 1169: `sluice check` did not read `$hook-token` and `$ledger.password`, so only the engine found that they were not set."""
    main = MAIN.replace("HOOK_TOKEN", "hook-token").replace("LEDGER_PASSWORD", "ledger.password")
    (conf / "sluice.yaml").write_text(main)
    problems = conf_problems(conf)
    assert "sluice.yaml: alarms.0.headers.X-Token: the environment variable hook-token is not set" in problems
    assert "sluice.yaml: meta.url: the environment variable ledger.password is not set" in problems


def test_nothing_is_named_if_all_variables_are_set(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("LEDGER_PASSWORD", "HOOK", "HOOK_TOKEN", "MAIL_PASSWORD", "SECOND", "CANAL_HASH"):
        monkeypatch.setenv(name, "https://a.example/and-more")
    assert conf_problems(conf) == []


def test_a_sentence_with_a_semicolon_stays_one_problem(conf: Path) -> None:
    (conf / "destinations" / "shop.yaml").write_text("'a; b': 1\n'c': 2\n")
    problems = conf_problems(conf)
    assert [each for each in problems if "a; b" in each]
    assert not [each for each in problems if each.startswith("b")]


BROKERS = """
source: {user: root}
brokers:
  - {kind: kafka, servers: k, topic: t, FIRST}
  - {kind: kafka, client_id: 2, servers: k, topic: t, dynamic_topic: 'a:[', partition_hash: '.*:$pk$'}
"""


@pytest.mark.found
def test_an_invalid_filter_or_rule_of_a_broker_is_a_problem_of_conf(tmp_path: Path) -> None:
    r"""Defect 1182: `sluice check` accepted an invalid `filter` or `dynamic_topic` of a broker, with which the engine did not start. The
    engine's error advised to correct the filter in the client.
    """
    (tmp_path / "destinations").mkdir()
    shop = tmp_path / "destinations" / "shop.yaml"
    shop.write_text(BROKERS.replace("FIRST", r"filter: 'shop\.(?!tmp_).*'"))
    by_filter, by_topic = conf_problems(tmp_path)
    assert by_filter.startswith("destinations/shop.yaml: brokers.0: the filter of a client or broker has the pattern")
    assert by_filter.endswith("correct the pattern in the client, or `filter` of the broker in conf/")
    assert by_topic.startswith("destinations/shop.yaml: brokers.1: '[' in dynamic_topic")
    shop.write_text(BROKERS.replace("FIRST", r"filter: 'shop\..*'").replace("'a:['", "'a:.*'"))
    assert conf_problems(tmp_path) == []


@pytest.mark.found
@pytest.mark.parametrize("zone", ["GMT+8", "asia/shanghai", "+8"])
def test_a_time_zone_of_consumers_that_does_not_exist_is_refused(tmp_path: Path, zone: str) -> None:
    """Defect 1184: an unknown `time_zone` of a broker or of `canal_server` was accepted. At the first TIMESTAMP value, the broker
    stopped with `ArrowInvalid`, and clients got an internal error of the server.
    """
    (tmp_path / "destinations").mkdir()
    shop = tmp_path / "destinations" / "shop.yaml"
    shop.write_text(BROKERS.replace("FIRST", f"time_zone: '{zone}'").replace("'a:['", "'a:.*'"))
    (problem,) = conf_problems(tmp_path)
    assert f"{zone!r} is not a time zone" in problem
    for known in ("Asia/Shanghai", "+08:00", "utc"):
        shop.write_text(BROKERS.replace("FIRST", f"time_zone: '{known}'").replace("'a:['", "'a:.*'"))
        assert conf_problems(tmp_path) == []


@pytest.mark.found
def test_an_alarm_that_cannot_be_sent_is_named(conf: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Defect 1219: `check` accepted a variable that contains no URL, and a `ca_file` that does not exist. Each alarm of such a webhook was
    dropped, and with such a `ca_file` no engine started.
    """
    for name in ("LEDGER_PASSWORD", "HOOK_TOKEN", "MAIL_PASSWORD", "SECOND", "CANAL_HASH"):
        monkeypatch.setenv(name, "it is set")
    monkeypatch.setenv("HOOK", "hooks.example.com/T0/secret")
    missing = tmp_path / "ca.pem"
    (conf / "sluice.yaml").write_text(MAIN.replace("user: u", f"user: u, ca_file: {missing}"))
    assert conf_problems(conf) == [
        (
            "sluice.yaml: alarms: the environment variable HOOK does not contain the URL of a webhook: write http://… or https://… "
            "there, without blanks"
        ),
        (
            f"sluice.yaml: alarms: the file {missing} with the certificate authorities of the mail server cannot be read (No such file or "
            "directory): correct ca_file"
        ),
    ]


@pytest.mark.found
def test_a_time_zone_that_the_operating_system_lacks_is_refused(tmp_path: Path) -> None:
    """Defect 1244: the check of `time_zone` used the zones of the Python package tzdata. On a host without tzdata-legacy, `US/Pacific` was
    accepted, and the first TIMESTAMP value stopped the broker with `ArrowInvalid`.
    """
    (tmp_path / "destinations").mkdir()
    shop = tmp_path / "destinations" / "shop.yaml"
    shop.write_text(BROKERS.replace("FIRST", "time_zone: US/Pacific").replace("'a:['", "'a:.*'"))
    zoneinfo.reset_tzpath(to=[tmp_path])
    try:
        (problem,) = conf_problems(tmp_path)
    finally:
        zoneinfo.reset_tzpath()
    assert "the operating system of this host lacks the time zone 'US/Pacific': install its package tzdata" in problem
