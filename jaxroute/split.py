"""Sessions to learn from, and sessions held out to judge by what was learned."""

import dataclasses

import numpy as np
from numpy.typing import NDArray

from jaxroute import draws
from jaxroute.dataset import Dataset
from jaxroute.load.messages import input_error
from jaxroute.study import Study

HELD_OUT = 0.5
"""Share of the sessions. Carbon is so heavy-tailed that a smaller part would tell little."""


def split(study: Study, share: float = HELD_OUT) -> tuple[Study, Study]:
    """A study of the sessions to learn from, and one of those held out.

    Each session goes by a draw keyed by the study's seed and the hash of its id alone: more
    sessions, or others, move none.

    Args:
      study: its datasets in memory.
      share: of the sessions to hold out, in (0, 1).

    Raises:
      InputError: if a part of a dataset has no turns, or a dataset is on disk.

    >>> import jaxroute as jr
    >>> learn, judge = split(jr.load_study(), 0.25)
    >>> learn.sessions.count + judge.sessions.count, judge.sessions.count
    (7349, 1830)
    """
    parts: tuple[list[Dataset], list[Dataset]] = ([], [])
    for dataset in study.datasets:
        if not isinstance(dataset, Dataset):
            raise input_error(dataset.path, "", "a trace left on disk", "one in memory")
        held = draws.uniform(study.config.seed, "held out", dataset.hashes) < share
        for part, chosen in zip(parts, (~held, held), strict=True):
            if not dataset.lengths[chosen].sum():
                found = f"{dataset.count} sessions"
                raise input_error(dataset.path, "", found, "enough to hold some of them out")
            part.append(some(dataset, chosen))
    learn, judge = (dataclasses.replace(study, datasets=tuple(part)) for part in parts)
    return learn, judge


def some(dataset: Dataset, chosen: NDArray[np.bool_]) -> Dataset:
    """The trace with some of its sessions alone, `[S]`, each as it is in the whole."""
    turns = np.repeat(chosen, dataset.lengths)
    return dataclasses.replace(
        dataset,
        session_ids=dataset.session_ids[chosen],
        hashes=dataset.hashes[chosen],
        lengths=dataset.lengths[chosen],
        columns={name: values[turns] for name, values in dataset.columns.items()},
    )
