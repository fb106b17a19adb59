"""Tests the code and the values that a job of small tables sends to Spark's executors."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark import cloudpickle

from sluice.object_stores import options
from sluice.spark_jobs.small import job as small_job


def test_the_job_can_be_pickled_and_takes_no_secret_of_another_store_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTHER_STORE", "secret-of-another-store")
    assert options.resolved({"token": "$OTHER_STORE"}) == {"token": "secret-of-another-store"}
    dumps: Any = cloudpickle.dumps
    pickled = dumps(small_job._task([[]], {}))
    assert b"ResolvedSecrets" in pickled  # The class is sent by value.
    assert b"secret-of-another-store" not in pickled
    assert options.without_secrets("secret-of-another-store", {}) == "***"
