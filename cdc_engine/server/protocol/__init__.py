"""Canal's protocol over TCP: frames, packets, authentication, and the server that speaks it (canal.md §6.2)."""
