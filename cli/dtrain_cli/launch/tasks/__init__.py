"""The launcher's knowledge of each task of a run: its life, its failures, its place in training."""
