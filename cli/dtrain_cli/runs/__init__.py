"""Runs on this machine, as other commands find, show, stop and remove them."""
