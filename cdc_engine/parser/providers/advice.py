"""Defines the advice for an operator in the words of the server's provider, for example parameter groups or database flags instead of SET
GLOBAL.

The advice differs because, on a provider's server, an operator has no SUPER and cannot edit an option file. The texts are parts of the
messages of `source_check`, `positions.retention_left` and `failover`.
"""

from __future__ import annotations

import dataclasses

from sluice.cdc_engine.parser.providers.decision import Provider


@dataclasses.dataclass(frozen=True, kw_only=True)
class Advice:
    """Parts of sentences for one provider.

    - `setting`: how to set a variable. The text contains `{name}` and `{value}`.
    - `log_bin`: how to make the server write a binlog. `keep_more`: how to make the server keep its binlog longer. `gtids`: how to enable
      GTIDs.
    - `moves`: what can move the host name in conf/ to another server.
    - `administrator`: who can grant privileges.
    """

    setting: str
    log_bin: str
    keep_more: str
    gtids: str
    moves: str
    administrator: str

    def set(self, name: str, value: str) -> str:
        """Returns a sentence part that tells how to set the variable `name`."""
        return self.setting.format(name=name, value=value)


_RDS_GROUP = "DB parameter group (a group of your own, because the default one cannot be changed)"
_AURORA_GROUP = "DB cluster parameter group (a group of your own, because the default one cannot be changed)"

ADVICE = {
    Provider.SELF_MANAGED: Advice(
        setting="SET GLOBAL {name} = '{value}', and the same in the server's option file",
        log_bin="start it with log_bin set",
        keep_more=(
            "let the source keep its binlog longer (binlog_expire_logs_seconds, expire_logs_days, "
            "max_binlog_total_size)"
        ),
        gtids="set enforce_gtid_consistency = ON, then gtid_mode = OFF_PERMISSIVE, ON_PERMISSIVE and ON one after the other by "
        "SET GLOBAL, and both in the server's option file",
        moves="a virtual IP address, a DNS name or a proxy that moves to a replica",
        administrator="an administrator of the server",
    ),
    Provider.RDS: Advice(
        setting=f"set {{name}} = {{value}} in the instance's {_RDS_GROUP}, and reboot the instance if the change is `pending-reboot`",
        log_bin="set the instance's backup retention period to a day or more, because RDS writes a binlog only with automated backups",
        keep_more="CALL mysql.rds_set_configuration('binlog retention hours', 168) as the master user (168 is the maximum)",
        gtids=f"set enforce_gtid_consistency = ON and gtid-mode = ON in the instance's {_RDS_GROUP}, and reboot the instance",
        moves="a failover of a Multi-AZ cluster, a blue/green switchover, or a promoted replica that gets the host name",
        administrator="the master user of the instance",
    ),
    Provider.AURORA: Advice(
        setting=f"set {{name}} = {{value}} in the {_AURORA_GROUP}, and reboot the writer",
        log_bin=f"set binlog_format = ROW in the {_AURORA_GROUP}, reboot the writer, and name the cluster's endpoint in conf/, "
        "because readers write no binlog",
        keep_more="CALL mysql.rds_set_configuration('binlog retention hours', 168) on the writer (2160 is the maximum)",
        gtids=f"set enforce_gtid_consistency = ON and gtid-mode = ON in the {_AURORA_GROUP}, and reboot the writer",
        moves="a failover to a reader or a blue/green switchover, after which the cluster's endpoint is another server",
        administrator="the master user of the cluster",
    ),
    Provider.CLOUD_SQL: Advice(
        setting="set the database flag {name} = {value} of the instance (`gcloud sql instances patch NAME --database-flags` replaces "
        "all flags, so name all flags that are to stay set)",
        log_bin="enable point-in-time recovery of the instance (`gcloud sql instances patch NAME --enable-bin-log`)",
        keep_more="set the database flag binlog_expire_logs_seconds (expire_logs_days on MySQL 5.7) and the days of logs of "
        "point-in-time recovery to several days",
        gtids="no database flag sets gtid_mode, because Cloud SQL sets it itself: upgrade the instance, or contact Google's support",
        moves="a switchover or a promoted replica that gets the host name or the address",
        administrator="a user with the role cloudsqlsuperuser, such as root",
    ),
    Provider.AZURE: Advice(
        setting="set the server parameter {name} = {value} (`az mysql flexible-server parameter set`), and restart the server if the "
        "parameter is static",
        log_bin="use a Flexible Server, which always writes a binlog",
        keep_more="set the server parameter binlog_expire_logs_seconds to 604800 (`az mysql flexible-server parameter set`)",
        gtids="set the server parameters enforce_gtid_consistency = ON, then gtid_mode = OFF_PERMISSIVE, ON_PERMISSIVE and ON one "
        "after the other",
        moves="a promoted replica, or a restored server, that gets the host name",
        administrator="the server's admin login",
    ),
}
