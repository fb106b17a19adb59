"""The stream from the server: one dump connection a destination, read into blocks and handed to a sink."""
