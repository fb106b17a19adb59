"""Sluice: the row changes of MySQL and MariaDB in Delta Lake tables. All packages of the product are imported from here.

In a checkout the packages are links to the folders of the repository; in a wheel they are the folders themselves.
"""

__version__ = "0.1.0"
