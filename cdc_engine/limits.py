"""Every bound of the engine by name, with its reason. Values an operator may change are the defaults of `config.py`."""

MEBIBYTE = 1 << 20

# One block's buffer: large enough that per-block Python is noise, small enough for a ring of many.
READ_BUFFER_BYTES = 4 * MEBIBYTE
EVENT_BYTES_MAX = 1 << 30  # MySQL's own ceiling for max_allowed_packet; anything above is a lying length
# Of a compressed transaction, decompressed; it is read piece by piece, so this only keeps numbers in range.
PAYLOAD_BYTES_MAX = 1 << 33
PACKET_BYTES_MAX = 0xFFFFFF  # a packet of this size goes on in the next one (MySQL wire protocol)
RING_BYTES_MAX = 64 * MEBIBYTE  # default ring: sixteen read buffers
RING_EVENTS_MAX = 1_000_000  # row events in the ring; bounds the arrays beside the bytes
STORE_BYTES_MAX = 8 << 30  # of event files, where the store is in files: an hour at 2 MiB/s
SEGMENT_BYTES = 64 * MEBIBYTE  # of one event file; it is synced as a whole, and removed as a whole
WINDOW_BYTES_MAX = 64 * MEBIBYTE  # of row events kept for consumers beside the lake; most of them are in the ring, too
SHARED_BYTES_MAX = 64 * MEBIBYTE  # of a dump that several destinations read; one behind them connects by itself
BATCH_BYTES_MAX = 256 * MEBIBYTE  # a batch is what waits, up to this; the ring is the usual limit
BATCH_EVENTS_MAX = 1_000_000  # row events a batch
FAILOVER_BACK_SECONDS = 60  # that are read once more where a stream goes over to another server by time (canal.md §2.3)
HEARTBEAT_SECONDS = 15  # the server speaks at least this often on an idle stream (canal.md §2.1)
READ_TIMEOUT_SECONDS = 25  # heartbeat + 10 s: silence longer than this is a dead connection
CONNECT_TIMEOUT_SECONDS = 10
SNAPSHOT_SILENCE_SECONDS_MAX = 3600  # a SELECT of a chunk may search long before its first row
# A peer that is silent so long is asked for a sign of life by the kernel, and again, some nine times, before it counts as gone.
KEEPALIVE_IDLE_SECONDS = 60
KEEPALIVE_AGAIN_SECONDS = 15
RECONNECT_SECONDS_MIN = 0.5  # first wait after a lost connection; doubles with jitter up to the next
RECONNECT_SECONDS_MAX = 20.0
REVIVE_SECONDS = 5.0  # before a parser is restarted that ended for a full disk, or for a replica with its identity
REVIVE_SECONDS_MAX = 60.0  # of the latter, whose wait doubles
SOURCE_WATCH_SECONDS = 60.0  # the source's own end and identity are asked this often, on a second connection
# A stream that seems to be another server's is looked at once more: an answer may be a moment old.
WATCH_AGAIN_SECONDS = 3.0
# The Delta tables are looked at this often between runs: two stats each where nothing changed.
LAKE_WATCH_SECONDS = 30.0
TICK_SILENCE_SECONDS_MAX = 90.0  # Dagster begins a tick every 5 s; a busy daemon may be late
# changes wait, and the cursor has not moved for so long: the largest batches take some minutes
PROGRESS_SECONDS_MAX = 600.0
# From a batch's hand-out until a run works on it; a run is queued, made and imports Dagster.
RUN_BEGIN_SECONDS_MAX = 300.0
START_SECONDS_MAX = 180.0  # of an engine that connects, or compiles its kernels
TICK_SECONDS_MAX = 4.2  # a sensor tick waits this long for a batch, or for its run's end; Dagster begins one every 5 s
OBSERVATION_SECONDS = 60  # Dagster plots the last 100 events: one a minute shows 100 minutes
RUN_SECONDS_MAX = 3600  # a run with no news for this long is ended and its batch rolled back
