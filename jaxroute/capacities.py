"""What a fleet makes of more and more traffic: every policy at every level, in one batch."""

import dataclasses

import numpy as np
import pandas as pd

from jaxroute import stats
from jaxroute.comparison import Report, each_dataset, resolved
from jaxroute.load.messages import input_error
from jaxroute.replays import replay_each
from jaxroute.study import Study

TRAFFIC_PCT = tuple(range(10, 121, 10))
"""Of the study's `arrival_rate`."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Capacities:
    """The outcome.

    Attributes:
      table: one row a dataset, level of traffic and policy: `traffic_pct`, `arrival_rate`, and the
        columns of a summary (`jaxroute.stats.summary`), those of load among them.
      replicas: of each dataset's fleet, a row a deployment.
      notes: what a reader has to know.
      compile_s, replay_s: seconds spent compiling and replaying.
    """

    table: pd.DataFrame
    replicas: pd.DataFrame
    notes: tuple[str, ...]
    compile_s: float
    replay_s: float


def capacity(study: Study) -> pd.DataFrame:
    """What a study's fleet makes of 10 to 120 % of its traffic, under every policy.

    One row a dataset, level of traffic (`traffic_pct` of the study's `arrival_rate`) and policy,
    with the columns of a summary (`jaxroute.compare`), those of load among them.

    Raises:
      InputError: if the study has no load.
    """
    return run(study).table


def run(study: Study, report: Report = lambda step, share: None) -> Capacities:
    """Every policy of a study at every level of traffic.

    Policies with a fixed axis take part only where the study names its policies.

    Args:
      study: with a `[load]`, whose fleet stays as it is while traffic grows.
      report: told of each step.

    Raises:
      InputError: if the study has no load.
    """
    load = study.config.load
    if load is None:
        expected = "a table load, with an arrival_rate"
        raise input_error(f"study {study.config.name!r}", "[load]", "nothing", expected)
    if study.config.policies is None:
        study = study.with_policies([name for name in study.policies if name not in study.fixed])
    lru = next(iter(study.retentions.values()))
    levels = dataclasses.replace(study, retentions=dict.fromkeys(map(str, TRAFFIC_PCT), lru))
    share = [level / 100 for level in TRAFFIC_PCT]
    tables, fleets, compile_s, replay_s = [], [], 0.0, 0.0
    for dataset, within in each_dataset(study, report):
        policies = resolved(study, dataset)
        outcome = replay_each(levels, dataset, list(policies.values()), within, share=share)
        table = stats.summary(levels, dataset, outcome, list(policies), study.config.baseline)
        traffic = table.pop("retention").astype(int)
        table.insert(1, "traffic_pct", traffic)
        table.insert(2, "arrival_rate", load.arrival_rate * traffic / 100)
        tables.append(table)
        names = study.deployments[["model", "gpu", "region"]]
        assert outcome.loading is not None
        count = np.asarray(outcome.loading.capacity.replicas, np.float64)
        fleets.append(names.assign(replicas=count).assign(dataset=dataset.label))
        compile_s, replay_s = compile_s + outcome.compile_s, replay_s + outcome.replay_s
    return Capacities(
        table=pd.concat(tables, ignore_index=True),
        replicas=pd.concat(fleets, ignore_index=True),
        notes=study.notes,
        compile_s=compile_s,
        replay_s=replay_s,
    )
