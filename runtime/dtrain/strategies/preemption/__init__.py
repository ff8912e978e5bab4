"""Machines that are taken away at short notice: all replicas agree on a step, save, and end."""
