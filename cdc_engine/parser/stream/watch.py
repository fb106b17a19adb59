"""Decides whether a stream that receives nothing still works: compares the stream's position with the end of the source's binlog and with
the server's identity. Does no I/O.

A dump may stay open and silent forever although it no longer works: after RESET MASTER, if the address now leads to another server, or if a
proxy lost its connection to the server. `instance.engine.source_watch` queries the source once per minute and asks this module.
"""

from __future__ import annotations

import dataclasses

from sluice.cdc_engine.errors import BinlogFormatError
from sluice.cdc_engine.gtid import GtidSet, MariadbPosition, parse_executed
from sluice.cdc_engine.parser.renumbering import base, ends_before, renumbered
from sluice.cdc_engine.parser.server_facts import ServerFacts
from sluice.cdc_engine.position import Position, file_number

# If more bytes than this arrive between two checks, the stream makes progress. Fewer bytes may be heartbeats only.
BYTES_OF_HEARTBEATS_MAX = 4096


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamState:
    """How far a stream has read at one moment. `position` is the end of the last transaction. `file` and `offset` are the end of the last
    event. `bytes` is the number of bytes received in total.

    `held_up` tells whether a block waits for space in the store, so that the parser does not read on.
    """

    position: Position
    file: str
    offset: int
    bytes: int
    held_up: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Look:
    """One check of a stream: the source's facts, the time at which the facts were read (`time.monotonic`), and the state of the stream
    directly before that time.
    """

    at: float
    stream_state: StreamState
    facts: ServerFacts


@dataclasses.dataclass(frozen=True)
class Watch:
    """The results of all checks of a stream so far.

    - `ahead`: the oldest check whose end of the binlog the stream has not reached yet, or None. `newest`: the last check.
    - `misfit`: a sentence of the last check that tells why the stream cannot be a stream of this server, or "". The parser reconnects only
      if the next check finds a misfit too.
    - `still`: the number of consecutive checks without progress. `standing`: if the last check found no progress, a sentence which says
      so, otherwise "".
    """

    ahead: Look | None = None
    newest: Look | None = None
    misfit: str = ""
    still: int = 0
    standing: str = ""

    def looked(self, look: Look) -> tuple[Watch, str]:
        """Adds the check `look` to the results. Returns the new `Watch`, and a sentence that tells why the parser must reconnect, or ""."""
        ahead = self.ahead if self.ahead and not has_read(look.stream_state, self.ahead.facts) else None
        misfit = misfit_of(look.stream_state.position, look.facts)
        if misfit and self._confirms(look):
            return Watch(), misfit
        standing = _standing(self.newest, look, ahead)
        still = self.still + 1 if standing else 0
        ahead = ahead or (None if has_read(look.stream_state, look.facts) else look)
        # The parser reconnects only at the 1st, 2nd, 4th, 8th, … check without progress, because after each reconnect a server may search
        # its binlog for long before it sends.
        return Watch(ahead, look, misfit, still, standing), standing if still & (still - 1) == 0 else ""

    def _confirms(self, look: Look) -> bool:
        """Returns whether the check `look` confirms the misfit that the previous check (`newest`) found: the position of the previous check
        does not fit the facts of `look` either. One check is not sufficient, because the stream may read on while the facts are queried.
        """
        return bool(self.misfit and self.newest and misfit_of(self.newest.stream_state.position, look.facts))

    def behind_seconds(self, stream_state: StreamState, now: float) -> float:
        """Returns for at least how many seconds the stream has been behind the source's binlog. Returns 0 if the stream is not known to be
        behind.
        """
        if self.ahead is None or has_read(stream_state, self.ahead.facts):
            return 0.0
        return max(0.0, now - self.ahead.at)

    def trouble(self, stream_state: StreamState, now: float) -> str:
        """Returns a sentence if the stream makes no progress although it should, otherwise ""."""
        if (
            not self.standing
            or self.newest is None
            or stream_state.bytes - self.newest.stream_state.bytes > BYTES_OF_HEARTBEATS_MAX
        ):
            return ""
        seconds = self.behind_seconds(stream_state, now)
        return f"{self.standing}; for {seconds:.0f} s so far" if seconds else ""


def misfit_of(position: Position, facts: ServerFacts) -> str:
    """Returns a sentence that tells why a stream at `position` cannot be a stream of this server, or "" if nothing contradicts."""
    if position.server_uuid and position.server_uuid != facts.server_uuid:
        return (
            f"the address leads to the server {facts.server_uuid}, and the stream is of the server "
            f"{position.server_uuid}"
        )
    renumbering = renumbered(position, facts)
    if renumbering:
        return renumbering
    if position.file and facts.file and base(position.file) != base(facts.file):
        return f"the server now writes {facts.file}, and the stream is in {position.file}"
    why = ends_before(position, facts)
    if why:
        return why
    sets = _sets(position, facts)
    if sets is not None and not _holds(executed=sets[1], taken=sets[0]):
        return (
            f"the server has not executed all of {sets[0]}, which the engine has read: the server's binlog was "
            "reset, or the server was restored"
        )
    return ""


def has_read(stream_state: StreamState, facts: ServerFacts) -> bool:
    """Returns whether the stream has reached the end of the source's binlog, by file and offset or by GTIDs. True if `facts` do not have
    the end of the binlog.
    """
    if not facts.file or _reaches(stream_state, facts):
        return True
    sets = _sets(stream_state.position, facts)
    return sets is not None and _holds(executed=sets[0], taken=sets[1])


def _standing(before: Look | None, look: Look, ahead: Look | None) -> str:
    """Returns a sentence if the stream makes no progress, otherwise "". No progress means: between the checks `before` and `look`, the
    stream received only heartbeats, and it has not reached the end of the binlog that the check `ahead` found. Also returns "" if a block
    waits for space in the store.
    """
    if before is None or ahead is None or look.stream_state.held_up:
        return ""
    if look.stream_state.bytes - before.stream_state.bytes > BYTES_OF_HEARTBEATS_MAX:
        return ""
    stream_state, end = look.stream_state, look.facts
    return (
        f"the source's binlog ends at {end.file}:{end.offset}, and the stream is at "
        f"{stream_state.file}:{stream_state.offset} and receives nothing"
    )


def _reaches(stream_state: StreamState, facts: ServerFacts) -> bool:
    ends = [(stream_state.file, stream_state.offset), (stream_state.position.file, stream_state.position.offset)]
    return any(
        _number(file) >= _number(facts.file) and (file != facts.file or offset >= facts.offset) for file, offset in ends
    )


def _number(file: str) -> int:
    try:
        return file_number(file)
    except BinlogFormatError:
        return -1


def _sets(
    position: Position, facts: ServerFacts
) -> tuple[GtidSet, GtidSet] | tuple[MariadbPosition, MariadbPosition] | None:
    """Returns the executed sets of the stream and of the source, or None if one of them is unknown. A known set may be empty."""
    if not (position.gtid_set and facts.gtid_enabled):
        return None
    try:
        sets = [parse_executed(text, mariadb=facts.mariadb) for text in (position.gtid_set, facts.executed)]
    except ValueError:
        return None
    return sets[0], sets[1]  # type: ignore[return-value]  # both sets have the class of this server's flavour


def _holds(*, executed: GtidSet | MariadbPosition, taken: GtidSet | MariadbPosition) -> bool:
    return executed.contains(taken)  # type: ignore[arg-type]
