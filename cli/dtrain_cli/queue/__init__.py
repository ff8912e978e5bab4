"""The line of launches that wait for cores and memory of this machine."""
