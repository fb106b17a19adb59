"""Sluice: the row changes of MySQL and MariaDB in Delta Lake tables. All packages of the product are imported from here."""

__version__ = "0.1.0"
