"""Reads the stream from the server: one dump connection per destination, decoded into blocks that go to a sink."""
