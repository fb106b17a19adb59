"""Which rows of a table are captured, and what its columns show: the words of conf/. The condition is read by `binlog.row_rules`."""

from __future__ import annotations

import re
from typing import Any, Literal

from pydantic import Field, model_validator

from cdc_engine.source.settings import Strict

MASK_SALT_ENV = "SLUICE_MASK_SALT"


class MaskConfig(Strict):
    """What a column shows instead of its values. In short: `hash`, `null`, or `truncate:4`."""

    kind: Literal["hash", "truncate", "null"]
    chars: int = Field(0, ge=0, description="of truncate: characters that are left, of binary values bytes")
    salt_env: str = Field(
        MASK_SALT_ENV, description="of hash: environment variable with what is put in front of each value"
    )
    if_missing: Literal["stop", "ignore"] = Field(
        "stop", description="a table without the column stops: under another name its values would be shown"
    )

    @model_validator(mode="before")
    @classmethod
    def _in_short(cls, record: Any) -> Any:
        if record is None:  # what YAML makes of the word null
            return {"kind": "null"}
        if isinstance(record, dict):
            return {**record, "kind": record["kind"] or "null"} if "kind" in record else record
        short = re.fullmatch(r"(hash|null|truncate)(?::\s*(\d+))?", str(record))
        if short is None:
            raise ValueError(f"{record!r} is no mask: say hash, null or truncate:4 (so many characters are left)")
        kind, chars = short.groups()
        return {"kind": kind, **({"chars": int(chars)} if chars else {})}

    @model_validator(mode="after")
    def _chars_of_truncate(self) -> MaskConfig:
        if (self.kind == "truncate") != bool(self.chars):
            raise ValueError("chars is of truncate, and it needs one at least: truncate:4")
        return self
