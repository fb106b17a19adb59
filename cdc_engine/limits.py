"""The limits of the engine, with their reasons. Those that an operator may change are the defaults of the settings in `config`."""

MEBIBYTE = 1 << 20

# One block's buffer: large enough that Python's cost per block is negligible, small enough for a ring of many.
READ_BUFFER_BYTES = 4 * MEBIBYTE
EVENT_BYTES_MAX = 1 << 30  # MySQL's maximum of max_allowed_packet; a length above it is wrong
# Size of a compressed transaction after decompression; a larger number counts as damage. It is decompressed piece by piece, so this does
# not limit memory.
PAYLOAD_BYTES_MAX = 1 << 33
PACKET_BYTES_MAX = 0xFFFFFF  # a packet of this size continues in the next one (MySQL's protocol)
RING_BYTES_MAX = 64 * MEBIBYTE  # default ring: sixteen read buffers
# Row events in the ring. The bytes are the usual limit; this one limits the arrays that index events, for rows of a few bytes.
RING_EVENTS_MAX = 1_000_000
STORE_BYTES_MAX = 8 << 30  # event files, if the store is in files: an hour at 2 MiB/s
SEGMENT_BYTES = 64 * MEBIBYTE  # one event file; it is synced as a whole, and removed as a whole
WINDOW_BYTES_MAX = 64 * MEBIBYTE  # row events kept for consumers other than the lake; most are in the ring, too
# a dump that several destinations read; one that is behind them opens its own connection
SHARED_BYTES_MAX = 64 * MEBIBYTE
BATCH_BYTES_MAX = 256 * MEBIBYTE  # a batch is everything that waits, up to this; the ring is the usual limit
BATCH_EVENTS_MAX = 1_000_000  # row events per batch: no more than a full ring has, so the ring's reason holds here, too
COMMITS_DISORDER_SECONDS = 60  # by which a search by time reads on, because commit times are not in order
# A source that answers a check of its heartbeat later counts as failed once. Several failures in a row mean a failover.
HEARTBEAT_QUERY_SECONDS_MAX = 5
HEARTBEAT_SECONDS = 15  # the server sends a heartbeat this often on an idle stream (canal.md §2.1)
READ_TIMEOUT_SECONDS = 25  # heartbeat + 10 s: after a longer silence the connection counts as dead
CONNECT_TIMEOUT_SECONDS = 10
SNAPSHOT_SILENCE_SECONDS_MAX = 3600  # a SELECT of a chunk may search long before its first row
# The kernel probes a peer that is silent for KEEPALIVE_IDLE_SECONDS, then every KEEPALIVE_AGAIN_SECONDS, and drops it after about nine.
KEEPALIVE_IDLE_SECONDS = 60
KEEPALIVE_AGAIN_SECONDS = 15
RECONNECT_SECONDS_MIN = 0.5  # first wait after a lost connection; doubles with jitter up to the next
RECONNECT_SECONDS_MAX = 20.0
REVIVE_SECONDS = 5.0  # before a parser restarts that ended for a full disk, or a replica with its identity
REVIVE_SECONDS_MAX = 60.0  # of the latter; its wait doubles
SOURCE_WATCH_SECONDS = 60.0  # how often the source's end and identity are queried, on a second connection
# A stream that seems to come from another server is checked again after this, because an answer may be slightly old.
WATCH_AGAIN_SECONDS = 3.0
# How often the Delta tables are checked between runs: two stat calls per table if nothing changed.
LAKE_WATCH_SECONDS = 30.0
TICK_SILENCE_SECONDS_MAX = 90.0  # Dagster begins a tick every 5 s; a busy daemon may be late
TICK_FAILED_SECONDS_MAX = 400.0  # failed ticks are up to 300 s apart; one that is older says nothing about the daemon
# how long the cursor may not move while changes wait; the largest batches take some minutes
PROGRESS_SECONDS_MAX = 600.0
# From a batch's hand-out until a run works on it: a run is queued, created, and imports Dagster.
RUN_BEGIN_SECONDS_MAX = 300.0
START_SECONDS_MAX = 180.0  # for an engine that connects, or compiles its kernels
TICK_SECONDS_MAX = 4.2  # a sensor tick waits this long for a batch or its run's end; Dagster starts one every 5 s
OBSERVATION_SECONDS = 60  # Dagster plots the last 100 events: one per minute shows 100 minutes
RUN_SECONDS_MAX = 3600  # a run without a report for this long is ended and its batch rolled back
