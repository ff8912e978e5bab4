"""The planted bugs of the list that mirrored tests found: the machines and drivers of the tasks, and the
checkpoints.
"""

from mutant import bug, void

SYNC_RULE = "roles/parameter_server/update_rules.py"
SYNC_STEPS = "control/sync_steps.py"
STEPS = "steps/machine.py"
MEANS = "parameters/updater.py"
CONTROL = "control/machine.py"
ROSTER = "control/roster.py"
MACHINE = "roles/parameter_server/machine.py"
STORE = "parameters/store.py"
RECOVERY = "roles/chief/machine.py"
KEEPING = "roles/chief/machine.py"
CHIEF = "roles/chief/machine.py"
WORKER = "roles/worker/machine.py"
WRITER = "checkpoints/writer.py"

PUSHES = [
    bug(SYNC_STEPS, "SyncSteps.said_since", "*", "return []", says="returns [] (once: commits_since)"),
    bug(SYNC_RULE, "SyncRule.reports", "*", "return []"),
    bug(SYNC_RULE, "SyncRule._commit", "self._seen.decide(replica, self._verdict(contribution, counted))"),
    bug(
        STEPS,
        "StepMachine.too_late",
        "self.dealer.give_back(part)",
        "self.dealer.settle(part)",
        says="give_back(part) -> settle(part) (once: done(batch))",
    ),
    bug(
        STEPS,
        "StepMachine.rests",
        "self.version >= self.max_steps or self.held_back or self.failed is not None",
        "self.version >= self.max_steps or self.failed is not None",
    ),
    bug(
        STEPS,
        "StepMachine.rests",
        "self.version >= self.max_steps or self.held_back or self.failed is not None",
        "self.held_back or self.failed is not None",
    ),
    void(
        SYNC_STEPS,
        "members_changed: drop + joined",
        "N0 stays when replicas join; no version waits for more",
    ),
    bug(
        MEANS,
        "mean_of_floats",
        "np.divide(out, kind(count), out=out)",
        "np.divide(out, kind(count - 1), out=out)",
    ),
    bug(
        MEANS,
        "row_mean",
        "total /= divisor",
        ("total /= np.sum([np.isin(union, ids) for ids, _ in pairs], axis=0)[:, None].astype(kind)"),
        says="each row is divided by the contributors that list it",
    ),
    bug(
        "roles/parameter_server/update_rules.py",
        "AsyncRule._judge_and_apply",
        "version - push.base_version",
        "version - push.base_version - 1",
    ),
]

ATTENDING = [
    bug(
        CONTROL,
        "ControlPlane._members_changed",
        "steps.members_changed(self.roster.live, self.roster.newcomers(), now)",
        "[]",
        says="drop members_changed",
    ),
    bug(
        ROSTER,
        "Roster.end",
        (
            "self.farewell and connections == 0 and not self._still_to_hear(held, MemberState.EXPECTED, "
            "MemberState.LIVE)"
        ),
        "self.farewell and not self._still_to_hear(held, MemberState.EXPECTED, MemberState.LIVE)",
    ),
    bug(ROSTER, "Roster.end", "now - self._leader_lost_since_s >= self._leader_away_s", "False"),
    bug(ROSTER, "Roster.concluded", "*", "return True"),
]

SERVER = [
    bug(
        MACHINE,
        "ParameterServer._push",
        "self._in_term(message)",
        "self.held",
    ),
    bug(
        MACHINE,
        "ParameterServer._initialise",
        "latest is not None and said <= (latest.generation, latest.term)",
        "False",
    ),
    bug(MACHINE, "ParameterServer._begin", "[moved_on(caller, held) for caller in waiting]", "[]"),
    bug("control/roster.py", "obstacle", "sender == cluster.leader", "True"),
    bug(MACHINE, "ParameterServer._read_snapshot", "message.number != self._snapshots.number", "False"),
    bug("roles/parameter_server/machine.py", "_change", "message.number > held.order", "True"),
    bug(
        "roles/parameter_server/machine.py",
        "obey",
        "held.version if late else held.hold()",
        "held.hold()",
    ),
    bug(STORE, "Store.restore_slots", "*", "return"),
    bug(
        STORE,
        "Store.restore_slots",
        "self._dense[index][name] = block",
        "self._dense[index - 1][name] = block",
    ),
    bug(
        "parameters/updater.py",
        "_GroupUpdate.make",
        "step.optimizer.update(value, mean, slots, step.number, rate_scale=given.rate_scale, out=out)",
        ("step.optimizer.update(value, mean, slots, step.number + 1, rate_scale=given.rate_scale, out=out)"),
    ),
    bug(STORE, "Store.make", "self._take_effect(given.version + 1)", "self._take_effect(given.version)"),
    bug(STORE, "Store._keep_dense", "*"),
    bug(
        "parameters/table.py",
        "Table.keep",
        "self.snapshot.keep_all() if ids is None else self.snapshot.save_rows(ids)",
        "self.snapshot.keep_all() if ids is None else None",
    ),
    bug(
        "roles/parameter_server/questions.py",
        "Snapshots.keeps",
        "delivery[2].part not in self._covers",
        "False",
        says="no push waits",
    ),
    bug(
        "roles/parameter_server/questions.py",
        "Snapshots.answer",
        "held.version >= question.at_least and (applied is None or applied.covers(question.covers))",
        "held.version >= question.at_least",
    ),
    bug(
        "parameters/versions.py",
        "VersionedBuffers.next_place",
        "*",
        "return self.newest",
        says="always in place",
    ),
    bug("parameters/versions.py", "VersionedBuffers.disconnected", "*"),
]

LEADER = [
    bug(
        RECOVERY,
        "next_term",
        "max(incarnation, own, *(reply.term for reply in servers)) + 1",
        "max(incarnation, own, *(reply.term for reply in servers))",
    ),
    bug(RECOVERY, "beginning", "(reply.generation, reply.term)", "reply.generation"),
    bug(
        RECOVERY,
        "TermWatch.lost",
        "asked_s > self.since_s and (said.generation, said.term) != term",
        "(said.generation, said.term) != term",
    ),
    bug(RECOVERY, "beginning", "reached > fit", "reached >= fit"),
    bug(
        "roles/chief/order.py",
        "Order._next",
        "[server for server in range(self.servers) if server != self.host]",
        "list(range(self.servers))",
        says="the control host with the others",
    ),
    bug(
        "roles/chief/order.py",
        "Order.stops",
        "(self.control is not None and self.control.stop) or any(answer.stopped for answer in self._answers)",
        "self.control is not None and self.control.stop",
    ),
    bug(
        KEEPING,
        "Keeping.poll",
        "[Save(Reason.LAST, self.term, self.step, at_least=self.max_steps)]",
        "[Conclude(), Save(Reason.LAST, self.term, self.step, at_least=self.max_steps)]",
        says="conclude before save_cut",
    ),
    bug(KEEPING, "Keeping.begin", "return [Save(Reason.START, 0, version)]", "return self._next_term()"),
    bug(KEEPING, "Keeping.poll", "at_least=self.max_steps"),
    bug(CHIEF, "Cut.accept", "*", "return True"),
    bug(CHIEF, "Cut.whole", "*", "return True"),
    bug(
        CHIEF,
        "CheckpointSchedule.due",
        "step - self.last_step >= self.section.every_steps",
        "step - self.last_step > self.section.every_steps",
    ),
]

REPLICA = [
    bug(WORKER, "ReplicaMachine._begin_again", "self.unanswered", "False"),
    bug(
        WORKER,
        "ReplicaMachine._settle",
        "[s for s, v in enumerate(self.versions) if v < newest]",
        "[]",
    ),
    bug(WORKER, "ReplicaMachine._close", "self.saves", "True", says="CLOSING -> FINISHED at once"),
    bug(
        WORKER,
        "_together",
        "SEVERITY.index(reply.verdict) > SEVERITY.index(gravest.verdict)",
        "SEVERITY.index(reply.verdict) < SEVERITY.index(gravest.verdict)",
        says="the mildest verdict counts (once: max -> min)",
    ),
    bug(
        "wire/peer.py",
        "Peer._adopt",
        "channel.send(message, blocks)",
        says="what is unanswered is not said again (once: the last line of ReplicaDriver._reconnect)",
    ),
    bug(
        "roles/evaluator/machine.py",
        "EvaluationSchedule.next",
        "newest is not None and is_new and (final or training_ended or now_s >= earliest_s)",
        "newest is not None and is_new and not final and (final or training_ended or now_s >= earliest_s)",
    ),
]

DISK = [
    bug(WRITER, "ArraysFile.finish", "self._disk.sync(self._file)"),
    bug(WRITER, "CheckpointWriter.commit", "self._disk.sync(file)"),
    bug(
        WRITER,
        "CheckpointWriter.commit",
        "self._path = None\nself._disk.sync_directory(self._directory)",
        "self._path = None",
        says="drop self._disk.sync_directory(self._directory) after the rename",
    ),
    bug(
        WRITER,
        "CheckpointWriter.commit",
        "set_aside(other, REPLACED, self._disk)",
        "set_aside(other, REMOVED, self._disk)",
    ),
    bug(WRITER, "CheckpointWriter.commit", "other.step > self._step", "False"),
    bug("checkpoints/folder.py", "sweep", "disk.sync_directory(directory)"),
    bug("checkpoints/reader.py", "_verified", "crc32 != record.crc32", "False"),
    bug("checkpoints/reader.py", "open_checkpoint", "damaged.append(str(error))\ncontinue", "raise"),
    bug(
        "checkpoints/reader.py",
        "open_checkpoint",
        "if damaged:\n    checkpoint.warning = f\"{'; '.join(damaged)}. Using {checkpoint.path} instead\"",
        says="if damaged -> if False, where another one is used",
    ),
    bug("checkpoints/manifest.py", "Manifest.decode", "not _is_as_written(fields, data)", "False"),
    bug("checkpoints/manifest.py", "_join", "row_start != rows", "False"),
    bug("checkpoints/folder.py", "rotate", "not is_read(checkpoint.path)", "True"),
    bug("checkpoints/folder.py", "rotate", "len(candidates) - keep", "len(candidates) - keep + 1"),
    bug(
        "checkpoints/folder.py", "open_for_reading", "fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)"
    ),
    bug("checkpoints/folder.py", "keep_final", "disk.rename(aside, kept)"),
]

LONG = [
    bug(
        "roles/parameter_server/driver.py",
        "ServerHandler.limits",
        "Limits(HEADER_BYTES, HEADER_BYTES + nbytes, MEMORY_BYTES)",
        "Limits(HEADER_BYTES, HEADER_BYTES + nbytes)",
        says="a server that was started again refuses a long gradient",
    ),
    bug(
        "roles/parameter_server/driver.py",
        "ServerHandler.limits",
        "5 * held.store.nbytes",
        "2 * held.store.nbytes",
    ),
    bug("wire/frames.py", "check", "total <= limits.payload", "True", says="what is to be dropped is kept"),
    bug("wire/one_host/packets.py", "PacketSocket._frame", "not check(kinds, limits)", "False"),
]

STAGE = "roles/stage/machine.py"
NUMBERS = "learning/graphs/stages.py"
STAGES = "strategies/pipeline/training.py"
PARTITION = "protocol/partition_plan.py"
PIPELINES = [
    bug("protocol/pipeline_schedule.py", "order", "stages - 1 - stage", "stages - 2 - stage"),
    bug(
        STAGE,
        "StageMachine._arrives",
        "place not in self._taken.get((sender, tag.back), ())",
        "True",
        says="an array counts twice",
    ),
    bug(STAGE, "StageMachine._arrives", "place.term >= self.term", "True"),
    bug(STAGE, "StageMachine._misfit", "not fits(shape, expected)", "False", says="any shape fits"),
    bug(STAGE, "StageMachine._misfit", "len(waiting) >= 2 * self.depth", "False", says="no bound"),
    bug(STAGE, "StageMachine._answers", "self.version < each.version", "False"),
    bug(STAGE, "LeadingStage._enter", "self.lost.add(stage)", says="a loss is not noticed"),
    bug(STAGE, "LeadingStage.decide", "applied = applied and each.finite", "applied = each.finite"),
    bug(STAGE, "LeadingStage._vote", "message.batch == self._verdict.batch", "False"),
    bug("protocol/pipeline_schedule.py", "base_version", "target - 2", "target - 1"),
    bug(STAGE, "Question.wants_rest", "not isinstance(self.message, Snapshot)", "True"),
    bug(
        STAGE, "StageMachine.take", "self.depth * len(self.routes) + self.depth", "1", says="all but one may"
    ),
    bug("wire/peer.py", "Peer.receive", "self._asked[1:]", "[]", says="what follows a question is lost"),
    bug(STAGE, "LeadingStage.disconnected", "each[1].made", "False", says="what a stage has told is lost"),
    bug(
        STAGES, "StageReplica._pass_back", "not flight.examples", "False", says="each microbatch is a version"
    ),
    bug(STAGES, "StageReplica._begin", "not any(flight.marks for flight in self.flights)", "True"),
    bug(STAGES, "StageReplica.needs", "version >= self._named", "False"),
    bug(STAGES, "StageTraining.ends_at", "made % self.parts.problem.steps_per_epoch == 0", "False"),
    bug(NUMBERS, "StageStep.forward", "{**self._weights, **self._updates}", "self._weights"),
    bug(NUMBERS, "StageStep.judged", "gradient * np.float32(share)", "gradient"),
    bug(NUMBERS, "StageStep._chance", "microbatch", "0", says="every microbatch draws the same"),
    bug(NUMBERS, "obstacle", "len(crossing) > 1", "False"),
    bug(PARTITION, "best_cut", "max(before_s, work_s, link_s)", "max(before_s, work_s)"),
    bug(PARTITION, "best_cut", "start in best and variables", "start in best"),
    bug(PARTITION, "PipelineShape.memory", "self.in_flight(stage) * cost.kept_bytes", "cost.kept_bytes"),
    bug(PARTITION, "predicted_step_s", "max(idle_s[stage], ready_s[place])", "idle_s[stage]"),
    bug("learning/graphs/costs.py", "measure", "each[1:] or each or [0.0]", "each or [0.0]"),
    bug(
        "learning/graphs/passes.py",
        "Pass.kept_bytes",
        "own.keys() - seen",
        "own.keys()",
        says="counted twice",
    ),
]

FOUND = [*PIPELINES, *PUSHES, *ATTENDING, *SERVER, *LEADER, *REPLICA, *DISK, *LONG]
