"""Defines the options of the database servers that Sluice starts itself for the demo and for tests. They must be small and fast."""

from collections.abc import Mapping

Options = Mapping[str, str | int | None]

# The options that a source of Sluice must have. binlog_row_metadata is left out, so that it has the server's default, as on most production
# servers.
_SOURCE: dict[str, str | int] = {
    "server_id": 1,
    "log_bin": "binlog",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
}

# Options that make the server small and fast. The server does not wait for the disk at each commit, so a power failure may lose the
# commits of the last second.
_SMALL: dict[str, str | int] = {
    "bind_address": "127.0.0.1",
    "innodb_flush_log_at_trx_commit": 2,
    "sync_binlog": 0,
    "innodb_buffer_pool_size": "96M",
    "performance_schema": "OFF",
    "max_allowed_packet": "64M",
    "max_connections": 100,
}

_BY_VERSION: dict[str, dict[str, str | int]] = {
    "mysql-8.0": {
        "gtid_mode": "ON",
        "enforce_gtid_consistency": "ON",
        "mysqlx": "OFF",
        "innodb_redo_log_capacity": "64M",
    },
    "mysql-9": {
        "gtid_mode": "ON",
        "enforce_gtid_consistency": "ON",
        "mysqlx": "OFF",
        "innodb_redo_log_capacity": "64M",
    },
    "mysql-5.7": {"gtid_mode": "ON", "enforce_gtid_consistency": "ON", "innodb_log_file_size": "32M"},
    "mariadb-11": {"ssl": 0, "innodb_log_file_size": "32M"},
    "mariadb-10": {"innodb_log_file_size": "32M"},
}


def merged_options(version: str, changes: Options) -> dict[str, str | int]:
    """Returns the options of a server: the defaults for its version, with `changes` applied. An option that `changes` sets to None is left
    out, so that the server uses its own default.
    """
    own = next(options for prefix, options in _BY_VERSION.items() if version.startswith(prefix))
    merged: dict[str, str | int | None] = {**_SOURCE, **_SMALL, **own, **changes}
    return {key: value for key, value in merged.items() if value is not None}


def option_arguments(options: Options) -> list[str]:
    """Converts options to arguments of the server program, such as --server-id=1. Leaves out options whose value is None."""
    return [f"--{key.replace('_', '-')}={value}" for key, value in options.items() if value is not None]
