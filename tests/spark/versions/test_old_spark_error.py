"""Tests that the error of a Spark whose Delta cannot replace a table names the versions that can."""

import pytest

from sluice.spark_jobs.session import first_line

pytestmark = pytest.mark.spark_version


def test_a_table_that_cannot_be_replaced_is_explained() -> None:
    error = RuntimeError(
        "Table lake/shop.orders does not support truncate in batch mode.;\nOverwriteByExpression RelationV2"
    )
    assert first_line(error).startswith(
        "Table lake/shop.orders does not support truncate in batch mode.; Spark 3.5.6 and later"
    )
    assert first_line(RuntimeError("another error\n")) == "another error"
