"""Rows that users add to the fleet's tables, and what each may hold.

`jaxroute.load.own_files` reads them. The columns of the bundled `models.csv`, `gpus.csv`,
`profiles.csv` and `profiles_by_batch.csv` are known.
"""

import re
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from jaxroute.load.toml import Section, fault
from jaxroute.load.values import Finite, Name, Switch

__all__ = ["DecodeRow", "GpuRow", "ModelRow", "OwnRows", "ProfileRow", "RegionRow", "Row"]

MOST_REGIONS = 100


def _plain(name: str) -> str:
    if not re.fullmatch(r"[\w.+:/@-]+", name):
        raise fault([], repr(name), "letters, digits and . _ - + : / @ only")
    return name


def _few(regions: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(regions) > MOST_REGIONS:
        raise fault([], f"{len(regions):,} regions", f"at most {MOST_REGIONS}")
    return regions


Label = Annotated[Name, AfterValidator(_plain)]
Number = Annotated[Finite, Field(ge=0, le=1e15)]
Parameters = Annotated[Finite, Field(ge=1e6, le=1e14)]
Count = Annotated[int, Field(strict=True, ge=1, le=10**6)]
Experts = Annotated[int, Field(strict=True, ge=0, le=10**6)]
Context = Annotated[int, Field(strict=True, ge=1, lt=2**24)]
Gpus = Annotated[int, Field(strict=True, ge=1, le=64)]
Joules = Annotated[Finite, Field(gt=0, le=1e4)]
Seconds = Annotated[Finite, Field(gt=0, le=10)]
Slope = Annotated[Finite, Field(ge=0, le=1)]
Watts = Annotated[Finite, Field(ge=0, le=1e6)]
Batch = Annotated[Finite, Field(ge=1, le=1e5)]
Logit = Annotated[Finite, Field(ge=-20, le=20)]
Pue = Annotated[Finite, Field(ge=1, le=5)]
Litres = Annotated[Finite, Field(ge=0, le=100)]
Price = Annotated[Finite, Field(ge=-1, le=10)]
Year = Annotated[int, Field(strict=True, ge=1980, lt=2200)]
Latitude = Annotated[Finite, Field(ge=-90, le=90)]
Longitude = Annotated[Finite, Field(ge=-180, le=180)]


class Row(Section):
    """Any of them: where its numbers are from, and whether it is to replace a bundled row."""

    source: Name
    override: Switch = False

    @property
    def implied(self) -> dict[str, Any]:
        """Columns that follow from others where they are not given."""
        return {}


class ModelRow(Row):
    """A model.

    `ability` is on the logit scale of the bundled fit (`jaxroute.quality.ability_of` tells it from
    an accuracy); a model without one needs `quality_<model>` columns in every trace.
    """

    model: Label
    params_total: Parameters
    max_context: Context
    ability: Logit | None = None
    params_active: Parameters | None = None
    layers: Count | None = None
    hidden: Count | None = None
    heads: Count | None = None
    kv_heads: Count | None = None
    head_dim: Count | None = None
    experts: Experts = 0
    experts_per_token: Experts = 0
    dtype_bytes: Number | None = None
    kv_bytes_per_token: Number | None = None
    notes: str = ""
    arch_source: str = ""

    @property
    def implied(self) -> dict[str, Any]:
        """A dense model's active parameters are all."""
        return {"params_active": self.params_active or self.params_total}

    @model_validator(mode="after")
    def _no_more_than_all(self) -> "ModelRow":
        if (self.params_active or 0) > self.params_total:
            found, expected = f"{self.params_active:g}", "at most params_total"
            raise fault(["params_active"], found, f"{expected}, {self.params_total:g}")
        if self.experts_per_token > self.experts or bool(self.experts) > self.experts_per_token:
            found = f"{self.experts_per_token} of {self.experts} experts"
            raise fault(["experts_per_token"], found, "from 1 to experts, or neither")
        return self


class GpuRow(Row):
    """A GPU type; its embodied rate is given, or kilograms and the years they are spread over."""

    gpu: Label
    embodied_gpu_plus_host_ug_per_s: Annotated[Finite, Field(ge=0, le=1e8)] | None = None
    embodied_gpu_kgco2e: Number | None = None
    embodied_host_share_kgco2e: Number | None = None
    lifetime_years: Annotated[Finite, Field(gt=0, le=100)] | None = None
    peak_bf16_dense_tflops: Number | None = None
    hbm_gb_s: Number | None = None
    memory_gb: Number | None = None
    tdp_w: Watts | None = None
    idle_w: Watts | None = None
    embodied_gpu_ug_per_s: Number | None = None
    host_power_share_w: Watts | None = None
    spec_source: str = ""
    embodied_source: str = ""
    host_source: str = ""
    idle_source: str = ""
    lifetime_note: str = ""

    @property
    def implied(self) -> dict[str, Any]:
        """The embodied rate of GPU and host, `1e9 (gpu + host kg) / (years 365 days)`, µg/s."""
        if self.embodied_gpu_plus_host_ug_per_s is not None:
            return {}
        kilograms = (self.embodied_gpu_kgco2e or 0) + (self.embodied_host_share_kgco2e or 0)
        rate = kilograms * 1e9 / ((self.lifetime_years or 1) * 365 * 86_400)
        return {"embodied_gpu_plus_host_ug_per_s": rate}

    @model_validator(mode="after")
    def _has_embodied(self) -> "GpuRow":
        needed = ("embodied_gpu_kgco2e", "embodied_host_share_kgco2e", "lifetime_years")
        if self.embodied_gpu_plus_host_ug_per_s is None:
            for key in needed:
                if getattr(self, key) is None:
                    mend = f"give {', '.join(needed)}, or embodied_gpu_plus_host_ug_per_s"
                    raise fault([key], "nothing", "a value: embodied carbon is billed", mend)
        return self


class Decoding(Row):
    """What decoding a model costs on a GPU type at one batch, stated at a reference context."""

    model: Label
    gpu: Label
    batch: Batch
    decode_j_per_token: Joules
    decode_j_per_token_per_ctx: Slope
    decode_s_per_token: Seconds
    decode_s_per_token_per_ctx: Slope
    ref_context: Annotated[Finite, Field(ge=0, lt=2**24)]

    @model_validator(mode="after")
    def _costs_at_context_0(self) -> "Decoding":
        for key in ("decode_j_per_token", "decode_s_per_token"):
            slope = getattr(self, f"{key}_per_ctx")
            at_0 = getattr(self, key) - slope * self.ref_context
            if at_0 <= 0:
                found = f"{getattr(self, key):g} at {self.ref_context:g} tokens of context"
                least = f"more than {key}_per_ctx x ref_context = {slope * self.ref_context:g}"
                raise fault([key], found, least)
        return self


class ProfileRow(Decoding):
    """What a model costs on a GPU type, as `profiles.csv`; without provenance, it is the source."""

    tensor_parallel: Gpus
    prefill_j_per_token: Joules
    prefill_j_per_token_per_ctx: Slope
    prefill_s_per_token: Seconds
    prefill_s_per_token_per_ctx: Slope
    ttft_floor_s: Annotated[Finite, Field(ge=0, le=1e3)]
    kv_capacity_tokens: Annotated[Finite, Field(ge=1, le=1e12)]
    host_w_per_replica: Watts
    kv_bytes_per_token: Number | None = None
    idle_w_per_replica: Watts | None = None
    decode_provenance: str = ""
    prefill_provenance: str = ""

    @property
    def implied(self) -> dict[str, Any]:
        """Provenances."""
        keys = ("decode_provenance", "prefill_provenance")
        return {key: getattr(self, key) or self.source for key in keys}


class DecodeRow(Decoding):
    """Decoding at another batch than its profile's, as `profiles_by_batch.csv`."""

    tensor_parallel: Gpus | None = None
    provenance: str = ""

    @property
    def implied(self) -> dict[str, Any]:
        """Its provenance."""
        return {"provenance": self.provenance or self.source}


class RegionRow(Row):
    """A region; one that is bundled keeps what the row does not give."""

    region: Label
    lat: Latitude | None = None
    lon: Longitude | None = None
    pue: Pue | None = None
    wue_l_per_kwh: Litres | None = None
    price_usd_per_kwh: Price | None = None
    price_year: Year | None = None

    @model_validator(mode="after")
    def _has_place_and_year(self) -> "RegionRow":
        for key in () if self.override else ("lat", "lon", "pue"):
            if getattr(self, key) is None:
                raise fault([key], "nothing", "a value: a region of one's own needs it")
        if (self.price_usd_per_kwh is None) != (self.price_year is None):
            given, other = "price_usd_per_kwh", "price_year"
            if self.price_usd_per_kwh is None:
                given, other = other, given
            raise fault([other], "nothing", f"a value beside {given}")
        return self


class OwnRows(Section):
    """A file of them; at most 100 regions, since each has a round trip to every other."""

    model: tuple[ModelRow, ...] = ()
    gpu: tuple[GpuRow, ...] = ()
    profile: tuple[ProfileRow, ...] = ()
    decode: tuple[DecodeRow, ...] = ()
    region: Annotated[tuple[RegionRow, ...], AfterValidator(_few)] = ()
