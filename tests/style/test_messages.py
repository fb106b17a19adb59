"""Tests that messages name the command `sluice`, as an installation has it, and that messages and names use the terms of the glossary."""

import ast
import functools
import re
from collections.abc import Iterator

from tests.style.replaced_words import as_prose, count_words, replaced_words
from tests.style.sources import BENCHMARKS, PRODUCT, ROOT, Source, checkout_sources

# Messages with these parts may name the script ./sluice, because only a checkout has it.
OF_A_CHECKOUT = ("clone the repository and use its ./sluice", "in a checkout: ")
REPLACED = re.compile(r"\b(told|asked|anew|wish|runway|mend|lengthen)\b")
WORDS_MIN = 4  # Literals with fewer words are names, patterns and keys.
# Replaced words that names also use with a plain meaning: locks are held, JSON has documents, SQL has words, buffers have room and grow,
# processors have lanes. A machine cannot tell which meaning a name has.
ALSO_PLAIN = frozenset(
    {"held", "lane", "feed", "grow", "texts", "documents", "hands", "outside", "room", "lives", "letter", "word"}
)
FORMS = ("ask", "tell", "bring", "younger")  # Forms of replaced words that are not regular.
# Names in which the replaced word has another meaning, and names that somebody else chose.
ALLOWED = frozenset(
    {
        # In the product: mirrors of Debian. In conf/: the former name of a setting, which is refused.
        *("mirror", "mirrors"),
        # Customers of the demo place orders, and hypothesis counts the places of decimals.
        *("_place_order", "placed_at", "places"),
        # A method of Python's files.
        "tell",
        # The former key of a record that is still read.
        "place",
        # The former name of a setting, and that of a package. Both are refused.
        *("runway_hours_min", "src/sluice/lake_cut.py"),
        "test_admin_a_file_is_put_in_place_once_conf_is_right_with_it",
        "test_ddl_a_type_is_widened_in_place",
    }
)
KEY = re.compile(r"[A-Za-z0-9_.:#/-]+")  # A literal that is a name: of a metric, a key, a column, a log event.


@functools.cache
def messages() -> list[tuple[str, str]]:
    """Returns the location and the text of each literal that is not a docstring."""
    return list(_messages())


def _messages() -> Iterator[tuple[str, str]]:
    for source in checkout_sources():
        statements = {id(node.value) for node in source.nodes(ast.Expr) if isinstance(node, ast.Expr)}
        for node in source.nodes(ast.Constant):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in statements:
                yield f"{source.name}:{node.lineno}", node.value


def test_a_message_names_the_command_as_an_installation_has_it() -> None:
    found = [
        f"{location}: {text}"
        for location, text in messages()
        if "./sluice" in text and not any(each in text for each in OF_A_CHECKOUT)
    ]
    assert not found, "write `sluice`: README says how a checkout calls it"


def test_a_message_has_no_word_that_the_glossary_replaces() -> None:
    found = [
        f"{location}: {text}"
        for location, text in messages()
        if len(text.split()) >= WORDS_MIN and REPLACED.search(text) and " = " not in text
    ]
    assert not found


def names_of(source: Source) -> Iterator[str]:
    """Yields the names that a file defines or uses: its path, identifiers, and in the product also literals that are names."""
    yield source.name
    for node in source.nodes(ast.Name, ast.Attribute, ast.arg, ast.keyword, ast.FunctionDef, ast.ClassDef, ast.alias):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name) | ast.keyword(arg=str(name)):
                yield name
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.alias(name=name):
                yield name
    if source.name.split("/")[0] in PRODUCT:
        literals = (node.value for node in source.nodes(ast.Constant) if isinstance(node, ast.Constant))
        yield from (text for text in literals if isinstance(text, str) and KEY.fullmatch(text))


def test_a_name_has_no_word_that_the_glossary_replaces() -> None:
    words = [*(word for word in replaced_words(ROOT) if word not in ALSO_PLAIN), *FORMS]
    spellings = (
        form.replace(" ", "_?") for word in words for form in (rf"(?<![a-z]){word}", word.title(), word.upper())
    )
    likely = re.compile("|".join(spellings))  # Most files have none of these, and need not be parsed.
    found = {
        (source.name, name): wrong
        for source in checkout_sources((*PRODUCT, "src", BENCHMARKS, "tests"))
        if likely.search(source.text) or likely.search(source.name)
        for name in set(names_of(source)) - ALLOWED
        if likely.search(name) and (wrong := [*count_words(words, as_prose(name))])
    }
    assert not found


def test_a_log_line_has_its_values_in_its_text() -> None:
    """Defect 76: log lines about a table had the table's name only in `extra`, which the format of the log does not show."""
    found = [
        f"{source.name}:{node.lineno}"
        for source in checkout_sources()
        for node in source.nodes(ast.Call)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"debug", "info", "warning", "error", "exception", "critical"}
        and any(keyword.arg == "extra" for keyword in node.keywords)
    ]
    assert not found
