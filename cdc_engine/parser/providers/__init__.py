"""Determines the provider of a server from its version, variables and host name, the retention that the provider promises, and the
provider's terms for advice.
"""
