"""Shared settings: mistakes that JAX would forgive are errors here."""

import os

import hypothesis
import jax

jax.config.update("jax_enable_compilation_cache", False)  # the command line's, in the user's home
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# A first example compiles, so no deadline; the same examples at every run of CI.
hypothesis.settings.register_profile(
    "jaxroute", deadline=None, derandomize=bool(os.environ.get("CI"))
)
hypothesis.settings.load_profile("jaxroute")


def pytest_collection_modifyitems(config, items):
    """With `JAXROUTE_PART=K/N`, of the slow tests those of every N-th file from the K-th."""
    part = os.environ.get("JAXROUTE_PART")
    if part is None:
        return
    which, parts = map(int, part.split("/"))
    slow = {item for item in items if item.get_closest_marker("slow")}
    files = sorted({item.path for item in slow})[which::parts]
    others = [item for item in items if item in slow and item.path not in files]
    config.hook.pytest_deselected(items=others)
    items[:] = [item for item in items if item not in slow or item.path in files]
