"""Reports all errors in conf/ at once, for `sluice check`. Opens no connection and starts no process except the commands that print
secrets.

`load_config` checks keys and values. This module also finds invalid regular expressions, and secrets that cannot be read from their
variable, file or command. Without this module, only the engine would find these errors, one at each start.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sluice.cdc_engine.config import SluiceConfig, TableConfig, load_config
from sluice.cdc_engine.config.alarms import AlarmConfig
from sluice.cdc_engine.config.conf_files import MAIN, file_of, mapping_of, read_conf_files, repeated_keys
from sluice.cdc_engine.errors import ConfFilesError, ConfigurationError, SecretUnavailableError
from sluice.cdc_engine.handlers.installed import problem_of
from sluice.cdc_engine.instance.tables.value_policies import rules_of
from sluice.cdc_engine.operation.handlers import handler_of
from sluice.cdc_engine.sink.column_filter import ColumnFilter
from sluice.cdc_engine.sink.table_filter import split_patterns
from sluice.secret_values import SecretLocation, SecretUnavailable, value_of
from sluice.secret_values.location import VARIABLE

# Matches a reference to an environment variable: either `$NAME`, or a URL whose password is `$NAME`. The group `whole` or `password` is the
# name of the variable.
_VARIABLE = re.compile(
    rf"\$(?P<whole>{VARIABLE.pattern})|[a-z][a-z0-9+]*://[^/@]*:\$(?P<password>{VARIABLE.pattern})@.*"
)
_NAMES_VARIABLE = "env"  # `{env: NAME}` means the same as `$NAME`.
# Settings whose secrets are checked elsewhere: `_rule_problems` reads the secrets in `salt`, and `console.lake.store` reads those in
# `storage_options`.
_CHECKED_ELSEWHERE = frozenset({"salt", "storage_options"})


def conf_problems(conf: Path) -> list[str]:
    """Returns a message for each problem in conf/, with the name of the file. For a file that cannot be parsed, returns only one
    message.
    """
    try:
        config = load_config(conf)
        problems = [f"{MAIN}: {each}" for each in _alarm_problems(config.alarms)]
        problems += _broker_problems(config)
    except ConfFilesError as error:
        problems = list(error.problems)
    except ConfigurationError as error:
        problems = [str(error).removeprefix(f"{conf}: ")]
    try:
        files = read_conf_files(conf)
    except ConfigurationError:
        return problems
    problems += [
        f"destinations/{path.name} is not read: give the file a name that ends in .yaml"
        for path in sorted((conf / "destinations").glob("*.yml"))
    ]
    texts = {MAIN: files.main, **{file_of(name): text for name, text in sorted(files.destinations.items())}}
    problems += [f"{file}: {each}" for file, text in texts.items() for each in repeated_keys(text)]
    problems += [f"{MAIN}: {each}" for each in _secret_problems(_record(files.main), conf.parent)]
    for name, text in sorted(files.destinations.items()):
        problems += [f"{file_of(name)}: {each}" for each in _destination_problems(_record(text), conf.parent)]
    return problems


def _alarm_problems(alarms: Sequence[AlarmConfig]) -> Iterator[str]:
    """Yields a message for each alarm that no engine could send, because the location of its URL contains no URL, or because its file with
    certificate authorities cannot be read. `_secret_problems` reports secrets that cannot be read.
    """
    for alarm in alarms:
        try:
            handler_of(alarm)
        except SecretUnavailableError:
            continue
        except ConfigurationError as error:
            yield str(error)


def unset_passwords(record: dict[str, Any]) -> list[str]:
    """Returns the names of the environment variables that should contain the passwords of a destination's sources but are not set. `record`
    is the content of the destination's file.
    """
    several = record.get("sources")
    sources = several if isinstance(several, list | tuple) and several else [record.get("source")]
    texts = [source.get("password") for source in sources if isinstance(source, dict)]
    names = {_variable_of("password", text) for text in texts if isinstance(text, str)}
    return sorted(name for name in names if name and name not in os.environ)


def _destination_problems(record: dict[str, Any], root: Path) -> Iterator[str]:
    for key in ("include", "exclude"):
        for pattern in split_patterns(str(record.get(key) or "")):
            try:
                re.compile(pattern)
            except re.error as error:
                yield f"{key}: the pattern {pattern!r} is not a regular expression ({error})"
    columns = ColumnFilter(str(record.get("column_include") or ""), str(record.get("column_exclude") or ""))
    for item in columns.ignored:
        yield f"column_include, column_exclude: {item!r} must have the form database.table:column/column"
    yield from _rule_problems(record, root)
    yield from _handler_problems(record)
    yield from _secret_problems(record, root)


def _broker_problems(config: SluiceConfig) -> Iterator[str]:
    """Yields a message for each broker whose filter or rules for topics and partitions are invalid."""
    for name, stream in config.streams.items():
        for number, broker in enumerate(stream.brokers):
            # Imports the kernels, which takes a second, only if there is a broker.
            from sluice.cdc_engine.instance.consumers.client_filter import client_tables  # noqa: PLC0415
            from sluice.cdc_engine.instance.consumers.forms import Forms  # noqa: PLC0415
            from sluice.cdc_engine.instance.consumers.sending import message_maker  # noqa: PLC0415

            try:
                client_tables(broker.filter)
                message_maker(broker, Forms())
            except ConfigurationError as error:
                yield f"{file_of(name)}: brokers.{number}: {error}"


def _secret_problems(record: dict[str, Any], root: Path) -> Iterator[str]:
    """Yields a message for each secret that cannot be read. The message names the secret's key in conf/. Without this check, the error
    would appear only when a process starts. Relative paths start in `root`.
    """
    for setting, text in _texts(record):
        name = _variable_of(setting.rpartition(".")[2], text)
        if name and name not in os.environ:
            yield f"{setting}: the environment variable {name} is not set"
    for setting, location in _locations(record):
        try:
            _ = value_of(SecretLocation(file=root / location.file) if location.file else location, setting)
        except SecretUnavailable as error:
            yield str(error)


def _locations(value: Any, setting: str = "") -> Iterator[tuple[str, SecretLocation]]:
    """Yields (key, location) for each secret that is in a file or printed by a command. `value` is the value of conf/ at the key `setting`.
    Searches all keys below this key, except those in _CHECKED_ELSEWHERE. Ignores malformed locations, because `load_config` reports them.
    """
    if isinstance(value, list):
        for number, part in enumerate(value):
            yield from _locations(part, f"{setting}.{number}" if setting else str(number))
    if not isinstance(value, dict):
        return
    for name, part in value.items():
        key = f"{setting}.{name}" if setting else str(name)
        if name in {"file", "command"} and len(value) == 1 and part:
            if name == "file" and isinstance(part, str):
                yield key, SecretLocation(file=Path(part))
            elif isinstance(part, list):
                yield from _commands(key, part)
        elif name not in _CHECKED_ELSEWHERE:
            yield from _locations(part, key)


def _commands(key: str, part: list[Any]) -> list[tuple[str, SecretLocation]]:
    """Returns [(key, location)] for a secret that a command prints. `part` is the command with its arguments. Returns an empty list if the
    command is malformed.
    """
    try:
        return [(key, SecretLocation(command=tuple(part)))]
    except ValueError:
        return []


def _variable_of(key: str, text: str) -> str:
    """Returns the name of the environment variable to which a value of conf/ refers. The value is a reference as a whole, or a URL whose
    password is a reference. A value with the key `env` is the name itself. Returns "" if the value refers to no variable.
    """
    if key == _NAMES_VARIABLE:
        return text
    found = _VARIABLE.fullmatch(text)
    return (found["whole"] or found["password"]) if found else ""


def _texts(value: Any, setting: str = "") -> Iterator[tuple[str, str]]:
    """Yields (key, text) for each text in `value`, which is the value of conf/ at the key `setting`. Searches all keys below this key,
    except those in _CHECKED_ELSEWHERE. A key has the form `alarms.0.url`.
    """
    if isinstance(value, str):
        yield setting, value
        return
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, part in parts:
        if name not in _CHECKED_ELSEWHERE:
            yield from _texts(part, f"{setting}.{name}" if setting else str(name))


def _record(text: str) -> dict[str, Any]:
    """Returns the keys and values in the text of a file. Returns {} if the text cannot be parsed, because `load_config` reports this."""
    return mapping_of("", text, [])


def _handler_problems(record: dict[str, Any]) -> Iterator[str]:
    """Yields a message for each handler that is not installed. Ignores malformed settings, because `load_config` reports them."""
    handlers = record.get("handlers")
    for handler in handlers if isinstance(handlers, list) else ():
        if isinstance(handler, dict) and (why := problem_of(str(handler.get("name", "")))):
            yield f"handlers: {why}"


def _rule_problems(record: dict[str, Any], root: Path) -> Iterator[str]:
    """Yields a message for each condition in `rows` that cannot be parsed, and for each salt of a mask that cannot be read. Ignores
    malformed settings, because `load_config` reports them.
    """
    tables = record.get("tables")
    for name, table in tables.items() if isinstance(tables, dict) else ():
        with contextlib.suppress(ValidationError):
            try:
                rules_of(str(name), TableConfig.model_validate(table, context={"root": root}))
            except ConfigurationError as error:
                yield str(error)
