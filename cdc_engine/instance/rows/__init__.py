"""Plans and reads what a backfill or a repair needs from the source while the stream continues: an interval, and rows of chosen keys."""
