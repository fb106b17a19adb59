"""The schema history: stores schemas by position, matches them with table maps, reads them from the server, and applies operators'
decisions.
"""
