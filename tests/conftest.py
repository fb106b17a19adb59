"""The plugins that bring real things to the tests, the settings of property tests, and which tests go to the same worker when several run
them.
"""

import functools
import os
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

pytest_plugins = ["tests.marks", "tests.fix_servers"]

# A busy machine is no defect: no example has a time limit. The rest stays as hypothesis chose it (it has a profile of its own for CI).
settings.register_profile("sluice", settings.default, deadline=None)
settings.load_profile("sluice")

# A Spark of the tests is cold most of its life: optimizing its code would take a quarter of all processor time and give nothing back.
os.environ.setdefault("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")

# As in a terminal, also where a shell started the tests in the background: what is started here is to hear Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def _no_client_of_zookeeper_stays() -> Iterator[None]:
    """Its thread draws from `random` for as long as it is connected, which hypothesis takes for a strategy that does."""
    yield
    opened = sys.modules.get("cdc_engine.documents.zookeeper_client")
    if opened is not None:
        opened.end_shared_clients()


ROOT = Path(__file__).parents[1]
# The one Spark as a fixture of a test, of what it imports, or of a fixture of it.
USES_SPARK = re.compile(
    r"\b(spark_server: SparkConnectServer|lake: Lake|shop: ShopStack|ddl\.test_ddl_review import)\b"
)
# A broker of tests/brokers/conftest.py.
USES_BROKER = re.compile(r"\b(KafkaServer|RabbitServer|RocketServer)\b")
WHOLE_STACK = re.compile(r"\bKillBench\b|\"console\.main\"")
# Begun first, so that no worker is left with one of them at the end. A folder stands for the groups of its files.
LONGEST = (
    "stacks",
    "spark",
    "tests/acceptance",
    "tests/orchestration",
    "tests/fidelity",
    "tests/table_meta",
    "tests/instance",
    "tests/parser",
    "tests/ha",
    "brokers",
    "tests/brokers",
    "tests/snapshot",
    "tests/histories",
    "tests/equality",
    "tests/server",
)
# Thousands of tests of a few milliseconds: what is left for a worker that has nothing else to do.
SHORTEST = "tests/style"


@functools.cache
def group_of(file: str) -> str:
    """What runs one after the other on one worker: whole stacks, which would starve each other; a Spark, slow to start and to warm, of the
    tests of its own room, and one of all others that have it; the brokers; else the tests of a file, for they share what they start.
    """
    text = (ROOT / file).read_text()
    if file.startswith("tests/acceptance/") and WHOLE_STACK.search(text):
        return "stacks"
    if USES_SPARK.search(text):
        return "spark" if file.startswith("tests/spark/") else "spark over servers"
    if file.startswith("tests/brokers/") and USES_BROKER.search(text):
        return "brokers"
    return file


class Groups(LoadScopeScheduling):
    """xdist's own groups (`--dist loadgroup`) go by a mark that pytest 9.2 no longer lets through."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid.partition("::")[0])


@pytest.hookimpl(optionalhook=True)  # there only where several workers run
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Groups:
    return Groups(config, log)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest first."""
    items.sort(key=lambda item: _rank(group_of(item.nodeid.partition("::")[0])))


def _rank(group: str) -> int:
    last = len(LONGEST) + group.startswith(SHORTEST)
    return next((at for at, begin in enumerate(LONGEST) if group.startswith(begin)), last)
