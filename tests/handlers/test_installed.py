"""Tests handlers of an installed distribution, whose files are as pip installs them. An error names the handler that causes it."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.config.consumers import HandlerConfig
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.handlers.installed import handlers_of
from sluice.console.conf_check import conf_problems
from tests.handlers.fix_handlers import install

TIDE = """
from sluice.cdc_engine.handlers import BatchHandler

class Tide(BatchHandler):
    def __init__(self, destination, options):
        self.destination, self.options = destination, options

def angry(destination, options):
    raise RuntimeError("no such desk")

def empty(destination, options):
    return object()
"""


@pytest.fixture(autouse=True)
def tide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {"tide": "Tide", "angry": "angry", "empty": "empty", "gone": "Nothing"}
    install(tmp_path, monkeypatch, "tide-log", TIDE, **entries)


def test_an_installed_handler_gets_its_options_with_variables_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDE_KEY", "secret")
    given = HandlerConfig(name="tide", options={"desk": 3, "key": "$TIDE_KEY"})
    ((name, handler),) = handlers_of("shop", [given])
    assert name == "tide"
    assert vars(handler) == {"destination": "shop", "options": {"desk": 3, "key": "secret"}}


@pytest.mark.parametrize(
    ("name", "options", "wanted"),
    [
        ("tyde", {}, r"there is no handler 'tyde'; installed: angry, empty, gone, tide "),
        (
            "tide",
            {"key": "$NOT_THERE_AT_ALL"},
            r"tide: options key: the environment variable NOT_THERE_AT_ALL is not set",
        ),
        ("angry", {}, r"angry \(tide_log:angry of tide-log\) cannot be created: RuntimeError: no such desk"),
        ("gone", {}, r"gone \(tide_log:Nothing of tide-log\) cannot be created: AttributeError"),
        ("empty", {}, r"empty .* is not a handler: it lacks the methods before, after, retry"),
    ],
)
def test_a_handler_that_cannot_be_made_is_named(name: str, options: dict[str, str], wanted: str) -> None:
    with pytest.raises(ConfigurationError, match=wanted):
        handlers_of("shop", [HandlerConfig(name=name, options=options)])


def test_a_handler_of_two_distributions_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "ebb-log", TIDE, tide="Tide")
    with pytest.raises(ConfigurationError, match=r"more than once: ebb_log:Tide of ebb-log, tide_log:Tide of tide-log"):
        handlers_of("shop", [HandlerConfig(name="tide")])


def test_check_says_a_handler_that_is_not_installed_with_those_that_are(tmp_path: Path) -> None:
    conf = tmp_path / "conf"
    (conf / "destinations").mkdir(parents=True)
    (conf / "sluice.yaml").write_text("data_dir: data\n")
    text = "source: {user: root}\nhandlers: [{name: tide}, {name: tyde}]\n"
    (conf / "destinations" / "shop.yaml").write_text(text)
    (problem,) = conf_problems(conf)
    assert problem.startswith("destinations/shop.yaml: handlers: there is no handler 'tyde'; installed: angry, ")
