"""The agent: the launcher's lower half on another host, which starts tasks there and reports on them."""
