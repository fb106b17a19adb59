"""Encodes and decodes RocketMQ's remoting protocol, as far as a producer needs it: requests, answers, routes, signatures. Pure.

A frame consists of the frame's length, the header's length, the header and a body. The highest byte of the header's length is the format of
the header; 0 means JSON. A producer requests the route of a topic from a name server, and sends the messages of each queue to the master
broker of the queue.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import hmac
import itertools
import json
import re
import secrets
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any

from sluice.cdc_engine.errors import PublishError

SEND_MESSAGE_V2, SEND_BATCH_MESSAGE, GET_ROUTE = 310, 320, 105
SUCCESS, MESSAGE_ILLEGAL, NO_PERMISSION, TOPIC_NOT_EXIST = 0, 13, 16, 17
# Code of an answer → what the code means. The broker has the message, but has not stored it on disk or on a replica as its configuration
# requires. So the message is sent again.
KEPT_IN_PART = {
    10: "the disk of the broker was too slow",
    11: "the broker has no replica",
    12: "the replica of the broker was too slow",
}
VERSION = 401  # The client version in requests, here 4.9.4. Servers answer older clients in JSON that is not standard.
MASTER = "0"
WRITABLE = 1 << 1
MAGIC = struct.Struct(">ii")
# Matches a numeric key without quotes, which older name servers write in their JSON.
BARE_KEY = re.compile(rb"([{,])(\d+):")
# The topic that a broker copies when it creates a topic automatically, and the number of queues that the new topic gets.
DEFAULT_TOPIC, DEFAULT_QUEUES = "TBW102", 4
# The separator between the name and the value of a property, and the separator after each property.
BETWEEN, AFTER = "\x01", "\x02"
FRAME_BYTES_MAX = 64 << 20

_sender, _count = secrets.token_bytes(10), itertools.count()


@dataclasses.dataclass(frozen=True)
class Queue:
    """A queue of a topic. `number` is the queue's number in the broker. `address` is the address of the broker's master, or empty if the
    broker has no master now.
    """

    broker: str
    number: int
    address: str


@dataclasses.dataclass(frozen=True)
class RocketAnswer:
    code: int
    remark: str
    body: bytes


def request(
    code: int, number: int, fields: Mapping[str, str], body: bytes = b"", key: tuple[str, str] | None = None
) -> bytes:
    """Returns the frame of a request. The server repeats `number` in the answer. `key` is the access key and secret key with which the
    request is signed, or None.
    """
    header = {
        "code": code,
        "extFields": signed(fields, body, *key) if key else dict(fields),
        "flag": 0,
        "language": "PYTHON",
        "opaque": number,
        "serializeTypeCurrentRPC": "JSON",
        "version": VERSION,
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    return MAGIC.pack(4 + len(text) + len(body), len(text)) + text + body


def signed(fields: Mapping[str, str], body: bytes, access_key: str, secret: str) -> dict[str, str]:
    """Returns the fields of a request with the access key and a signature. The signature is the HMAC-SHA1 of the fields' values, sorted by
    the fields' names, followed by the body.
    """
    found = {**fields, "AccessKey": access_key}
    content = "".join(found[name] for name in sorted(found)).encode() + body
    return {**found, "Signature": base64.b64encode(hmac.digest(secret.encode(), content, "sha1")).decode()}


def answer_of(frame: bytes) -> tuple[int, RocketAnswer]:
    """Decodes the bytes of a frame after its length. Returns the number of the request, and the answer. Raises ValueError if the frame is
    not an answer.
    """
    (length,) = struct.unpack_from(">i", frame)
    if length >> 24:
        raise ValueError("the header of an answer is not JSON")
    header = json.loads(frame[4 : 4 + (length & 0xFFFFFF)])
    return int(header["opaque"]), RocketAnswer(
        int(header["code"]), header.get("remark") or "", frame[4 + (length & 0xFFFFFF) :]
    )


def queues_of(topic: str, body: bytes) -> list[Queue]:
    """Decodes a name server's answer to a request for a topic's route. Returns the queues that accept messages, in the same order as
    RocketMQ's own client. For an ordered topic, returns all queues that the topic's configuration names. Raises PublishError for a static
    topic.
    """
    route: dict[str, Any] = json.loads(BARE_KEY.sub(rb'\1"\2":', body))
    masters = {
        each["brokerName"]: each["brokerAddrs"].get(MASTER, "")
        for each in route["brokerDatas"]
        if each.get("brokerAddrs")
    }
    if ordered := route.get("orderTopicConf"):
        pairs = [word.split(":") for word in ordered.split(";") if word]
        return [Queue(name, number, masters.get(name, "")) for name, count in pairs for number in range(int(count))]
    if route.get("topicQueueMappingByBroker"):
        raise PublishError(
            f"topic {topic} of RocketMQ is a static topic, whose queues move between brokers, and Sluice does "
            "not send to static topics: create a normal topic"
        )
    return [
        Queue(each["brokerName"], number, masters[each["brokerName"]])
        for each in sorted(route["queueDatas"], key=lambda each: str(each["brokerName"]))
        if each["perm"] & WRITABLE and masters.get(each["brokerName"])
        for number in range(each["writeQueueNums"])
    ]


def queue_of(queues: Sequence[Queue], partition: int) -> Queue:
    """Returns the queue that Canal would choose for a partition."""
    return queues[partition % len(queues)]


def properties(tag: str, namespace: str) -> str:
    """Returns the properties of a message, as RocketMQ's own client writes them. The property UNIQ_KEY is the id by which RocketMQ's
    consoles find the message.
    """
    found = {"UNIQ_KEY": message_id(), "WAIT": "true"}
    if tag:
        found["TAGS"] = tag
    if namespace:
        found["INSTANCE_ID"] = namespace
    return _written(found)


def _written(found: Mapping[str, str]) -> str:
    return "".join(f"{name}{BETWEEN}{value}{AFTER}" for name, value in found.items())


def message_id() -> str:
    """Returns an id of 16 bytes: ten random bytes of this process, the milliseconds since the beginning of the month, and a counter."""
    now = time.time()
    month = dt.datetime.fromtimestamp(now).astimezone().replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    passed = int((now - month.timestamp()) * 1000) & 0x7FFFFFFF
    return (_sender + struct.pack(">iH", passed, next(_count) & 0xFFFF)).hex().upper()


def one_message(body: bytes, written: str, fields: Mapping[str, str]) -> tuple[int, dict[str, str], bytes]:
    """Returns the code, fields and body of a request that sends one message. `written` are the message's properties, and `fields` are
    the other fields of the request (`send_fields`).
    """
    return SEND_MESSAGE_V2, {**fields, "i": written, "m": "false"}, body


def several_messages(
    messages: Sequence[tuple[bytes, str]], fields: Mapping[str, str]
) -> tuple[int, dict[str, str], bytes]:
    """Returns the code, fields and body of a request that sends several messages (body, properties) to one queue, in this order. The
    properties of the request contain no message id, because an id in them would replace the ids of all messages.
    """
    parts = []
    for body, own in messages:
        text = own.encode()
        parts.append(struct.pack(">iiiii", 22 + len(body) + len(text), 0, 0, 0, len(body)))
        parts += [body, struct.pack(">H", len(text)), text]
    return SEND_BATCH_MESSAGE, {**fields, "i": _written({"WAIT": "true"}), "m": "true"}, b"".join(parts)


def send_fields(group: str, topic: str, queue: Queue) -> dict[str, str]:
    """Returns the fields of a request that sends messages. The names of the fields have one letter, as in the protocol since RocketMQ
    3.2.
    """
    return {
        "a": group,
        "b": topic,
        "c": DEFAULT_TOPIC,
        "d": str(DEFAULT_QUEUES),
        "e": str(queue.number),
        "f": "0",
        "g": str(time.time_ns() // 1_000_000),
        "h": "0",
        "j": "0",
        "k": "false",
        "n": queue.broker,
    }
