"""Tests the lexer: literals and names are returned unchanged, and text that is no statement causes only tokens or a clear error."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.cdc_engine.table_meta.ddl.declared_type import MARIADB, MYSQL, declared_type, quoted
from sluice.cdc_engine.table_meta.ddl.lexer import Token, TokenKind, UnreadableError, tokens
from sluice.cdc_engine.table_meta.ddl.reader import read_statement

TEXT = st.text(alphabet=st.characters(exclude_categories=["Cs"]))


@given(TEXT)
def test_a_quoted_text_is_one_string(text: str) -> None:
    assert tokens(quoted(text)) == [Token(TokenKind.STRING, text)]


@given(TEXT)
def test_a_quoted_name_is_one_name(name: str) -> None:
    escaped = name.replace("`", "``")
    in_utf8mb3 = "".join(mail if mail <= "\uffff" else "?" for mail in name)
    assert tokens(f"a.`{escaped}`b")[2:3] == [Token(TokenKind.NAME, in_utf8mb3)]


@given(st.lists(TEXT.filter(lambda label: label == label.rstrip(" ")), min_size=1))
def test_labels_are_read_from_the_text_they_were_written_to(labels: list[str]) -> None:
    written = f"enum({','.join(map(quoted, labels))})"
    assert declared_type(written).labels == tuple(labels)
    assert declared_type(declared_type(written).text) == declared_type(written)


PIECES = st.sampled_from(
    [
        *(
            "ALTER",
            "TABLE",
            "ADD",
            "COLUMN",
            "CREATE",
            "t",
            "d.t",
            "`q`",
            "(",
            ")",
            ",",
            "int",
            "varchar",
            "(3)",
            "'s",
            "'",
            "--",
            "/*",
        ),
        *(
            "*/",
            "/*!50000",
            "#",
            "\n",
            "DEFAULT",
            "NULL",
            "NOT",
            "PRIMARY",
            "KEY",
            "LIKE",
            "AS",
            "SELECT",
            "enum",
            "('a')",
            ";",
            ".",
            "=",
        ),
        *(
            "CHARSET",
            "latin1",
            "COLLATE",
            "FIRST",
            "AFTER",
            "DROP",
            "RENAME",
            "TO",
            "GENERATED",
            "ALWAYS",
            "REFERENCES",
            "ON",
            "SET",
            "-",
        ),
        *(
            "PARTITION",
            "BY",
            "CONSTRAINT",
            "CHECK",
            "DATABASE",
            "INDEX",
            "ORDER",
            "TRUNCATE",
            "STATEMENT",
            "FOR",
            "1",
            "0x1",
            "\\",
            '"',
        ),
    ]
)


@given(st.lists(PIECES).map(" ".join), st.sampled_from([MYSQL, MARIADB]))
def test_reading_never_raises(statement: str, flavour: str) -> None:
    assert read_statement(statement, flavour).kind is not None


@given(TEXT)
def test_any_text_is_tokens_or_unreadable(text: str) -> None:
    try:
        found = tokens(text)
    except UnreadableError:
        return
    assert all(token.kind is not TokenKind.END for token in found)


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        ("a /* b ' */ c", "a c"),
        ("a /*!50000 b */ c", "a b c"),
        ("a /*M!100000 b*/ c", "a b c"),
        ("a -- b\nc", "a c"),
        ("a # b\nc", "a c"),
        ("a--1", "a - - 1"),
        ("5ab 5 5e3 0x1f b'01'", "5ab 5 5e3 0x1f b'01'"),
        ("'a' 'b' \"c\"", "abc"),
        (r"'a\'b''c\n\%'", "a'b'c\n\\%"),
    ],
)
def test_comments_numbers_and_strings(statement: str, words: str) -> None:
    assert " ".join(token.text for token in tokens(statement)) == words


@pytest.mark.parametrize(
    ("spelling", "canonical"),
    [
        ("INT(11) UNSIGNED ZEROFILL", "int unsigned"),
        ("tinyint(1)", "tinyint(1)"),
        ("TINYINT(4)", "tinyint"),
        ("year(4)", "year"),
        ("geometrycollection", "geomcollection"),
        ("decimal(5)", "decimal(5,0)"),
        ("DOUBLE PRECISION", "double"),
        ("set('a','b')", "set('a','b')"),
        ("varchar(200) /*M!100301 COMPRESSED*/", "varchar(200) compressed"),
        ("datetime(0)", "datetime"),
    ],
)
def test_both_servers_spellings_have_one_text(spelling: str, canonical: str) -> None:
    assert declared_type(spelling).text == canonical
