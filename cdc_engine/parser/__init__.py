"""Reads the binlog from the server over one dump connection per destination. Parses the binlog into blocks, and passes the blocks to the
sink.
"""
