"""Tests a broker plug-in from another package: the check of conf/ includes its settings, its publisher sends messages, and errors name what
is wrong.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from sluice.cdc_engine.brokers import BrokerConfig, Message
from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.errors import ConfigurationError
from sluice.console.conf_check import conf_problems
from tests.handlers.fix_handlers import install

pytestmark = pytest.mark.seeds

GROUP = "sluice.brokers"
PAGE = Path(__file__).parents[2] / "docs" / "guides" / "write-a-broker-plug-in.md"
OTHERS = """
from sluice.cdc_engine.brokers import BrokerConfig

class Silent(BrokerConfig):
    pass

thing = 7
"""
CLIENT = """
STORED = []

class Connection:
    def __init__(self, servers, password):
        self._login = servers, password

    def put(self, *message):
        STORED.append((*self._login, *message))

    def confirmed(self, seconds):
        return True

def connect(servers, password):
    return Connection(servers, password)
"""


@pytest.fixture(autouse=True)
def post(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Installs the plug-in of docs/guides/write-a-broker-plug-in.md, and a client library that this plug-in imports."""
    (plug_in, *_) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    entries = {"post": "PostConfig", "silent": "Silent", "thing": "thing", "gone": "Nothing"}
    install(tmp_path, monkeypatch, "sluice-post", plug_in + OTHERS, group=GROUP, **entries)
    install(tmp_path, monkeypatch, "post-client", CLIENT, group=GROUP)


def written(root: Path, broker: str) -> Path:
    (root / "conf" / "destinations").mkdir(parents=True)
    (root / "conf" / "destinations" / "shop.yaml").write_text(f"source: {{user: root}}\nbrokers:\n- {{{broker}}}\n")
    return root / "conf"


def broker_of(root: Path, broker: str) -> BrokerConfig:
    (found,) = load_config(written(root, broker)).destinations["shop"].brokers
    return found


def test_a_broker_of_an_installed_package_has_its_own_settings_and_sends(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("open-sesame-42")
    hashed = "partitions_num: 3, partition_hash: '.*:a'"
    found = broker_of(tmp_path, f"kind: post, servers: desk, topic: t, {hashed}, password: {{file: secret}}")
    settings = found.model_dump()
    assert (found.kind, settings["partitions_num"]) == ("post", 3)
    assert settings["password"]["file"] == tmp_path / "secret", "a path begins where conf/ is"
    found.publisher().send([Message("t", 2, b"1")], lambda: False)
    assert sys.modules["post_client"].STORED == [("desk", "open-sesame-42", "t", 2, b"1")]


@pytest.mark.parametrize(
    ("broker", "why"),
    [
        ("kind: nats, topic: t", "no kind of broker 'nats'; installed: gone, kafka, post, pulsar, rabbitmq, rocketmq, silent, thing"),
        ("topic: t", "brokers.0: kind: name the kind of broker, one of gone, kafka"),
        ("kind: 7, topic: t", "brokers.0: kind: name the kind of broker"),
        ("kind: thing, topic: t", r"the kind 'thing' \(sluice_post:thing of sluice-post\) is not a subclass of BrokerConfig"),
        ("kind: gone, topic: t", "'gone' .*cannot be loaded: AttributeError: .*Nothing"),
        ("kind: post, servers: s, topic: t, filter: 7", "brokers.0.filter: Input should be a valid str"),
        ("kind: post, servers: s, topic: t, hue: red", "brokers.0.hue: Extra inputs are not permitted"),
    ],
)  # fmt: skip
def test_a_broker_that_is_wrong_is_refused_with_its_name(tmp_path: Path, broker: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why):
        broker_of(tmp_path, broker)


def test_a_kind_that_two_packages_register_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "other-queue", "class Kafka: pass", group=GROUP, kafka="Kafka")
    problems = conf_problems(written(tmp_path, "kind: kafka, servers: k, topic: t"))
    assert "'kafka' is installed more than once: other_queue:Kafka of other-queue, sluice." in problems[0]


def test_a_secret_in_the_settings_of_a_plug_in_is_not_shown(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as raised:
        broker_of(tmp_path, "kind: post, servers: s, topic: t, password: open-sesame-42")
    assert "brokers.0.password" in str(raised.value)
    assert "sesame" not in str(raised.value)


def test_a_kind_without_a_publisher_says_so(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="the plug-in of kind 'silent' cannot send messages"):
        broker_of(tmp_path, "kind: silent, topic: t").publisher()
