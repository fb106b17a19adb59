"""Runs the processes of a soak: a pair of servers, a ZooKeeper, and the processes of Sluice. Causes the four faults, and waits until
the lake has caught up.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml
from deltalake import DeltaTable, QueryBuilder

from benchmarks.servers.zookeeper import ZooKeeperServer
from benchmarks.soak.pair import DATABASE, KEYED, KEYLESS, Pair, Traffic, contains, until
from sluice.cdc_engine.config import SluiceConfig, load_config
from sluice.cdc_engine.destination_files import read_ledger
from sluice.cdc_engine.errors import SluiceError
from sluice.cdc_engine.instance.sources import source_of
from sluice.cdc_engine.source.in_use import address_in_use
from sluice.console.stack.stack import CODE_SERVER, SPARK, Stack, StackOptions
from sluice.console.toolchain.ports import free_port
from sluice.equality.destination import ComparedDestination, compare_destination
from sluice.equality.values import Extent

FOLLOWS_SECONDS_MAX = 600.0
HEARTBEAT = {"seconds": 1, "retries": 3}


class SoakedInstallation:
    """The processes of a soak. A killed engine loses its lease after `session_seconds`. `StackOptions` describes `warms_spark`."""

    def __init__(
        self,
        folder: Path,
        say: Callable[[str], None],
        *,
        session_seconds: float,
        spark_memory: str,
        warms_spark: bool = True,
    ) -> None:
        self.folder, self._say, self._warms_spark = folder, say, warms_spark
        self._session_seconds, self._spark_memory = session_seconds, spark_memory
        self.pair, self.keeper = Pair(folder), ZooKeeperServer(folder / "zookeeper")

    def start(self) -> None:
        self.keeper.start()
        self.pair.start()
        self.stack = Stack(
            self._configure(),
            self.folder / "conf",
            self._say,
            StackOptions(
                spark_memory=self._spark_memory,
                die_with_parent=True,
                webserver=False,
                warms_spark=self._warms_spark,
                awaits_warm_up=True,
            ),
        )
        self.stack.up()

    def stop(self) -> None:
        if hasattr(self, "stack"):
            self.stack.down()
        self.pair.stop()
        self.keeper.kill()

    @property
    def config(self) -> SluiceConfig:
        return load_config(self.folder / "conf")

    @property
    def directory(self) -> Path:
        return self.config.destination_dir(DATABASE)

    def pids(self) -> Mapping[str, int]:
        return {name: record.pid for name, record in self.stack.file.running().items()}

    def wait_until_followed(self) -> float:
        """Waits until the lake has all changes that were committed before this call. Returns how many seconds this took."""
        wanted = self.pair.executed()

        def followed() -> bool:
            try:
                cursor = read_ledger(self.directory).cursor
            except SluiceError:  # The store of the ledger does not answer.
                return False
            return cursor is not None and bool(cursor.gtid_set) and contains(cursor.gtid_set, wanted)

        return until("what was committed is in the lake", FOLLOWS_SECONDS_MAX, followed)

    # ── the faults ──

    def source_fails_over(self, traffic: Traffic) -> None:
        with traffic.paused():
            self.pair.switch()
        wanted = f"127.0.0.1:{self.pair.master.port}"
        until("the new master is read", 180, lambda: self._read_now() == wanted)
        self.pair.repair()

    def _read_now(self) -> str:
        return address_in_use(self.directory) or f"127.0.0.1:{self.pair.servers[0].port}"

    def zookeeper_restarts(self, _: Traffic) -> None:
        self.keeper.kill()
        self.keeper.start()

    def engine_is_killed(self, _: Traffic) -> None:
        self._kill(CODE_SERVER)

    def spark_is_killed(self, _: Traffic) -> None:
        self._kill(SPARK)

    def _kill(self, name: str) -> None:
        """Kills a process of Sluice with SIGKILL, and restarts it as `sluice up` does."""
        os.kill(self.pids()[name], signal.SIGKILL)
        until(f"the {name} is gone", 60, lambda: name not in self.pids())
        self.stack.up()

    # ── the end ──

    def compared(self) -> list[dict[str, Any]]:
        """Compares each table with the master, as `sluice equal` does. The caller has stopped the traffic."""
        config = self.config
        destination = ComparedDestination(config, DATABASE, source_of(config.destinations[DATABASE]))
        results = compare_destination(destination, [f"{DATABASE}.{table}" for table in (KEYED, KEYLESS)], Extent())
        return [
            {"table": each.table, "equal": each.equal, "rows": each.rows, "differences": each.difference_count}
            for each in results
        ]

    def doubled(self) -> int:
        """Returns the number of duplicate rows in the table without a key."""
        table = DeltaTable(self.config.table_path(DATABASE, DATABASE, KEYLESS))
        counted = QueryBuilder().register("t", table).execute("SELECT count(*) - count(DISTINCT entry) AS n FROM t")
        return int(counted.read_all()["n"][0].as_py())

    def _configure(self) -> SluiceConfig:
        conf = self.folder / "conf"
        (conf / "destinations").mkdir(parents=True)
        spark = free_port()
        main = {
            "data_dir": str(self.folder / "data"),
            "lake": str(self.folder / "lake"),
            "ports": {"webserver": free_port(), "code_server": free_port(), "spark_connect": spark},
            "spark": {"remote": f"sc://127.0.0.1:{spark}"},
            "meta": {"kind": "zookeeper", "hosts": self.keeper.hosts, "session_seconds": self._session_seconds},
        }
        (conf / "sluice.yaml").write_text(yaml.safe_dump(main))
        destination = {
            "sources": [{"user": "root", "port": server.port} for server in self.pair.servers],
            "heartbeat": HEARTBEAT,
            "include": rf"{DATABASE}\..*",
        }
        (conf / "destinations" / f"{DATABASE}.yaml").write_text(yaml.safe_dump(destination))
        return load_config(conf)
