"""Writes a manifest as JSON and reads it. Only this module knows the version of the format.

A manifest with missing fields, unknown fields or values of a wrong type is refused.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from pathlib import Path
from typing import Any

from sluice.batch_manifest.values import Manifest

FORMAT = 4
MANIFEST_FILE = "manifest.json"
T = typing.TypeVar("T")


class ManifestError(ValueError):
    """Raised if a text is not a manifest of this format. The message says why."""


def manifest_json(manifest: Manifest) -> str:
    """Returns the manifest as JSON. The JSON has only the name of each file, without the directory."""
    return json.dumps({"format": FORMAT, **to_record(manifest)}, ensure_ascii=False)


def read_manifest_json(text: bytes | str, directory: Path = Path()) -> Manifest:
    """Parses the JSON that `manifest_json` makes. The manifest's files are in `directory`. Raises ManifestError if the text is not a
    manifest of this format.
    """
    try:
        record = json.loads(text)
    except ValueError as error:
        raise ManifestError(f"the manifest is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise ManifestError(f"the manifest is a JSON {type(record).__name__} instead of an object")
    if (version := record.pop("format", None)) != FORMAT:
        raise ManifestError(f"the manifest has format {version!r}, and this version of Sluice reads format {FORMAT}")
    return from_record(Manifest, record, directory)


def to_record(value: Any) -> dict[str, Any]:
    """Converts a value of a manifest to JSON's types. A path becomes the name of the file, without the directory."""
    plain: dict[str, Any] = _plain(value)
    return plain


def from_record(kind: type[T], record: Any, directory: Path = Path()) -> T:
    """Makes a value of the class `kind` from a record that `to_record` made. The files that the record names are in `directory`. Raises
    ManifestError if the record does not fit the class.
    """
    try:
        found: T = _value(kind, record, directory)
    except (KeyError, TypeError, ValueError) as error:
        raise ManifestError(f"the record does not fit {kind.__name__}; missing, unknown or wrong: {error}") from error
    return found


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_plain(each) for each in value]
    return value.name if isinstance(value, Path) else value


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    """Returns the type of each field of a dataclass. The result is cached, because resolving type hints is slow."""
    return typing.get_type_hints(kind)


def _value(kind: Any, value: Any, directory: Path) -> Any:
    """Converts a JSON value to the type `kind`. Raises KeyError, TypeError or ValueError if the value does not fit the type."""
    # JSON has only one type of number, so 1 is valid where a float is expected.
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is kind:
        return value
    if dataclasses.is_dataclass(kind):
        return _fields(kind, value, directory)
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple and isinstance(value, list):
        kinds = arguments[:1] * len(value) if arguments[-1] is ... else arguments
        return tuple(_value(one, each, directory) for one, each in zip(kinds, value, strict=True))
    if origin is dict and isinstance(value, dict):
        return value
    if origin is types.UnionType:
        return _value(_member(arguments, value), value, directory)
    if origin is typing.Literal and value in arguments:
        return value
    if isinstance(value, str) and kind is Path:
        return directory / Path(value).name
    if isinstance(value, str) and isinstance(kind, type) and issubclass(kind, str):
        return kind(value)
    raise TypeError(f"{value!r} is not {getattr(kind, '__name__', kind)}")


def _fields(kind: Any, record: Any, directory: Path) -> Any:
    if not isinstance(record, dict):
        raise TypeError(f"{record!r} is not a {kind.__name__}")
    hints = _hints(kind)
    if unknown := record.keys() - hints.keys():
        raise TypeError(f"{kind.__name__} has no {', '.join(sorted(unknown))}")
    return kind(**{name: _value(hints[name], item, directory) for name, item in record.items()})


def _member(kinds: tuple[Any, ...], value: Any) -> Any:
    """Returns the type to which a JSON value is converted. `kinds` are the types of a union.

    - For null: NoneType.
    - For another value, if the union has only one type besides NoneType: this type.
    - For an object: the dataclass with the object's `kind`. Raises ValueError if no dataclass has it.
    - For any other value: the value's own type if the union has it, otherwise the union's first type besides NoneType.
    """
    if value is None:
        return type(None)
    kinds = tuple(kind for kind in kinds if kind is not type(None))
    if len(kinds) == 1:
        return kinds[0]
    if isinstance(value, dict):
        found = [kind for kind in kinds if dataclasses.is_dataclass(kind) and _kind_of(kind) == value["kind"]]
        if not found:
            raise ValueError(f"unknown kind of segment {value['kind']!r}")
        return found[0]
    return type(value) if type(value) in kinds else kinds[0]


def _kind_of(kind: Any) -> Any:
    return typing.get_args(_hints(kind)["kind"])[0]
