"""Lists the captured tables of a destination for processes that have no connection to the source: one record per table, and a head that
tells which records have changed.
"""
