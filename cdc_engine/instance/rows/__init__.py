"""Plans a backfill or a repair, and reads what it needs from the source while the stream continues: an interval of the binlog, or rows
with certain keys.
"""
