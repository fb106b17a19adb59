"""Tests how Sluice recognizes the provider of a server, and for how long this server keeps its binlog. The tests use the marks and settings
that the providers document.
"""

from __future__ import annotations

import math
from typing import Any

import pytest

from sluice.cdc_engine.parser.providers.advice import ADVICE
from sluice.cdc_engine.parser.providers.decision import Provider, provider_of, retention_of
from sluice.cdc_engine.parser.providers.facts import (
    PROXY,
    RDS_PROCEDURE,
    RDS_RETENTION,
    ProviderFacts,
    read_provider_facts,
)

pytestmark = pytest.mark.managed

DAY = 86_400
RDS_HOST = "shop.c0ffee.eu-west-1.rds.amazonaws.com"
CLUSTER_HOST = "shop.cluster-c0ffee.eu-west-1.rds.amazonaws.com"
RDS = {"basedir": "/rdsdbbin/mysql-8.0.40.R1/", "datadir": "/rdsdbdata/db/"}


@pytest.mark.parametrize(
    ("marks", "provider"),
    [
        ({"version": "8.0.31", "basedir": "/usr/", "version_comment": "Source distribution"}, Provider.SELF_MANAGED),
        ({"basedir": RDS["basedir"]}, Provider.RDS),
        ({"datadir": RDS["datadir"]}, Provider.RDS),
        ({"rds_retention": "NULL"}, Provider.RDS),
        ({"host": RDS_HOST}, Provider.RDS),
        ({**RDS, "aurora_version": "3.05.2"}, Provider.AURORA),
        # RDS Multi-AZ clusters and Aurora have host names of this form. Only Aurora also has the variable aurora_version.
        ({"host": CLUSTER_HOST}, Provider.RDS),
        ({"version": "8.0.31-google"}, Provider.CLOUD_SQL),
        ({"version": "5.7.44-google-log"}, Provider.CLOUD_SQL),
        ({"version": "8.4.4", "version_comment": "(Google)"}, Provider.CLOUD_SQL),
        ({"version": "8.0.42-azure", "version_comment": "Source distribution"}, Provider.AZURE),
        ({"host": "shop.mysql.database.azure.com"}, Provider.AZURE),
    ],
)
def test_the_provider_by_its_marks(marks: dict[str, str], provider: Provider) -> None:
    assert provider_of(ProviderFacts(**marks)) is provider


SECONDS = "binlog_expire_logs_seconds"


@pytest.mark.parametrize(
    ("marks", "variables", "seconds", "why"),
    [
        ({}, {SECONDS: "7200"}, 7200, "2.0 h only"),
        ({}, {SECONDS: "0", "expire_logs_days": "2"}, 2 * DAY, ""),
        ({}, {SECONDS: "0"}, math.inf, ""),
        (
            {**RDS, "rds_retention": "NULL"},
            {SECONDS: "2592000"},
            0,
            "only as long as the service needs the file itself",
        ),
        ({**RDS, "rds_retention": "6"}, {SECONDS: "2592000"}, 6 * 3600, "6 h only"),
        ({**RDS, "rds_retention": "168"}, {SECONDS: "3600"}, 7 * DAY, ""),
        (RDS, {SECONDS: "2592000"}, 0, "GRANT SELECT ON mysql.rds_configuration"),
        ({"aurora_version": "3.05.2", "rds_retention": "NULL"}, {}, 0, "usually within a day"),
        ({"version": "8.0.31-google"}, {SECONDS: "86400"}, DAY, ""),
        ({"version": "8.0.31-google"}, {SECONDS: "2592000"}, DAY, ""),
        ({"version": "8.0.31-google"}, {SECONDS: "604800"}, 7 * DAY, ""),
        ({"version": "8.0.42-azure"}, {SECONDS: "0"}, 0, "as soon as nothing reads it"),
        ({"version": "8.0.42-azure"}, {SECONDS: "604800"}, 7 * DAY, ""),
    ],
)
def test_the_setting_that_counts_there(
    marks: dict[str, str], variables: dict[str, str], seconds: float, why: str
) -> None:
    found = retention_of(ProviderFacts(**marks), variables)
    assert found.seconds == seconds
    assert why in found.why


@pytest.mark.parametrize("provider", Provider)
def test_no_provider_is_advised_to_edit_an_option_file(provider: Provider) -> None:
    advice = ADVICE[provider]
    reported = " ".join((advice.set("binlog_format", "ROW"), advice.log_bin, advice.keep_more, advice.gtids))
    assert ("option file" in reported or "SET GLOBAL" in reported) == (provider is Provider.SELF_MANAGED)
    assert "binlog_format" in advice.set("binlog_format", "ROW")
    assert "ROW" in advice.set("binlog_format", "ROW")


@pytest.mark.parametrize("amazon", [True, False])
def test_the_procedure_is_called_at_amazon_alone_and_where_the_table_may_not_be_read(amazon: bool) -> None:
    requested: list[str] = []

    def answers(*statements: str) -> list[dict[str, Any]]:
        requested.extend(statements)
        return [{"name": "binlog retention hours", "value": 24}] if statements == RDS_PROCEDURE else []

    facts = read_provider_facts(answers, RDS_HOST if amazon else "db1", "8.0.31", {})
    assert facts.rds_retention == ("24" if amazon else "")
    assert requested == [*RDS_RETENTION, *PROXY, *(RDS_PROCEDURE if amazon else ())]
