"""TFConfigClusterResolver answers as TensorFlow's (golden l)."""

from collections.abc import Callable
from typing import Any

from conformance.golden import load_json
from row_by_row import every_row

from dtrain.process.tensorflow import TFClusterSpec, TFConfigClusterResolver

CASES = load_json("l_tf_config.json")["cases"]
Question = Callable[[TFConfigClusterResolver], Any]


def each_job(answer: Callable[[TFClusterSpec, str], Any]) -> Question:
    def ask(resolver: TFConfigClusterResolver) -> Any:
        cluster = resolver.cluster_spec()
        return {job: answer(cluster, job) for job in cluster.jobs}

    return ask


QUESTIONS: dict[str, Question] = {
    "task_type": lambda resolver: resolver.task_type,
    "task_id": lambda resolver: resolver.task_id,
    "rpc_layer": lambda resolver: resolver.rpc_layer,
    "environment": lambda resolver: resolver.environment,
    "cluster_spec": lambda resolver: resolver.cluster_spec().as_dict(),
    "jobs": lambda resolver: resolver.cluster_spec().jobs,
    "num_tasks": each_job(TFClusterSpec.num_tasks),
    "task_indices": each_job(TFClusterSpec.task_indices),
    "job_tasks": each_job(TFClusterSpec.job_tasks),
    "master": lambda resolver: resolver.master(),
}


def answer(question: Question, resolver: TFConfigClusterResolver) -> Any:
    try:
        return {"value": plain(question(resolver))}
    except Exception as error:
        return {"error": type(error).__name__}


def plain(value: Any) -> Any:
    """As JSON shows it: keys are texts."""
    return {str(key): plain(item) for key, item in value.items()} if isinstance(value, dict) else value


def expected(golden: dict[str, Any]) -> Any:
    return {"error": golden["error"]["class"]} if "error" in golden else {"value": golden["value"]}


def resolver_of(case: dict[str, Any]) -> TFConfigClusterResolver:
    variables = {} if case["TF_CONFIG"] is None else {"TF_CONFIG": case["TF_CONFIG"]}
    return TFConfigClusterResolver(**case["constructor_args"], variables=variables)


@every_row("case", CASES, ids=range(len(CASES)))
def test_the_resolver_answers_as_tensorflows(case):
    resolver = resolver_of(case)
    for name, question in QUESTIONS.items():
        assert answer(question, resolver) == expected(case[name]), name
    for call in case.get("master_with", []):
        assert answer(lambda r, args=call["args"]: r.master(**args), resolver) == expected(call), call


def test_the_variable_is_read_from_the_environment_at_each_question(monkeypatch):
    resolver = TFConfigClusterResolver()
    monkeypatch.setenv("TF_CONFIG", '{"task": {"type": "worker", "index": 3}}')
    assert (resolver.task_type, resolver.task_id) == ("worker", 3)
    monkeypatch.delenv("TF_CONFIG")
    assert resolver.task_type is None
