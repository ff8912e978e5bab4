"""Replicas that share memory give the numbers of TensorFlow's MultiWorkerMirroredStrategy: golden file m2."""

from conformance.golden import load_json, load_npz
from conformance.test_mirrored_fit_golden import agree, agree_in_slots, model_of, trained
from replica_fleet import ReplicaFleet
from row_by_row import every_row

ARRAYS = load_npz("m2_multiworker_fit.npz")
CASES = {case["id"]: case for case in load_json("m2_multiworker_fit.json")["cases"]}


def as_one_counts(case):
    """The case with the numbers of batches as means over workers: TensorFlow shows callbacks their sum."""
    workers = case["workers"]
    batches = [
        [
            {name: value / (1 if name == "batch" else workers) for name, value in logs.items()}
            for logs in epoch
        ]
        for epoch in case["batch_logs"]
    ]
    return {**case, "batch_logs": batches, "arrays": ARRAYS}


@every_row("name", CASES)
def test_fit_evaluate_and_predict_of_several_workers(name, tmp_path):
    case = as_one_counts(CASES[name])
    fleet = ReplicaFleet(tmp_path, case["workers"])
    noted, *_ = fleet.run(lambda: model_of(case), lambda model: trained(case, model))
    agree(case, noted)
    agree_in_slots(case, tmp_path)
