"""Variables as everyone but a model sees them: what is declared, how it is cut into shards, read as one, or
by rows.
"""

from dtrain.variables.spec import DTYPE_BYTES, TABLE_BYTES, VariableSpec

__all__ = ["DTYPE_BYTES", "TABLE_BYTES", "VariableSpec"]
