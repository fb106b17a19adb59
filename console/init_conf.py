"""Implements `sluice init URL`: connects to a source, prints the statements that an administrator must still execute there, and writes
conf/ for the source. Never writes the password.

Loads and checks the written files before it reports success. Does not change existing files. If the source meets all requirements, `main`
runs `sluice check` afterwards.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import typer
import yaml
from pydantic import ValidationError

from sluice.cdc_engine.config import DestinationConfig, SluiceConfig, load_config
from sluice.cdc_engine.errors import ConfigurationError, SourceCheckError
from sluice.cdc_engine.instance.discovery import SourceSchema
from sluice.cdc_engine.instance.sources import source_of
from sluice.cdc_engine.parser.connection import SourceConnection
from sluice.cdc_engine.parser.server_facts import ServerFacts
from sluice.cdc_engine.parser.source_check import (
    advice_of,
    check_source,
    failover_sentence,
    missing_privileges,
    source_warnings,
)
from sluice.cdc_engine.source.settings import SourceConfig
from sluice.cdc_engine.table_meta.schema import is_of_users
from sluice.cdc_engine.table_meta.table_list.sentences import keyless_sentence
from sluice.console.keyless_check import find_keyless
from sluice.console.source.query import oldest_sentence, query_source
from sluice.console.toolchain.errors import SetupError

NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")
ACCOUNT = re.compile(r" TO ((?:`[^`]*`|'[^']*')@(?:`[^`]*`|'[^']*'))")
BASTION = re.compile(r"(?P<user>[^@\s-][^@\s]*)@(?P<host>[^@:\s-][^@:\s]*)(:(?P<port>\d{1,5}))?")
GHOST_TABLES = "_.*_(gho|ghc|del|new|old)"
SYSTEM_DATABASES = str(DestinationConfig.model_fields["exclude"].default)
EXAMPLE = "mysql://user@host:3306/database"
SLUICE_YAML = """\
# Every key may be left out; docs/reference/settings.md lists them. Relative paths start in the folder that holds conf/.
data_dir: data
lake: data/lake
"""


@dataclasses.dataclass(frozen=True)
class NamedSource:
    """The source that the URL on the command line describes, and the name of the new destination. An empty `database` means all
    databases.
    """

    name: str
    host: str
    port: int
    user: str
    database: str

    @property
    def variable(self) -> str:
        return f"SLUICE_{self.name.upper()}_PASSWORD"

    @property
    def include(self) -> str:
        return rf"{self._pattern}\..*" if self.database else r".*\..*"

    @property
    def exclude(self) -> str:
        """Patterns that match the temporary tables of gh-ost and pt-online-schema-change, and the server's own databases if all databases
        are captured. The new file has its own `exclude`, so the default of this setting does not apply.
        """
        if not self.database:
            return rf"{SYSTEM_DATABASES},.*\.{GHOST_TABLES}"
        return rf"{self._pattern}\.{GHOST_TABLES}"

    @property
    def _pattern(self) -> str:
        """The database's name as a regular expression. A comma is escaped too, because it would begin another pattern."""
        return re.escape(self.database).replace(",", r"\,")

    def source(self, login: SourceLogin) -> dict[str, Any]:
        """Returns the keys of the setting `source` for the destination's file."""
        return {"host": self.host, "port": self.port, "user": self.user, **login.settings()}

    def destination(self, login: SourceLogin, root: Path) -> DestinationConfig:
        """Returns the settings of the destination that the new file will contain. `root` is the folder that contains conf/. Raises
        ConfigurationError if a setting is invalid.
        """
        try:
            source = SourceConfig.model_validate(self.source(login), context={"root": root})
        except ValidationError as error:
            raise ConfigurationError("; ".join(str(each["msg"]) for each in error.errors())) from None
        return DestinationConfig(name=self.name, source=source, include=self.include, exclude=self.exclude)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceLogin:
    """The location of the source's password, and the SSH bastion. Either `variable` is an environment variable with the password, or `file`
    is a file with the password, which is read at each connect. `bastion` is user@host or user@host:port, or empty if there is no bastion.
    `key_file` and `known_hosts_file` are the private key and the file with the bastion's host key. If one of them is empty, ssh uses its
    own default.
    """

    variable: str = ""
    file: str = ""
    bastion: str = ""
    key_file: str = ""
    known_hosts_file: str = ""

    def settings(self) -> dict[str, Any]:
        """Returns the password and the bastion as keys of the setting `source`. Raises ConfigurationError if the options contradict each
        other.
        """
        if self.variable and self.file:
            raise ConfigurationError(
                "--password-env and --password-file both name the location of the password: leave one of the two out"
            )
        password: dict[str, Any] = {"password": {"file": self.file} if self.file else f"${self.variable}"}
        if not self.bastion:
            if self.key_file or self.known_hosts_file:
                raise ConfigurationError(
                    "--ssh-key and --ssh-known-hosts need a bastion: name the bastion with --ssh user@host"
                )
            return password
        found = BASTION.fullmatch(self.bastion)
        if found is None:
            raise ConfigurationError(
                f"{self.bastion!r} is not the address of a bastion: write --ssh user@host, or user@host:port"
            )
        files = {"key_file": self.key_file, "known_hosts_file": self.known_hosts_file}
        port = {"port": int(found["port"])} if found["port"] else {}
        ssh = {
            "host": found["host"],
            **port,
            "user": found["user"],
            **{key: file for key, file in files.items() if file},
        }
        return {**password, "ssh": ssh}


def parse_url(url: str, name: str = "") -> NamedSource:
    """Parses the URL of a source. `name` is the name of the destination, or empty to derive it from the database. If the URL is malformed,
    raises ConfigurationError, whose message says what to write instead.
    """
    try:
        parts = urlsplit(url)
        port = parts.port or 3306
    except ValueError:
        # Does not show urllib's message, because the message quotes the text after the last colon, and this text may be a part of a
        # password.
        raise ConfigurationError(
            f"the URL cannot be read: its host or port is not valid; write {EXAMPLE}, and put the password into an environment variable"
        ) from None
    if parts.scheme not in {"mysql", "mariadb"} or not parts.hostname or not parts.username:
        raise ConfigurationError(f"the URL does not name a user and a host of MySQL or MariaDB; write {EXAMPLE}")
    if parts.password is not None:
        raise ConfigurationError(
            f"the URL contains a password, which the shell's history keeps; write {EXAMPLE} and put the "
            "password into an environment variable"
        )
    if parts.query or parts.fragment:
        # Does not show the query, because it may contain a password.
        raise ConfigurationError(
            f"the URL has a part after ? or #, which `sluice init` does not read; write {EXAMPLE}, write ? and # in a name as %3F and %23, "
            "and for TLS set `tls` under `source` in the written file"
        )
    database = unquote(parts.path.strip("/"))
    name = name or re.sub(r"\W+", "_", database.lower()).strip("_") or "source"
    if not NAME.fullmatch(name):
        raise ConfigurationError(
            f"{name!r} cannot name a destination: give another name with --name, a lower-case letter and then at most 62 "
            "lower-case letters, digits or _"
        )
    return NamedSource(name, parts.hostname, port, unquote(parts.username), database)


def prompt_variable(wanted: NamedSource) -> str:
    """Prompts for the name of the environment variable with the password. Raises SetupError if the user gives no answer, for example
    because a script runs the command without standard input.
    """
    try:
        return str(typer.prompt("Environment variable that holds the password", default=wanted.variable))
    except typer.Abort:
        typer.echo()  # Ends the line of the question.
        raise SetupError(
            "the name of the environment variable with the password was not entered: give the name with --password-env NAME, or the "
            "password's file with --password-file FILE"
        ) from None


def init_conf(wanted: NamedSource, login: SourceLogin, conf: Path, say: Callable[[str], None]) -> bool:
    """Writes conf/ if the source answers. Returns whether the source meets all requirements of Sluice.

    `say` is called with each line of the command's output. Raises ConfigurationError, and writes nothing, if the destination's file exists
    already, the password cannot be read, or the database does not exist. An account without SELECT sees no database, so then the database
    is not checked. Raises SourceConnectionError if the source does not answer.
    """
    file = conf / "destinations" / f"{wanted.name}.yaml"
    if file.exists():
        raise ConfigurationError(
            f"{file} exists already; change that file by hand, or give the new destination another name with --name"
        )
    settings = wanted.destination(login, conf.absolute().parent)
    answer = query_source(settings)
    oldest = oldest_sentence(answer.facts, time.time())
    say(f"{wanted.user}@{wanted.host}:{wanted.port} answers: {answer.facts.version}{oldest}")
    for warning in source_warnings(answer.facts):
        say(f"note: {warning}")
    say(f"failover: {failover_sentence(answer.facts)}")
    problems: list[str] = []
    try:
        check_source(answer.source, answer.facts)
    except SourceCheckError as error:
        problems = error.problems
    for problem in problems:
        say(f"missing: {problem}")
    privileges = missing_privileges(answer.facts)
    # `privileges` are the missing privileges. The checks in this branch need SELECT, because an account without SELECT sees no database and
    # no table.
    if "SELECT" not in privileges:
        _require_database(settings, wanted)
        keyless = find_keyless(SourceSchema(settings))
        notes = [keyless_sentence(wanted.name, keyless.names)] if keyless.names else []
        for note in (*notes, *keyless.notes):
            say(f"note: {note}")
        problems += keyless.problems
        for problem in keyless.problems:
            say(f"missing: {problem}")
        privileges += ["LOCK TABLES"] if keyless.problems else []
    else:
        # A snapshot of a table without a key may need LOCK TABLES. Without SELECT, Sluice cannot find out whether such tables exist, so the
        # GRANT contains LOCK TABLES in any case.
        privileges.append("LOCK TABLES")
    if privileges:
        administrator = advice_of(answer.facts).administrator
        say(f"run as {administrator}:\n    {grant(privileges, answer.facts, wanted.user)}")
    _write(conf, file, wanted, login)
    say(f"wrote {file}{'; then run `sluice check`' if problems else ''}")
    return not problems


def _require_database(settings: DestinationConfig, wanted: NamedSource) -> None:
    """Raises ConfigurationError if the user sees no database with the name in the URL. The message lists the visible databases."""
    if not wanted.database:
        return
    with contextlib.closing(SourceConnection(source_of(settings))) as connection:
        there = [str(next(iter(row.values()))) for row in connection.rows("SHOW DATABASES")]
    if wanted.database not in there:
        users = [name for name in sorted(there) if is_of_users(name)]
        raise ConfigurationError(
            f"{wanted.host}:{wanted.port} has no database {wanted.database!r} that {wanted.user} may see; the "
            f"user may see {', '.join(users) or 'no database'}: correct the URL, or create the database, or "
            "grant SELECT on it. Nothing was written"
        )


def grant(privileges: list[str], facts: ServerFacts, user: str) -> str:
    """Returns the GRANT statement for the missing privileges. Takes the account, such as 'sluice'@'10.%', from the output of SHOW GRANTS.
    If this output names no account, the account is `user` on the host '%'.
    """
    account = next((found[1] for each in facts.grants if (found := ACCOUNT.search(each))), f"'{user}'@'%'")
    return f"GRANT {', '.join(privileges)} ON *.* TO {account};"


def _write(conf: Path, file: Path, wanted: NamedSource, login: SourceLogin) -> SluiceConfig:
    """Writes the destination's file, and conf/sluice.yaml if it does not exist. Returns the configuration. Raises OSError if a file cannot
    be written, and ConfigurationError if conf/ is invalid with the new files. After an error, conf/ has none of the new files.
    """
    head = (
        "# Written by `sluice init`. The file's name is the destination's name: the file's name must not change "
        "later.\n"
    )
    tables = {"include": wanted.include, "exclude": wanted.exclude, "snapshot": "initial"}
    text = head + yaml.safe_dump({"source": wanted.source(login), **tables}, sort_keys=False)
    common = conf / "sluice.yaml"
    texts = {file: text} if common.exists() else {common: SLUICE_YAML, file: text}
    file.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as undo:
        for path, content in texts.items():
            undo.callback(path.unlink, missing_ok=True)
            path.write_text(content)
        config = load_config(conf)
        undo.pop_all()
    return config
