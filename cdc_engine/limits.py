"""Defines the limits of the engine, with their reasons. Limits that an operator may change are the defaults of settings in `config`."""

MEBIBYTE = 1 << 20

# The buffer of one block: large enough that Python's cost per block is negligible, and small enough that a ring holds
# many.
READ_BUFFER_BYTES = 4 * MEBIBYTE
# The most bytes of an event: MySQL's maximum of max_allowed_packet. A greater length is wrong.
EVENT_BYTES_MAX = 1 << 30
# The size of a compressed transaction after decompression; a greater number counts as damage. It is decompressed piece
# by piece, so this does not limit memory.
PAYLOAD_BYTES_MAX = 1 << 33
PACKET_BYTES_MAX = 0xFFFFFF  # A packet of this size continues in the next one (MySQL's protocol).
RING_BYTES_MAX = 64 * MEBIBYTE  # The default ring: sixteen read buffers.
# The row events in the ring. Usually the bytes are the limit; this one bounds the arrays that index events, for rows of
# a few bytes.
RING_EVENTS_MAX = 1_000_000
STORE_BYTES_MAX = 8 << 30  # The event files, if the store is in files: an hour at 2 MiB/s.
SEGMENT_BYTES = 64 * MEBIBYTE  # One event file. It is synced as a whole and removed as a whole.
# The size of the row events that are kept for consumers other than the lake. Most of these events are in the ring, too.
WINDOW_BYTES_MAX = 64 * MEBIBYTE
# A dump that several destinations read. A destination that is behind it opens its own connection.
SHARED_BYTES_MAX = 64 * MEBIBYTE
BATCH_BYTES_MAX = 256 * MEBIBYTE  # A batch contains everything that waits, up to this size.
# The row events of a batch: the same maximum as for the ring, for the same reason.
BATCH_EVENTS_MAX = 1_000_000
COMMITS_DISORDER_SECONDS = 60  # A search by time reads this much further, because commit times are not in order.
# A source that takes longer to answer a heartbeat has failed once. Several failures in a row cause a failover.
HEARTBEAT_QUERY_SECONDS_MAX = 5
HEARTBEAT_SECONDS = 15  # On an idle stream the server sends a heartbeat this often.
READ_TIMEOUT_SECONDS = 25  # A heartbeat's interval and 10 s: after a longer silence the connection counts as dead.
CONNECT_TIMEOUT_SECONDS = 10
# The longest silence of the server while a snapshot reads: the SELECT of a chunk may search for long before its first row.
SNAPSHOT_SILENCE_SECONDS_MAX = 3600
# The kernel probes a peer that is silent for KEEPALIVE_IDLE_SECONDS, then every KEEPALIVE_AGAIN_SECONDS, and drops it
# after about nine probes.
KEEPALIVE_IDLE_SECONDS = 60
KEEPALIVE_AGAIN_SECONDS = 15
RECONNECT_SECONDS_MIN = 0.5  # The first wait after a lost connection. It doubles, with jitter, up to the next limit.
RECONNECT_SECONDS_MAX = 20.0
# The wait before a parser restarts after an error that may pass, such as a full disk or a replica with its identity.
REVIVE_SECONDS = 5.0
REVIVE_SECONDS_MAX = 60.0  # After such an error other than a full disk, the wait doubles up to this.
SOURCE_WATCH_SECONDS = 60.0  # How often a second connection queries the source's end and identity.
# A stream that seems to come from another server is checked again after this time, because an answer may be slightly
# old.
WATCH_AGAIN_SECONDS = 3.0
# How often the Delta tables are checked between runs. An unchanged table costs two stat calls.
LAKE_WATCH_SECONDS = 30.0
# If an engine's sensor has not ticked for this long, a problem is reported. Dagster begins a tick every 5 s; a busy daemon may be late.
TICK_SILENCE_SECONDS_MAX = 90.0
# How long a failed tick counts as a sign that the daemon runs. Failed ticks are up to 300 s apart.
TICK_FAILED_SECONDS_MAX = 400.0
# How long the cursor may stay unmoved while changes wait. The largest batches take some minutes.
PROGRESS_SECONDS_MAX = 600.0
# The time from a batch's hand-out until a run works on it: the run is queued, created, and imports Dagster.
RUN_BEGIN_SECONDS_MAX = 300.0
START_SECONDS_MAX = 180.0  # The time in which an engine connects, and compiles its kernels.
# A sensor tick waits this long for a batch or for the end of its run; Dagster starts a tick every 5 s.
TICK_SECONDS_MAX = 4.2
# The interval between two observations. Dagster plots the last 100, which then show 100 minutes.
OBSERVATION_SECONDS = 60
RUN_SECONDS_MAX = 3600  # A run that reports nothing for so long is ended, and its batch is rolled back.
