"""A launch on Kubernetes: what was asked for as a run of the cluster, its plan, its way there, its end."""
