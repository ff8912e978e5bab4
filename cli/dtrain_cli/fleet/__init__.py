"""The fleet: the agents of one run on other hosts, behind the interface of a target."""
