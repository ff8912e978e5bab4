"""Planted bugs of training and callbacks: what counts an example wrongly, forgets what a callback knew, or hides that
there was nothing to look at.
"""

from mutant import bug

EVALUATION = "training/evaluation.py"
PIPELINES = "training/parts.py"
EPOCHS = "training/fits/leading.py"
LOG = "training/fits/leading.py"
STOPPING = "callbacks/steering.py"
PLATEAU = "callbacks/steering.py"
CSV = "callbacks/recording.py"
CHECKPOINT = "callbacks/saving.py"

TRAINING = [
    bug("training/steps.py", "Totals.add", "self.examples += batch.size", "self.examples += 1"),
    bug(EVALUATION, "Validation.is_due", "(epoch + 1) % frequency == 0", "epoch % frequency == 0"),
    bug(EVALUATION, "evaluate", "not totals.examples", "False"),
    bug(
        PIPELINES,
        "PartsOfPipelines.__init__",
        "self._size if cut.even else -(-self._size // cut.parts) * cut.parts",
        "self._size",
    ),
    bug(
        PIPELINES,
        "PartsOfPipelines._locate",
        "past * self._lengths[pipeline] + (turn + later) * self._share + place",
        "(turn + later) * self._share + place",
    ),
    bug("training/parts.py", "Batch.weighted", "weights * np.reshape(self.sample_weight, -1)", "weights"),
    bug(
        EPOCHS, "Epochs.of", "steps_per_epoch < 1 or not 0 <= initial_epoch <= epochs", "steps_per_epoch < 1"
    ),
    bug(EPOCHS, "Epochs.max_steps", "self.epochs - self.initial_epoch", "self.epochs"),
    bug(LOG, "EpochLog.go_back_to", "number < epoch", "number <= epoch"),
    bug("training/fits/leading.py", "Steering.goes_back", "self.model.stop_training = self._stop_told"),
]

LOCAL = "strategies/parameter_server/local_steps.py"
LOCAL_STEPS = [
    bug(
        "state/rounds.py",
        "Rounds.batches",
        "min(first + self.local_steps, (epoch + 1) * self.steps_per_epoch)",
        "first + self.local_steps",
    ),
    bug("state/rounds.py", "Rounds.parts", "batch * parts + part", "batch * parts"),
    bug(LOCAL, "RoundReplica.commit", "self._updates += 1"),
    bug(
        "state/rounds.py",
        "Rounds.batches",
        "epoch * self.steps_per_epoch + within * self.local_steps",
        "max(0, epoch * self.steps_per_epoch + within * self.local_steps - 1)",
        says="a batch of a round counts in the next one too",
    ),
    bug(
        "roles/parameter_server/update_rules.py",
        "SyncRule.push",
        "self.version >= self.max_steps or push.base_version < self.version",
        "self.version >= self.max_steps",
        says="a late difference is applied",
    ),
    bug(
        "protocol/part_dealer.py",
        "PartDealer.lose",
        "self.give_back(part)",
        "self._take_back(part)",
        says="the batches of a dead replica are not dealt again",
    ),
    bug(
        "roles/parameter_server/update_rules.py",
        "SyncRule._too_late",
        "inner=self._store.optimizer.inner",
        "inner=None",
    ),
    bug(
        "roles/parameter_server/term_state.py",
        "TermState.refuse",
        "inner=self.store.optimizer.inner",
        "inner=None",
    ),
    bug(
        LOCAL,
        "RoundReplica.commit",
        "finite and len(self._given) < parts and not self._driver.overtaken",
        "len(self._given) < parts and not self._driver.overtaken",
    ),
    bug(LOCAL, "RoundReplica._push", "name in self.updates or self._outer.values", "self._outer.values"),
    bug(LOCAL, "RoundReplica.next_batch", "self._obey()"),
    bug(
        LOCAL,
        "RoundRows.begin",
        "_joined({name: array[others] for name, array in self._kept.items()}, moved)",
        "moved",
    ),
    bug(LOCAL, "RoundRows.update", "self._round[MOVED][places] = True", "self._round[MOVED][:] = True"),
    bug("parameters/updater.py", "_TableUpdate.make", "optimizer.values", "False"),
    bug("state/rounds.py", "Rounds.parts", "batches.stop * parts", "batches.stop * parts - 1"),
    bug("control/sync_steps.py", "SyncSteps.speeds", "self._speeds[0] != self.dealer.batch", "True"),
    bug(
        "state/feed.py",
        "Feed.other_rounds",
        "self.local_steps or before.local_steps",
        "self.local_steps and before.local_steps",
    ),
]

CALLBACKS = [
    bug(
        STOPPING,
        "EarlyStopping.on_epoch_end",
        "self.wait >= self.patience and epoch > 0",
        "self.wait > self.patience and epoch > 0",
    ),
    bug("callbacks/callback.py", "StatefulCallback.get_state", "getattr(self, name)", "None"),
    bug(
        PLATEAU,
        "ReduceLROnPlateau.on_epoch_end",
        "max(rate * self.factor, self.min_lr)",
        "rate * self.factor",
    ),
    bug(PLATEAU, "ReduceLROnPlateau._reduce", "self.cooldown_counter = self.cooldown"),
    bug(CSV, "CSVLogger.set_state", "self._file.truncate(self._began_bytes)"),
    bug(CSV, "CSVLogger.on_train_begin", "claim(self.filename, self.model.strategy.context.run_id)"),
    bug(
        CHECKPOINT,
        "ModelCheckpoint.on_train_batch_end",
        "self._unsaved_steps += batch - self._last_batch",
        "self._unsaved_steps += 1",
    ),
    bug(CHECKPOINT, "ModelCheckpoint._save_if_due", "self._best = value"),
    bug(
        "callbacks/saving.py",
        "BackupAndRestore.on_train_begin",
        "self._saved_step = self._training.global_step",
    ),
    bug("callbacks/callback.py", "check_callbacks", "not isinstance(found, Callback)", "False"),
    bug(
        "callbacks/steering.py",
        "MonitoringCallback._monitored",
        "warnings.warn(text, RuntimeWarning, stacklevel=3)",
    ),
]

FOUND = [*TRAINING, *LOCAL_STEPS, *CALLBACKS]
