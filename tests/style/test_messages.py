"""Messages name the command `sluice`, as it is called after an installation, and use the words of docs/glossary.md."""

import ast
import functools
import re
from collections.abc import Iterator

from tests.style.sources import checkout_sources

# Texts about things that only a checkout has: its script.
OF_A_CHECKOUT = ("clone the repository and use its ./sluice", "in a checkout: ")
REPLACED = re.compile(r"\b(told|asked|anew|wish|runway|mend|lengthen)\b")
WORDS_MIN = 4  # Literals with fewer words are names, patterns and keys.


@functools.cache
def messages() -> list[tuple[str, str]]:
    """Yields location and text of each literal of several words that is not a docstring."""
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
