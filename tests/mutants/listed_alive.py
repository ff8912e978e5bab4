"""The planted bugs of the list that lived when it was made, those that wider tests alone found, and the two
harmless ones.
"""

from mutant import bug

START = "roles/chief/start.py"
KEEPING = "roles/chief/machine.py"
UPDATER = "parameters/updater.py"
LEADER = "strategies/parameter_server/training.py"
OPENING = "strategies/parameter_server/opening.py"
IN_PROCESS = "strategies/in_process/training.py"
WRITER = "checkpoints/writer.py"

LIVED = [
    bug(START, "_restored", "feed.goes_on(before.feed, before.dealt)", "NOTHING_DEALT"),
    bug(START, "_restored", "before.seen if len(before.seen) == plan.servers else ()", "()"),
    bug(
        "roles/chief/saver.py",
        "Saver.save_cut",
        "tuple(table for reply in replies for table in reply.state.seen)",
        "replies[0].state.seen * len(replies)",
    ),
    bug(
        "roles/parameter_server/update_rules.py",
        "SyncRule._answer_pending",
        "copies = [np.array(block) for block in offered.blocks]",
        "copies = offered.blocks",
        says="what is answered as pending is not copied",
    ),
    bug(
        "protocol/part_dealer.py",
        "Dealt.cut_into",
        "begun = -(-self.next // self.parts)",
        "begun = self.next // self.parts",
        says="with another number of parts, a batch that was begun is dealt twice (once: start = min(lanes))",
    ),
    bug(LEADER, "LeaderTraining.keep_changes", "*", says="drop repeat_in"),
    bug(
        "roles/chief/driver.py",
        "Keeper._begin_term",
        "leader.initialise(told, self._place.training, action.term, directory, action.until, action.heard_of)",
        "leader.initialise(told, self._place.training, action.term, directory, None, action.heard_of)",
        says="a term begins without a limit (once: drop self._until = start.version)",
    ),
    bug(
        KEEPING,
        "Keeping._rolled_back",
        "self.rolled_back_steps + max(0, reached - self._given)",
        "max(0, reached - self._given)",
    ),
    bug(
        IN_PROCESS,
        "LocalTraining._hold",
        "dealt = start.state.dealt",
        "dealt = type(start.state.dealt)(start.state.dealt.parts)",
    ),
    bug(
        UPDATER,
        "_TableUpdate.make",
        "if step.ends and self._moves_all:\n    optimizer.finalize(value, slots)",
    ),
    bug(
        UPDATER,
        "_TableUpdate.make",
        "optimizer.update_rows(value, ids, gradient.rows, slots, step.number, rate_scale=scale)",
        "optimizer.update_rows(value, ids, gradient.rows, slots, step.given.version, rate_scale=scale)",
    ),
    bug("checkpoints/folder.py", "sweep", "checkpoint.path.name.startswith(REPLACED)", "False"),
    bug(WRITER, "CheckpointWriter.commit", "self._disk.sync_directory(self._written)"),
    bug(WRITER, "CheckpointWriter.__enter__", "self._disk.sync_directory(self._directory.parent)"),
    bug(
        "protocol/async_updates.py",
        "TicketGate.hold",
        "len(self.holders - {self.leader})",
        "len(self.holders)",
    ),
]

HARMLESS = [
    bug(
        "roles/worker/machine.py",
        "ReplicaMachine.push",
        "self.sequence + 1",
        "self.sequence + (type(self.phase) is not Draining)",
        harmless="a replica that may push is ready, so it is not draining",
    ),
    bug(
        "checkpoints/reader.py",
        "_verified",
        "nbytes != record.nbytes",
        "False",
        harmless="a file of another size has another checksum, which is compared next",
    ),
]

FOUND_BY_WIDER_TESTS = [
    bug(
        "control/async_steps.py",
        "AsyncSteps.judged",
        "verdict is Verdict.STALE and self.retry",
        "False",
    ),
    bug(
        "roles/parameter_server/machine.py",
        "ParameterServer._in_term",
        "(held.generation, held.term) == (message.generation, message.term)",
        "held.generation == message.generation",
    ),
    bug(
        UPDATER,
        "_TableUpdate.make",
        "optimizer.update_rows(value, ids, gradient.rows, slots, step.number, rate_scale=scale)",
        "optimizer.update_rows(value, ids, gradient.rows, slots, step.number)",
    ),
    bug(
        UPDATER,
        "_GroupUpdate.make",
        "step.optimizer.update(value, mean, slots, step.number, rate_scale=given.rate_scale, out=out)",
        "step.optimizer.update(value, mean, slots, given.version, rate_scale=given.rate_scale, out=out)",
    ),
    bug(UPDATER, "_GroupUpdate.make", "if step.ends:\n    step.optimizer.finalize(out, slots)"),
    bug(
        START,
        "_restored",
        "before.optimizer if before.compiled == asked.compiled else asked.compiled",
        "asked.compiled",
    ),
    bug(START, "_restored", "before.lineage", "Lineage()"),
    bug(
        START,
        "_restored_slots",
        "{slot: _read(checkpoint, spec, keys[slot]) for slot in names if spec.trainable}",
        "_fresh_slots(rule, spec, values[spec.name])",
    ),
    bug(OPENING, "_driver", "sequence=parts.sequence"),
]
