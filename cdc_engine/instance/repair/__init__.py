"""Reads the rows of chosen keys again while the stream continues: what a repair of the lake needs of the source."""
