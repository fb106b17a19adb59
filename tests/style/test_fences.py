"""Tests, by the code of all writers, that every function that writes a Delta table checks the fence."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from sluice.spark_jobs.session import LakeSession
from tests.style.sources import ROOT

WRITERS = ("spark_jobs", "console", "orchestration")
# The calls of deltalake that commit, or remove files of a table.
COMMITS = {
    *(
        "write_deltalake",
        "add_columns",
        "set_table_properties",
        "set_table_name",
        "set_table_description",
        "add_feature",
    ),
    *("add_constraint", "drop_constraint", "set_column_metadata", "compact", "vacuum", "restore"),
}
# The calls that check the fence: `check`, and `commit` of SideTable. A task calls `_committed`, because it cannot check the fence.
CHECKS = {"check", "commit", "_committed"}
# Code without a fence: it writes its own tables in a folder of the run, belongs to a demo without other hosts, or writes temporary files of
# a machine's set-up.
APART = {"console/demo", "console/toolchain", "spark_jobs/backfill/into.py::_as_table"}


def calls(node: ast.AST) -> set[str]:
    """Returns the names of the methods and functions that `node` calls. A function with the name of a method of deltalake is one of
    Sluice's own, and is left out.
    """
    found = [each.func for each in ast.walk(node) if isinstance(each, ast.Call)]
    found = [each for each in found if not (isinstance(each, ast.Name) and each.id in COMMITS - {"write_deltalake"})]
    return {
        each.attr if isinstance(each, ast.Attribute) else each.id
        for each in found
        if isinstance(each, ast.Attribute | ast.Name)
    }


def functions(path: Path) -> list[tuple[str, ast.AST]]:
    """Returns the outermost functions of a file, and the methods of its classes. Inner functions count as parts of these, because
    `SideTable.commit` may call an inner function.
    """
    body = ast.parse(path.read_text()).body
    body += [each for one in body if isinstance(one, ast.ClassDef) for each in one.body]
    name = str(path.relative_to(ROOT))
    return [(f"{name}::{each.name}", each) for each in body if isinstance(each, ast.FunctionDef)]


@pytest.mark.found
def test_each_commit_checks_the_fence() -> None:
    """Defect 5: each function that commits checked its locks only when it began, or never."""
    files = [path for package in WRITERS for path in (ROOT / package).rglob("*.py")]
    found = [each for path in files for each in functions(path) if not each[0].startswith(tuple(APART))]
    writers = {name: calls(node) for name, node in found if COMMITS & calls(node)}
    assert len(writers) > 10
    assert [name for name, made in writers.items() if not CHECKS & made] == []


@pytest.mark.found
def test_a_statement_that_commits_does_not_pass_by_the_fence() -> None:
    """Test for defect 5: nobody can write a function that commits without the fence."""
    lake_session = LakeSession(None)
    for statement in (
        "MERGE INTO t",
        " INSERT INTO t",
        "CREATE OR REPLACE TABLE t",
        "ALTER TABLE t",
        "OPTIMIZE t",
        "VACUUM t",
    ):
        with pytest.raises(ValueError, match=r"must go through LakeSession\.commit"):
            lake_session.sql(statement)
        with pytest.raises(Exception, match="a commit needs a fence"):
            lake_session.commit("shop.orders", statement)
