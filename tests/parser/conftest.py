"""Provides the fixtures of this folder."""

from tests.parser.fix_shop import server, shop

__all__ = ["server", "shop"]
