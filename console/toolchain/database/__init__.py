"""Private MySQL and MariaDB servers: unpacked, provided with missing libraries, started and ended."""
