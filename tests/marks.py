"""pytest plugin: marks each test with what it needs (`servers`, `spark`, `browser`), read off the fixtures it asks for and their text.

Nobody writes a mark by hand. In a quick run (`./sluice test --quick`) a test that starts a server though nothing here saw it coming fails.
"""

from __future__ import annotations

import functools
import inspect
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from console.toolchain.quality import QUICK_VARIABLE

# words of a test or a fixture that start something, as a fixture's name or as a class that is made
NEEDS = {
    "servers": re.compile(
        r"\b(mysql80|mysql9|mysql57|mariadb114|mariadb1011|fresh_server|fresh_mysql80|postgres16|zookeeper39|kafka41|rabbitmq310|rocketmq53|s3_store)\b|\b(DatabaseServer|PostgresServer|KafkaServer|RabbitServer|RocketServer|S3Server|ZooKeeper(?:Server|Ensemble)|DemoSource|DagsterStack|ShopStack)\("
    ),
    "spark": re.compile(r"\bspark_server\b|\blocal\[\d|\bSparkConnectServer\([^)]*\)(?!\.port)"),
    "browser": re.compile(r"\b(browser|playwright)\b"),
}
STACKS = re.compile(r"\b(Pipeline|KillBench|Demo)\(|\"console\.main\", \"(up|demo)\"|\bSPARK_LOCAL\b")
GUARD = "no_server_in_a_quick_run"
BOTH = ("servers", "spark")


@functools.cache
def _source(function: Any) -> str:
    try:
        return inspect.getsource(inspect.unwrap(function))
    except (OSError, TypeError):
        return ""


def needs_of(item: pytest.Item) -> set[str]:
    """Marks of a test: from its own text, its parameters, and the text and names of all fixtures it asks for."""
    info = getattr(item, "_fixtureinfo", None)
    texts = [_source(item.function)] if isinstance(item, pytest.Function) else []
    if info:
        fixtures = {name: made for name, made in info.name2fixturedefs.items() if name != GUARD}
        texts += [*fixtures, *(_source(one.func) for made in fixtures.values() for one in made)]
    if isinstance(item, pytest.Function) and hasattr(item, "callspec"):
        texts += names_in(item.callspec.params.values())
    if item.nodeid.startswith("tests/acceptance/"):
        return set(BOTH)  # whole stacks
    return {mark for text in texts for mark in marks_in(text)}


def names_in(parameters: Iterable[object]) -> list[str]:
    """What may be a fixture's name among a test's parameters, also where several are one."""
    values = (value if isinstance(value, tuple) else (value,) for value in parameters)
    return [word for words in values for word in words if isinstance(word, str) and word.isidentifier()]


@functools.cache  # thousands of tests share some hundred fixtures
def marks_in(text: str) -> frozenset[str]:
    """What is needed by a test whose fixtures, parameters or text are these words."""
    found = frozenset(mark for mark, words in NEEDS.items() if words.search(text))
    return found | frozenset(BOTH) if STACKS.search(text) else found


def pytest_itemcollected(item: pytest.Item) -> None:
    for mark in needs_of(item):
        item.add_marker(mark)


@pytest.fixture(autouse=True, scope="session")
def no_server_in_a_quick_run() -> Iterator[None]:
    """A mark that is missing is a defect, not a slow test."""
    if not os.environ.get(QUICK_VARIABLE):
        yield
        return
    from console.toolchain.database.server import DatabaseServer  # noqa: PLC0415
    from console.toolchain.spark.server import SparkConnectServer  # noqa: PLC0415

    def refused(self: object, *_: object) -> None:
        pytest.fail(f"{type(self).__name__} is started by a test that tests/marks.py does not see to need one")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DatabaseServer, "start", refused)
        patch.setattr(SparkConnectServer, "begin", refused)
        yield
