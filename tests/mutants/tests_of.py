"""Which tests are run for a mutant: first those that mirror its file, then wider ones, the slowest last."""

from pathlib import Path, PurePosixPath

TESTS = Path(__file__).parents[1]

MIRRORED = {
    "callbacks/callback.py": ["callbacks", "training/test_wrong_data.py"],
    "callbacks/saving.py": ["callbacks"],
    "checkpoints/folder.py": [
        "checkpoints/test_finals.py",
        "checkpoints",
        "checkpoints/test_rotation.py",
        "roles/test_torn_checkpoints.py",
    ],
    "checkpoints/manifest.py": ["checkpoints"],
    "checkpoints/reader.py": ["checkpoints"],
    "checkpoints/copies.py": ["checkpoints/test_remote.py"],
    "checkpoints/writer.py": ["checkpoints"],
    "collectives/ledger.py": ["collectives/test_ledger.py"],
    "config/sections.py": ["cli/spec"],
    "config/resolution.py": ["cli/spec", "strategies/test_choice.py"],
    "control/async_steps.py": [
        "roles/test_async_pushes.py",
        "roles/test_parts.py",
        "roles/test_every_batch_once.py",
    ],
    "control/machine.py": [
        "roles/test_control.py",
        "roles/test_attendance.py",
        "roles/test_parts.py",
        "roles/test_epoch_sums.py",
    ],
    "control/roster.py": [
        "roles/test_attendance.py",
        "roles/test_async_pushes.py",
        "roles/test_joining.py",
    ],
    "control/sync_steps.py": [
        "roles/test_sync_pushes.py",
        "roles/test_obedience.py",
        "roles/test_parts.py",
        "roles/test_small_batches.py",
        "roles/test_joining.py",
        "simulation/test_rounds.py",
    ],
    "data/build_once.py": ["data/test_learned_once.py"],
    "data/caching.py": ["data/test_caches.py"],
    "data/autosharding.py": [
        "data/test_shares.py",
        "conformance/test_autoshard_golden.py",
        "training/test_batches_of_workers.py",
    ],
    "data/sharding.py": ["conformance/test_autoshard_golden.py", "data"],
    "data/distribution/once.py": ["data/test_learned_once.py"],
    "data/options.py": ["data/test_options.py"],
    "data/grouping.py": ["data"],
    "data/joining.py": ["data/test_dataset.py", "data/test_resume.py", "data/test_more_steps.py"],
    "data/ordering.py": ["data"],
    "data/prefetching/tuning.py": ["data/test_prefetching.py"],
    "data/structure.py": ["data/test_helper_processes.py"],
    "data/prefetching/prefetched.py": ["data/test_prefetching.py"],
    "data/prefetching/processes.py": ["data/test_helper_processes.py"],
    "data/prefetching/threads.py": ["data/test_prefetching.py"],
    "data/readers/csv_format.py": ["data/test_csv.py"],
    "data/record_index/index_files.py": ["data/test_record_index.py", "security/test_foreign_indexes.py"],
    "data/record_index/addressing.py": ["data/test_surviving.py"],
    "data/windows.py": ["data/test_more_steps.py"],
    "dtrain_cli/launch/policies/patience.py": [
        "cli/launch/policies",
        "cli/launch/test_supervisor.py",
        "cli/launch/test_supervisor_success.py",
    ],
    "parameters/compression.py": ["protocol/test_compression.py", "roles/test_compressed_pushes.py"],
    "parameters/placement.py": ["protocol/test_placement.py"],
    "parameters/store.py": [
        "strategies/test_variables_follow.py",
        "roles/test_store.py",
        "collectives/test_row_update.py",
        "roles/test_in_place.py",
        "roles/test_table.py",
        "roles/test_tables_on_servers.py",
        "roles/test_obedience.py",
        "roles/test_compressed_pushes.py",
    ],
    "parameters/table.py": ["roles/test_table.py", "roles/test_tables_on_servers.py"],
    "parameters/updater.py": [
        "roles/test_store.py",
        "roles/test_sync_pushes.py",
        "roles/test_parts.py",
        "roles/test_tables_on_servers.py",
        "roles/test_table.py",
        "collectives/test_row_update.py",
        "strategies/test_bits_of_tables.py",
    ],
    "roles/collective/lane_work.py": [
        "collectives/test_across_hosts.py",
        "collectives/test_replicas.py",
        "clusters/test_cluster_hosts.py",
    ],
    "steps/follower.py": ["steps"],
    "steps/leader.py": ["steps"],
    "parameters/versions.py": ["roles/test_versioned_buffers.py", "roles/test_in_place.py"],
    "protocol/applied_batches.py": ["protocol/test_applied_batches.py"],
    "protocol/async_updates.py": [
        "protocol/test_async_updates.py",
        "protocol/test_delay_compensation.py",
        "protocol/test_staleness.py",
    ],
    "protocol/part_dealer.py": ["protocol/test_lanes.py", "protocol/test_part_dealer.py"],
    "protocol/membership.py": ["protocol/test_membership.py"],
    "protocol/tally.py": ["protocol/test_tally.py", "strategies/test_order_book.py"],
    "steps/machine.py": [
        "protocol/test_sync_round.py",
        "roles/test_parts.py",
        "roles/test_sync_pushes.py",
    ],
    "roles/chief/driver.py": ["roles/test_keeper.py"],
    "roles/chief/machine.py": [
        "roles/test_keeper_machine.py",
        "roles/test_keeper_end.py",
        "roles/test_keeper.py",
        "roles/test_chief.py",
        "roles/test_recovery.py",
    ],
    "roles/chief/order.py": ["roles/test_order.py"],
    "roles/chief/saver.py": [
        "roles/test_saver.py",
        "roles/test_keeper.py",
        "strategies/test_single_snapshots.py",
    ],
    "roles/chief/start.py": ["roles/test_start.py", "checkpoints/test_remote.py"],
    "roles/evaluator/machine.py": ["roles/test_evaluator.py"],
    "roles/parameter_server/update_rules.py": [
        "protocol/test_exactly_once.py",
        "protocol/test_sync_round.py",
        "roles/test_async_pushes.py",
        "roles/test_parts.py",
        "roles/test_obedience.py",
        "roles/test_waiting_questions.py",
        "roles/test_sync_pushes.py",
        "roles/test_epoch_sums.py",
    ],
    "roles/parameter_server/machine.py": [
        "roles/test_obedience.py",
        "roles/test_parameter_server.py",
        "roles/test_sync_pushes.py",
        "roles/test_snapshots.py",
        "roles/test_epoch_sums.py",
        "roles/test_tables_on_servers.py",
    ],
    "roles/parameter_server/driver.py": ["roles/test_longer_than_held.py"],
    "roles/parameter_server/questions.py": ["roles/test_snapshots.py"],
    "roles/worker/driver.py": ["roles/test_worker_driver.py", "roles/test_tables_on_servers.py"],
    "roles/worker/machine.py": [
        "roles/test_worker.py",
        "roles/test_worker_asynchronous.py",
        "roles/test_tables_on_servers.py",
    ],
    "strategies/in_process/training.py": ["strategies/test_single_resume.py", "training/test_fit_again.py"],
    "strategies/replicas/distributed_dataset.py": [
        "strategies/test_distributed_input.py",
        "conformance/test_distributed_iterators_golden.py",
    ],
    "strategies/multi_worker_mirrored/membership.py": ["strategies/test_absent_leader.py"],
    "strategies/multi_worker_mirrored/orders.py": ["strategies/test_order_book.py"],
    "strategies/parameter_server/local_steps.py": ["strategies/test_local_steps.py"],
    "learning/graphs/stages.py": ["learning/test_stages.py"],
    "learning/graphs/costs.py": ["learning/test_costs.py"],
    "learning/graphs/passes.py": ["learning/test_costs.py", "learning/test_networks.py"],
    "protocol/partition_plan.py": ["protocol/test_partition_plan.py"],
    "strategies/pipeline/planning.py": ["strategies/test_stage_plan.py", "cli/plan/test_stages_in_plan.py"],
    "protocol/pipeline_schedule.py": ["protocol/test_pipeline_schedule.py"],
    "roles/stage/machine.py": ["roles/test_stage_machine.py"],
    "strategies/pipeline/training.py": ["strategies/test_asynchronous_stages.py"],
    "state/feed.py": ["state", "strategies/test_local_steps.py"],
    "state/rounds.py": [
        "state/test_rounds.py",
        "simulation/test_rounds.py",
        "strategies/test_local_steps.py",
    ],
    "strategies/parameter_server/training.py": ["strategies/test_parameter_server_training.py"],
    "strategies/parameter_server/opening.py": ["strategies/test_parameter_server_training.py"],
    "training/batches.py": ["training/test_batch_stream.py", "training/test_wrong_data.py"],
    "training/evaluation.py": [
        "training/test_loop.py",
        "training/test_training_api.py",
        "callbacks/test_claims_and_counts.py",
    ],
    "training/steps.py": ["training/test_loop.py", "training/test_train_step.py"],
    "training/fits/leading.py": [
        "training/test_loop_going_back.py",
        "training/test_loop.py",
        "training/test_initial_epoch.py",
        "training/test_keras_habits.py",
        "training/test_training_api.py",
        "callbacks",
    ],
    "training/parts.py": [
        "training/test_batch_stream.py",
        "training/test_parts_and_weights.py",
        "training/test_batches_of_workers.py",
    ],
    "wire/frames.py": ["wire/test_frames.py", "wire/test_transports.py"],
    "wire/handshake.py": [
        "wire/test_handshake.py",
        "wire/test_greetings_in_bytes.py",
        "security/test_proof.py",
        "security/test_strangers.py",
    ],
    "wire/one_host/packets.py": ["wire/test_packets.py", "wire/test_transports.py"],
    "wire/peer.py": ["wire/test_peer.py", "roles/test_worker_driver.py"],
    "wire/security/proof.py": ["security/test_proof.py"],
    "wire/security/tls.py": ["security/test_tls.py"],
}
"""By file below ``runtime/dtrain``; folders and files below ``tests``."""

WIDER = [
    ["protocol", "roles", "checkpoints", "data", "strategies", "callbacks"],
    ["simulation"],
    ["training"],
]
"""For what lives through the mirrored tests, in this order."""

CLUSTERS = ["clusters/test_cluster_deaths.py", "clusters/test_cluster_history.py"]
SLOW = {
    "roles/parameter_server/driver.py": CLUSTERS,
    "roles/worker/driver.py": CLUSTERS,
    "wire/peer.py": CLUSTERS,
    "roles/chief/driver.py": CLUSTERS,
    "roles/chief/machine.py": CLUSTERS,
    "roles/chief/saver.py": CLUSTERS,
    "roles/chief/start.py": CLUSTERS,
    "strategies/parameter_server/training.py": CLUSTERS,
    "strategies/parameter_server/opening.py": CLUSTERS,
    "strategies/in_process/training.py": ["clusters/test_cluster_launch.py"],
}
"""Of drivers, real clusters as well."""


ROOMS = {
    "callbacks/": ["callbacks"],
    "checkpoints/": ["checkpoints"],
    "config/": ["cli/spec"],
    "data/": ["data"],
    "dtrain_cli/launch/policies/": ["cli/launch/policies"],
    "dtrain_cli/runs/faults.py": ["cli/launch/policies"],
    "dtrain_cli/spec.py": ["cli/spec"],
    "state/": ["state"],
    "training/": ["training"],
    "wire/": ["wire", "security/test_proof.py", "security/test_strangers.py", "security/test_tls.py"],
}
"""Of files that `MIRRORED` does not name."""


def stages(file: str) -> list[list[str]]:
    """Return the lists of tests for a file, each to be run if the mutant has lived through those before."""
    room = next((tests for start, tests in ROOMS.items() if file.startswith(start)), [])
    lists = [MIRRORED.get(file, room), *WIDER, *([SLOW[file]] if file in SLOW else [])]
    there = [[path for each in paths for path in _there(each)] for paths in lists]
    return [list(dict.fromkeys(paths)) for paths in there if paths]


def _there(name: str) -> list[str]:
    """Return a file or folder of tests below the root; of one that is gone, files of its name, or else its folder."""
    wanted = TESTS / name
    if wanted.exists():
        found = [wanted]
    else:
        found = sorted(TESTS.rglob(PurePosixPath(name).name)) or [
            next(each for each in wanted.parents if each.exists())
        ]
    return [path.relative_to(TESTS.parent).as_posix() for path in found if path != TESTS]
