"""conf/ read from its files, with all that is wrong said at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cdc_engine.config.sluice import SluiceConfig, path_clashes
from cdc_engine.config.texts import MAIN, ConfTexts, mapping_of, read_texts
from cdc_engine.errors import ConfigurationError


def conf_dir() -> Path:
    """$SLUICE_CONF, or conf/ of the working directory; the folder above it is where relative paths in it start."""
    return Path(os.environ.get("SLUICE_CONF", "conf")).resolve()


def load_config(directory: Path | None = None) -> SluiceConfig:
    """Reads and checks every file of conf/; raises one ConfigurationError with all that is wrong, a line each."""
    return config_of(read_texts((directory or conf_dir()).resolve()))


def config_of(texts: ConfTexts) -> SluiceConfig:
    """What the texts of conf/ say. Raises ConfigurationError as `load_config` does."""
    problems: list[str] = []
    record = mapping_of(MAIN, texts.main, problems)
    destinations = {
        name: {"name": name, **mapping_of(f"{name}.yaml", text, problems)}
        for name, text in sorted(texts.destinations.items())
    }
    try:
        record = {**record, "destinations": destinations}
        context = {"root": texts.directory.parent}
        config = SluiceConfig.model_validate(record, context=context).with_sources_in_use()
    except ValidationError as error:
        problems += [_sentence(item) for item in error.errors()]
    else:
        problems += path_clashes(config, {})
    if problems:
        raise ConfigurationError(f"{texts.directory}: " + "; ".join(problems))
    return config


def _sentence(item: Any) -> str:
    """One pydantic error as `file: key: what is wrong`; the input value is left out, it may be a secret."""
    where = [str(part) for part in item["loc"]]
    file = "sluice.yaml"
    if where[:1] == ["destinations"] and len(where) > 1:
        file, where = f"destinations/{where[1]}.yaml", where[2:]
    return f"{file}: {'.'.join(where)}: {item['msg'].removeprefix('Value error, ')}"
