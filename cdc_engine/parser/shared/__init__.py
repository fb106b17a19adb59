"""One dump of a server for several parsers of this process: the server sends its bytes once, and each parser reads them at its own pace."""
