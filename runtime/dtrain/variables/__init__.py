"""Variables outside of a model: their descriptions, their shards, and access to them whole or by rows."""

from dtrain.variables.spec import DTYPE_BYTES, TABLE_BYTES, VariableSpec

__all__ = ["DTYPE_BYTES", "TABLE_BYTES", "VariableSpec"]
