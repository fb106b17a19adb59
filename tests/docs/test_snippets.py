"""Tests what README and docs tell people to type. Each command exists with its options, each query in SQL or Python runs, and each link is
valid.
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime as dt
import functools
import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import deltalake
import duckdb
import duckdb_extension_delta
import pyarrow as pa
import pytest
import typer.main
import yaml
from pyspark.sql.connect.session import SparkSession
from typer.testing import CliRunner

from sluice.cdc_engine.config import SluiceConfig, load_config
from sluice.cdc_engine.contracts import TableVersion
from sluice.cdc_engine.table_meta.table_list.writing import write_tables
from sluice.consistent_snapshot.find import SCHEMA, consistent_snapshots_path
from sluice.console.main import app

ROOT = Path(__file__).parents[2]
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "benchmarks" / "README.md",
    *sorted(ROOT.glob("docs/**/*.md")),
]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(\./sluice [^`]+)`")
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
TESTS = re.compile(r"`((?:tests|cdc_engine|orchestration|spark_jobs|console|benchmarks|docs|conf)/[\w/.-]*\w/?)`")
# The Python in these pages is run by other tests: tests/docs/test_walks.py, tests/canal_client/test_docs.py, tests/handlers/test_engine.py
# and tests/component/test_definitions.py. tests/brokers/test_broker_plugins.py runs the plug-in, and tests/instance/transforms the
# transform.
ELSEWHERE = {
    *("CONTRIBUTING.md", "docs/canal.md", "docs/handlers.md"),
    *("docs/guides/transform.md", "docs/guides/your-own-dagster.md", "docs/guides/write-a-broker-plug-in.md"),
}
RUN = {"python", "sql"}
SHELL = {"bash", "sh"}
# Languages of blocks that are only shown and not run, such as drawings and the form of files.
SHOWN = {"", "json", "yaml", "toml", "text", "mermaid"}
LAKES = ("data/lake", ".sluice/demo/lake")
ORDERS = {"id": pa.array([1, 2, 3]), "status": pa.array(["paid", "open", "paid"])}

PERIOD = {
    "valid_from": pa.array([dt.datetime(2026, 1, 1, tzinfo=dt.UTC)] * 3),
    "valid_to": pa.array([None, None, dt.datetime(2026, 6, 1, tzinfo=dt.UTC)]),
}


@dataclasses.dataclass(frozen=True)
class Snippet:
    page: str
    language: str
    text: str


def snippets(*languages: str) -> list[Snippet]:
    found = [(page, *match) for page in PAGES if page.exists() for match in FENCE.findall(page.read_text())]
    return [
        Snippet(str(page.relative_to(ROOT)), language, text) for page, language, text in found if language in languages
    ]


def commands() -> list[tuple[str, str]]:
    """Returns (page, command line) of each `./sluice` command in code blocks and in sentences."""
    fenced = [(each.page, line) for each in snippets(*SHELL) for line in each.text.splitlines()]
    inline = [
        (str(page.relative_to(ROOT)), line)
        for page in PAGES
        if page.exists()
        for line in INLINE.findall(FENCE.sub("", page.read_text()))
    ]
    return [(page, " ".join(line.split())) for page, line in fenced + inline if line.startswith("./sluice")]


@functools.cache
def sluice_command() -> Any:
    """Returns the command with all its subcommands. Building it takes 50 ms."""
    return typer.main.get_command(app)


def problem_of(line: str) -> str:
    """Returns why `sluice` would not accept the command line, or "" if it would."""
    words = shlex.split(line.split("   #", maxsplit=1)[0].rstrip("…"))[1:]
    command = sluice_command()
    while hasattr(command, "get_command") and words and not words[0].startswith("-"):
        following = command.get_command(None, words[0])
        if following is None:
            return f"there is no command {words[0]}"
        command, words = following, words[1:]
    if command.context_settings.get("ignore_unknown_options"):
        return ""
    options = {option for parameter in command.params for option in parameter.opts} | {"--help"}
    unknown = [word for word in words if re.fullmatch(r"--?[a-z][\w-]*", word) and word not in options]
    return f"{command.name} has no option {', '.join(unknown)}" if unknown else ""


@pytest.mark.parametrize(("page", "line"), sorted(set(commands())))
def test_a_command_exists_with_its_options(page: str, line: str) -> None:
    assert not problem_of(line), f"{page}: {line}"


@pytest.mark.parametrize("line", ["./sluice nothing", "./sluice up --background", "./sluice schema draw shop"])
def test_a_command_that_does_not_exist_is_found(line: str) -> None:
    assert problem_of(line)


def test_every_block_says_what_it_is() -> None:
    known = RUN | SHELL | SHOWN
    everything = [match[0] for page in PAGES if page.exists() for match in FENCE.findall(page.read_text())]
    assert set(everything) <= known
    assert {"python", "sql", "bash"} <= set(everything)


def publish(folder: Path) -> None:
    """Publishes a consistent snapshot of the lake, as a run does at its end."""
    orders = deltalake.DeltaTable(folder / "shop" / "orders")
    table = {"path": orders.table_uri, "version": orders.version(), "table_id": str(orders.metadata().id)}
    now = dt.datetime.now(dt.UTC)
    row: dict[str, Any] = {field.name: 1 if field.type == pa.int64() else "x" for field in SCHEMA}
    row |= {"commit_time": now, "published_at": now, "tables": json.dumps({"shop.orders": table})}
    deltalake.write_deltalake(
        consistent_snapshots_path(str(folder), "shop"), pa.Table.from_pylist([row], schema=SCHEMA)
    )


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SluiceConfig:
    """Creates a folder as the pages assume it, with `shop.orders` in the lake of conf/ and in the lake of the demo. Returns the
    configuration.
    """
    for folder in LAKES:
        deltalake.write_deltalake(tmp_path / folder / "shop" / "orders", pa.table(ORDERS))
        deltalake.write_deltalake(tmp_path / folder / "past" / "orders", pa.table(ORDERS))
        deltalake.write_deltalake(tmp_path / folder / "shop" / "orders__history", pa.table(ORDERS | PERIOD))
        publish(tmp_path / folder)
    for conf, lake in ((tmp_path / "conf", LAKES[0]), (tmp_path / ".sluice/demo/conf", LAKES[1])):
        (conf / "destinations").mkdir(parents=True)
        (conf / "sluice.yaml").write_text(yaml.safe_dump({"lake": str(tmp_path / lake)}))
        (conf / "destinations" / "shop.yaml").write_text("source: {user: u}\n")
        directory = load_config(conf).destination_dir("shop")
        directory.mkdir(parents=True)
        write_tables(directory, [TableVersion(database="shop", table="orders", columns=())])
    monkeypatch.chdir(tmp_path)
    return load_config()


@pytest.mark.parametrize(
    "snippet", [each for each in snippets("python") if each.page not in ELSEWHERE], ids=lambda each: each.page
)
def test_a_snippet_in_python_runs(lake: SluiceConfig, snippet: Snippet) -> None:
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        exec(compile(snippet.text, snippet.page, "exec"), {})  # noqa: S102  it is what the page tells people to run
    assert "paid" in said.getvalue()


@pytest.mark.parametrize(
    "snippet", [each for each in snippets("sql") if "delta.`" not in each.text], ids=lambda each: each.page
)
def test_a_snippet_for_duckdb_runs(lake: SluiceConfig, snippet: Snippet) -> None:
    extension = next(Path(duckdb_extension_delta.__file__).parent.rglob("delta.duckdb_extension"))
    statements = snippet.text.replace("INSTALL delta;", "").replace("LOAD delta;", f"LOAD '{extension}';")
    assert ("paid", 2) in duckdb.connect().execute(statements).fetchall()


@pytest.mark.spark
@pytest.mark.parametrize(
    "snippet", [each for each in snippets("sql") if "delta.`" in each.text], ids=lambda each: each.page
)
def test_a_snippet_for_spark_runs(lake: SluiceConfig, snippet: Snippet, request: pytest.FixtureRequest) -> None:
    session = SparkSession.builder.remote(request.getfixturevalue("spark_server").url).create()
    statement = snippet.text.rstrip().rstrip(";").replace(LAKES[0], lake.lake)
    assert ("paid", 2) in [tuple(row) for row in session.sql(statement).collect()]
    session.stop()


@pytest.mark.parametrize(
    "line", sorted({line for _, line in commands() if line.startswith("./sluice sql ") and "…" not in line})
)
def test_a_question_in_sql_is_answered(lake: SluiceConfig, line: str) -> None:
    answer = CliRunner().invoke(app, shlex.split(line)[1:])
    assert answer.exit_code == 0, answer.exception
    assert answer.stdout.strip()


@pytest.mark.parametrize("page", [page for page in PAGES if page.exists()], ids=lambda page: page.name)
def test_links_and_named_files_are_there(page: Path) -> None:
    def is_there(name: str) -> bool:
        return (ROOT / name).exists() or (ROOT / f"{name}.py").exists()

    text = page.read_text()
    missing = [link for link in LINK.findall(text) if not (page.parent / link).exists()]
    missing += [name for name in TESTS.findall(FENCE.sub("", text)) if "NAME" not in name and not is_there(name)]
    assert not missing
