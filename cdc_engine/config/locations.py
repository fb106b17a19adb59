"""Defines the types of paths and URLs in conf/, and the settings of the catalog. Relative paths start in the folder that contains conf/."""

from __future__ import annotations

import string
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator

from sluice.cdc_engine import config_paths
from sluice.cdc_engine.source.settings import SecretText, Strict, root_of

SCHEMA_PARTS, TABLE_PARTS = ("destination", "database"), ("destination", "database", "table")
TableLocation = Annotated[str, AfterValidator(lambda word, info: config_paths.table_location(word, root_of(info)))]
TablePath = Annotated[str, AfterValidator(lambda word, info: word and config_paths.table_location(word, root_of(info)))]
ArchiveLocation = Annotated[str, AfterValidator(lambda word, info: config_paths.archive_location(word, root_of(info)))]
StorageOptions = Annotated[dict[str, SecretText], AfterValidator(config_paths.storage_options)]
PathTemplate = Annotated[str, AfterValidator(config_paths.path_template)]
DatabaseUrl = Annotated[str, AfterValidator(lambda url, info: config_paths.database_url(url, root_of(info)))]


def is_in_a_store(location: str) -> bool:
    """Returns whether a parsed location is a prefix of an object store."""
    return config_paths.URI.match(location) is not None


def folds_case(location: str) -> bool:
    """Returns whether a folder is on a file system that ignores upper and lower case in names. Object stores do not ignore it."""
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

    kind: Literal["spark"] = Field(
        description="`spark`: a catalog that the Spark of the runs has, such as a Hive metastore."
    )
    name: str = Field("spark_catalog", min_length=1, description="Name of the catalog in Spark.")
    schema_: str = Field(
        "{database}",
        alias="schema",
        min_length=1,
        description="Schema of a table. May contain `{destination}` and `{database}`. Created if it does not exist.",
    )
    table: str = Field(
        "{table}",
        min_length=1,
        description="Name of a table in its schema. May contain `{destination}`, `{database}` and `{table}`.",
    )

    @field_validator("schema_")
    @classmethod
    def _known_schema_parts(cls, text: str) -> str:
        return _checked(text, SCHEMA_PARTS)

    @field_validator("table")
    @classmethod
    def _known_table_parts(cls, text: str) -> str:
        if "{table}" not in text:
            raise ValueError("must contain {table}: otherwise all tables of a schema have one name")
        return _checked(text, TABLE_PARTS)

    def identifier(self, destination: str, database: str, table: str) -> tuple[str, str, str]:
        """Returns catalog, schema and name of a table, in lower case, because catalogs do not distinguish upper and lower case."""
        parts = {"destination": destination, "database": database, "table": table}
        return self.name, self.schema_.format(**parts).lower(), self.table.format(**parts).lower()


def _checked(text: str, known: Iterable[str]) -> str:
    """Returns the text if all its placeholders are known. Raises ValueError otherwise."""
    unknown = {name for _, name, _, _ in string.Formatter().parse(text) if name is not None} - set(known)
    if unknown:
        raise ValueError(f"{text!r} has a placeholder that is not one of {', '.join(f'{{{name}}}' for name in known)}")
    return text
