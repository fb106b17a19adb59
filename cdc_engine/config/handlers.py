"""Which installed handlers are called around each batch: `handlers` of a destination."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from cdc_engine.source.settings import Strict


class HandlerConfig(Strict):
    name: str = Field(min_length=1, description="of an entry point of the group sluice.handlers")
    options: dict[str, Any] = Field({}, description="given to it; a text $NAME is that variable of the environment")
