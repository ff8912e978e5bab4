"""Studies: trials of one program with other values of its flags, each a launch of its own."""
