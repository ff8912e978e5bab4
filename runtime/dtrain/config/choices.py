"""The words that a setting chooses from, each an enum by its setting; a spec and a message hold the values.

No other room compares a setting with a text. A member equals its text, so that programs and tests may write
either.
"""

from enum import StrEnum

On = StrEnum("On", "LOCAL SSH SLURM KUBERNETES TRAINER SKYPILOT RAY")
Success = StrEnum("Success", "LEADER ALL_WORKERS")
RestartPolicy = StrEnum("RestartPolicy", "NEVER ON_FAILURE ALWAYS")
TlsMode = StrEnum("TlsMode", "AUTO OFF REQUIRED")
Weighting = StrEnum("Weighting", "REPLICAS EXAMPLES")
TooFew = StrEnum("TooFew", "WAIT SHRINK FAIL")
StaleGradients = StrEnum("StaleGradients", "APPLY DROP SCALE COMPENSATE")
OnStale = StrEnum("OnStale", "SKIP RETRY_SAME_BATCH")
Merge = StrEnum("Merge", "MEAN RDA")
NanPolicy = StrEnum("NanPolicy", "REFUSE SKIP FAIL")
Placement = StrEnum("Placement", "ROUND_ROBIN GREEDY")
NumberFormat = StrEnum("NumberFormat", "NONE BF16 FP16")
Transport = StrEnum("Transport", "AUTO GRPC LOCAL")
Validation = StrEnum("Validation", "LEADER EVALUATOR")
Schedule = StrEnum(
    "Schedule",
    {"GPIPE": "gpipe", "ONE_F_ONE_B": "1f1b", "PIPEDREAM": "pipedream", "PIPEDREAM_2BW": "pipedream_2bw"},
)
