"""Targets, on which tasks run: processes of this machine."""
