"""Plans a backfill or a repair, and reads its changes and rows from the source while the stream continues: an interval of the binlog, or
rows with certain keys.
"""
