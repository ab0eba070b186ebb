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
