"""Defines the settings that select rows of a table, mask columns, and name a function that transforms rows."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from sluice.cdc_engine.source.settings import OnlyWith, SecretReference, Strict, moved_secret

MASK_SALT = "$SLUICE_MASK_SALT"


class MaskConfig(Strict):
    """The mask of a column: what the column shows instead of its values. Short forms: `hash`, `null`, `truncate:4`."""

    removed: ClassVar[Mapping[str, str]] = moved_secret("salt")
    only_with: ClassVar[OnlyWith] = {"salt": ("kind", ("hash",))}

    kind: Literal["hash", "truncate", "null"] = Field(
        description=(
            "What replaces the column's values. `hash`: a salted hash of the value. `truncate`: the first `chars` "
            "characters of the value. `null`: NULL."
        )
    )
    chars: int = Field(
        0, ge=0, description="Number of characters that `truncate` keeps. For binary values, the number of bytes."
    )
    salt: SecretReference = Field(
        MASK_SALT,
        min_length=1,
        description="Salt that `hash` prepends to each value, as `$NAME`, `{file: PATH}` or `{command: [PROGRAM]}`.",
    )
    if_missing: Literal["stop", "ignore"] = Field(
        "stop",
        description=(
            "What happens if the table does not have the column. `stop`: the table stops, because the column may have "
            "been renamed, and its values would then be visible. `ignore`: the mask has no effect."
        ),
    )

    @model_validator(mode="before")
    @classmethod
    def _in_short(cls, record: Any) -> Any:
        if record is None:  # The short form `null`, which YAML parses as None.
            return {"kind": "null"}
        if isinstance(record, dict):
            return {**record, "kind": record["kind"] or "null"} if "kind" in record else record
        short = re.fullmatch(r"(hash|null|truncate)(?::\s*(\d+))?", str(record))
        if short is None:
            raise ValueError(f"{record!r} is not a mask: use hash, null or truncate:4 (the first 4 characters)")
        kind, chars = short.groups()
        return {"kind": kind, **({"chars": int(chars)} if chars else {})}

    @model_validator(mode="after")
    def _chars_of_truncate(self) -> MaskConfig:
        if (self.kind == "truncate") != bool(self.chars):
            raise ValueError(
                "truncate needs `chars` of at least 1, as in truncate:4; no other kind of mask has `chars`"
            )
        return self


class TransformConfig(Strict):
    """A transform: a Python function of the operator that changes the rows of a table before they reach the lake."""

    function: str = Field(
        pattern=r"^[\w.]+:[\w.]+$|^[\w-]+$",
        description=(
            "Python function that changes the rows: `module:function`, or the name of an entry point of the group "
            "`sluice.transforms`."
        ),
    )
    reads: tuple[str, ...] = Field(min_length=1, description="Columns that the function gets.")
    writes: tuple[str, ...] = Field(
        (),
        description=(
            "Columns that the function returns: columns of the table, whose values the function replaces, or new "
            "columns."
        ),
    )
    drops: bool = Field(
        False,
        description=(
            "Whether the function also returns the boolean column `_sluice_keep`. A row with `false` in this column does "
            "not reach the lake."
        ),
    )
    version: str = Field(
        "",
        description=(
            "Version of the function's results: if this text changes, the table is re-snapshotted. Default: a "
            "digest of the file of the module."
        ),
    )
    seconds_max: float = Field(
        60.0,
        gt=0,
        le=3600,
        description=(
            "Seconds that a call of the function may take. If a call takes longer, the table stops (TRANSFORM_FAILED)."
        ),
    )

    @model_validator(mode="after")
    def _some_effect(self) -> TransformConfig:
        if not self.writes and not self.drops:
            raise ValueError("the transform has no effect: name columns in `writes`, or set `drops: true`")
        for setting, names in (("reads", self.reads), ("writes", self.writes)):
            if len({name.lower() for name in names}) < len(names):
                raise ValueError(f"transform.{setting} has a column twice (names are case-insensitive): remove one")
        if reserved := [name for name in self.writes if name.lower().startswith("_sluice_")]:
            raise ValueError(
                f"transform.writes has {reserved[0]}: columns that begin with _sluice_ are reserved for Sluice; write another name"
            )
        return self
