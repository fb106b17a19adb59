"""One dump of a server for several parsers of this process: its bytes are sent once, and each parser reads them at a pace of its own."""
