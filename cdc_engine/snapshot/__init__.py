"""The rows that a table already has, in chunks of its key, straight from the server's protocol into staged Parquet files."""
