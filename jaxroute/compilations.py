"""Compiled programs kept from one process to the next, for the command line alone."""

import logging
import os
import platform
from pathlib import Path
from typing import Any

import jax


def reuse_compilations() -> None:
    """Keeps compiled programs in the user's cache, where a second process finds them.

    A directory for each host, as the programs are for its processor. What JAX's environment
    variables and settings say goes before.
    """
    config: Any = jax.config
    if not config.jax_enable_compilation_cache or config.jax_compilation_cache_dir is not None:
        return
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    programs = caches / "jaxroute" / platform.node()
    try:
        programs.mkdir(parents=True, exist_ok=True)
    except OSError:
        return
    config.update("jax_compilation_cache_dir", str(programs))
    config.update("jax_persistent_cache_min_compile_time_secs", 0)
    config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    if config.jax_logging_level in (None, "NOTSET"):
        # jaxlib 0.10 calls its own tuning preferences missing features of the host, at every load
        # (jax issue 38445). This silences jaxlib alone: the warnings of JAX are those of logging.
        config.update("jax_logging_level", "CRITICAL")
        logging.getLogger("jax").setLevel(logging.WARNING)
