"""Runs Canal 1.1.7 as a process, so that tests can compare it with Sluice's protocol server, field by field and row by row.

The jars of Canal are pinned like all downloads. The program that starts Canal is a single Java file, which Java compiles at each start.
"""

from __future__ import annotations

import contextlib
import subprocess
import types
from collections.abc import Iterator, Mapping
from pathlib import Path

from sluice.console.commands.screen import standard_output
from sluice.console.toolchain.ports import free_port
from sluice.console.toolchain.setup import set_up

PROGRAM = Path(__file__).with_name("CanalServer.java")
SERVER_ID = 4_000_017
USER, PASSWORD = "canal_reader", "canal"
# Canal's driver needs an account with a password and with the oldest authentication method.
ACCOUNT = (
    f"CREATE USER IF NOT EXISTS '{USER}'@'%' IDENTIFIED WITH mysql_native_password BY '{PASSWORD}'",
    f"GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO '{USER}'@'%'",
)
STOP_SECONDS = 10.0
NO_PROPERTIES: Mapping[str, str] = types.MappingProxyType({})


def java_command(*groups: str) -> list[str]:
    """Returns the `java` command with the pinned jars of the groups in its class path. Missing jars are downloaded."""
    toolchain = set_up([], delta=False, extras=groups, screen=standard_output())
    return [str(toolchain.java.program), "-cp", ":".join(map(str, toolchain.extra_jars))]


@contextlib.contextmanager
def canal_server(
    mysql_port: int,
    destination: str,
    position: tuple[str, int],
    table_filter: str,
    log: Path,
    *,
    gtid_set: str = "",
    properties: Mapping[str, str] = NO_PROPERTIES,
) -> Iterator[int]:
    """Yields the port of a Canal server that reads one destination from `position`, a (file, offset), with ACCOUNT.

    With `gtid_set`, the executed set at `position`, Canal reads by GTID. `properties` are settings of the instance, which CanalServer.java
    reads: `filters`, `batchMode` and `ddlIsolation`. `filters` names the canal.instance.filter.* to switch on: ddl, dcl, dml, rows,
    transaction. Raises RuntimeError with the end of Canal's log if Canal does not start.
    """
    port = free_port()
    words = [
        str(port),
        destination,
        str(mysql_port),
        position[0],
        str(position[1]),
        table_filter,
        str(SERVER_ID),
        USER,
        PASSWORD,
        *([gtid_set] if gtid_set else []),
    ]
    command = [*java_command("canal-client", "canal-server"), "-Duser.timezone=UTC", "-Xmx1g"]
    command += [*(f"-D{key}={value}" for key, value in properties.items()), str(PROGRAM), *words]
    with log.open("w") as output:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, text=True)
    try:
        if process.stdout is None or "ready" not in (line.strip() for line in process.stdout):
            process.kill()
            raise RuntimeError(f"Canal did not start (it needs a JDK): {log.read_text()[-4000:]}")
        yield port
    finally:
        if process.stdin is not None:
            process.stdin.close()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
