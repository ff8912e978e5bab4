"""Kubernetes: a run as manifests, which is pure, and the command `kubectl`, which carries them there."""
