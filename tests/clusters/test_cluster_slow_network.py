"""A whole cluster of which every kind of link is slow: it trains as exactly as ever."""

from clusters.watching import PACED, report_of, succeeded, tasks_of

NETWORK = """
    - {between: [chief:0, ps:0], latency_ms: 1}
    - {between: [worker:0, ps:1], latency_ms: 3, bandwidth_mbit_s: 1}
    - {between: [ps:1, ps:0], latency_ms: 2, bandwidth_mbit_s: 10}
    - {between: [evaluator:0, ps:0], latency_ms: 5, bandwidth_mbit_s: 0.001}
"""


def test_every_kind_of_link_may_be_slow(launcher):
    """In a synchronous and in an asynchronous run, at the same time, on one transport each."""
    spec = launcher.folder / "slow.yaml"
    spec.write_text(f"cluster: {{chief: 1, worker: 1, ps: 2, evaluator: 1}}\nsimulate:\n  network:{NETWORK}")
    launches = [
        launcher.start(
            *("--updates", updates, "--set", f"training.transport={transport}"), spec, PACED, "--steps", "40"
        )
        for updates, transport in (("sync", "grpc"), ("async", "local"))
    ]
    for launch in launches:
        succeeded(launch)
        report = report_of(launch.run_dir)
        assert report["global_step"] == 40
        tasks = tasks_of(report)
        assert all(tasks[name]["restarts"] == 0 for name in tasks)
        assert tasks["chief:0"]["bytes_sent"] > 0 < tasks["chief:0"]["bytes_received"]
        assert report["evaluation"] is None or report["evaluation"]["global_step"] == 40
