"""Shares one dump of a server among several parsers of this process. The server sends the bytes once, and each parser reads them at its
own pace.
"""
