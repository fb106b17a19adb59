"""The schema history: stores the schemas of tables by position, compares them with table maps, reads them from the server, and applies an
operator's decisions.
"""
