"""Lists destinations and groups with the states of their engines, shows logs, and edits destinations' files in conf/, for `sluice
instance`.
"""

from __future__ import annotations

import dataclasses
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from rich.table import Table

from sluice.cdc_engine.config import SluiceConfig
from sluice.cdc_engine.config.conf_files import ConfFiles, file_of, read_conf_files, read_remote
from sluice.cdc_engine.config.reading import config_of
from sluice.cdc_engine.durable_files import replace_file
from sluice.cdc_engine.errors import ConfigurationError
from sluice.cdc_engine.keeping.in_use import NOT_STARTED, InUse
from sluice.cdc_engine.keeping.keeper import what_stays
from sluice.console.status.consumers import shown_lag
from sluice.console.status.report import read_destination, stop_order
from sluice.console.toolchain.errors import SetupError

# The state of a destination whose file is no longer in conf/, but whose engine has left a status.json in data_dir.
REMOVED = "REMOVED"
LOGS = ("engine.log", "code-server.log")  # The logs of the two kinds of processes that may run engines.
TAIL_BYTES_MAX = 8 << 20
FOLLOW_SECONDS = 0.3
NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ListedInstance:
    """One destination or group in the output of `sluice instance list`.
    - `state`: the state that `sluice status` shows, or REMOVED. Empty if the file in conf/ is invalid and no engine was started.
    - `wanted`: the requested state, "run" or "stopped". Empty if the state is REMOVED.
    - `by`: who stopped the engine, and when. Empty if nobody stopped the engine.
    - `kept_by`: the process that runs the engine. Empty if no process runs the engine.
    - `lag_seconds`: None if the lag is unknown.
    - `conf`: why Sluice does not use the destination's file in conf/. Empty if Sluice uses the file.
    """

    name: str
    state: str
    wanted: str
    by: str = ""
    kept_by: str = ""
    lag_seconds: float | None = None
    conf: str = ""
    message: str = ""


def listed(in_use: InUse) -> list[ListedInstance]:
    """Returns all destinations and groups in conf/, including those that did not start because their files are invalid. Also returns
    destinations whose files were removed from conf/, but whose engines have left a status.json in data_dir.
    """
    config, now = in_use.config, time.time()
    names = sorted(config.streams)
    found = [_listed(in_use, name, config.destination_dir(name), now) for name in names]
    waiting = [
        ListedInstance(name=file.removeprefix("destinations/").removesuffix(".yaml"), state="", wanted="run", conf=why)
        for file, why in sorted(in_use.refused.items())
        if file.startswith("destinations/") and NOT_STARTED in why
    ]
    return [*found, *waiting, *_removed(config, {each.name for each in [*found, *waiting]})]


def _listed(in_use: InUse, name: str, directory: Path, now: float) -> ListedInstance:
    one, order = read_destination(directory, name, now), stop_order(directory)
    return ListedInstance(
        name=name,
        state=one.state,
        wanted="stopped" if order else "run",
        by=f"{order.by} at {order.when()}" if order else "",
        kept_by=one.holder,
        lag_seconds=one.lag_seconds,
        conf=in_use.refused.get(file_of(name), ""),
        message=one.reason,
    )


def _removed(config: SluiceConfig, known: set[str]) -> Iterator[ListedInstance]:
    folder = config.destination_dir("any").parent
    for directory in sorted(folder.iterdir()) if folder.is_dir() else ():
        if directory.name not in known and NAME.fullmatch(directory.name) and (directory / "status.json").exists():
            there = config.destination_dir(directory.name)
            yield ListedInstance(name=directory.name, state=REMOVED, wanted="", message=what_stays(there))


def render(found: list[ListedInstance]) -> Table:
    shown = Table("destination", "state", "wanted", "kept by", "lag", "")
    for each in found:
        said = "; ".join(filter(None, [each.conf and f"conf/: {each.conf}", each.message]))
        wanted = f"{each.wanted} ({each.by})" if each.by else each.wanted
        shown.add_row(each.name, each.state, wanted, each.kept_by, shown_lag(each.lag_seconds), said)
    return shown


def log_lines(config: SluiceConfig, name: str, lines: int) -> list[str]:
    """Returns at most `lines` log lines of a destination, from the logs of all processes of this host that may run engines. Lines are not
    sorted by time across logs: the lines of the log that was changed last come last. If there are more than `lines` lines, lines of the
    other logs are left out first. Of each log, only the last TAIL_BYTES_MAX bytes are searched. Raises SetupError if there is no log.
    """
    files = _logs(config)
    found = [line for file in files for line in _tail(file).splitlines() if concerns(line, name)]
    return found[-lines:] if lines else []


def followed(config: SluiceConfig, name: str, stopping: threading.Event) -> Iterator[str]:
    """Yields the log lines of a destination that are written after this call, until `stopping` is set. If a log file was emptied or
    replaced, continues at the beginning of the file.
    """
    offsets = {file: file.stat().st_size for file in _logs(config)}
    while not stopping.wait(FOLLOW_SECONDS):
        for file, offset in list(offsets.items()):
            text, offsets[file] = _since(file, offset)
            yield from (line for line in text.splitlines() if concerns(line, name))


def concerns(line: str, name: str) -> bool:
    """Returns whether a log line has the field `destination` with this name."""
    return re.search(rf"\bdestination='?{re.escape(name)}'?(?![\w-])", line) is not None


def _logs(config: SluiceConfig) -> list[Path]:
    folder = config.data_dir / "logs"
    found = [folder / each for each in LOGS if (folder / each).exists()]
    if not found:
        raise SetupError(
            f"{folder} has no log of an engine, because `sluice up` has started no engine on this host; show the log on the "
            "engine's host"
        )
    return sorted(found, key=lambda file: file.stat().st_mtime)


def _tail(file: Path) -> str:
    """Returns the complete lines in the last TAIL_BYTES_MAX bytes of a log. If the log file has fewer bytes, also returns lines from the
    end of the previous log file (`.1`), up to TAIL_BYTES_MAX bytes in total.
    """
    size, before = file.stat().st_size, file.with_name(f"{file.name}.1")
    newest = _since(file, max(0, size - TAIL_BYTES_MAX))[0]
    if size >= TAIL_BYTES_MAX or not before.exists():
        return newest
    return _since(before, max(0, before.stat().st_size - (TAIL_BYTES_MAX - size)))[0] + newest


def _since(file: Path, offset: int) -> tuple[str, int]:
    """Returns the complete lines of a file after an offset, and the offset at the end of these lines. If the file is shorter than `offset`,
    because the file was emptied or replaced, reads the file from the beginning. Returns "" and the given offset if the file cannot be read.
    """
    try:
        with file.open("rb") as opened:
            opened.seek(offset if offset <= file.stat().st_size else 0)
            begun, content = opened.tell(), opened.read()
    except OSError:
        return "", offset
    whole = content[: content.rfind(b"\n") + 1]
    return whole.decode(errors="replace"), begun + len(whole)


def changed(directory: Path, name: str, text: str) -> bool:
    """Writes `text` to a destination's file in conf/ and returns True. If the file has this text already, writes nothing and returns False.
    Raises ConfigurationError if the name or the text is invalid, or if conf/ is pulled from a repository or archive. Raises SetupError if
    the file cannot be written.
    """
    if not NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} cannot be the name of a destination: use a lower-case letter, then at most 62 lower-case letters, digits or _"
        )
    if (remote := read_remote(directory)) is not None:
        raise ConfigurationError(
            f"conf/ is pulled from {remote.shown}: change {file_of(name)} in that repository or archive"
        )
    there = read_conf_files(directory)
    if there.destinations.get(name) == text:
        return False
    config_of(ConfFiles(directory, there.main, {**there.destinations, name: text}))
    try:
        replace_file(directory / file_of(name), text)
    except OSError as error:
        raise SetupError(
            f"{directory / file_of(name)} could not be written ({error.strerror}): free space on its disk, or "
            "permit writing to its folder"
        ) from error
    return True


def text_of(directory: Path, name: str) -> str:
    """Returns the current text of a destination's file in conf/. Raises ConfigurationError if the file does not exist."""
    there = read_conf_files(directory).destinations
    if name not in there:
        raise ConfigurationError(
            f"{directory / file_of(name)} does not exist; existing destinations: {', '.join(sorted(there))}"
        )
    return there[name]
