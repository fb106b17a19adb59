"""Implements `sluice check`: examines everything that could prevent Sluice from running, and reports all problems at once."""

from __future__ import annotations

import dataclasses
import os
import shutil
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from urllib.parse import urlsplit

from sluice.cdc_engine.config import DestinationConfig, GroupConfig, SluiceConfig, load_config
from sluice.cdc_engine.config.conf_files import remote_record
from sluice.cdc_engine.config.locations import is_in_a_store
from sluice.cdc_engine.config.remote.record import problems as remote_problems
from sluice.cdc_engine.config.remote.record import sentence
from sluice.cdc_engine.destination_files import known_installation_id
from sluice.cdc_engine.errors import ConfigurationError, SluiceError, SourceCheckError
from sluice.cdc_engine.instance.discovery import SourceSchema
from sluice.cdc_engine.instance.sources import source_of
from sluice.cdc_engine.parser.shared.sharing import key_of
from sluice.cdc_engine.parser.source_check import check_source, failover_sentence, source_warnings
from sluice.cdc_engine.sink.table_filter import TableFilter
from sluice.cdc_engine.states import ended
from sluice.cdc_engine.table_meta.table_list.sentences import foreign_key_notes, keyless_sentence
from sluice.console.conf_check import conf_problems, unset_passwords
from sluice.console.dagster_check import check_dagster
from sluice.console.keyless_check import find_keyless
from sluice.console.reader_check import examine_reader
from sluice.console.shards_check import shards_problems, shards_sentence, shards_warnings
from sluice.console.side_tables_check import rules_problems, side_table_problems, side_tables_sentence
from sluice.console.source.query import known_path_clashes, oldest_sentence, query_source
from sluice.console.stack.processes import ProcessFile
from sluice.console.stack.spark_server import several_sparks
from sluice.console.stack.stack import SPARK, Stack
from sluice.console.status.include_check import unmatched_warnings
from sluice.console.status.report import read_destination
from sluice.console.toolchain.java import Java, inspect_java
from sluice.console.toolchain.process import why_no_run_can_start
from sluice.console.transforms_check import transform_problems, transform_warnings, transforms_sentence

# If the disk of data_dir or of a local lake has less free space than this, in bytes, `sluice check` reports a problem. Staged batches,
# spilled transactions and old Delta files need space.
FREE_BYTES_MIN = 2 << 30
CONNECT_SECONDS_MAX = 5.0
UNANSWERED = (
    "not checked, because the source could not be read: correct the problems of the source that `sluice check` reports"
)
WARNINGS_SHOWN = 3  # Without --verbose, at most this many warnings per finding are shown.


@dataclasses.dataclass(frozen=True)
class Finding:
    """The result of one check. `what` describes what was checked and found. `brief` is a shorter form of `what`, or empty if `what` is
    short enough. `problems` prevent Sluice from running, and `warnings` do not.
    """

    what: str
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    brief: str = ""

    def lines(self, *, verbose: bool) -> tuple[str, ...]:
        """Returns the lines to print: `what`, all problems, and all warnings. If `verbose` is False, shortens the lines: a `brief` that is
        not empty replaces `what`. Of more than WARNINGS_SHOWN warnings, only the first WARNINGS_SHOWN are returned, and a line with the
        number of further warnings.
        """
        warnings = self.warnings if verbose else self.warnings[:WARNINGS_SHOWN]
        left = len(self.warnings) - len(warnings)
        more = (f"… and {left} more: `sluice check --verbose`",) if left else ()
        return (self.what if verbose else self.brief or self.what, *self.problems, *warnings, *more)


def problems_first(findings: Iterable[Finding]) -> list[Finding]:
    """Returns the findings in this order: those with problems, those with warnings, and the others. Within each group, the order stays the
    same.
    """
    return sorted(findings, key=lambda each: (not each.problems, not each.warnings))


def run_checks(conf: Path) -> Iterator[Finding]:
    """Runs all checks, and yields each finding as soon as it is known. If conf/ is invalid, checks only conf/ and Java."""
    problems = conf_problems(conf)
    try:
        config = load_config(conf)
    except ConfigurationError:
        yield Finding(f"configuration in {conf}", tuple(problems))
        yield check_java()
        return
    yield check_configuration(config, conf, problems)
    if (pulled := remote_record(conf)) is not None:
        yield Finding(sentence(pulled), tuple(remote_problems(pulled)))
    for name in sorted(config.destinations):
        yield check_engine(config, name)
        yield from check_sources(as_replica(config, name))
        yield from check_reader(config.destinations[name])
        schema = SourceSchema(config.destinations[name])
        yield check_include(schema)
        yield Finding(policy_sentence(config.destinations[name]))
        yield check_foreign_keys(schema)
        yield check_keyless(schema)
    yield from (Finding(group_sentence(group)) for _, group in sorted(config.groups.items()))
    yield check_shared(config)
    yield Finding("Delta paths of all tables", tuple(known_path_clashes(config)))
    yield Finding(side_tables_sentence(config), tuple(side_table_problems(config)))
    yield Finding(shards_sentence(config), tuple(shards_problems(config)), tuple(shards_warnings(config)))
    yield Finding("rows and masks of existing tables", tuple(rules_problems(config)))
    yield Finding(transforms_sentence(config), tuple(transform_problems(config)), tuple(transform_warnings(config)))
    yield check_dagsters_settings(config, conf)
    yield from check_spark(config, conf)
    if stores := [f"{what} at {url}" for what, url in _stores(config)]:
        yield check_store(config, conf, stores)
    yield check_semaphores()
    yield from (check_disk(what, folder) for what, folder in _folders(config))


def check_configuration(config: SluiceConfig, conf: Path, problems: Sequence[str]) -> Finding:
    what = f"configuration in {conf}: {', '.join(sorted(config.destinations)) or 'no destination'}"
    missing = f"conf/ has no destination; describe one in {conf / 'destinations'}/NAME.yaml"
    return Finding(what, tuple(problems) if config.destinations else (*problems, missing))


def check_shared(config: SluiceConfig) -> Finding:
    """Lists the destinations that share one stream of their server. Warns of each destination with `stream: shared` that shares its stream
    with no other destination.
    """
    sharers: dict[tuple[str, ...], list[str]] = {}
    for name, destination in sorted(config.destinations.items()):
        if destination.stream == "shared":
            sharers.setdefault(key_of(source_of(destination)), []).append(name)
    sentences = [f"{', '.join(names)} share one stream of {key[0]}" for key, names in sharers.items() if len(names) > 1]
    alone = [
        f"{names[0]} has stream: shared, but no other destination with this setting reads {key[0]} as "
        f"{key[1]} in the same tls mode, so {names[0]} uses a connection of its own"
        for key, names in sharers.items()
        if len(names) == 1
    ]
    return Finding(
        f"streams: {'; '.join(sentences) or 'each destination has a connection of its own'}", warnings=tuple(alone)
    )


def check_engine(config: SluiceConfig, name: str) -> Finding:
    """Reports why the engine of a destination cannot start or has ended, according to status.json, the file in which the engine records its
    state.
    """
    one = read_destination(config.destination_dir(name), name, time.time())
    problem = (f"{one.state}: {one.reason}",) if ended(one.state) else ()
    return Finding(f"engine of {name}", problem)


def as_replica(config: SluiceConfig, name: str) -> DestinationConfig:
    """Returns a destination's settings with the installation's id, from which the engine derives its replica id. Without the installation's
    id, the check would use another replica id than the engine, and would take the engine's own connection for another replica.
    """
    try:
        return config.destinations[name].of_installation(known_installation_id(config.ledger_location(name)))
    except SluiceError:  # The shared ledger does not answer. Another check reports this.
        return config.destinations[name]


def check_sources(destination: DestinationConfig) -> Iterator[Finding]:
    """Checks every source, including standby sources, so that problems are known before a failover. Skips a source if the variable of its
    password is not set, because the check of conf/ reports this.
    """
    for given in destination.sources or (destination.source,):
        if not unset_passwords({"source": given.model_dump()}):
            yield check_destination(destination.model_copy(update={"source": given}))


def check_destination(destination: DestinationConfig) -> Finding:
    """Connects to the source of a destination, and reports every problem because of which the engine would refuse to start."""
    what = (
        f"source of {destination.name}: {destination.source.user}@{destination.source.host}:{destination.source.port}"
    )
    try:
        answer = query_source(destination)
    except SluiceError as error:
        return Finding(what, (str(error),))
    what = f"{what}, {answer.facts.version}{oldest_sentence(answer.facts, time.time())}"
    warnings = source_warnings(answer.facts, destination.retention_hours_min)
    if answer.facts.gtid_enabled:
        what = f"{what}; {failover_sentence(answer.facts)}"
    elif destination.failover == "by_gtid":
        warnings.append(failover_sentence(answer.facts))
    try:
        captured = TableFilter(destination.include, destination.exclude).keeps
        check_source(answer.source, answer.facts, captured=captured)
        return Finding(what, warnings=tuple(warnings))
    except SourceCheckError as error:
        return Finding(what, tuple(error.problems), tuple(warnings))
    except SluiceError as error:
        return Finding(what, (str(error),))


def check_reader(destination: DestinationConfig) -> Iterator[Finding]:
    """Checks the replica that conf/ names as `reader`. Sluice reads rows from this replica instead of from the source. Yields nothing if
    conf/ names no reader.
    """
    found = examine_reader(destination)
    if found is not None:
        yield Finding(found.what, found.problems)


def check_foreign_keys(schema: SourceSchema) -> Finding:
    """Lists the foreign keys that change rows of captured tables without row events. Warns of each foreign key whose changes Sluice does
    not make in the lake.
    """
    destination = schema.destination
    try:
        notes = foreign_key_notes(schema.foreign_keys(), destination.cascade_policy)
    except SluiceError as error:
        return Finding(
            f"foreign keys of {destination.name}",
            (
                f"the foreign keys could not be read from the source: {error}; correct the cause, then run `sluice check` again",
            ),
        )
    if not notes:
        return Finding(f"foreign keys of {destination.name}: none changes rows of captured tables without row events")
    followed = [f"{note.table}: {note.sentence}" for note in notes if note.followed]
    others = tuple(f"{note.table}: {note.sentence}" for note in notes if not note.followed)
    what = f"foreign keys of {destination.name}: "
    brief = f"{what}{len(notes)} change rows without row events; the lake gets the changes of {len(followed)}"
    return Finding(
        f"{what}{'; '.join(followed) or 'the lake gets the changes of none'}",
        warnings=others,
        brief=brief,
    )


def check_include(schema: SourceSchema) -> Finding:
    """Warns of each pattern in `include` that matches no table, and of each setting for a table or column that is not captured."""
    destination = schema.destination
    try:
        warnings = tuple(unmatched_warnings(destination, schema.captured))
    except SluiceError:
        warnings = (UNANSWERED,)
    return Finding(f"include of {destination.name}", warnings=warnings)


def check_keyless(schema: SourceSchema) -> Finding:
    """Lists the captured tables without a key, and says how the lake stores them. A snapshot locks such a table if Sluice's user may lock
    tables of its database. If the user may not, a snapshot may still read the tables of the database without a lock, in several attempts.
    Reports a warning for each database in which this is possible, and a problem for each database in which it is not.
    """
    destination = schema.destination
    try:
        found = find_keyless(schema)
    except SluiceError:
        return Finding(f"tables without a key of {destination.name}", warnings=(UNANSWERED,))
    names = found.names
    sentences = (keyless_sentence(destination.name, names),) if names else ()
    what = f"tables without a key of {destination.name}: "
    return Finding(
        f"{what}{', '.join(names) or 'none'}",
        found.problems,
        (*sentences, *found.notes),
        brief=f"{what}{len(names) or 'none'}",
    )


def group_sentence(group: GroupConfig) -> str:
    """Returns a sentence that lists the members of a group, and says how long the group's consumers wait for a member that does not run."""
    then = (
        "consumers wait for a member that does not run"
        if group.wait_seconds is None
        else f"consumers wait {group.wait_seconds:g} s for a member that does not run"
    )
    return f"group {group.name}: the transactions of {', '.join(group.members)} in the order of their commits; {then}"


def policy_sentence(destination: DestinationConfig) -> str:
    """Returns a sentence that says which kinds of schema changes Sluice makes in the lake, and which it leaves to an operator (policy
    `hold` or `stop`). The sentence also lists the tables whose policies differ from those of the destination.
    """

    def spoken(policy: dict[str, str]) -> str:
        waits = [kind for kind, plan in policy.items() if plan in {"hold", "stop"}]
        follows = [f"{kind} ({plan})" for kind, plan in policy.items() if kind not in waits]
        return f"made in the lake: {', '.join(follows) or 'none'}; left to an operator: {', '.join(waits) or 'none'}"

    general = destination.schema_changes.model_dump()
    own = {name: destination.schema_policy(*name.split(".", 1)) for name in sorted(destination.tables) if "." in name}
    tables = [f"; {name}: {spoken(policy)}" for name, policy in own.items() if policy != general]
    return f"schema changes of {destination.name}: {spoken(general)}{''.join(tables)}"


def check_spark(config: SluiceConfig, conf: Path) -> Iterator[Finding]:
    """Checks the Spark that conf/ configures for runs, and that several hosts which write one lake in S3 share one Spark.

    If each run starts its own Spark, checks Java. If `sluice up` starts the Spark server, checks Java, and that no other program listens on
    the server's port. Otherwise, the server must answer, and its executors are checked for the packages of small merges.
    """
    if why := several_sparks(config, conf):
        yield Finding("one Spark commits to the lake", (why,))
    if config.spark.master:
        yield Finding(f"Spark: a session inside each run on {config.spark.master}")
        yield check_java()
        return
    endpoint = urlsplit(config.spark.remote)
    host, port = endpoint.hostname or "", endpoint.port or 15002
    answers = _answers(host, port)
    if not Stack(config, conf, _silent).starts_spark:
        problem = f"no server answers at {host}:{port}; start the Spark Connect server or correct spark.remote"
        yield Finding(f"Spark at {config.spark.remote}", () if answers else (problem,))
        if answers:
            yield check_small_merges(config)
        return
    running = SPARK in ProcessFile(config.data_dir / "processes.json").running()
    stopped = "" if answers else " (not running; `sluice up` starts it)"
    other_program = (
        f"another program listens on port {port}; stop that program, or set ports.spark_connect and spark.remote"
    )
    yield Finding(f"Spark at {config.spark.remote}{stopped}", (other_program,) if answers and not running else ())
    yield check_java()


def check_dagsters_settings(config: SluiceConfig, conf: Path) -> Finding:
    """Checks whether dagster.yaml contains the settings that Sluice needs, and whether Dagster's storage in Postgres answers."""
    found = check_dagster(conf, config)
    return Finding(f"Dagster's settings in {found.file}", found.problems, found.warnings)


def check_java() -> Finding:
    """Checks the Java in JAVA_HOME or, if JAVA_HOME is not set, the Java on PATH. If there is neither, reports no problem, because `sluice
    setup` installs a Java.
    """
    home = os.environ.get("JAVA_HOME")
    program = Path(home) / "bin" / "java" if home else shutil.which("java")
    if not program:
        return Finding("Java: none on PATH; `sluice setup` finds or installs one")
    found = inspect_java(Path(program))
    return Finding(f"Java {found.version}: {program}") if isinstance(found, Java) else Finding("Java", (found,))


def check_small_merges(config: SluiceConfig) -> Finding:
    """Warns if the executors of a Spark that `sluice up` does not start lack the packages that small merges need. The Spark that `sluice
    up` starts always has these packages, so it is not checked.
    """
    from sluice.spark_jobs.errors import SparkUnavailableError  # noqa: PLC0415
    from sluice.spark_jobs.session import SparkSettings  # noqa: PLC0415  pyspark takes a second to import
    from sluice.spark_jobs.small.job import why_not_on_executors  # noqa: PLC0415

    what = "small tables are merged together on Spark's executors"
    try:
        why = why_not_on_executors(SparkSettings(remote=config.spark.remote))
    except SparkUnavailableError as error:
        return Finding(what, (), (str(error),))
    return Finding(what, (), (why,) if why else ())


def check_store(config: SluiceConfig, conf: Path, stores: list[str]) -> Finding:
    """Checks whether this host can use the object stores of the lake and of staged batches. Sends requests of the same kinds as the engine
    and runs send. `stores` has the description of each store for the output.
    """
    from sluice.console.lake.store import store_findings  # noqa: PLC0415

    ours = not config.spark.master and Stack(config, conf, _silent).starts_spark
    problems, warnings = store_findings(config, starts_spark=ours)
    return Finding(", ".join(stores), tuple(problems), tuple(warnings))


def check_semaphores() -> Finding:
    problem = why_no_run_can_start()
    return Finding("semaphores of runs", (problem,) if problem else ())


def check_disk(what: str, folder: Path) -> Finding:
    """Checks free space and write permission of a folder. If the folder does not exist, checks its nearest existing parent. `what` is the
    name of the folder in the output.
    """
    existing = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free_bytes = shutil.disk_usage(existing).free
    problems = []
    if free_bytes < FREE_BYTES_MIN:
        problems.append(
            f"only {free_bytes / 2**30:.1f} GiB are free; free space until there are {FREE_BYTES_MIN >> 30} GiB at least"
        )
    if not os.access(existing, os.W_OK):
        problems.append(
            f"Sluice may not write to {existing}; change the owner of this folder, or configure another folder"
        )
    return Finding(f"{what} {folder}: {free_bytes / 2**30:.0f} GiB free", tuple(problems))


def _stores(config: SluiceConfig) -> list[tuple[str, str]]:
    """Returns (name in the output, URL) of each that is in an object store: the lake, and the staged batches."""
    given = [("lake", config.lake), ("staged batches", config.staging)]
    return [(what, url) for what, url in given if is_in_a_store(url)]


def _folders(config: SluiceConfig) -> list[tuple[str, Path]]:
    lake = [] if "://" in config.lake else [("lake", Path(config.lake))]
    return [("data_dir", config.data_dir), *lake]


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), CONNECT_SECONDS_MAX):
            return True
    except OSError:
        return False


def _silent(_: str) -> None:
    """Discards a message. A `Stack` gets this function as `say` if it is used only to read the state of its processes."""
