"""Tests that the script of figures counts correctly, on small sources that are written here."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.style.figures import as_text, figures, main
from tests.style.import_graph import cycles, file_graph, folded, mutual_pairs
from tests.style.replaced_words import count_in_code, count_in_pages, count_words, replaced_words
from tests.style.shape import (
    commands,
    configuration_fields,
    functions_named,
    most_arguments,
    shared_names,
    states,
)
from tests.style.sources import PRODUCT, ROOT, Source, checkout_sources, sources

GLOSSARY = """# Glossary
| term | meaning |
|---|---|
| place | not in the list |

## Words that are replaced

| old | term |
|---|---|
| taken anew, read anew | re-snapshot |
| beside (of tables) | change log and history |
| at hand | local copy |
"""


@pytest.fixture
def product(tmp_path: Path) -> Path:
    """Creates a root with a glossary. `write` puts files below it."""
    write(tmp_path, "docs/glossary.md", GLOSSARY)
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def files(root: Path) -> list[Source]:
    return sources(root, PRODUCT)


def test_imports_within_functions_make_pairs_and_cycles(product: Path) -> None:
    write(product, "console/one.py", "import sluice.console.lake.two\n")
    write(product, "console/lake/two.py", "def two() -> None:\n    from sluice.console import one, absent\n")
    write(product, "equality/three.py", "from sluice.console.lake.two import two\n")
    graph = file_graph(files(product))
    assert mutual_pairs(folded(graph)) == [("console", "console/lake")]
    assert mutual_pairs(folded(graph, depth=1)) == []
    assert cycles(graph) == [["console/lake/two.py", "console/one.py"]]


def test_an_import_from_a_package_means_its_module_before_the_package(product: Path) -> None:
    write(product, "console/__init__.py", "from sluice.console.one import a\n")
    write(product, "console/one.py", "from sluice.console import two\n")
    write(product, "console/two.py", "")
    assert cycles(file_graph(files(product))) == []
    write(product, "console/two.py", "from sluice.console import a\n")
    assert len(cycles(file_graph(files(product)))) == 1


def test_classes_of_one_name_are_listed_with_their_files(product: Path) -> None:
    write(product, "console/one.py", "class A:\n    class B: ...\n")
    write(product, "equality/two.py", "class A: ...\n")
    write(product, "canal_client/three.py", "class A: ...\nclass C: ...\nclass C: ...\n")
    found = {"A": ["equality/two.py", "console/one.py"], "C": ["canal_client/three.py"] * 2}
    assert shared_names(files(product)) == found


def test_every_class_of_the_product_has_a_name_of_its_own() -> None:
    assert shared_names(checkout_sources()) == {}


def test_arguments_are_counted_without_self_and_kernels_apart(product: Path) -> None:
    text = "class A:\n    def f(self, a, *b, c, **d): ...\n@kernel\ndef g(a, b, c, d, e): ...\n@nb.njit(x=1)\ndef h(a): ...\n"
    write(product, "console/one.py", text)
    assert most_arguments(files(product), kernels=False) == (4, "console/one.py: f")
    assert most_arguments(files(product), kernels=True) == (5, "console/one.py: g")
    assert functions_named(files(product), "g") == 1


def test_fields_of_settings_are_counted_through_their_base_classes(product: Path) -> None:
    write(product, "cdc_engine/base.py", "class Strict(pydantic.BaseModel):\n    model_config = {}\n    a: int\n")
    write(
        product, "cdc_engine/one.py", "class C(Strict):\n    b: int = 1\n    K: ClassVar[int]\nclass D:\n    c: int\n"
    )
    assert configuration_fields(files(product)) == 2


def test_commands_and_states_are_counted(product: Path) -> None:
    write(
        product, "console/one.py", '@app.command()\ndef a(): ...\n@lake_app.command("x")\ndef b(): ...\ndef c(): ...\n'
    )
    write(
        product,
        "cdc_engine/states.py",
        'class RunState(StrEnum):\n    A = "A"\n    B = "B"\nclass Act(StrEnum):\n    C = 1\n',
    )
    assert commands(files(product)) == 2
    assert states(files(product)) == {"RunState": 2}


def test_replaced_words_are_read_from_the_last_table_of_the_glossary(product: Path) -> None:
    assert replaced_words(product) == ["taken anew", "read anew", "beside", "at hand"]


def test_the_glossary_of_the_project_has_replaced_words() -> None:
    assert {"place", "taken anew"} <= set(replaced_words(ROOT))


def test_words_are_counted_in_names_and_in_prose(product: Path) -> None:
    text = '"""A table beside it."""\nAtHand = at_hand  # at\nof, hand = "at hand", 1\nfor beside in besides: ...\n'
    write(product, "console/one.py", text)
    found = count_in_code(files(product), ["beside", "at hand"])["console"]
    assert found["identifiers"] == {"beside": 2, "at hand": 2}
    assert found["prose"] == {"beside": 1}


def test_a_word_is_counted_with_its_regular_endings_and_across_lines() -> None:
    found = count_words(["taken anew", "grow"], "Taken\nanew. It grows; it has outgrown regrowing.")
    assert found == {"taken anew": 1, "grow": 1}


def test_pages_are_counted_without_the_glossary(product: Path) -> None:
    write(product, "docs/decisions/one.md", "taken anew")
    write(product, "README.md", "beside, beside")
    assert count_in_pages(product, replaced_words(product)) == {"taken anew": 1, "beside": 2}


def test_a_person_sees_how_many_there_are_before_the_list() -> None:
    text = as_text({"lines": 7, "pairs": [("a", "b")], "names": {"A": ["x", "y"]}, "words": {"w": {"prose": 2}}})
    assert text.splitlines() == [
        "lines: 7",
        "pairs: 1",
        "    a, b",
        "names: 1",
        "    A: x, y",
        "words: 1",
        "    w: prose 2",
    ]


def test_figures_of_a_small_product_are_printed_as_json(
    product: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write(product, "console/one.py", "def f(place): ...\n")
    monkeypatch.setattr("tests.style.figures.figures", lambda: figures(product))
    main(["--json"])
    found = json.loads(capsys.readouterr().out)
    assert found["product lines"] == 1
    assert found["most arguments of one function"] == "1 (console/one.py: f)"
    assert found["replaced words"]["beside"] == {"identifiers": 0, "prose": 0, "pages": 0}
