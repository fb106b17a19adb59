"""Parses and writes Protobuf schemas (.proto files).

A registry may reformat the text of a schema, so the parser accepts the whole proto3 syntax except maps. The parser returns only the
package, messages, fields and reserved numbers, because only these determine how messages are decoded.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

TOKEN = re.compile(
    r"""\s+|//[^\n]*|/\*.*?(?:\*/|\Z)|("(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|[\w.]+|[^\w\s])""", re.DOTALL
)
LABELS = ("optional", "repeated", "required")
BLOCKS, SKIPPED = ("enum", "extend", "service"), ("option", "extensions", "import", "syntax", "edition")
NUMBER_MAX = (1 << 29) - 1
# Field numbers that Protobuf reserves for its implementation.
OWN_NUMBERS = range(19_000, 20_000)
ESCAPES = re.compile(r"\\([0-7]{1,3}|.)", re.DOTALL)
QUOTED = re.compile(r'[\\"\x00-\x1f\x7f]')


@dataclasses.dataclass(frozen=True)
class ProtobufField:
    """A field of a message. `deprecated`: whether the table no longer has the field's column."""

    name: str
    type: str
    number: int
    label: str = ""
    json_name: str = ""
    deprecated: bool = False

    @property
    def text(self) -> str:
        options = [f"json_name = {_quoted(self.json_name)}"] if self.json_name else []
        options += ["deprecated = true"] if self.deprecated else []
        shown = f" [{', '.join(options)}]" if options else ""
        return f"  {self.label}{' ' if self.label else ''}{self.type} {self.name} = {self.number}{shown};"


@dataclasses.dataclass(frozen=True)
class ProtobufMessage:
    """A message type. `reserved`: ranges (first, last) of numbers that no field may have."""

    name: str
    fields: tuple[ProtobufField, ...]
    reserved: tuple[tuple[int, int], ...] = ()

    @property
    def next_number(self) -> int:
        """The number for a new field, which is greater than all used and reserved numbers."""
        used = [field.number for field in self.fields] + [last for _, last in self.reserved]
        return after(max(used, default=0))

    @property
    def text(self) -> str:
        ranges = ", ".join(f"{first}" if first == last else f"{first} to {last}" for first, last in self.reserved)
        lines = ["  option deprecated_legacy_json_field_conflicts = true;"] if _share_json_names(self.fields) else []
        lines += [f"  reserved {ranges};"] if ranges else []
        return "\n".join([f"message {self.name} {{", *lines, *(field.text for field in self.fields), "}"])


@dataclasses.dataclass(frozen=True)
class ProtobufSchema:
    """A Protobuf schema. `messages`: all message types, including nested ones, in the order of the text."""

    package: str
    messages: tuple[ProtobufMessage, ...]

    @property
    def record(self) -> str:
        """The full name of the first message, which is the type of the encoded data."""
        return f"{self.package}.{self.messages[0].name}"

    @property
    def text(self) -> str:
        parts = ['syntax = "proto3";', f"package {self.package};", *(each.text for each in self.messages)]
        return "\n\n".join(parts) + "\n"


def after(number: int) -> int:
    """Returns the least permitted field number that is greater than `number`."""
    return OWN_NUMBERS.stop if number + 1 in OWN_NUMBERS else number + 1


def parsed(text: str) -> ProtobufSchema:
    """Parses the text of a schema. Raises ValueError if the text is not a valid schema, or if the schema has a map field."""
    reader = _Reader(text)
    try:
        package = reader.file()
    except IndexError:
        raise ValueError("the schema ends too early") from None
    except RecursionError:
        raise ValueError("the messages of the schema are nested too deeply") from None
    if not reader.messages:
        raise ValueError("the schema has no message")
    return ProtobufSchema(package, tuple(reader.messages))


class _Reader:
    """Parses the tokens of a schema from first to last. The methods raise IndexError if the text ends too early, and ValueError for other
    mistakes.
    """

    def __init__(self, text: str) -> None:
        self._tokens: list[str] = [found for found in TOKEN.findall(text) if found]
        self._at = 0
        self.messages: list[ProtobufMessage] = []

    def file(self) -> str:
        package = ""
        while self._at < len(self._tokens):
            word = self._next()
            if word == "package":
                package = self._next()
                self._skip()
            elif word == "message":
                self._message()
            elif word != ";":
                self._skip()
        return package

    def _message(self) -> None:
        index, unclosed = len(self.messages), 1
        name, fields, reserved = self._next(), [], list[tuple[int, int]]()
        self._expect("{")
        while unclosed:
            word = self._next()
            if word == "}":
                unclosed -= 1
            elif word == "oneof":
                self._next()
                self._expect("{")
                unclosed += 1
            elif word == "message":
                self._message()
            elif word == "map":
                raise ValueError(f"the message {name} has a map field, which Sluice cannot read")
            elif word == "reserved":
                reserved += self._reserved()
            elif word in BLOCKS or word in SKIPPED:
                self._skip()
            elif word != ";":
                fields.append(self._field(word))
        self.messages.insert(index, ProtobufMessage(name, tuple(fields), tuple(reserved)))

    def _field(self, word: str) -> ProtobufField:
        label = word if word in LABELS else ""
        kind, name = self._next() if label else word, self._next()
        self._expect("=")
        number, json_name, deprecated = int(self._next(), 0), "", False
        while (mark := self._next()) != ";":
            if mark in {"[", ","} and self._tokens[self._at + 1] == "=":
                option, _, value = self._next(), self._next(), self._next()
                json_name = _unquoted(value) if option == "json_name" else json_name
                deprecated = deprecated or (option, value) == ("deprecated", "true")
        return ProtobufField(name, kind.rpartition(".")[2], number, label, json_name, deprecated)

    def _reserved(self) -> list[tuple[int, int]]:
        found: list[tuple[int, int]] = []
        while (word := self._next()) != ";":
            if word == "to":
                last = self._next()
                found[-1] = (found[-1][0], NUMBER_MAX if last == "max" else int(last, 0))
            elif word.isdigit():
                found.append((int(word), int(word)))
        return found

    def _skip(self) -> None:
        """Skips the rest of a statement up to and including its `;` or the `}` of its block."""
        depth = 0
        while (word := self._next()) != ";" or depth:
            depth += (word == "{") - (word == "}")
            if word == "}" and not depth:
                return

    def _next(self) -> str:
        self._at += 1
        return self._tokens[self._at - 1]

    def _expect(self, mark: str) -> None:
        if (found := self._next()) != mark:
            raise ValueError(f"the schema has {found!r} instead of {mark!r}")


def _share_json_names(fields: Sequence[ProtobufField]) -> bool:
    """Returns whether two fields have the same name in JSON, such as user_id and userId. For such fields, protoc requires the message
    option deprecated_legacy_json_field_conflicts.
    """
    names = ({_in_json(field.name) for field in fields}, {field.json_name or _in_json(field.name) for field in fields})
    return min(map(len, names)) < len(fields)


def _in_json(name: str) -> str:
    head, *others = name.split("_")
    return head + "".join(each[:1].upper() + each[1:] for each in others)


def _quoted(text: str) -> str:
    escaped = QUOTED.sub(lambda found: "\\" + format(ord(found.group()), "03o"), text)
    return f'"{escaped}"'


def _unquoted(text: str) -> str:
    return ESCAPES.sub(lambda found: chr(int(found[1], 8)) if found[1].isdigit() else found[1], text[1:-1])
