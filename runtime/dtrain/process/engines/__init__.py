"""The place of a task in its cluster, as the engine that has started it says: one file for each engine.

Each is a pure function of the environment, and of the counts of a spec where the engine knows hosts but no
roles.
"""
