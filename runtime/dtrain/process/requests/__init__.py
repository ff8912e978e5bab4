"""Requests of the launcher's commands to processes of the runtime, as JSON."""
