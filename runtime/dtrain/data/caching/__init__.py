"""Steps that keep elements once they have been computed: in memory, or in a file."""
