"""Defines the types of paths and URLs in conf/, and the settings of the catalog. A relative path starts in the folder
that contains conf/.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from sluice.cdc_engine import config_paths, limits
from sluice.cdc_engine.source.settings import SecretText, Strict, root_of

SCHEMA_PARTS, TABLE_PARTS = ("destination", "database"), ("destination", "database", "table")
TableLocation = Annotated[
    str, AfterValidator(lambda location, info: config_paths.table_location(location, root_of(info)))
]
TablePath = Annotated[
    str, AfterValidator(lambda location, info: location and config_paths.table_location(location, root_of(info)))
]
ArchiveLocation = Annotated[
    str, AfterValidator(lambda location, info: config_paths.archive_location(location, root_of(info)))
]
StorageOptions = Annotated[dict[str, SecretText], AfterValidator(config_paths.storage_options)]
PathTemplate = Annotated[str, AfterValidator(config_paths.path_template)]
DatabaseUrl = Annotated[str, AfterValidator(lambda url, info: config_paths.database_url(url, root_of(info)))]


class ArchiveFetchConfig(Strict):
    """The command that gets a binlog file which neither the source nor the archive has."""

    removed: ClassVar[Mapping[str, str]] = {
        "seconds_max": f"a command is ended after {limits.ARCHIVE_FETCH_SECONDS_MAX} seconds and started again later; a command "
        "that should end earlier must end itself"
    }

    command: tuple[str, ...] = Field(
        min_length=1,
        description=(
            "Program that fetches a binlog file, and its arguments. In an argument, `{file}` stands for the name of the "
            "binlog file, and `{path}` for the path to which the program must write the uncompressed file. The program "
            "runs without a shell."
        ),
    )

    @field_validator("command")
    @classmethod
    def _names_the_file(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        if not all(command):
            raise ValueError("write a program and its arguments, none of them empty")
        if not all(any(mark in each for each in command[1:]) for mark in ("{file}", "{path}")):
            raise ValueError(
                "the arguments must contain {file} (the name of the binlog file) and {path} (the path to "
                "which the program writes the file)"
            )
        return command


def is_in_a_store(location: str) -> bool:
    """Returns whether a location is a URL of an object store. `location` must be a validated setting."""
    return config_paths.URI.match(location) is not None


def folds_case(location: str) -> bool:
    """Returns whether a folder is on a file system that ignores letter case in names. Returns False for a location in an object store,
    because object stores distinguish letter case.
    """
    if is_in_a_store(location):
        return False
    folder = next(
        (each for each in (Path(location), *Path(location).parents) if each.exists() and _has_case(each)), None
    )
    try:
        return folder is not None and folder.samefile(folder.with_name(folder.name.swapcase()))
    except OSError:
        return False


def _has_case(folder: Path) -> bool:
    return folder.name.swapcase() != folder.name


class CatalogConfig(Strict):
    """The catalog of Spark in which runs register the Delta tables, so that readers find them by name."""

    removed: ClassVar[Mapping[str, str]] = {
        "kind": "a catalog is always one that the Spark session of the runs has; `name` selects it"
    }

    name: str = Field(
        "spark_catalog",
        min_length=1,
        description=(
            "Catalog in which Sluice registers the Delta tables: the name of a catalog that is configured in the Spark session "
            "of the runs, such as a Hive metastore."
        ),
    )
    schema_: str = Field(
        "{database}",
        alias="schema",
        min_length=1,
        description=(
            "Schema of the catalog in which a table is registered. May contain `{destination}` and `{database}`. Sluice "
            "creates the schema if it does not exist."
        ),
    )
    table: str = Field(
        "{table}",
        min_length=1,
        description=(
            "Name under which a table is registered in its schema. May contain `{destination}`, `{database}` and "
            "`{table}`."
        ),
    )

    views: str | None = Field(
        None,
        description="Name of a view of each table, such as `{table}_v`, in the table's schema. May contain the same "
        "placeholders as `table`. A view leaves out columns that begin with `_sluice_`, and rows that are marked as "
        "deleted. A view of a history has only the current rows. Empty: no views.",
    )

    @field_validator("schema_")
    @classmethod
    def _known_schema_parts(cls, text: str) -> str:
        return _checked(text, SCHEMA_PARTS)

    @field_validator("table", "views")
    @classmethod
    def _known_table_parts(cls, text: str | None) -> str | None:
        if text is None:
            return None
        if "{table}" not in text:
            raise ValueError("the name must contain {table}: otherwise all tables of a schema have the same name")
        return _checked(text, TABLE_PARTS)

    @model_validator(mode="after")
    def _own_names(self) -> Self:
        if self.views == self.table:
            raise ValueError("views must differ from table: a view and its table cannot have the same name")
        return self

    def identifier(self, destination: str, database: str, table: str) -> tuple[str, str, str]:
        """Returns the catalog, schema and name under which a table is registered. Schema and name are in lower case, because catalogs
        ignore letter case.
        """
        parts = {"destination": destination, "database": database, "table": table}
        return self.name, self.schema_.format(**parts).lower(), self.table.format(**parts).lower()

    def view_identifier(self, destination: str, database: str, table: str) -> tuple[str, str, str] | None:
        """Returns the catalog, schema and name of a table's view, the last two in lower case. Returns None if conf/ has no `views`."""
        if self.views is None:
            return None
        name, schema, _ = self.identifier(destination, database, table)
        return name, schema, self.views.format(destination=destination, database=database, table=table).lower()


def _checked(text: str, known: Iterable[str]) -> str:
    """Checks the placeholders of a name, and returns the name unchanged. Raises ValueError if a placeholder is not in `known`."""
    unknown = {name for _, name, _, _ in string.Formatter().parse(text) if name is not None} - set(known)
    if unknown:
        raise ValueError(f"{text!r} has a placeholder that is not one of {', '.join(f'{{{name}}}' for name in known)}")
    return text
