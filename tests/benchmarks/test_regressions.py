"""Tests which figures of a benchmark `bench compare` names as worse than the record."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.regressions import RESULTS, regressions, run

RECORD = {
    "up_s": 10.0,
    "snapshot_tables_per_min": 1000.0,
    "cpu_percent": 2.0,
    "modes": {"drain": {"loads": [{"freshness_p50_s": 0.7, "staging_p50_s": 0.02}]}},
    "java_connector_rows_per_s": 500.0,
    "memory_gb": 24,
}


def changed(**figures: float) -> dict[str, Any]:
    return copy.deepcopy(RECORD) | figures


@pytest.mark.parametrize(
    ("figures", "named"),
    [
        ({"up_s": 11.0}, []),
        ({"up_s": 11.1}, ["up_s"]),
        ({"up_s": 5.0, "snapshot_tables_per_min": 2000.0}, []),
        ({"snapshot_tables_per_min": 899.0}, ["snapshot_tables_per_min"]),
        ({"java_connector_rows_per_s": 1.0, "memory_gb": 1.0}, []),
    ],
)
def test_a_figure_is_worse_if_it_has_changed_to_the_wrong_side_by_more_than_a_tenth(
    figures: dict[str, float], named: list[str]
) -> None:
    assert [each.figure for each in regressions(RECORD, changed(**figures))] == named


def test_figures_within_lists_are_compared_and_small_differences_are_noise() -> None:
    now = changed()
    now["modes"]["drain"]["loads"][0] = {"freshness_p50_s": 0.8, "staging_p50_s": 0.06}
    (worse,) = regressions(RECORD, now)
    assert (worse.figure, worse.percent) == ("modes.drain.loads.0.freshness_p50_s", "+14 %")


def test_elements_of_a_list_are_compared_by_their_names_and_other_programs_are_left_out() -> None:
    record = {"processes": [{"process": "spark", "rss_mb": 800}, {"process": "bare daemon", "rss_mb": 100}]}
    now = {"processes": [{"process": "bare daemon", "rss_mb": 300}, {"process": "spark", "rss_mb": 900}]}
    assert [(each.figure, each.percent) for each in regressions(record, now)] == [("processes.spark.rss_mb", "+12 %")]


def test_the_rate_at_which_sluice_stages_is_compared() -> None:
    (worse,) = regressions({"json": {"staged_mb_per_s": 100.0}}, {"json": {"staged_mb_per_s": 80.0}})
    assert worse.figure == "json.staged_mb_per_s"


def test_a_figure_that_is_no_longer_measured_is_named() -> None:
    now = changed()
    del now["up_s"]
    assert [(each.figure, each.percent) for each in regressions(RECORD, now)] == [("up_s", "missing")]


@pytest.mark.parametrize("record", sorted(RESULTS.glob("*.json")), ids=lambda path: path.stem)
def test_each_record_equals_itself(record: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    same = tmp_path / record.name
    same.write_text(record.read_text())
    assert run(same, None)
    assert "no figure is worse" in capsys.readouterr().out
    assert not regressions(json.loads(record.read_text()), json.loads(same.read_text()))
