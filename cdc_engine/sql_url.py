"""A database's URL of conf/ with the secret that it names; asked by whoever opens a database."""

from __future__ import annotations

import os

import sqlalchemy
from sqlalchemy.exc import ArgumentError

from cdc_engine.errors import ConfigurationError

# Those that Sluice brings.
DRIVERS = {"mysql": "mysql+pymysql", "mariadb": "mariadb+pymysql", "postgresql": "postgresql+psycopg"}


def url_with_password(url: str, setting: str) -> sqlalchemy.URL:
    """The URL with the secret that its password names. `setting`: its key in conf/. Raises ConfigurationError, which never holds it."""
    try:
        parsed = sqlalchemy.make_url(url)
    except (ArgumentError, ValueError):  # the library's own sentence may hold a part of the password
        raise ConfigurationError(
            f"{setting} is no URL of a database, such as mysql+pymysql://user:$NAME@host/db; "
            "write characters like / and @ of a password as %2F and %40"
        ) from None
    parsed = parsed.set(drivername=DRIVERS.get(parsed.drivername, parsed.drivername))
    if not parsed.password or not str(parsed.password).startswith("$"):
        return parsed
    name = str(parsed.password)[1:]
    if name not in os.environ:
        raise ConfigurationError(f"the environment variable {name} with the password of {setting} is not set")
    return parsed.set(password=os.environ[name])
