"""pytest plugin: in a quick run (`./sluice test --quick`) a test that starts a server, Spark or a browser fails, for it lacks its mark.

A quick run leaves out what is marked `servers`, `spark` or `browser`. Each test carries its marks itself (CONTRIBUTING.md says which).
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator

import pytest

from console.toolchain.quality import QUICK_VARIABLE

# mark → the functions that start what it stands for
STARTS = {
    "servers": (
        "console.toolchain.database.server.DatabaseServer.start",
        "console.toolchain.shared.kafka.KafkaServer.start",
        "console.toolchain.shared.postgres.PostgresServer.start",
        "console.toolchain.shared.rabbitmq.RabbitServer.start",
        "console.toolchain.shared.rocketmq.RocketServer.start",
        "console.toolchain.shared.s3.S3Server.start",
        "console.toolchain.shared.zookeeper.ZooKeeperServer.start",
    ),
    "spark": ("console.toolchain.spark.server.SparkConnectServer.begin", "pyspark.core.context.launch_gateway"),
    "browser": ("playwright.sync_api.BrowserType.launch",),
}


@contextlib.contextmanager
def refuse_starts() -> Iterator[None]:
    """Fails whoever starts a server, Spark or a browser, with the mark to add."""
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
    """Refuses all starts during a quick run."""
    with refuse_starts() if os.environ.get(QUICK_VARIABLE) else contextlib.nullcontext():
        yield
