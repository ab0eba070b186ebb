"""How much memory there is, and how much a user allows."""

import re
from pathlib import Path

import jax

from jaxroute.load.messages import input_error, shown

UNITS = {"": 1, **{f"{letter}B": 1000**n for n, letter in enumerate("kMGT", 1)}} | {
    f"{letter}iB": 1024**n for n, letter in enumerate("KMGT", 1)
}

UNKNOWN = 4 * 1024**3
"""Taken for free where nothing tells."""

_MEMINFO = Path("/proc/meminfo")
_GROUPS = Path("/sys/fs/cgroup")
_OWN_GROUP = Path("/proc/self/cgroup")


def of_text(text: str) -> int:
    """Bytes of a text such as `4GiB`, `500 MB` or `1000000`.

    >>> of_text("1.5GiB"), of_text("2 kB")
    (1610612736, 2000)
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([A-Za-z]*)\s*", text)
    units = {unit.lower(): size for unit, size in UNITS.items()}
    if match is None or match[2].lower() not in units or not float(match[1]):
        raise input_error("--memory", "", shown(text), "a size such as 4GiB or 500MB")
    return int(float(match[1]) * units[match[2].lower()])


def free_bytes() -> int:
    """What is free on the device, or, where it has no memory of its own, on the host."""
    stats = jax.local_devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return stats["bytes_limit"] - stats.get("bytes_in_use", 0)
    return host_bytes()


def host_bytes() -> int:
    """What is free on the host."""
    return int(min(_host(), _group()))


def _host() -> int:
    try:
        found = re.search(r"MemAvailable:\s+(\d+) kB", _MEMINFO.read_text())
        return 1024 * int(found[1]) if found else UNKNOWN
    except OSError:
        return UNKNOWN


def _group() -> float:
    """What the control groups, such as of a container or a job, may still take (cgroup v2)."""
    try:
        own = next(x for x in _OWN_GROUP.read_text().splitlines() if x.startswith("0::"))
    except (OSError, StopIteration):
        return float("inf")
    place = _GROUPS / own.removeprefix("0::").lstrip("/")
    return min(map(_left, (place, *place.parents)))


def _left(group: Path) -> float:
    try:
        most, now = ((group / f"memory.{name}").read_text() for name in ("max", "current"))
        return int(most) - int(now)
    except (OSError, ValueError):  # no limit is the word "max"
        return float("inf")
