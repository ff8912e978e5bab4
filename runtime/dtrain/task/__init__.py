"""The entry point of every child process, `python -m dtrain.task`, also of the fork server."""
