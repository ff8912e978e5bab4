"""The variables of a program with a coordinator, on one server (docs/design/coordinator.md). Pure."""
