"""What a live router takes from a study, without reading its traces."""

import dataclasses
from typing import Any

from jaxroute import study
from jaxroute.catalogue import AXES
from jaxroute.config import BeliefConfig, StudyConfig
from jaxroute.load.fleet import client_regions
from jaxroute.load.intensity import read_hours
from jaxroute.load.messages import input_error, known_names, shown
from jaxroute.loading import refuse
from jaxroute.policies import RouterParams
from jaxroute.quality import bundled_irt, expected_accuracy
from jaxroute.study import Study


def without_traces(config: StudyConfig) -> Study:
    """A study whose datasets are not read, which takes a fraction of the time.

    The bundled typical day is laid over the whole of 2023, whatever days the traces are of.
    """
    bare = study.of(config.model_copy(update={"datasets": ()}))
    return dataclasses.replace(bare, config=config)


def arguments(of: Study, policy: str | RouterParams, retention: str | None) -> dict[str, Any]:
    """The arguments of an `OnlineRouter`, as `OnlineRouter.from_study` documents them."""
    refuse(of, "a live router")
    config = of.config
    bare = without_traces(config) if of.datasets else of
    label = next(iter(bare.retentions)) if retention is None else retention
    if label not in bare.retentions:
        mend, expected = known_names(label, bare.retentions), "the label of a retention"
        raise input_error("OnlineRouter", "retention", shown(label), expected, mend)
    models, predicted = config.fleet.models, config.belief.predicted_output_tokens
    if isinstance(predicted, str):
        predicted = BeliefConfig().predicted_output_tokens
    accuracy = expected_accuracy(bundled_irt(models, config.fleet.known.abilities)).tolist()
    hours = read_hours(config.intensity, config.fleet.regions)
    return {
        "params": _params(of, policy),
        "world": bare.world.replace(retention=bare.retentions[label]),
        "deployments": list(bare.deployments[list(AXES)].itertuples(index=False, name=None)),
        "homes": client_regions(config.fleet.known),
        "quality": dict(zip(models, accuracy, strict=True)),
        "predicted_output_tokens": predicted,
        "intensity_from": hours.start.timestamp(),
    }


def _params(of: Study, policy: str | RouterParams) -> RouterParams:
    if isinstance(policy, RouterParams):
        return policy
    named = of if policy in of.policies else of.with_policies([policy])
    if policy in named.fixed:
        found = f"{policy!r}, whose {named.fixed[policy]} depends on a dataset"
        mend = "give the parameters: jaxroute.comparison.resolved(study, dataset)[policy]"
        raise input_error("OnlineRouter", "policy", found, "a policy of its own", mend)
    return named.policies[policy]
