"""Studies: trials of one program with other values, which samplers choose, and their journal on the disk."""
