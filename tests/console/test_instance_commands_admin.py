"""Tests `sluice instance` while no engine runs: how it shows the log, edits the file of a destination, and completes names in the shell."""

from __future__ import annotations

import json
import threading

import pytest

from sluice.console.acts.instance import concerns, followed
from sluice.console.commands.completion import destination_names
from sluice.console.main import app
from tests.console.conftest import RUNNER, Installation
from tests.waiting import wait_for

GOOD = "source: {user: sluice, port: 3307}\n"


def call(*words: str, text: str | None = None) -> tuple[int, str]:
    answer = RUNNER.invoke(app, ["instance", *words], input=text)
    return answer.exit_code, answer.output if answer.exception is None or answer.output else str(answer.exception)


@pytest.mark.parametrize(
    ("line", "concerned"),
    [
        ("12:00 [info] instance_act  act=stop destination=shop why='x'", True),
        ("12:00 [info] instance_act  act=stop destination='shop'", True),
        ("12:00 [info] instance_act  destination=shop2", False),
        ("12:00 [info] instance_act  destination=shop-2", False),
        ("12:00 [info] a table shop.orders", False),
    ],
)
def test_admin_lines_of_a_log_are_known_by_their_destination(line: str, concerned: bool) -> None:
    assert concerns(line, "shop") is concerned


def test_admin_the_log_shows_the_newest_and_follows(installation: Installation) -> None:
    installation.destination(1)
    assert "`sluice up` has started no engine on this host" in call("log", "shop")[1]
    logs = installation.data / "logs"
    logs.mkdir(parents=True)
    log = logs / "code-server.log"
    log.write_text("".join(f"a destination={name} n={n}\n" for n in range(3) for name in ("shop", "web")))
    assert call("log", "shop", "--lines", "2") == (0, "a destination=shop n=1\na destination=shop n=2\n")
    log.rename(log.with_name(f"{log.name}.1"))
    log.write_text("a destination=shop n=3\n")
    assert call("log", "shop", "--lines", "2") == (0, "a destination=shop n=2\na destination=shop n=3\n")
    from sluice.cdc_engine.config import load_config  # noqa: PLC0415

    stopping, heard = threading.Event(), list[str]()
    follower = threading.Thread(target=lambda: heard.extend(followed(load_config(), "shop", stopping)))
    lines = followed(load_config(), "shop", stopping)
    reader = threading.Thread(target=lambda: heard.append(next(lines)))
    reader.start()

    def written() -> bool:
        with log.open("a") as opened:
            opened.write("b destination=shop n=9\nhalf a li")
        return bool(heard)

    wait_for("the line was seen", written)
    reader.join(30)
    assert heard[0].endswith("b destination=shop n=9")
    stopping.set()
    follower.start()
    follower.join(30)
    assert len(heard) == 1, "it ends when it is told to"


def test_admin_a_file_is_put_in_place_once_conf_is_right_with_it(installation: Installation) -> None:
    installation.destination(1)
    path = installation.conf / "destinations" / "shop.yaml"
    before = path.read_text()
    code, said = call("edit", "shop", "--file", "-", text=GOOD + "inclde: x\n")
    assert code == 1
    assert "destinations/shop.yaml: inclde" in said
    assert path.read_text() == before
    assert call("edit", "shop", "--file", "-", text=GOOD)[0] == 0
    assert path.read_text() == GOOD
    assert "is unchanged" in call("edit", "shop", "--file", "-", text=GOOD)[1]
    assert call("edit", "web", "--file", "-", text=GOOD)[0] == 0, "a new one"
    assert "cannot be the name of a destination" in call("edit", "../web", "--file", "-", text=GOOD)[1]


def test_admin_names_are_completed(installation: Installation, monkeypatch: pytest.MonkeyPatch) -> None:
    installation.destination(1)
    assert destination_names("sh") == ["shop"]
    assert destination_names("x") == []
    monkeypatch.setenv("SLUICE_CONF", "/nowhere")
    assert destination_names("") == []


def test_admin_list_shows_who_stopped_what(installation: Installation) -> None:
    installation.destination(1)
    assert call("stop", "shop", "--wait", "0")[0] == 0
    (shop,) = json.loads(call("list", "--json")[1])
    assert (shop["name"], shop["state"], shop["wanted"]) == ("shop", "STOPPED", "stopped")
    assert "@" in shop["by"]
    assert "shop" in call("list")[1]
    code, said = call("start", "shop", "--wait", "0")
    assert (code, "start the engine with `sluice up`" in said) == (1, True)
    code, said = call("stop", "nobody")
    assert code == 1
    assert "the destination 'nobody' does not exist" in said


def test_admin_a_stop_is_in_status(installation: Installation) -> None:
    directory = installation.destination(1)
    directory.mkdir(parents=True)
    (directory / "stopped.json").write_text(json.dumps({"by": "ada@host", "at": 0.0}))
    answer = RUNNER.invoke(app, ["status", "--json"])
    assert answer.exit_code == 1
    reported = "shop is STOPPED: ada@host stopped the engine at 1970-01-01 00:00:00 UTC; start the engine with `sluice instance start shop`"
    assert reported in json.loads(answer.output)["problems"]
