"""Plans backfills. Reads an interval of the binlog for backfills and repairs, and the source's rows with certain keys for repairs, while
the stream continues.
"""
