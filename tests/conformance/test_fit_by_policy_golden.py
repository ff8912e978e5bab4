"""`fit` deals a dataset as tf.distribute does where its options name a policy: golden file m1."""

import pytest
from conformance.test_mirrored_fit_golden import CASES, agree, model_of, trained

from dtrain.config import MirroredSection
from dtrain.strategies.mirrored import ThreadsStrategy

BY_POLICY = [name for name, case in CASES.items() if case.get("policy") and case["replicas"] > 1]


@pytest.mark.parametrize("name", BY_POLICY)
def test_fit_of_replicas_in_threads(name):
    case = CASES[name]
    with ThreadsStrategy(MirroredSection(replicas=case["replicas"])).scope():
        agree(case, trained(case, model_of(case)))
