"""Settings and record of a conf/ that is pulled from a git repository or an archive. `keeping.remote_conf` pulls it."""
