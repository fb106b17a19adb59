"""Determines the provider of a server, and how long the server promises to retain its binlog. Pure functions."""

from __future__ import annotations

import dataclasses
import enum
import math
from collections.abc import Mapping

from sluice.cdc_engine.parser.providers.facts import NOT_SET, RETENTION_HOURS, ProviderFacts

DAY_HOURS = 24.0
DAY_SECONDS = 86_400
UNLIMITED = math.inf
# MySQL's default of binlog_expire_logs_seconds. On Cloud SQL, this value means that the database flag binlog_expire_logs_seconds is not
# set.
MYSQL_DEFAULT_SECONDS = 30 * DAY_SECONDS


class Provider(enum.StrEnum):
    SELF_MANAGED = "the server"
    RDS = "Amazon RDS"
    AURORA = "Amazon Aurora"
    CLOUD_SQL = "Google Cloud SQL"
    AZURE = "Azure Database for MySQL"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Retention:
    """How many seconds a server promises to retain its binlog: UNLIMITED if it never purges, 0 if it promises nothing. `why` explains the
    promise in a sentence without a full stop.
    """

    seconds: float
    why: str


def provider_of(facts: ProviderFacts) -> Provider:
    """Returns the server's provider; SELF_MANAGED if nothing indicates a provider."""
    if facts.amazon:
        # The host name cannot distinguish Aurora from RDS, because the endpoint of an RDS Multi-AZ cluster has the same form as Aurora's
        # endpoint.
        return Provider.AURORA if facts.aurora_version else Provider.RDS
    if "-google" in facts.version or facts.version_comment == "(Google)":
        return Provider.CLOUD_SQL
    if "-azure" in facts.version or facts.host.lower().endswith(".mysql.database.azure.com"):
        return Provider.AZURE
    return Provider.SELF_MANAGED


def retention_of(facts: ProviderFacts, variables: Mapping[str, str]) -> Retention:
    """Returns the retention that the server promises, according to the setting that is in effect. `variables` are the server's global
    variables.
    """
    provider = provider_of(facts)
    if facts.amazon:
        return _of_amazon(provider, facts.rds_retention)
    seconds = float(variables.get("binlog_expire_logs_seconds") or 0)
    seconds = seconds or float(variables.get("expire_logs_days") or 0) * DAY_SECONDS
    if provider is Provider.CLOUD_SQL and seconds in {0.0, MYSQL_DEFAULT_SECONDS}:
        # If the database flag is not set, the instance's setting transactionLogRetentionDays applies. The value of this setting is at least
        # one day, and no query returns it.
        return Retention(seconds=DAY_SECONDS, why=f"{provider} keeps its binlog for at least a day")
    if not seconds and provider is Provider.AZURE:
        why = f"binlog_expire_logs_seconds is 0: {provider} deletes a binlog file as soon as nothing reads it"
        return Retention(seconds=0, why=why)
    return Retention(seconds=seconds or UNLIMITED, why=f"{provider} keeps its binlog for {seconds / 3600:.1f} h only")


def _of_amazon(provider: Provider, hours: str) -> Retention:
    if not hours:
        return Retention(
            seconds=0,
            why=f"`{RETENTION_HOURS}` could not be read, and {provider} promises nothing without it: "
            "GRANT SELECT ON mysql.rds_configuration to the account",
        )
    if hours == NOT_SET:
        keeps = "keeps a binlog file only as long as the service needs the file itself, which may be minutes"
        lazily = "deletes binlog files at any time, usually within a day"
        return Retention(
            seconds=0,
            why=f"`{RETENTION_HOURS}` is NULL: {provider} {lazily if provider is Provider.AURORA else keeps}",
        )
    return Retention(seconds=float(hours) * 3600, why=f"{provider} keeps its binlog for {float(hours):g} h only")
