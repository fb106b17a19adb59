"""Shares one dump of a server among several parsers of this process: the server sends its bytes once, and each parser reads them at its own
pace.
"""
