"""What every child process runs: `python -m dtrain.task`, also the fork server from which tasks are
forked.
"""
