"""Tests the job of small tables as a whole: tasks that die after their commit, executors that lack a package, many tables, and errors of
single tables.
"""

from __future__ import annotations

import importlib
import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from types import SimpleNamespace
from typing import Any

import deltalake
import psutil
import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.sql.connect.session import SparkSession

from sluice.console.toolchain.spark.server import SparkConnectServer
from sluice.spark_jobs.batch.context import BatchContext
from sluice.spark_jobs.batch.run_batch import merge_batch
from sluice.spark_jobs.errors import MergeError
from sluice.spark_jobs.fence import Fence
from sluice.spark_jobs.small import job as small_job
from sluice.spark_jobs.small import merge as small_merge
from sluice.spark_jobs.small import prepared, shipped
from sluice.spark_jobs.small.job import why_not_on_executors
from sluice.spark_jobs.small.merge import SmallJob
from sluice.spark_jobs.staged_files.read import read_staged_batch
from sluice.spark_jobs.targets.report import TableTarget
from tests.spark.conftest import Lake
from tests.spark.staged import DELETE, INSERT, UPDATE_AFTER, Changes, Image, Schema, SchemaChange, Segment, Truncate

ORDERS = Schema({"id": "bigint", "name": "string"}, key=("id",))
SECRETS = {"aws_secret_access_key": "se/cret+key", "region": "eu"}
NAMES = [f"shop.t{number}" for number in range(small_job.TABLES_A_TASK + 2)]
FIRST = Changes(ORDERS, [Image(INSERT, 1 + key, {"id": key, "name": "x"}) for key in range(5)])
SECOND = Changes(ORDERS, [Image(UPDATE_AFTER, 11, {"id": 1, "name": "y"}), Image(DELETE, 12, {"id": 2, "name": "x"})])
MERGED = [(0, "x"), (1, "y"), (3, "x"), (4, "x")]


@pytest.fixture
def replaced(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[object, str, object], None]]:
    """Returns a function that replaces an attribute in this process and in the code that executors get."""

    def replace(owner: object, name: str, value: object) -> None:
        monkeypatch.setattr(owner, name, value)
        shipped.forget()

    yield replace
    monkeypatch.undo()
    shipped.forget()


@pytest.mark.spark
def test_more_tables_than_a_task_takes_are_each_merged_once(lake: Lake) -> None:
    lake.merge({name: [FIRST] for name in NAMES})
    reports = lake.merge({name: [SECOND] for name in NAMES})
    assert {name: report.way for name, report in reports.items()} == dict.fromkeys(NAMES, "small")
    assert [lake.rows(name, "id", "name") for name in NAMES] == [MERGED] * len(NAMES)


@pytest.mark.spark
def test_fault_a_task_that_dies_after_its_commit_changes_nothing_twice(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, log = ["shop.a", "shop.b"], Schema(ORDERS.columns)
    lake.merge({"shop.a": [FIRST], "shop.b": [Changes(log, FIRST.images)]})
    plain = small_merge.merge_small

    def dies(job: Any, conflicts: Any) -> Any:
        plain(job, conflicts)
        os._exit(9)

    directory = lake.stage({"shop.a": [SECOND], "shop.b": [Changes(log, SECOND.images)]})
    with monkeypatch.context() as patch:
        patch.setattr(small_job, "merge_small", dies)
        shipped.forget()
        reports = lake.merge_staged(directory, names)
    shipped.forget()
    assert {report.way for report in reports.values()} == {"spark"}
    assert "failed" in reports["shop.a"].reason
    assert all(report.skipped for report in lake.merge_staged(directory, names).values())
    assert lake.rows("shop.a", "id", "name") == MERGED
    assert [row[0] for row in lake.rows("shop.b", "_sluice_order_key")] == [1, 2, 3, 4, 5, 11, 12]


@pytest.mark.spark
def test_fault_a_task_that_meets_another_writer_tries_again(
    lake: Lake, replaced: Callable[[object, str, object], None]
) -> None:
    """The merge runs in the executor. An error of deltalake must have the type there that the shipped code expects."""
    lake.merge({"shop.a": [FIRST]}, deletion_vectors=False)
    plain, path = small_merge._SmallMerge._commit_properties, lake.target("shop.a").path

    def properties(merge: Any, order_key: int) -> Any:
        there = deltalake.DeltaTable(path)
        if there.version() == merge.table.snapshot.version == 1:
            there.alter.set_table_properties({"delta.logRetentionDuration": "interval 31 days"})
        return plain(merge, order_key)

    replaced(small_merge._SmallMerge, "_commit_properties", properties)
    report = lake.merge({"shop.a": [SECOND]}, deletion_vectors=False)["shop.a"]
    assert (report.way, report.delta_version) == ("small", 3), report.reason
    assert lake.rows("shop.a", "id", "name") == MERGED


@pytest.mark.spark
def test_small_tables_of_executors_that_lack_a_package_are_merged_in_the_run_and_check_says_so(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def needs_what_is_not_there(batches: Iterator[Any]) -> Iterator[Any]:
        """Raises as deltalake would if it were not installed."""
        import no_such_package  # type: ignore[import-not-found]  # noqa: F401, PLC0415

        yield from batches

    assert why_not_on_executors(lake.spark) == ""
    lake.merge({"shop.a": [FIRST]})
    monkeypatch.setattr(small_job, "_task", lambda *_: needs_what_is_not_there)
    report = lake.merge({"shop.a": [SECOND]})["shop.a"]
    assert (report.way, lake.log("shop.a").history(1)[0]["operation"]) == ("small", "MERGE"), report.reason
    assert lake.rows("shop.a", "id", "name") == MERGED
    reported = why_not_on_executors(lake.spark)
    wanted = f"install Python {small_job.PYTHON} with deltalake {deltalake.__version__} and pyarrow {pa.__version__} on the executors"
    assert reported.startswith(
        "the executors lack the Python package no_such_package: runs merge small tables in their own process"
    )
    assert reported.endswith(wanted)


@pytest.mark.spark
def test_a_table_s_error_is_its_own_and_what_is_not_small_is_merged_by_spark(lake: Lake) -> None:
    other = Schema({"id": "bigint", "name": "string", "more": "int"}, key=("id",))
    lake.merge({name: [FIRST] for name in ("shop.fine", "shop.taken", "shop.wider", "shop.cut")})
    lake.log("shop.taken").alter.set_table_properties({"sluice.owner": "somebody"}, raise_if_not_exists=False)
    tables: dict[str, Sequence[Segment]] = {
        "shop.fine": [SECOND],
        "shop.taken": [SECOND],
        "shop.wider": [SchemaChange(10, other), Changes(other, [Image(INSERT, 11, {"id": 9, "name": "z", "more": 1})])],
        "shop.cut": [Truncate(10), Changes(ORDERS, [Image(INSERT, 11, {"id": 9, "name": "z"})])],
    }
    directory = lake.stage(tables)
    with pytest.raises(MergeError, match="belongs to the destination somebody") as caught:
        lake.merge_staged(directory, tables)
    assert caught.value.merged == ("shop.fine", "shop.wider", "shop.cut")
    assert [error.state for error in caught.value.errors] == ["TABLE_OWNED"]
    assert lake.rows("shop.fine", "id", "name") == MERGED
    assert lake.rows("shop.wider", "id", "more")[-1] == (9, 1)
    assert lake.rows("shop.cut", "id", "name") == [(9, "z")]
    assert lake.rows("shop.taken", "id", "name") == [(key, "x") for key in range(5)]


@pytest.mark.spark
def test_runs_share_the_python_workers_of_spark(lake: Lake, spark_server: SparkConnectServer) -> None:
    """Spark's Python processes never end. If runs did not share them, each run would leave one more process."""
    lake.merge({"shop.a": [FIRST]})
    daemons = [process.pid for process in psutil.Process(spark_server.pid).children()]
    for order_key in range(10, 15):
        change = Changes(ORDERS, [Image(UPDATE_AFTER, order_key, {"id": 1, "name": str(order_key)})])
        assert lake.merge({"shop.a": [change]})["shop.a"].way == "small"
    assert daemons == [process.pid for process in psutil.Process(spark_server.pid).children()]


@pytest.mark.spark
def test_the_run_merges_the_small_tables_of_an_old_spark_and_its_fence_is_checked_for_each(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*_: Any) -> None:
        raise NotImplementedError("StatusCode.UNIMPLEMENTED")

    names = ["shop.a", "shop.b", "shop.c"]
    lake.merge({name: [FIRST] for name in names})
    monkeypatch.setattr(SparkSession, "cloneSession", cannot)
    monkeypatch.setattr(small_job, "THREADS_MAX", 1)
    directory = lake.stage({name: [SECOND] for name in names})
    targets = {name: lake.target(name) for name in names}
    fence = Fence(lambda: "the run lock is lost" if lake.log("shop.a").version() > 1 else "")
    with pytest.raises(MergeError, match="the run lock is lost") as caught:
        merge_batch(read_staged_batch(directory), targets, lake.spark, BatchContext(fence=fence))
    assert caught.value.merged == ("shop.a",)
    assert [lake.log(name).version() for name in names] == [2, 1, 1]
    reports = lake.merge_staged(directory, names)
    assert [(report.way, report.skipped) for report in reports.values()] == [
        ("small", True),
        ("small", False),
        ("small", False),
    ]
    assert [lake.rows(name, "id", "name") for name in names] == [MERGED] * len(names)
    assert why_not_on_executors(lake.spark) == f"{small_job.OLD_SPARK}: runs merge small tables in their own process"


@pytest.mark.spark
def test_small_tables_of_executors_with_another_deltalake_are_merged_in_the_run(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, real, here = small_job._task, small_job._in_the_run, list[int]()

    def in_the_run(fence: Fence, jobs: Mapping[int, SmallJob]) -> Any:
        here.extend(jobs)
        return real(fence, jobs)

    monkeypatch.setattr(small_job, "_task", lambda shares, _packages: plain(shares, {"deltalake": "99.0.0"}))
    monkeypatch.setattr(small_job, "_in_the_run", in_the_run)
    report = lake.merge({"shop.a": [FIRST]})["shop.a"]
    assert (report.way, here) == ("small", [0])
    assert why_not_on_executors(lake.spark).startswith("the executors have deltalake 1.")


@pytest.mark.parametrize("text", ["key se/cret+key", "https://x/?sig=se%2Fcret%2Bkey&r=eu"])
def test_an_error_of_a_store_does_not_show_its_secrets(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    def fails(*_: Any) -> None:
        raise OSError(text)

    monkeypatch.setattr(small_job, "merge_small", fails)
    job: Any = SimpleNamespace(storage_options=SECRETS, staged=SimpleNamespace(name="shop.a"))
    reported = small_job._answer(job)["declined"]
    assert "***" in reported
    assert "cret" not in reported


def test_the_code_for_executors_is_written_once_and_read_once_per_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """The code for executors has half a megabyte. Writing and reading it for each batch took as long as merging three tables."""
    written = list[object]()
    writes: Any = cloudpickle.dumps

    def write(value: Any) -> bytes:
        written.append(value)
        return bytes(writes(value))

    monkeypatch.setattr(cloudpickle, "dumps", write)
    shipped.forget()
    given = [{"target": TableTarget(path=f"/lake/{number}"), "other": Fraction(number)} for number in range(3)]
    read, answers = in_a_worker([writes(shipped.shipped(_reported, each)) for each in given])
    shipped.forget()
    assert [rows for rows, _ in answers] == [[repr((7, f"/lake/{number}", Fraction(number)))] for number in range(3)]
    assert (len(written), read) == (1, 1)


@pytest.mark.found
def test_a_worker_keeps_only_the_code_that_it_has_read_last() -> None:
    """Defect 43: a worker that served many processes kept the code of all of them, because each process writes the code for executors
    differently.
    """
    writes: Any = cloudpickle.dumps
    given = {"target": TableTarget(path="/lake/1"), "other": Fraction(1)}
    works = (_reported, _reported_alike)
    _, answers = in_a_worker([writes(shipped.shipped(work, given)) for work in works])
    assert [kept for _, kept in answers] == [[shipped.code_of(work)[1]] for work in works]
    shipped.forget()


# The code of a worker. It calls each function that it receives, and prints how often it read code, the results, and the modules that it
# keeps.
WORKER = """
import json, pickle, sys
loads, read, answers = pickle.loads, [], []
pickle.loads = lambda data: read.append(data) or loads(data)
for sent in loads(sys.stdin.buffer.read()):
    rows = [repr(each) for each in loads(sent)(iter([7]))]
    answers.append((rows, [each for each in sys.modules if each.startswith(sys.argv[1])]))
print(json.dumps((len(read), answers)))
"""


def in_a_worker(sent: list[bytes]) -> tuple[int, list[tuple[list[str], list[str]]]]:
    """Calls functions in another process. Here, reading their code would replace the methods of the classes that the code contains."""
    found = subprocess.run(
        (sys.executable, "-c", WORKER, shipped.KEPT),
        input=pickle.dumps(sent),
        capture_output=True,
        check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    read, answers = json.loads(found.stdout)
    return read, [(rows, kept) for rows, kept in answers]


def test_a_run_finds_the_code_for_executors_written() -> None:
    """The process from which runs are forked imports the module `prepared`. The import writes the code for executors, so no run has to."""
    shipped.forget()
    importlib.reload(prepared)
    assert shipped.code_of.cache_info().currsize == 1


def _reported(batches: Iterator[Any], given: Mapping[str, Any]) -> Iterator[Any]:
    for batch in batches:
        yield batch, given["target"].path, given["other"]


def _reported_alike(batches: Iterator[Any], given: Mapping[str, Any]) -> Iterator[Any]:
    yield from _reported(batches, given)
