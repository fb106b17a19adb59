"""Compiles the text of a schema to Google's message classes, as protoc would. It shares no code with the code that wrote the schema."""

from __future__ import annotations

import ast
import re
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

MESSAGE = re.compile(r"^message (\w+) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r"^  (?:(optional|repeated) )?(\w+) (\w+) = (\d+)(?: \[(.*)\])?;$", re.MULTILINE)
JSON_NAME = re.compile(r'json_name = ("(?:\\.|[^"\\])*")')
RESERVED = re.compile(r"^  reserved ([\d, ]+);$", re.MULTILINE)
Descriptor = descriptor_pb2.FieldDescriptorProto


def message_class(text: str) -> Any:
    """Returns the class of a schema's first message."""
    package = re.findall(r"^package ([\w.]+);$", text, re.MULTILINE)[0]
    file = descriptor_pb2.FileDescriptorProto(name="rows.proto", package=package, syntax="proto3")
    for name, body in MESSAGE.findall(text):
        one = file.message_type.add(name=name)
        for first in RESERVED.findall(body):
            for number in first.split(", "):
                one.reserved_range.add(start=int(number), end=int(number) + 1)
        one.options.deprecated_legacy_json_field_conflicts = "deprecated_legacy_json_field_conflicts" in body
        for label, kind, field_name, number, options in FIELD.findall(body):
            _add_field(one, package, (label, kind, field_name, int(number), options))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{file.message_type[0].name}"))


def _add_field(one: Any, package: str, given: tuple[str, str, str, int, str]) -> None:
    label, kind, name, number, options = given
    field = one.field.add(name=name, number=number)
    field.label = Descriptor.LABEL_REPEATED if label == "repeated" else Descriptor.LABEL_OPTIONAL
    if kind[0].isupper():
        field.type, field.type_name = Descriptor.TYPE_MESSAGE, f".{package}.{kind}"
    else:
        field.type = getattr(Descriptor, f"TYPE_{kind.upper()}")
    if label == "optional":
        field.proto3_optional, field.oneof_index = True, len(one.oneof_decl)
        one.oneof_decl.add(name=f"_{name}")
    field.options.deprecated = "deprecated = true" in options
    if found := JSON_NAME.search(options):
        field.json_name = ast.literal_eval(found[1])
