"""The setup of a process of dtrain: its assignment, its cluster, its threads, and its tie to the launcher."""
