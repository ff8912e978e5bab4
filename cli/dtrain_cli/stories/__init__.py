"""Launches to which something happens on purpose: the demo, and campaigns of faults."""
