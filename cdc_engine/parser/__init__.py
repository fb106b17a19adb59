"""Reads the binlog from the server: one dump connection per destination, parsed into blocks that go to a sink."""
