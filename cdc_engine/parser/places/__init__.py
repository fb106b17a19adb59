"""Places in the binlog: of a time, of a transaction's begin, and for how long the server keeps one."""
