"""Tests that properties files are read as Java does, and in which order Canal looks a key up."""

from __future__ import annotations

from pathlib import Path

import pytest

from sluice.cdc_engine.config import load_config
from sluice.cdc_engine.errors import ConfigurationError
from sluice.console.canal_import.convert import import_canal
from sluice.console.canal_import.properties import Settings, instances, parsed
from tests.console.canal_import.fix_canal import canal_folder


def test_a_canal_properties_file_is_read_as_java_reads_it() -> None:
    text = (
        "# note\n! note\n a = 1 \nb:2\nc 3\nd=\ne = x\\\n   y\nf=.*\\\\..*\ng\\ h=gr\\u00fcn\ni=a=b # no comment\nj\n"
    )
    assert parsed(text) == {
        "a": "1", "b": "2", "c": "3", "d": "", "e": "xy", "f": r".*\..*", "g h": "grün", "i": "a=b # no comment", "j": "",
    }  # fmt: skip


def test_canal_looks_a_key_up_in_the_environment_then_the_instance_then_the_server() -> None:
    settings = Settings(
        ({"a": "instance", "b": " "}, {"a": "server", "b": "server", "c": "${a}/${d:else}"}), {"e": "env"}
    )
    assert [settings.get(key) for key in "abce"] == ["instance", "server", "instance/else", "env"]
    assert settings.get("z", "default") == "default"
    assert Settings(({"a": "instance"},), {"a": "env"}).get("a") == "env"
    with pytest.raises(ConfigurationError, match="refers to itself"):
        Settings(({"a": "${a}"},), {}).get("a")


@pytest.mark.found
def test_a_placeholder_without_a_value_is_refused_unless_only_the_presence_of_a_key_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Defect 1164: without the variables of Canal's container, `import-canal` wrote 127.0.0.1 and all tables, and called it converted."""
    keys = {
        "canal.instance.master.address": "IMPORT_HOST",
        "canal.instance.filter.regex": "IMPORT_TABLES",
        "canal.instance.dbPassword": "IMPORT_PASSWORD",
    }
    folder = canal_folder(tmp_path, instance="\n".join(f"{key} = ${{{name}}}" for key, name in keys.items()))
    for name, value in (("IMPORT_HOST", "db.example:3307"), ("IMPORT_TABLES", r"shop\..*")):
        with pytest.raises(ConfigurationError, match=f"set the environment variable {name}"):
            import_canal(folder, tmp_path / "conf")
        monkeypatch.setenv(name, value)
    found = import_canal(folder, tmp_path / "conf")
    shop = load_config(tmp_path / "conf").destinations["example"]
    assert (shop.source.address, shop.source.password, shop.include) == (
        "db.example:3307",
        "$EXAMPLE_PASSWORD",
        r"shop\..*",
    )
    assert "EXAMPLE_PASSWORD" in found.findings["example"].secrets
    settings = Settings(({"a": "${b}x${c:}${d:e}", "b": " "},), {})
    assert settings.get("a") == "xe"


def test_canal_instances_are_listed_counted_out_and_found(tmp_path: Path) -> None:
    folder = canal_folder(tmp_path, name="found")
    assert instances(folder, Settings(({"canal.destinations": "a, b"},), {})) == ["a", "b", "found"]
    expression = {"canal.destinations": "a", "canal.destinations.expr": "shard{2-4}", "canal.auto.scan": "false"}
    assert instances(folder, Settings((expression,), {})) == ["shard2", "shard3", "shard4"]
    with pytest.raises(ConfigurationError, match="not of the form"):
        instances(folder, Settings(({"canal.destinations.expr": "shard{4-2}"},), {}))
