"""The transport between tasks of one host: a Unix socket, and shared memory for what is large."""
