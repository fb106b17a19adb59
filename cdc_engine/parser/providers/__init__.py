"""Determines the provider that operates a server, such as RDS, from the server's version and variables. Has the retention that each
provider promises, and advice in the terms of each provider's documentation.
"""
