"""Merges many small tables with `deltalake` in the tasks of one Spark job. `run_batch` calls this module before Spark merges the other
tables.

The job sends Sluice's code to the executors, which need only Python, pyarrow and deltalake. If an executor lacks one of these, or the Spark
Connect server is older than 4.1, threads of the run merge the tables in the same way. If a task declines a table, or the job fails, the
result of the table has no report, and Spark merges the table.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from sluice.batch_manifest.table_report import TableReport
from sluice.object_stores.options import without_secrets
from sluice.spark_jobs.conflicts import CommitConflicts
from sluice.spark_jobs.errors import SparkUnavailableError, TableError
from sluice.spark_jobs.fence import Fence
from sluice.spark_jobs.session import LakeSession, SparkSettings, first_line, is_away, open_sessions, task_slots
from sluice.spark_jobs.small.merge import Declined, SmallJob, merge_small
from sluice.spark_jobs.small.shipped import code_of, shipped
from sluice.spark_jobs.table_owner import TableRecord

logger = logging.getLogger(__name__)

# The number of tables per task, which a task merges in about a second. Starting a task takes as long as merging one table, so tasks with
# fewer tables would waste time. If a batch has many tables, tasks get more tables, because the number of tasks is limited.
TABLES_A_TASK = 12
# A batch gets at most this many tasks, or TASKS_A_SLOT for each task slot if that is more. Every task first loads the jobs of all tables,
# so if the number of tasks grew with the tables, the work would grow with the square of the tables.
TASKS_MANY = 8
TASKS_A_SLOT = 2
SILENT = "the Spark task of the table returned no result"
PACKAGES = ("deltalake", "pyarrow")  # The packages that must have the same versions in the tasks as in the run.
NO_TABLE = -1  # The job number of an answer that concerns the executor and no table.
# At most this many threads of the run merge tables. Each thread may have a table of `ways.ROWS_MAX` rows in memory.
THREADS_MAX = 4
# The run's minor version of Python, which the tasks must have too.
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
UNFIT = "unfit"  # The key of an answer that says why the executors cannot merge any table.
OLD_SPARK = (
    "this Spark Connect server is older than 4.1, where each session leaves a Python process on the executors "
    "after its end"
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class SmallResult:
    """The result for one table: a report with the table's record, or an error, or the reason why Spark must merge the table (`declined`).
    `conflicts` counts how often another writer committed first.
    """

    report: TableReport | None = None
    record: TableRecord | None = None
    error: TableError | None = None
    declined: str = ""
    conflicts: int = 0


def merge_small_tables(session: LakeSession, jobs: Sequence[SmallJob]) -> dict[str, SmallResult]:
    """Merges small tables. Returns the result of each job by "database.table". If the fence refuses the merges, each result has this error.
    If the Spark job fails, each result says that Spark must merge the table. Raises SparkUnavailableError if Spark stops answering.

    Tasks cannot query the fence, so it is checked before the tasks start. A task's commit succeeds only if the table has not changed since
    the task read it (`small.merge`).
    """
    try:
        ready = _allow_new_tables(session, jobs)
        session.fence.check(*(job.staged.name for job in jobs))
        answers = _on_executors(session, ready)
    except TableError as error:
        names = [job.staged.name for job in jobs]
        return {name: SmallResult(error=TableError(name, error.reason, own=False)) for name in names}
    except Exception as error:
        if is_away(error):
            sentence = (
                f"the connection to Spark was lost during the merge of small tables ({first_line(error)}); "
                "Sluice tries the batch again"
            )
            raise SparkUnavailableError(sentence) from error
        why = _failed(error)
        logger.warning("Spark merges all tables: %s", why)
        return {job.staged.name: SmallResult(declined=why) for job in jobs}
    if why := next((str(answer[UNFIT]) for answer in answers.values() if UNFIT in answer), ""):
        logger.info("the run merges small tables in its own process: %s", why)
        left = {number: ready[number] for number, answer in answers.items() if UNFIT in answer}
        answers |= _in_the_run(session.fence, left)
    return {job.staged.name: _result(answers.get(number)) for number, job in enumerate(jobs)}


def why_not_on_executors(settings: SparkSettings) -> str:
    """Returns why the executors cannot merge small tables, what merges them instead, and what to do. Returns "" if the executors can merge
    them. Raises SparkUnavailableError if Spark does not answer.
    """
    with open_sessions(settings, 1) as (session,):
        try:
            answers = _on_executors(session, [])
        except Exception as error:
            return (
                f"{_failed(error)}: Spark merges each small table by a MERGE of its own, which takes nearly a "
                "second per table"
            )
    why = str(answers.get(NO_TABLE, {}).get(UNFIT, ""))
    wanted = " and ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)
    advice = (
        ""
        if why == OLD_SPARK
        else f"; to merge small tables on the executors, install Python {PYTHON} with {wanted} on the executors"
    )
    return f"{why}: runs merge small tables in their own process{advice}" if why else ""


def _allow_new_tables(session: LakeSession, jobs: Sequence[SmallJob]) -> Sequence[SmallJob]:
    """Returns the jobs with `makes_tables` set, so that tasks create missing tables. Returns the jobs unchanged if no table is new, or if
    Spark has default properties for new tables, because only Spark itself sets these properties.
    """
    if all(job.known for job in jobs) or session.defaults_of_tables():
        return jobs
    return [dataclasses.replace(job, makes_tables=True) for job in jobs]


def _on_executors(session: LakeSession, jobs: Sequence[SmallJob]) -> dict[int, dict[str, Any]]:
    """Runs the jobs in tasks and returns their answers by job number. If the executors cannot merge tables, each answer has only the reason
    (UNFIT), and the caller merges the tables in the run's own process.
    """
    why = ""
    if session.shares_workers:
        try:
            return _run(session, jobs)
        except Exception as error:
            why = _lacking(error)
            if not why:
                raise
    return {number: {UNFIT: why or OLD_SPARK} for number in (range(len(jobs)) if jobs else [NO_TABLE])}


def _lacking(error: BaseException) -> str:
    """Returns what the executors lack according to the error of a Spark job, or "" if the error has another cause."""
    text = str(error)
    if found := re.search(r"No module named '([\w.]+)'", text):
        return f"the executors lack the Python package {found[1]}"
    return "the executors have another version of Python than the run" if "PYTHON_VERSION_MISMATCH" in text else ""


def _failed(error: BaseException) -> str:
    return f"the Spark job that merges small tables failed: {first_line(error)}"


def _in_the_run(fence: Fence, jobs: Mapping[int, SmallJob]) -> dict[int, dict[str, Any]]:
    """Merges tables in threads of this process, and returns the answers by job number. Merges the shards of one table
    one after the other.
    """
    of_path: dict[str, list[int]] = {}
    for number, job in jobs.items():
        of_path.setdefault(job.target.path, []).append(number)

    def work(numbers: Sequence[int]) -> list[tuple[int, dict[str, Any]]]:
        return [(number, _answer(jobs[number], fence=fence)) for number in numbers]

    with ThreadPoolExecutor(min(THREADS_MAX, len(os.sched_getaffinity(0))), thread_name_prefix="small") as pool:
        return dict(answer for answers in pool.map(work, of_path.values()) for answer in answers)


def _run(session: LakeSession, jobs: Sequence[SmallJob]) -> dict[int, dict[str, Any]]:
    from pyspark.sql.types import LongType, StringType, StructField, StructType  # noqa: PLC0415

    shares = _shares(jobs, _task_count(session, len(jobs)))
    ours = {name: importlib.metadata.version(name) for name in PACKAGES}
    work = _task([[(number, jobs[number]) for number in share] for share in shares], ours)
    # The schema is an object, because Spark parses a schema in text form with a separate request.
    answer = StructType([StructField("number", LongType()), StructField("answer", StringType())])
    rows = session.spark.range(0, len(shares), 1, len(shares)).mapInArrow(work, answer).collect()
    return {row["number"]: json.loads(row["answer"]) for row in rows}


def _task_count(session: LakeSession, tables: int) -> int:
    """Returns the number of tasks for this many tables. It is at least 1."""
    count = max(1, -(-tables // TABLES_A_TASK))
    return count if count <= TASKS_MANY else min(count, max(TASKS_MANY, TASKS_A_SLOT * task_slots(session.spark)))


def _shares(jobs: Sequence[SmallJob], count: int) -> list[list[int]]:
    """Divides the jobs among `count` tasks, and returns the job numbers of each task. `jobs` begins with the
    largest tables, so each task merges its largest table first. All shards of one table are in one task.
    """
    shares = [list[int]() for _ in range(count)]
    of_path: dict[str, list[int]] = {}
    for number, job in enumerate(jobs):
        of_path.setdefault(job.target.path, []).append(number)
    for numbers in of_path.values():
        min(shares, key=len).extend(numbers)
    return shares


def _task(
    shares: Sequence[Sequence[tuple[int, SmallJob]]], packages: Mapping[str, str]
) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Returns the function that each task runs. `shares` has the jobs of each task. `packages` has the run's version of each package."""
    return shipped(_merge_shares, (shares, packages))


def prepare() -> None:
    """Serializes the code for executors. Later jobs of this process and of its forks use the result."""
    code_of(_merge_shares)


def _merge_shares(
    batches: Iterator[Any], given: tuple[Sequence[Sequence[tuple[int, SmallJob]]], Mapping[str, str]]
) -> Iterator[Any]:
    """Merges the tables of one task, and yields their answers. `given` has the jobs of each task, and the run's version of each package. If
    the executor has another version of a package, merges nothing, and each answer has only the reason (UNFIT).
    """
    import pyarrow as pa  # noqa: PLC0415  the executor's pyarrow

    shares, packages = given
    others = _other_versions(packages)
    for batch in batches:
        for task in batch.column(0).to_pylist():
            answers = ((number, _answer(job, others)) for number, job in shares[task])
            for number, answer in [(NO_TABLE, {UNFIT: others})] if not shares[task] else answers:
                yield pa.RecordBatch.from_pydict({"number": [number], "answer": [json.dumps(answer)]})


def _other_versions(wanted: Mapping[str, str]) -> str:
    """Returns which package has another version on the executor than in the run, or "" if all versions are equal."""
    for name, version in wanted.items():
        there = importlib.metadata.version(name)
        if there != version:
            return f"the executors have {name} {there}, the run has {version}"
    return ""


def _answer(job: SmallJob, others: str = "", fence: Fence | None = None) -> dict[str, Any]:
    """Merges one table and returns its result as a dictionary that JSON can represent. The classes that were sent to an executor are not
    the classes of the run, so the run could not use an object of them.

    If `others` names a package with another version than in the run, nothing is merged. `fence` is checked before the merge, and is None in
    a task, because only the run's process can check the locks.
    """
    if others:
        return {UNFIT: others}
    conflicts = CommitConflicts()
    return {**_merged(job, fence, conflicts), "conflicts": conflicts.total}


def _merged(job: SmallJob, fence: Fence | None, conflicts: CommitConflicts) -> dict[str, Any]:
    """Merges one table. Returns its report and record, or its error, or why the task declined it."""
    try:
        if fence:
            fence.check(job.staged.name)
        result = merge_small(job, conflicts)
    except TableError as error:
        reason = without_secrets(error.reason, job.storage_options)
        return {"error": [error.table, reason, error.state, error.for_good, error.own]}
    # Spark merges the table next, and may succeed where deltalake failed. If Spark fails too, it reports the error.
    except Exception as error:
        why = f"deltalake could not merge the table: {type(error).__name__}: {first_line(error)}"
        return {"declined": without_secrets(why, job.storage_options)}
    if isinstance(result, Declined):
        return {"declined": result.reason}
    report, record = result
    return {"report": dataclasses.asdict(report), "record": dataclasses.asdict(record)}


def _result(answer: Mapping[str, Any] | None) -> SmallResult:
    if answer is None:
        return SmallResult(declined=SILENT)
    conflicts = int(answer.get("conflicts", 0))
    if "error" in answer:
        table, reason, state, for_good, own = answer["error"]
        error = TableError(table, reason, state=state, for_good=for_good, own=own)
        return SmallResult(error=error, conflicts=conflicts)
    if "declined" in answer:
        return SmallResult(declined=str(answer["declined"]), conflicts=conflicts)
    report = {**answer["report"], "columns": tuple(tuple(column) for column in answer["report"]["columns"])}
    record = TableRecord(**answer["record"])
    return SmallResult(report=TableReport(**report), record=record, conflicts=conflicts)
