"""Connects the production code to a simulated server: answers its queries, and sends a dump of real events.

Only the code that opens sockets is replaced. Facts, source check, start decision, framing and scan are production code.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Protocol

from benchmarks.histories import binlog_bytes as binlog
from benchmarks.histories.faults import Actor, Clock, Trouble
from benchmarks.histories.source import BinlogFile, Endpoint, Server
from sluice.cdc_engine.errors import SourceConnectionError
from sluice.cdc_engine.gtid import GtidSet
from sluice.cdc_engine.parser.connection import DUMP_REFUSED, SourceConnection, translated_error
from sluice.cdc_engine.source.server import Source

HEARTBEAT_SECONDS = 5.0


class SimulatedServers(Protocol):
    """The parts of `world.World` that a connection uses."""

    clock: Clock
    trouble: Trouble
    endpoints: dict[str, Endpoint]


class PlayedConnection(SourceConnection):
    """A connection to a simulated server. `world` is the current history. Each history sets it."""

    world: ClassVar[SimulatedServers]

    # The constructor of the base class is not called, because it would open a socket.
    def __init__(self, source: Source) -> None:
        self.source = source
        self.thread_id = 1
        self._world = PlayedConnection.world
        self._call(lambda: None)
        self._endpoint = self._world.endpoints[source.host]
        self._server: Server = self._endpoint.current
        self._closed = self._endpoint.closed
        self._unread: list[bytes] = []
        self._file: BinlogFile | None = None
        self._groups_sent = 0
        self._exclude = GtidSet()
        self._heard_at = 0.0
        self._looks = False  # True if only the beginning of a file is read.

    def _call(self, act: Callable[[], Any]) -> Any:
        """Calls `act`, as one call to the server. If the current step has a fault for this call, the fault occurs."""
        return self._world.trouble.reach(
            "source", act, lambda: SourceConnectionError(f"the connection to {self.source.address} failed: played")
        )

    @property
    def server_version(self) -> str:
        return "8.0.31"

    def note_stream(self) -> None:
        """Counts a connection over which the parser reads the stream of this server. Connections of the source watch are not counted."""
        self._server.connects_since_reset += 1

    # ── queries ──

    def rows(self, sql: str, arguments: Sequence[Any] = ()) -> list[dict[str, Any]]:  # noqa: ARG002
        answers = {"SHOW GLOBAL VARIABLES": self._variables, "SHOW BINARY LOGS": self._logs}
        answer = next((each for begin, each in answers.items() if sql.startswith(begin)), None)
        return list(self._call(answer)) if answer is not None else []

    def first_of(self, *statements: str) -> list[dict[str, Any]]:
        if statements[0].startswith("SHOW BINARY LOG STATUS"):
            return [self._status()]
        if statements[0].startswith("SHOW GRANTS"):
            return [{"Grants": "GRANT ALL PRIVILEGES ON *.* TO `u`@`%`"}]
        return self.rows(statements[0])

    def query(self, function: Callable[[Any], Any]) -> Any:
        return function(None)

    def _variables(self) -> list[dict[str, Any]]:
        server = self._server
        values = {
            "server_id": server.server_id,
            "server_uuid": server.uuid,
            "log_bin": "ON",
            "binlog_format": "ROW",
            "binlog_row_image": "FULL",
            "gtid_mode": "ON" if server.gtids else "OFF",
            "gtid_executed": str(server.executed),
            "gtid_purged": str(server.purged),
        }
        return [{"Variable_name": name, "Value": str(value)} for name, value in values.items()]

    def _status(self) -> dict[str, Any]:
        file = self._server.files[-1]
        return {"File": file.name, "Position": file.end, "Executed_Gtid_Set": str(self._server.executed)}

    def _logs(self) -> list[dict[str, Any]]:
        return [{"Log_name": each.name, "File_size": each.end} for each in self._server.files]

    # ── the dump ──

    def prepare_dump(self) -> bool:
        return False

    def dump_from_file(self, file: str, offset: int, flags: int = 0) -> bool:  # noqa: ARG002  the base class's
        found = next((each for each in self._server.files if each.name == file), None)
        if found is None or offset > found.end:
            raise self._refused("could not find next log" if found is None else "position > file size")
        self._begin(found, offset)
        return True

    def dump_beginning(self, file: str) -> None:
        found = next((each for each in self._server.files if each.name == file), None)
        if found is None:
            raise self._refused("could not find next log")
        self._looks = True
        self._unread = [binlog.rotate(file, binlog.MAGIC_BYTES), *found.head]

    def dump_after_gtids(self, executed: str, flags: int = 0) -> None:  # noqa: ARG002
        self._exclude = GtidSet.parse(executed)
        for file in reversed(self._server.files):
            if self._exclude.contains(file.previous):
                self._begin(file, binlog.MAGIC_BYTES)
                return
        raise self._refused("the master has purged required binary logs containing GTIDs that the replica requires")

    def _refused(self, text: str) -> Exception:
        return translated_error(self.source, DUMP_REFUSED, text)

    def _begin(self, file: BinlogFile, offset: int) -> None:
        self._file = file
        self._server.readers.append(self)
        self._groups_sent = sum(group.begin < offset for group in file.groups)
        within = binlog.format_description(file.created, server_id=self._server.server_id, first=False)
        head = file.head if offset <= binlog.MAGIC_BYTES else [within]
        self._unread = [binlog.rotate(file.name, max(offset, binlog.MAGIC_BYTES)), *head]

    def receive_into(self, space: memoryview, seconds: float) -> int:  # noqa: ARG002
        """Suspends the parser until the history resumes the parser. Afterwards delivers the next bytes of the server."""
        actor = getattr(Actor.current, "actor", None)
        if actor is not None and not self._looks:
            actor.suspend()
            if actor.stopping():
                raise InterruptedError
        if self._endpoint.closed != self._closed:
            raise SourceConnectionError(f"{self.source.address} closed the connection")
        content = binlog.packets(self._call(self._next))
        space[: len(content)] = content
        return len(content)

    def _next(self) -> list[bytes]:
        """Returns the next events of the server: the beginning of a file, a transaction, or, after a silence, a heartbeat."""
        if not self._unread:
            self._unread = self._more()
        events, self._unread = self._unread, []
        now = self._world.clock.ticks
        if events or self._file is None:
            self._heard_at = now
        elif now - self._heard_at > HEARTBEAT_SECONDS:
            self._heard_at = now
            return [binlog.heartbeat(self._file.name, self._file.end)]
        return events

    def _more(self) -> list[bytes]:
        file = self._file
        while file is not None and file in self._server.files:
            while self._groups_sent < len(file.groups):
                group = file.groups[self._groups_sent]
                self._groups_sent += 1
                if group.gtid is None or not self._excluded(group.gtid):
                    return list(group.events)
            if not file.tail:
                return []
            following = self._server.files[self._server.files.index(file) + 1]
            self._file, self._groups_sent = following, 0
            return [*file.tail, binlog.rotate(following.name, binlog.MAGIC_BYTES), *following.head]
        return []  # A RESET has removed the files during the dump. A real server then sends nothing more.

    def _excluded(self, gtid: tuple[str, int]) -> bool:
        server, number = gtid
        return any(first <= number <= last for first, last in self._exclude.runs.get(server, ()))

    @property
    def reading(self) -> BinlogFile | None:
        """The file that the dump is reading. The server does not purge this file."""
        return self._file

    def close(self) -> None:
        if self in self._server.readers:
            self._server.readers.remove(self)

    def end_dump(self) -> None:
        self.close()
