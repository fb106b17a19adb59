"""Reads when the server created a binlog file. This time distinguishes two binlog files that have the same name.

No query returns the creation time, but the first event of the file contains it. The file is requested without a server id, as `mysqlbinlog`
does, because with the replica's server id the server would end the running dump of this replica.
"""

from __future__ import annotations

import contextlib
import struct

from sluice.cdc_engine.binlog.events.event_types import (
    FLAG_ARTIFICIAL,
    FLAGS_AT,
    FORMAT_DESCRIPTION,
    HEADER_BYTES,
    TYPE_AT,
)
from sluice.cdc_engine.errors import ConfigurationError, PositionLostError
from sluice.cdc_engine.limits import READ_TIMEOUT_SECONDS
from sluice.cdc_engine.parser.connection import SourceConnection
from sluice.cdc_engine.parser.scan.framing import EVENT_AT, PACKET_HEADER_BYTES, packet_length
from sluice.cdc_engine.source.server import Source

# The format description event, which contains the creation time, must be within this many bytes of the dump. It has about 120 to 300 bytes,
# and only a short ROTATE event precedes it.
BYTES_MAX = 1 << 16


def creation_of(source: Source, file: str) -> int:
    """Returns the creation time of a binlog file in seconds since 1970. Returns 0 if the server does not have the file, does not let this
    account read it, or does not send it in time.

    Raises SourceConnectionError if the connection fails.
    """
    with contextlib.closing(SourceConnection(source)) as connection:
        try:
            connection.dump_beginning(file)
            return _created(connection)
        except (ConfigurationError, PositionLostError):
            return 0


def _created(connection: SourceConnection) -> int:
    """Returns the creation time from the file's format description event. Before this event, the server sends a ROTATE event that is not in
    the file.
    """
    received = memoryview(bytearray(BYTES_MAX))
    count = at = 0
    while True:
        while (
            count - at > PACKET_HEADER_BYTES
            and (length := packet_length(received, at)) <= count - at - PACKET_HEADER_BYTES
        ):
            event = received[at + EVENT_AT : at + PACKET_HEADER_BYTES + length]
            at += PACKET_HEADER_BYTES + length
            if len(event) < HEADER_BYTES or received[at - length] != 0:
                return 0  # An error packet, or the end of the dump.
            if event[TYPE_AT] == FORMAT_DESCRIPTION:
                return int(struct.unpack_from("<I", event)[0])
            if not event[FLAGS_AT] & FLAG_ARTIFICIAL:
                return 0
        more = connection.receive_into(received[count:], READ_TIMEOUT_SECONDS)
        if not more:
            return 0
        count += more
