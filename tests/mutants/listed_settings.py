"""Planted bugs of the settings, the spec, and the launcher's policies: what accepts what is to be refused, hides an
error, or leaves a process.
"""

from mutant import bug

RULES = "config/training_section.py"
RESOLUTION = "config/resolution.py"
CLUSTER = "config/sections.py"
SPEC = "dtrain_cli/spec.py"
POLICIES = "dtrain_cli/launch/policies"
OUTCOMES = f"{POLICIES}/outcomes.py"
FAULTS = "dtrain_cli/runs/faults.py"

SETTINGS = [
    bug(RULES, "_problems_of_backups", "backups and needed is not None", "False"),
    bug(
        RULES,
        "replicas_problems",
        "0 < replicas <= training.backup_workers",
        "0 < replicas < training.backup_workers",
    ),
    bug(RULES, "_partitioner_problems", "value < 1", "value < 0"),
    bug(
        RULES,
        "problems",
        "drops and settings.get('max_staleness') is None",
        "False",
    ),
    bug(RULES, "without_meaning", "value != DEFAULTS[name] or name == 'replicas'", "name == 'replicas'"),
    bug(RESOLUTION, "with_program", "{**program, **said}", "{**said, **program}"),
    bug(
        RESOLUTION,
        "_with_implied",
        "training.get('staleness_bound') != 0 or training.get('updates') == 'sync'",
        "True",
    ),
    bug(CLUSTER, "ClusterSection.problems", "address in seen", "False"),
    bug(
        CLUSTER,
        "address_problem",
        "not port.isdecimal() or len(port) > 5 or not 0 < int(port) < 65536",
        "not port.isdecimal()",
    ),
    bug(
        "config/simulate_section.py",
        "SimulateSection.problems",
        "self.link(*link.between) is not link",
        "False",
    ),
    bug(
        "config/sections.py",
        "SecuritySection.completed",
        "section.tls != TlsMode.OFF and 0 < len(missing) < len(TLS_VARIABLES)",
        "False",
    ),
    bug(SPEC, "read_spec", "lines or spec is None", "spec is None"),
    bug("dtrain_cli/spec.py", "_read_text", "len(data) > BYTES_MAX", "False"),
]

OF_POLICIES = [
    bug(OUTCOMES, "decide_restart", "error_type in PERMANENT_ERRORS", "False"),
    bug(OUTCOMES, "decide_restart", "used >= rule.max", "used > rule.max"),
    bug(OUTCOMES, "decide_restart", "0 if ran_s >= HEALTHY_S else count", "count"),
    bug(OUTCOMES, "may_be_chance", "SIGNALLED <= status < MINUS_ONE", "SIGNALLED <= status"),
    bug(OUTCOMES, "has_succeeded", "any(states[task] != TaskState.SUCCEEDED for task in workers)", "False"),
    bug(OUTCOMES, "survives_without", "len(live) >= needed", "True"),
    bug(FAULTS, "FaultSchedule.due", "self._waiting.remove(fault)"),
    bug(FAULTS, "FaultSchedule.due", "there is not None and task not in there", "False"),
    bug(f"{POLICIES}/ordered_stop.py", "RunStop.kill_s", "self.at_s + self.grace_s", "math.inf"),
    bug(
        f"{POLICIES}/patience.py",
        "StuckWatch._judged",
        "awaited is None or status.waiting_for or status.busy_with",
        "awaited is None or status.waiting_for",
    ),
    bug(
        f"{POLICIES}/patience.py",
        "Patience.late",
        "order is not None and not order.patient",
        "order is not None",
    ),
]

FOUND = [*SETTINGS, *OF_POLICIES]
