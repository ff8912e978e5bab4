"""The coordinator of a program, and the workers that run its closures (docs/design/coordinator.md)."""
