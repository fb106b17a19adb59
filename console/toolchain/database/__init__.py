"""Private MySQL and MariaDB servers: started with a data directory of their own, and ended."""
