"""The reasons why a spec, right as it is, cannot run on Kubernetes."""

from collections.abc import Iterator

from dtrain.cluster import Role
from dtrain.config import Problem, RunSpec


def problems(spec: RunSpec) -> Iterator[Problem]:
    """Yield what is wrong for Kubernetes with a spec that is right elsewhere."""
    kubernetes = spec.kubernetes
    if kubernetes.image is None:
        yield (
            ("kubernetes", "image"),
            (
                "expected the image of the pods, with Python, dtrain of this version and what the program "
                "imports: image: registry/team/dtrain:1, or --set kubernetes.image=..."
            ),
        )
    for role in Role:
        if not isinstance(getattr(spec.cluster, role), int):
            yield (
                ("cluster", role.value),
                "expected a count: the cluster places the tasks itself and gives them addresses",
            )
    for name in ("kill", "pause"):
        if getattr(spec.simulate, name):
            yield ("simulate", name), "only a launcher does this; `kubectl delete pod` is its like there"
    shared = kubernetes.volume.shared
    many = spec.cluster.count(Role.CHIEF) == 0 and spec.cluster.count(Role.WORKER) > 1
    if many and not shared:
        yield (
            ("kubernetes", "volume", "access"),
            "without a chief every worker has the disk: expected access: ReadWriteMany, or a chief",
        )
    if spec.secrets and kubernetes.secret is None and "secret" in spec.secrets:
        yield ("secrets",), "the name `secret` is taken in the run's Secret; expected another name"
