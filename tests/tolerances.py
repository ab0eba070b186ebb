"""How near the engine has to come to the oracle, in one place."""

TOTALS = {"float32": 1e-5, "float64": 1e-9}
"""Relative, of every total of a session under the engine's own decisions."""

MARGIN = {"float32": 1e-5, "float64": 1e-12}
"""Relative gap of the two best scores, or of the gate, within which a decision may differ."""

EDGE_TOKENS = {"float32": 1e-3, "float64": 1e-9}
"""Distance from a floor's jump within which cached tokens may differ."""

EXCUSED = 0.01
"""Largest share of a preset's turns that may stand so near to another outcome, or after one."""
