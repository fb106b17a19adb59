"""Plans backfills. For backfills and repairs, reads an interval of the binlog from the source, and for repairs also the rows with certain
keys. The stream continues meanwhile.
"""
