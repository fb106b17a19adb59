"""Tests what `sluice doctor` collects, and that its report contains no secret, wherever secrets are."""

from __future__ import annotations

import base64
import json
import tarfile
import urllib.parse
from pathlib import Path

import pytest

from sluice.console.doctor.redaction import HIDDEN, Redactor, secrets_in, shown_setting
from sluice.console.doctor.report import LINES_MAX, collect
from sluice.console.main import app
from tests.console.conftest import RUNNER, SECRET, Installation

pytestmark = pytest.mark.secret

PLANTED = {
    "variable": SECRET,
    "file": "file/of password+1",
    "command": "argument-of-a-program",
    "url": "in@a-url",
    "query": "signature-of-a-query",
    "option": "value-of-an-option",
    "salt": "salt-of-a-mask",
    "comment": "word-in-a-comment",
    "log": "password-in-a-log",
    "statement": "password-in-a-statement",
    "endpoint": "token-of-an-endpoint",
    "engine": "0123456789abcdef-token",
    "other": "of-another-program",
    "broken": "secret-where-yaml-ends",
    "short": "q7",
}


@pytest.fixture
def planted(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> Installation:
    """Puts secrets into every location that the report reads."""
    monkeypatch.setenv("FOREIGN_API_TOKEN", PLANTED["other"])
    monkeypatch.setenv("SHORT_ONE", PLANTED["short"])
    file = installation.conf.parent / "password"
    file.write_text(f"{PLANTED['file']}\n")
    directory = installation.destination(3306)
    url = f"https://user:{urllib.parse.quote(PLANTED['url'])}@hooks.example.com/x?sig={PLANTED['query']}"
    (installation.conf / "destinations" / "shop.yaml").write_text(
        f"# {PLANTED['comment']}\n"
        "source: {user: sluice, port: 3306, password_env: SLUICE_TEST_PASSWORD}\n"
        f"consumers: [{{kind: kafka, password_file: {file}, options: {{sasl.password: {PLANTED['option']}}}}}]\n"
        f"other: {{password_command: [vault, {PLANTED['command']}], salt: {PLANTED['salt']}, url: '{url}', pin_env: SHORT_ONE}}\n"
    )
    (installation.conf / "destinations" / "broken.yaml").write_text(f"source: {{password: {PLANTED['broken']}\n: ]")
    logs = installation.data / "logs"
    logs.mkdir(parents=True)
    logs.joinpath("engine.log").write_text(
        f"error: cannot connect to mysql://sluice:{PLANTED['log']}@db/shop\n"
        f"error: CREATE USER x IDENTIFIED BY '{PLANTED['statement']}'\n"
        f"error: {SECRET} {PLANTED['file']} {urllib.parse.quote(PLANTED['file'], safe='')} {PLANTED['short']} {PLANTED['other']}\n"
        f"error: {base64.b64encode(SECRET.encode()).decode()} {PLANTED['engine']} {PLANTED['endpoint']} {PLANTED['option']}\n"
        f"error: {PLANTED['command']} {PLANTED['salt']} {PLANTED['url']}\n"
    )
    (installation.data / "engine-token").write_text(PLANTED["engine"])
    directory.mkdir(parents=True)
    (directory / "run-endpoint.json").write_text(json.dumps({"address": "a:1", "token": PLANTED["endpoint"]}))
    status = {"state": "FAILED", "reason": f"Access denied, password={PLANTED['log']}", "updated_at_us": 1}
    (directory / "status.json").write_text(json.dumps(status))
    return installation


def found_in(text: str) -> list[str]:
    """Returns the names of the planted secrets that a text contains: as plain text, in the form of URLs, or in base64."""
    forms = {
        name: {value, urllib.parse.quote(value, safe=""), base64.b64encode(value.encode()).decode()}
        for name, value in PLANTED.items()
    }
    return [name for name, each in forms.items() if any(form in text for form in each)]


def test_no_secret_is_in_the_report_of_an_invalid_conf(planted: Installation) -> None:
    for words in (["doctor"], ["doctor", "--json"]):
        answer = RUNNER.invoke(app, words)
        assert answer.exit_code == 0, answer.output
        assert not found_in(answer.output)
    record = json.loads(RUNNER.invoke(app, ["doctor", "--json"]).output)
    assert record["conf"]["destinations/broken.yaml"].startswith("the file is not YAML")
    assert record["conf"]["destinations/shop.yaml"]["source"]["password_env"] == "SLUICE_TEST_PASSWORD"  # noqa: S105
    assert record["conf"]["destinations/shop.yaml"]["other"]["password_command"] == ["vault", HIDDEN]
    assert "conf_problem" in record


def test_no_secret_is_in_the_report_of_a_valid_conf(planted: Installation, tmp_path: Path) -> None:
    (planted.conf / "destinations" / "broken.yaml").unlink()
    planted.destination(3306)
    archive = tmp_path / "report.tar.gz"
    # Only the former shop.yaml named these secrets. conf/ no longer names them, so nothing identifies them as secrets.
    unknown = {"command", "option", "salt", "url", "file", "short"}
    answer = RUNNER.invoke(app, ["doctor", "--archive", str(archive)])
    assert answer.exit_code == 0, answer.output
    assert archive.stat().st_mode & 0o777 == 0o600
    with tarfile.open(archive) as opened:
        texts = [opened.extractfile(name).read().decode() for name in opened.getnames()]  # type: ignore[union-attr]
    for text in texts:
        assert set(found_in(text)) <= unknown
    record = json.loads(texts[1])
    assert record["state"]["destinations"][0]["name"] == "shop"
    assert {"data_dir", "lake", "cache"} == set(record["disk"])
    assert len(record["ports"]) == 3
    assert record["versions"]["dagster"].startswith("1.")


@pytest.mark.found
def test_only_its_owner_reads_an_archive_that_replaces_an_earlier_file(
    installation: Installation, tmp_path: Path
) -> None:
    """Defect 1216: an archive that overwrote a file kept its permissions, so that other users could read the report."""
    installation.destination(3306)
    archive = tmp_path / "report.tar.gz"
    archive.write_text("an earlier report")
    archive.chmod(0o644)
    assert RUNNER.invoke(app, ["doctor", "--archive", str(archive)]).exit_code == 0
    assert archive.stat().st_mode & 0o777 == 0o600


def test_a_part_that_fails_leaves_the_others(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: object) -> None:
        raise OSError("no disk")

    installation.destination(3306)
    monkeypatch.setattr("sluice.console.doctor.report._disk", broken)
    record = collect(installation.conf)
    assert record["disk"] == "cannot be collected: OSError: no disk"
    assert record["ports"]


def test_only_the_last_errors_of_a_log_are_in_it(installation: Installation) -> None:
    installation.destination(3306)
    (installation.data / "logs").mkdir(parents=True)
    lines = "".join(f"fine {number}\nerror {number}\n" for number in range(LINES_MAX + 5))
    (installation.data / "logs" / "daemon.log").write_text(lines)
    (installation.data / "logs" / "daemon.log.1").write_text("error before it began again\n")
    found = collect(installation.conf)["errors_in_logs"]
    assert found["logs/daemon.log"] == [f"error {number}" for number in range(5, LINES_MAX + 5)]
    assert found["logs/daemon.log.1"] == ["error before it began again"]


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("password", "x", HIDDEN),
        ("password", "$NAME", "$NAME"),
        ("password_env", "NAME", "NAME"),
        ("password", {"file": "/run/secret"}, {"file": "/run/secret"}),
        ("password", {"env": "NAME"}, {"env": "NAME"}),
        ("password", {"command": ["vault", "x"]}, {"command": ["vault", HIDDEN]}),
        ("headers", {"X-Api": "x"}, {"X-Api": HIDDEN}),
        ("secret_access_key", "x", HIDDEN),
        ("key", "id", "id"),
        ("url", "https://a/b?c=d", f"https://a/b?{HIDDEN}"),
        ("pin_token", 5, HIDDEN),
    ],
)
def test_a_setting_shows_where_a_secret_is_and_never_the_secret(name: str, value: object, shown: object) -> None:
    assert shown_setting(value, name) == shown


def test_a_location_of_a_secret_is_shown_and_its_secret_is_hidden_everywhere(tmp_path: Path) -> None:
    (tmp_path / "salt").write_text("grains\n")
    conf = {
        "source": {"password": {"env": "SHORT_ONE"}},
        "reader": {"password": {"command": ["vault", "get", "shop"]}},
        "masks": {"email": {"kind": "hash", "salt": {"file": "salt"}}},
        "archive_fetch": {"command": ["fetch", "{file}"]},
    }
    redactor = Redactor(secrets_in(conf, "", tmp_path, {"SHORT_ONE": "opensesame"}))
    assert redactor.text("opensesame grains shop") == f"{HIDDEN} {HIDDEN} {HIDDEN}"
    assert redactor.text("vault, fetch, {file}: salt is not readable") == "vault, fetch, {file}: salt is not readable"
    assert redactor.value(shown_setting(conf))["source"] == {"password": {"env": "SHORT_ONE"}}


@pytest.mark.found
def test_a_password_with_a_slash_in_a_url_is_hidden(tmp_path: Path) -> None:
    """Defect 1217: `doctor` showed the password of the ledger's database in `meta.url` if the password contained a slash."""
    conf = {"meta": {"kind": "sql", "url": "postgresql://sluice:open/sesame@db/sluice"}}
    redactor = Redactor(secrets_in(conf, "", tmp_path, {}))
    assert redactor.value(shown_setting(conf))["meta"]["url"] == f"postgresql://sluice:{HIDDEN}@db/sluice"
    assert redactor.text("the password open/sesame is wrong") == f"the password {HIDDEN} is wrong"
    assert Redactor([]).text("mysql://sluice:a/b@db/shop refused") == f"mysql://sluice:{HIDDEN}@db/shop refused"
    assert Redactor([]).text("http://127.0.0.1:3000/runs/a fails") == "http://127.0.0.1:3000/runs/a fails"


def test_a_short_secret_does_not_make_the_text_unreadable() -> None:
    assert Redactor(["q7"]).text("q7 of aq7b, q7.") == f"{HIDDEN} of aq7b, {HIDDEN}."
    assert Redactor(["", " "]).text("plain text") == "plain text"
