"""The rules of a launch that need no process: who is restarted, who is stopped, when a run has succeeded."""
