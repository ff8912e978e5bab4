"""Alter expectations in a copy of the golden files, one kind at a time, to see that a test notices.

Inputs stay as they are. `EXPECTATIONS` lists what is altered and which test must then fail.
"""

import json
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Expectation:
    """One kind of expectation in one golden file.

    Attributes:
        file: the name of the file.
        path: where it stands. In JSON keys are joined by dots and ``*`` is every item; in npz it is a pattern
            for names of arrays.
        test: ``module::function`` of the test that compares it.
    """

    file: str
    path: str
    test: str

    def __str__(self) -> str:
        return f"{self.file}:{self.path}"


def of(test: str, file: str, *paths: str) -> list[Expectation]:
    """The expectations of a file that one test compares."""
    return [Expectation(file, path, test) for path in paths]


PARSED = ["parsed.*.id", "parsed.*.x", "parsed.*.name", "parsed.*.missing", "parsed.*.var"]
SHARDS = "cases.*.created_in_order.*"
EXPECTATIONS = [
    *of(
        "test_distributed_datasets_golden::test_batches_of_replicas",
        "a_rebatch.json",
        "cases.*.steps",
        "cases.*.input_context.num_replicas_in_sync",
        "cases.*.error.class",
    ),
    *of(
        "test_distributed_datasets_golden::test_batches_of_workers",
        "b2_multiworker.json",
        "clusters.*.cases.*.global_steps",
        "clusters.*.cases.*.input_contexts",
    ),
    *of(
        "test_distributed_iterators_golden::test_iterators_and_options",
        "m5_custom_loops.json",
        "misc.*.value",
        "misc.*.error.class",
    ),
    *of("test_autoshard_golden::test_rebatch", "a_rebatch.json", "direct.*.batches"),
    *of(
        "test_autoshard_golden::test_shares_of_workers",
        "b_autoshard.json",
        "cases.*.per_worker.*.batches",
        "cases.*.per_worker.*.local_batches",
        "cases.*.per_worker.*.steps",
        "cases.*.per_worker.*.error.class",
    ),
    *of(
        "test_autoshard_golden::test_batch_sizes_of_workers",
        "b_autoshard.json",
        "batch_sizes_for_worker.*.per_worker",
    ),
    *of(
        "test_autoshard_golden::test_batch_size_of_a_pipeline",
        "b_autoshard.json",
        "compute_batch_size.*.batch_size",
        "compute_batch_size.*.error.class",
    ),
    *of(
        "test_input_context::test_batch_size_of_a_replica",
        "c_input_context.json",
        "cases.*.per_replica",
        "cases.*.str",
    ),
    *of("test_input_context::test_defaults", "c_input_context.json", "defaults.num_replicas_in_sync"),
    *of(
        "test_partitioners::test_partitioners",
        "d_partitioners.json",
        "partitioners.*.partitions",
        "partitioners.*.error.class",
    ),
    *of(
        "test_partitioners::test_reading_whole_slices_and_integers",
        "d_partitioners.json",
        "sharded_variables.*.offsets",
        "sharded_variables.*.slices.*.local",
        "sharded_variables.*.slices.*.value",
        "sharded_variables.*.ints.*.value",
    ),
    *of(
        "test_partitioners::test_gathering_rows",
        "d_partitioners.json",
        "sharded_variables.*.gathers.*.local_ids",
        "sharded_variables.*.gathers.*.partition_index",
        "sharded_variables.*.gathers.*.embedding_lookup",
    ),
    *of(
        "test_partitioners::test_scattering_rows",
        "d_partitioners.json",
        "sharded_variables.*.scatter.scatter_add",
    ),
    *of(
        "test_partitioners::test_assigning_the_whole",
        "d_partitioners.json",
        "sharded_variables.*.scatter.assign_2x_shards",
    ),
    *of(
        "test_partitioners::test_joining_shards",
        "d_partitioners.json",
        "sharded_variable_constructor.*.error.class",
    ),
    *of(
        "test_placement_golden::test_parameter_server_strategy",
        "de_parameter_server.json",
        f"{SHARDS}.shards.*.ps",
        f"{SHARDS}.shards.*.shape",
        f"{SHARDS}.shards.*.first",
        f"{SHARDS}.offsets",
    ),
    *of("test_placement_golden::test_replica_device_setter", "e_placement.json", "cases.*.placed.*.2"),
    *of("test_placement_golden::test_the_greedy_choice", "e_placement.json", "cases.*.strategy_calls.*.3"),
    *of("test_preprocessing_golden::test_values_are_kerass", "n_preprocessing.json", "cases.*.y.value"),
    *of("test_schedules::test_rates_agree_with_tensorflow", "f_schedules.json", "cases.*.values"),
    *of(
        "test_clipping_golden::test_clipping_agrees_with_tensorflow",
        "f_clipping.json",
        "cases.*.global_norm",
        "cases.*.clip_by_global_norm",
        "cases.*.clip_by_global_norm_values",
        "cases.*.second",
        "cases.*.clip_by_norm",
        "cases.*.clip_by_value",
    ),
    *of(
        "test_optimizers_golden::test_trajectory_and_slots_agree_with_tensorflow",
        "f_optimizers.npz",
        "*/w",
        "*/e",
        "*/slot/*",
        "*_after_finalize",
    ),
    *of(
        "test_optimizers_golden::test_config_agrees_with_keras",
        "f_optimizers.json",
        "cases.*.config.learning_rate",
    ),
    *of(
        "test_layers::test_layer_agrees_with_keras",
        "g_layers.npz",
        "*/y",
        "*/dx",
        "*/dweight/*",
        "*/after/*",
        "*/regularization_loss",
    ),
    *of("test_layers::test_sparse_gradient_agrees_with_keras", "g_layers.npz", "*/dweight_slices_indices/*"),
    *of(
        "test_losses_golden::test_loss_and_gradient_agree_with_tensorflow", "h_losses.npz", "*/loss", "*/grad"
    ),
    *of(
        "test_losses_golden::test_average_loss_agrees_with_tensorflow",
        "h_losses.json",
        "compute_average_loss.*.value",
    ),
    *of("test_strategy_golden::test_average_losses", "h2_strategy.json", "cases.*.value"),
    *of("test_strategy_golden::test_regularization_losses", "h2_strategy.json", "cases.*.value"),
    *of("test_strategy_golden::test_losses_of_each_replica", "h2_strategy.json", "cases.*.value"),
    *of("test_strategy_golden::test_gradients_are_summed_then_clipped", "h2_strategy.json", "cases.*.value"),
    *of(
        "test_metrics_golden::test_results_agree_with_tensorflow",
        "i_metrics.json",
        "cases.*.batches.*.result",
        "cases.*.result_before_any_batch",
        "cases.*.result_after_reset",
    ),
    *of(
        "test_end_to_end_golden::test_fit_in_one_process",
        "j_end_to_end.json",
        "runs.*.kernel",
        "runs.*.bias",
        "runs.*.reported_loss",
        "runs.*.loss_sum_over_replicas",
        "runs.*.eval_loss",
        "runs.*.predictions",
    ),
    *of(
        "test_end_to_end_golden::test_several_replicas_computed_in_one_process",
        "j_end_to_end.json",
        "runs.*.kernel",
        "runs.*.bias",
    ),
    *of(
        "test_classifiers_golden::test_a_classifier_in_one_process",
        "j_end_to_end.json",
        "classifiers.*.accuracy_over_all_steps",
    ),
    *of(
        "test_classifiers_golden::test_a_classifier_in_one_process",
        "j_classifier.npz",
        "*/weights/*",
        "*/loss",
        "*/final_logits_inference",
    ),
    *of(
        "test_classifiers_golden::test_a_classifier_of_several_replicas_computed_in_one_process",
        "j_classifier.npz",
        "*/weights/*",
        "*/final_logits_inference",
    ),
    *of(
        "test_end_to_end_golden::test_fit_of_several_replicas",
        "j_end_to_end.json",
        "runs.*.kernel",
        "runs.*.reported_loss",
    ),
    *of(
        "test_mirrored_fit_golden::test_fit_evaluate_and_predict_of_n_replicas",
        "m1_mirrored_fit.npz",
        "*/weights",
        "*/slots",
    ),
    *of(
        "test_mirrored_fit_golden::test_fit_evaluate_and_predict_of_n_replicas",
        "m1_mirrored_fit.json",
        "cases.*.epoch_logs",
        "cases.*.batch_logs.*.*.loss",
        "cases.*.evaluate.*.result",
        "cases.*.predict.*.result",
    ),
    *of(
        "test_mirrored_fit_golden::test_one_batch_of_n_replicas",
        "m1_mirrored_fit.json",
        "extras.*.after",
        "extras.*.train_on_batch",
        "extras.*.test_on_batch",
        "extras.*.predict_on_batch",
    ),
    *of("test_threads_golden::test_central_storage", "m3_central_storage.npz", "*/weights", "*/slots"),
    *of(
        "test_threads_golden::test_central_storage",
        "m3_central_storage.json",
        "cases.*.epoch_logs",
        "cases.*.evaluate.*.result",
        "cases.*.predict.*.result",
    ),
    *of(
        "test_communication_golden::test_options",
        "m7_communication_options.json",
        "cases.*.value.bytes_per_pack",
        "cases.*.value.implementation",
    ),
    *of(
        "test_communication_golden::test_the_constructor",
        "m7_communication_options.json",
        "cases.*.value.num_replicas_in_sync",
    ),
    *of(
        "test_coordinator_golden::test_the_answer_is_tensorflows",
        "m8_coordinator.json",
        "cases.*.value",
        "cases.*.error.class",
    ),
    *of(
        "test_backup_golden::test_training_goes_on_where_it_was_broken_off",
        "m9_backup.json",
        "backup_and_restore.uninterrupted.weights",
        "backup_and_restore.cases.*.second_run.steps.*.batch",
    ),
    *of(
        "test_tfrecords::test_framing_and_features",
        "k_examples.json",
        "records.*.masked_crc_data",
        "records.*.masked_crc_length",
        "records.*.features.id.value",
    ),
    *of("test_tfrecords::test_examples_are_parsed", "k_examples.json", *PARSED),
    *of("test_tfrecords::test_damaged_files", "k_examples.json", "corrupt.*.records_read_before_end"),
    *of(
        "test_tensorboard_golden::test_records_are_read",
        "k_tensorboard.json",
        "files.*.events.*.framing.masked_crc_data",
    ),
    *of(
        "test_tensorboard_golden::test_events_are_written",
        "k_tensorboard.json",
        "files.*.events.*.values.*.tag",
    ),
    *of(
        "test_tf_config::test_the_resolver_answers_as_tensorflows",
        "l_tf_config.json",
        "cases.*.task_id.value",
        "cases.*.master.value",
        "cases.*.cluster_spec.error.class",
        "cases.*.num_tasks.value",
    ),
]


def other(value: Any) -> Any:
    """Something else of the same form, outside every tolerance."""
    if isinstance(value, dict):
        return {key: other(item) for key, item in value.items()}
    if isinstance(value, list):
        return [other(item) for item in value] if value else [1]
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return (
            value.replace("/task:", "/task:1")
            if "/task:" in value
            else f"{value}?"
            if value not in ("nan", "inf")
            else 0.25
        )
    return value if value is None else value + 1


def _alter_json(value: Any, keys: list[str]) -> int:
    """Alter what stands at a path; how many places there were."""
    key, rest = keys[0], keys[1:]
    if isinstance(value, list):
        places = (
            range(len(value))
            if key == "*"
            else [int(key)]
            if key.isdecimal() and int(key) < len(value)
            else []
        )
    elif isinstance(value, dict):
        places = list(value) if key == "*" else [key] if key in value else []
    else:
        return 0
    if rest:
        return sum(_alter_json(value[place], rest) for place in places)
    for place in places:
        value[place] = other(value[place])
    return len(places)


def alter(folder: Path, expectation: Expectation) -> int:
    """Alter an expectation in every case of the files in `folder`; return how many places there were."""
    path = folder / expectation.file
    if path.suffix == ".json":
        golden = json.loads(path.read_text())
        count = _alter_json(golden, expectation.path.split("."))
        path.write_text(json.dumps(golden))
        return count
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    chosen = [name for name in arrays if fnmatch(name, expectation.path) and not name.startswith("data/")]
    np.savez(path, **arrays | {name: arrays[name] + 1 for name in chosen})
    return len(chosen)


def rounds(expectations: list[Expectation]) -> list[list[Expectation]]:
    """Expectations dealt so that a round holds at most one of each test, and alters no path twice."""
    dealt: list[list[Expectation]] = []
    for each in expectations:
        clashes = (
            {(one.test, one.file, one.path) for one in r if one.test == each.test or str(one) == str(each)}
            for r in dealt
        )
        free = next((r for r, clash in zip(dealt, clashes, strict=True) if not clash), None)
        if free is None:
            dealt.append(free := [])
        free.append(each)
    return dealt
