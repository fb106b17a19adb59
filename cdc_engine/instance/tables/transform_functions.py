"""Imports the functions of transforms and calls them with a time limit. Used by `value_policies`: in engines, in runs that read rows, and
in `sluice check`.

A function is identified by its module's file. The identity joins the digests of the table's rules, so an edited function re-snapshots the
table at the engine's next start, which imports it again. All functions of a module are of one import of it."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import importlib.util
import sys
import threading
import time
import traceback
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

import pyarrow as pa

from sluice.cdc_engine.binlog.row_rules.transform import Transform, TransformFailedError
from sluice.cdc_engine.config.rows import TransformConfig
from sluice.cdc_engine.errors import ConfigurationError

GROUP = "sluice.transforms"
DIGEST_CHARS = 16


def transform_of(name: str, settings: TransformConfig, destination: str = "") -> Transform:
    """Returns the transform of "database.table" of a destination. Raises ConfigurationError if its function cannot be imported.
    `destination` is empty if the transform is not called.
    """
    try:
        function = _loaded(settings.function)
        if not (settings.version or function.digest):
            raise ConfigurationError(f"{settings.function} has no file in which a change could be seen: set `version`")
    except ConfigurationError as error:
        raise ConfigurationError(f"tables.{name}.transform: {error}") from None
    return Transform(
        function=settings.function,
        reads=settings.reads,
        writes=settings.writes,
        drops=settings.drops,
        identity=f"version {settings.version}" if settings.version else function.digest,
        call=functools.partial(function.called, table=(destination, name), seconds_max=settings.seconds_max),
    )


@dataclasses.dataclass(eq=False)
class _Function:
    """An imported function. `file`: of its module; `digest`: of that file's content, empty if there is none.

    `late`: table, as (destination, "database.table") → the call for it that did not return in time. While that runs, no other call is
    made for this table, so that threads do not pile up.
    """

    function: Callable[[pa.RecordBatch], Any]
    file: str
    digest: str
    late: dict[tuple[str, str], threading.Thread] = dataclasses.field(default_factory=dict)

    def called(self, rows: pa.RecordBatch, *, table: tuple[str, str], seconds_max: float) -> Any:
        """Calls the function. Raises TransformFailedError if it raises, or does not return in time."""
        late = self.late.get(table)
        if late is not None and late.is_alive():
            raise TransformFailedError("an earlier call has not returned yet, which only a restart of the process ends")
        call = _Call(self.function, rows)
        thread = threading.Thread(target=call.run, name="transform", daemon=True)
        thread.start()
        thread.join(seconds_max)
        if thread.is_alive():
            self.late[table] = thread
            raise TransformFailedError(f"it did not return within {seconds_max:g} s (`seconds_max`)")
        if call.error is not None:
            raise TransformFailedError(_raised(call.error, self.file))
        return call.result


@dataclasses.dataclass(eq=False)
class _Call:
    """A call in a thread of its own, with its result or its error."""

    function: Callable[[pa.RecordBatch], Any]
    rows: pa.RecordBatch
    result: Any = None
    error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.function(self.rows)
        except BaseException as error:  # The function is not Sluice's and may raise any error.
            self.error = error


def _raised(error: BaseException, file: str) -> str:
    """Returns what was raised and where. The error's text is left out, because it may have values of rows."""
    frames = traceback.extract_tb(error.__traceback__)
    last = ([each for each in frames if each.filename == file] or frames)[-1]
    where = f"{Path(last.filename).name}:{last.lineno}"
    return f"it raised {type(error).__name__} at {where} (the error's text is not shown, because it may have values of rows)"


_FUNCTIONS: dict[str, _Function] = {}
_MODULES: dict[str, tuple[ModuleType, str]] = {}  # Name → the module as imported here, and the digest of its file then.
_IMPORTING = threading.Lock()
_BEGUN = time.time()  # A file that was not written since then is as it was when anything of this process imported it.


def _loaded(name: str) -> _Function:
    """Returns the function of a name in conf/. It is imported again if its file has changed; earlier transforms keep their function."""
    with _IMPORTING:
        there = _FUNCTIONS.get(name)
        if there is None or there.digest != _digest(there.file):
            there = _FUNCTIONS[name] = _imported(name)
        return there


def _imported(name: str) -> _Function:
    module_name, path = _located(name)
    module, digest = _module(module_name)
    found: Any = module
    for part in path.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        raise ConfigurationError(f"the module {module_name} has no function {path}: correct `function`")
    return _Function(found, _file(module), digest)


def _module(name: str) -> tuple[ModuleType, str]:
    """Returns a module, and the digest of the file that it was imported from. It is imported again if its file has changed."""
    there = sys.modules.get(name)
    if there is not None:
        digest = _digest(_file(there))
        if _is_current(name, there, digest):
            return there, digest
        del sys.modules[name]
        # The compiled file of an older source counts as current if both were written in one second and have one size.
        with contextlib.suppress(OSError):
            Path(importlib.util.cache_from_source(_file(there))).unlink()
    try:
        spec = importlib.util.find_spec(name)
        before = _digest(str(spec.origin)) if spec is not None and spec.has_location else ""
        module = importlib.import_module(name)
    except BaseException as error:  # The module is not Sluice's and may raise any error.
        raise ConfigurationError(
            f"the module {name} cannot be imported: {type(error).__name__}: {error}; install it in the environment of Sluice "
            f"({sys.prefix}), or name its folder in PYTHONPATH"
        ) from None
    if _digest(_file(module)) != before:
        raise ConfigurationError(f"the file of the module {name} changed while it was imported: start again")
    _MODULES[name] = module, before
    return module, before


def _is_current(name: str, module: ModuleType, digest: str) -> bool:
    """Returns whether an imported module's file, which has this digest now, is the one that it was imported from."""
    imported, before = _MODULES.get(name, (None, ""))
    if imported is module:
        return before == digest
    try:  # Something else imported it, perhaps before an edit.
        return not _file(module) or Path(_file(module)).stat().st_ctime < _BEGUN
    except OSError:
        return False


def _file(module: ModuleType) -> str:
    return str(getattr(module, "__file__", None) or "")


def _located(name: str) -> tuple[str, str]:
    """Returns module and function of a name in conf/."""
    module, colon, path = name.partition(":")
    if colon:
        return module, path
    found = {each.value: (each.module, each.attr) for each in entry_points(group=GROUP, name=name)}
    if len(found) != 1:
        installed = ", ".join(sorted({each.name for each in entry_points(group=GROUP)})) or "none"
        what = "is installed more than once" if found else "is not installed"
        raise ConfigurationError(f"{name} {what}: installed are {installed} (entry points of the group {GROUP})")
    return next(iter(found.values()))


def _digest(file: str) -> str:
    try:
        return hashlib.sha256(Path(file).read_bytes()).hexdigest()[:DIGEST_CHARS] if file else ""
    except OSError:
        return ""
