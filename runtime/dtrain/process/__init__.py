"""The setup of a process of dtrain: its assignment, its cluster, its threads, and its tie to the launcher."""

WARM_START_VARIABLE = "DTRAIN_FORK_SERVER"
"""Names the socket of `dtrain fork-server`, which spares launches the imports of a fork server."""
