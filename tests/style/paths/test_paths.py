"""Tests that the listed paths of a change, a chunk and a backfill are those of the sources and of docs/architecture.md."""

from __future__ import annotations

import dataclasses

import pytest

from tests.style.paths.files import PAGE, files, mistakes, returns, with_tables
from tests.style.paths.steps import CHUNK, PATHS, Step

# How many files a path has at most, and how often it returns to a package. Lower a bound when a path becomes shorter.
BOUNDS = {"a change, from socket to ack": (32, 8), "a chunk of a snapshot": (18, 3), "a backfill": (25, 3)}


@pytest.mark.parametrize("name", PATHS)
def test_each_function_of_a_path_calls_the_next_one(name: str) -> None:
    assert mistakes(PATHS[name]) == []


@pytest.mark.parametrize("name", PATHS)
def test_a_path_does_not_become_longer(name: str) -> None:
    found = len(files(PATHS[name])), returns(PATHS[name])
    assert found == BOUNDS[name], "shorten the path again, or lower the bound to these figures"


def test_the_page_has_the_tables_of_the_paths() -> None:
    page = PAGE.read_text()
    assert with_tables(page) == page, "run `python -m tests.style.paths --write`"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"function": "SourceTable.missing"}, "has no function SourceTable.missing"),
        ({"caller": "run_all"}, "run_all does not call chunks"),
        ({"caller": "nobody"}, "has no caller on the path"),
        ({"bound": "orchestration/real_ports.py: publish=other"}, "does not bind publish to other"),
    ],
)
def test_a_list_that_differs_from_the_sources_is_a_mistake(change: dict[str, str], said: str) -> None:
    index = next(number for number, step in enumerate(CHUNK) if step.function == "SourceTable.chunks")
    wrong: tuple[Step, ...] = (*CHUNK[:index], dataclasses.replace(CHUNK[index], **change))
    assert any(said in each for each in mistakes(wrong))
