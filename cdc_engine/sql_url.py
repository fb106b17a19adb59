"""Builds the URL of a database from conf/ and the secret that it names. Called wherever a database is opened."""

from __future__ import annotations

import os

import sqlalchemy
from sqlalchemy.exc import ArgumentError

from cdc_engine.errors import ConfigurationError

# The drivers that Sluice installs.
DRIVERS = {"mysql": "mysql+pymysql", "mariadb": "mariadb+pymysql", "postgresql": "postgresql+psycopg"}


def url_with_password(url: str, setting: str) -> sqlalchemy.URL:
    """Returns the URL with the secret that its password names. `setting`: its key in conf/. Raises ConfigurationError, which never
    contains the secret.
    """
    try:
        parsed = sqlalchemy.make_url(url)
    except (ArgumentError, ValueError):  # the library's message may contain a part of the password
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
