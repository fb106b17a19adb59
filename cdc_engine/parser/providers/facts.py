"""Reads the facts that identify a server's provider, and the provider's own setting of the retention. `decision` evaluates these facts.

The pages rds-aurora, cloud-sql and azure of docs/guides cite the providers' documentation.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

MARK_VARIABLES = ("version_comment", "basedir", "datadir", "aurora_version")
RETENTION_HOURS = "binlog retention hours"
RDS_RETENTION = (f"SELECT name, value FROM mysql.rds_configuration WHERE name = '{RETENTION_HOURS}'",)
RDS_PROCEDURE = ("CALL mysql.rds_show_configuration",)
NOT_SET = "NULL"
# ProxySQL answers exactly this statement itself, and forwards every other statement to the server.
PROXY = ("SELECT @@version_comment LIMIT 1",)
PROXYSQL = "(ProxySQL)"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProviderFacts:
    """The facts that identify a server's provider.

    - `host`: the name in conf/. `version`: the version in the server's greeting.
    - `rds_retention`: the value of `binlog retention hours`, or NOT_SET if RDS or Aurora has no value. Empty on other servers, or if the
      account may not read it.
    - `proxy`: PROXYSQL if ProxySQL answers at this address.
    """

    host: str = ""
    version: str = ""
    version_comment: str = ""
    basedir: str = ""
    datadir: str = ""
    aurora_version: str = ""
    rds_retention: str = ""
    proxy: str = ""

    @property
    def amazon(self) -> bool:
        """Whether Amazon operates the server, as RDS or as Aurora."""
        return bool(
            self.aurora_version
            or self.rds_retention
            or self.basedir.startswith("/rdsdbbin")
            or self.datadir.startswith("/rdsdbdata")
            or self.host.lower().endswith((".rds.amazonaws.com", ".rds.amazonaws.com.cn"))
        )


def read_provider_facts(
    first_of: Callable[..., list[dict[str, Any]]], host: str, version: str, variables: Mapping[str, str]
) -> ProviderFacts:
    """Reads the facts that identify a server's provider. `first_of(*statements)` returns the rows of the first of these statements that the
    server supports and permits, or no rows.

    On Amazon's servers, the retention is read from the table mysql.rds_configuration. If the account may not read this table, the procedure
    mysql.rds_show_configuration returns the retention, unless the account may not call it.
    """
    marks = {name: variables.get(name, "") for name in MARK_VARIABLES}
    facts = ProviderFacts(
        host=host,
        version=version,
        rds_retention=_retention(first_of(*RDS_RETENTION)),
        proxy=PROXYSQL if any(PROXYSQL in map(str, row.values()) for row in first_of(*PROXY)) else "",
        **marks,
    )
    if facts.amazon and not facts.rds_retention:
        return dataclasses.replace(facts, rds_retention=_retention(first_of(*RDS_PROCEDURE)))
    return facts


def _retention(rows: list[dict[str, Any]]) -> str:
    values = [row["value"] for row in rows if row.get("name") == RETENTION_HOURS]
    return "" if not values else NOT_SET if values[0] is None else str(values[0])
