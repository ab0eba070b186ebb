"""Packages that only some commands need."""

import importlib

from jaxroute.load.messages import input_error


def require(what: str, *packages: str) -> None:
    """Raises an `InputError` that names the extra `report` unless its packages are installed."""
    try:
        for name in packages:
            importlib.import_module(name)
    except ImportError as error:
        found, expected = f"no {error.name}", f"{' and '.join(packages)} to be installed"
        raise input_error(what, "", found, expected, "pip install 'jaxroute[report]'") from error
