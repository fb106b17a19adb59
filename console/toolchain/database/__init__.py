"""Private MySQL and MariaDB servers: unpacked, given the libraries they lack, started and ended."""
