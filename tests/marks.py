"""pytest plugin that rejects tests that start a server, Spark or a browser without the mark for it.

A quick run (`./sluice test --quick`) leaves out tests marked `servers`, `spark` or `browser`. Each test must have its own marks
(CONTRIBUTING.md lists them). Every run rejects a test that uses a fixture in FIXTURES and lacks its mark. A quick run also rejects a test
that starts such a program in another way.

A run of only the other tests (`--not-quick`) skips the files of which every test is quick, because importing them takes half a minute of
CPU time. Every other run rejects a test that such a run would miss.
"""

from __future__ import annotations

import contextlib
import functools
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

import pytest

from sluice.console.quality import OTHER_TESTS, QUICK_VARIABLE, SLOW_MARKS

# For each mark, the functions that start the programs that the mark names.
STARTS = {
    "servers": (
        "benchmarks.servers.azurite.server.AzuriteServer.start",
        "benchmarks.servers.fake_gcs.server.FakeGcsServer.start",
        "sluice.console.toolchain.database.server.DatabaseServer.start",
        "benchmarks.servers.kafka.KafkaServer.start",
        "benchmarks.servers.postgres.PostgresServer.start",
        "benchmarks.servers.rabbitmq.RabbitServer.start",
        "benchmarks.servers.rocketmq.RocketServer.start",
        "benchmarks.servers.s3.S3Server.start",
        "benchmarks.servers.zookeeper.ZooKeeperServer.start",
    ),
    "spark": ("sluice.console.toolchain.spark.server.SparkConnectServer.begin", "pyspark.core.context.launch_gateway"),
    "browser": ("playwright.sync_api.BrowserType.launch",),
}

# For each fixture, the mark that a test with this fixture needs.
FIXTURES = {
    **dict.fromkeys(
        ("mysql80", "mysql9", "mysql57", "mariadb114", "mariadb1011", "s3_store", "azurite", "fake_gcs"), "servers"
    ),
    **dict.fromkeys(("postgres16", "zookeeper39"), "servers"),
    **dict.fromkeys(("spark_server", "product_spark_server", "few_rows_spark_server"), "spark"),
}

# Finds one of SLOW_MARKS in a test file, or an import of the locations of ledgers, some of which have such a mark.
NAMES_SLOW_MARK = re.compile(rf"\bmark\.({'|'.join(SLOW_MARKS)})\b|\bfrom tests\.records\.fix_locations import\b")


def lacks(fixtures: Iterable[str], marks: Collection[str]) -> set[str]:
    """Returns the marks that a test with these fixtures and marks lacks."""
    return {FIXTURES[name] for name in fixtures if name in FIXTURES} - set(marks)


@functools.cache
def is_quick(file: Path) -> bool:
    """Returns whether the text of a test file names no mark that a quick run leaves out."""
    return not NAMES_SLOW_MARK.search(file.read_text())


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skips a file of quick tests in a run of only the other tests."""
    leaves_out = config.getoption("markexpr") == OTHER_TESTS and collection_path.name.startswith("test_")
    return True if leaves_out and collection_path.is_file() and is_quick(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Rejects the run if a test lacks the mark of one of its fixtures, or if a run of only the other tests would miss the test."""
    missed = sorted(
        {
            item.nodeid.partition("::")[0]
            for item in items
            if any(each.name in SLOW_MARKS for each in item.iter_markers()) and is_quick(item.path)
        }
    )
    if missed:
        raise pytest.UsageError(
            f"the text of {', '.join(missed)} must name one of pytest's marks {', '.join(SLOW_MARKS)}, because its tests have such a mark"
        )
    found = [
        f"{item.nodeid}: add @pytest.mark.{mark}"
        for item in items
        for mark in sorted(lacks(getattr(item, "fixturenames", ()), [each.name for each in item.iter_markers()]))
    ]
    if found:
        raise pytest.UsageError("tests lack the mark of a fixture:\n" + "\n".join(found))


@contextlib.contextmanager
def refuse_starts() -> Iterator[None]:
    """Makes every start of a server, Spark or a browser fail. The message names the mark that the test needs."""
    with pytest.MonkeyPatch.context() as patch:
        for mark, starts in STARTS.items():
            for start in starts:
                patch.setattr(start, _refusal(start, mark))
        yield


def _refusal(start: str, mark: str) -> Callable[..., None]:
    def refused(*_: object, **__: object) -> None:
        pytest.fail(f"a quick run starts nothing, and this test calls {start}: add @pytest.mark.{mark} to the test")

    return refused


@pytest.fixture(autouse=True, scope="session")
def no_server_in_a_quick_run() -> Iterator[None]:
    """Rejects all starts during a quick run."""
    with refuse_starts() if os.environ.get(QUICK_VARIABLE) else contextlib.nullcontext():
        yield
