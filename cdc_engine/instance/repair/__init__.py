"""The rows of chosen keys, read once more while the stream goes on: what a repair of the lake needs of the source."""
