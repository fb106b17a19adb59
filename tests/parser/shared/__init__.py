"""One dump of a server for several parsers."""
