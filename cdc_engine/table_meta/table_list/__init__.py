"""Lists the captured tables of a destination for processes that open no connection to the source: a record per table, and a head that
shows which records changed."""
