"""Run by `test_oracle.py` in a process of its own: the x64 flag cannot be changed within one."""

import sys

import conftest  # noqa: F401  (strict promotion here too)
import jax
import numpy as np
from oracle_check import RETENTIONS, check, stratified, subset

from jaxroute.study import load_study

if __name__ == "__main__":
    trace, retention, count, long_turns = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:])
    study = load_study(traces=trace, dtype=np.float64)
    whole = study.datasets[0]
    dataset = subset(whole, stratified(whole, count, longer_than=long_turns))
    leaves = jax.tree.leaves((study.world, dataset.sessions))
    assert {x.dtype for x in leaves if np.issubdtype(x.dtype, np.floating)} == {np.dtype("f8")}
    shares = check(study, dataset, RETENTIONS[retention])
    print(f"{len(shares)} presets agree on {len(dataset.lengths)} sessions")
