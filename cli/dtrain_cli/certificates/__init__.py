"""The making of certificates: an authority a run, a leaf a task. Tasks use them without this room."""
