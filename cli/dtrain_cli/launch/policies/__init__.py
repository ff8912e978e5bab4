"""The rules of a launch that need no process: restarts, the order of stopping, success."""
