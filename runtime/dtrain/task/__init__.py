"""What every child process runs: `python -m dtrain.task`, also the warm process from which tasks are
forked.
"""
