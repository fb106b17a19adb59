"""Loads the plugins that start real servers, configures property tests, and distributes tests to workers."""

import functools
import gc
import os
import re
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import alembic.script
import pulsar  # noqa: F401  Imported after duckdb, it turns duckdb's errors into RuntimeError in the whole process.
import pytest
import typer.testing
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

pytest_plugins = ["tests.marks", "tests.limits", "tests.progress", "tests.fix_servers"]

# No example has a time limit, because a slow example on a busy machine is no defect. All other settings are hypothesis's defaults, which
# has a profile for CI.
settings.register_profile("sluice", settings.default, deadline=None)
settings.load_profile("sluice")

# A Spark that few tests use does not run long enough to benefit from optimized code. The optimization would take a quarter of all processor
# time. `tests.fix_servers` switches it on for a Spark that many tests share.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")

# `CliRunner` builds the command and all its subcommands for each call, which takes 50 ms. The application is always the same, so it is
# built once.
typer.testing._get_command = functools.cache(typer.testing._get_command)  # type: ignore[attr-defined]

# For each database that Dagster creates, alembic reads some ninety files of Dagster's migrations. Here, each process reads these files only
# once.
alembic.script.ScriptDirectory.from_config = functools.cache(  # type: ignore[method-assign]
    alembic.script.ScriptDirectory.from_config
)

# A shell that starts the tests in the background makes them ignore SIGINT. The processes that tests start must react to it, as in a
# terminal.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _no_client_of_zookeeper_stays() -> Iterator[None]:
    """Ends the shared ZooKeeper clients after a test. The threads of a connected client use `random`, which hypothesis would report as an
    error of its strategies.
    """
    yield
    opened = sys.modules.get("sluice.cdc_engine.records.zookeeper_client")
    if opened is not None:
        opened.end_shared_clients()


ROOT = Path(__file__).parents[1]
# Finds the shared Spark in a test file: as a fixture of a test, of a module that it imports or of one of its fixtures, or requested by its
# name.
USES_SPARK = re.compile(
    r"\b((second_)?spark_server: SparkConnectServer|lake: Lake|shop: ShopStack|ddl\.test_ddl_review import)\b"
    r"|\bgetfixturevalue\(\"spark_server\"\)"
)
# In this folder, Spark has the product's settings, as in all tests outside of tests/spark.
SHARED_SPARK = "tests/spark/merging/"
# The tests of this folder start Sparks of other versions, which all its files share.
OWN_SPARK = "tests/spark/versions/"
# A broker of tests/brokers/conftest.py.
USES_BROKER = re.compile(r"\b(ApicurioServer|KafkaServer|PulsarServer|RabbitServer|RocketServer)\b")
WHOLE_STACK = re.compile(r"\bKillBench\b|\"sluice\.console\.main\"")
# The tests of this folder install the wheel into a separate environment. Each worker that runs them does that once.
PACKAGE = "tests/package/"
# These groups start first, so that no worker runs one of them alone at the end. A folder means the groups of its files.
LONGEST = (
    "stacks",
    "spark",
    "brokers",
    OWN_SPARK,
    PACKAGE,
    "tests/acceptance",
    "tests/orchestration",
    "tests/spark",
    "tests/fidelity",
    "tests/table_meta",
    "tests/instance",
    "tests/parser",
    "tests/ha",
    "tests/brokers",
    "tests/snapshot",
    "tests/histories",
    "tests/equality",
    "tests/server",
)
# Thousands of tests of a few milliseconds, which workers run when they have nothing else to do.
SHORTEST = "tests/style"


@functools.cache
def group_of(file: str) -> str:
    """Returns the group of a test file. One worker runs all tests of a group. The groups are:

    - most tests of tests/spark, because a Spark starts and warms up slowly
    - all other tests with the shared Spark
    - the tests of other versions of Spark
    - whole stacks, which would otherwise slow each other down
    - the brokers
    - the tests of the installed wheel
    - each other file, because its tests share what they start
    """
    if shared := next((folder for folder in (PACKAGE, OWN_SPARK) if file.startswith(folder)), ""):
        return shared
    text = (ROOT / file).read_text()
    if USES_SPARK.search(text):
        alone = file.startswith("tests/spark/") and not file.startswith(SHARED_SPARK)
        return "spark" if alone else "spark and servers"
    if file.startswith("tests/acceptance/") and WHOLE_STACK.search(text):
        return "stacks"
    if file.startswith("tests/brokers/") and USES_BROKER.search(text):
        return "brokers"
    return file


class Groups(LoadScopeScheduling):
    """Distributes tests by `group_of`. xdist's own groups (`--dist loadgroup`) cannot be used, because pytest 9.2 no longer passes on
    their mark.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid.partition("::")[0])

    def remove_node(self, node: WorkerController) -> str | None:
        """Returns the test during which a worker ended. Gives the worker's other tests to the other workers. Without this method, xdist
        would run the test again.
        """
        work = self.assigned_work.pop(node)
        left = [(group, test) for group, tests in work.items() for test, is_done in tests.items() if not is_done]
        if not left:
            return None
        group, ended = left[0]
        work[group][ended] = True
        self.workqueue.update({group: tests for group, tests in work.items() if not all(tests.values())})
        for other in self.assigned_work:
            self._reschedule(other)
        return str(ended)


# The numbers of new objects, and of collections of younger objects, that start a collection. With 10 000 instead of Python's 700 objects,
# collecting takes a tenth of the time.
COLLECTED_AT = (10_000, 10, 10)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collects the tests without Python's garbage collector, and excludes the objects that exist then from later searches. The collector
    would search the millions of objects of modules and tests again and again.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(*COLLECTED_AT)
        gc.enable()


@pytest.hookimpl(optionalhook=True)  # This hook exists only if there are several workers.
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Groups:
    return Groups(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sorts the tests so that the longest groups start first."""
    items.sort(key=lambda item: _rank(group_of(item.nodeid.partition("::")[0])))


def _rank(group: str) -> int:
    last = len(LONGEST) + group.startswith(SHORTEST)
    return next((at for at, begin in enumerate(LONGEST) if group.startswith(begin)), last)


@pytest.fixture
def parts_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gives consumers each part of an open transaction when it arrives, as if the transaction was large."""
    monkeypatch.setattr("sluice.cdc_engine.store.window.window.PART_BYTES_MIN", 0)
