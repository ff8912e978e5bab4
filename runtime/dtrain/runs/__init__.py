"""The run directory: its files, and what tasks and launchers write there about themselves."""
