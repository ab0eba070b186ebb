"""A model's architecture from JSON: a Hugging Face `config.json`, or columns of `models.csv`."""

import json
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from jaxroute.errors import InputError
from jaxroute.load.files import resolve
from jaxroute.load.messages import input_error, known_names, shown
from jaxroute.load.own_rows import Context, Count, Label, ModelRow
from jaxroute.load.toml import Section, refusal, validate
from jaxroute.load.values import Name, Switch
from jaxroute.roofline import DTYPE_BYTES, Architecture

__all__ = ["FAMILIES", "counted", "read_architecture"]

MOST_BYTES = 2**20
"""Of a file; a `config.json` has a few thousand."""

Maybe = Annotated[int, Field(strict=True, ge=0, le=10**8)]


class Family(NamedTuple):
    """How the layers of a `model_type` differ from Llama's.

    Attributes:
      qkv_bias: whether queries, keys and values always have biases.
      qk_norm: whether each head's queries and keys are normalised.
      norms: of a layer.
      tied: whether `tie_word_embeddings` is true where it is not given.
    """

    qkv_bias: bool = False
    qk_norm: bool = False
    norms: int = 2
    tied: bool = False


FAMILIES = {
    "llama": Family(),
    "mistral": Family(),
    "mixtral": Family(),
    "phi3": Family(),
    "qwen2": Family(qkv_bias=True),
    "qwen2_moe": Family(qkv_bias=True),
    "qwen3": Family(qk_norm=True),
    "qwen3_moe": Family(qk_norm=True),
    "gemma": Family(tied=True),
    "gemma2": Family(norms=4, tied=True),
    "gemma3_text": Family(qk_norm=True, norms=4, tied=True),
}
"""By `model_type`, those whose parameters are counted, as Hugging Face transformers builds them."""

DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma3_text": {
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "num_hidden_layers": 26,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
    }
}
"""What files of a `model_type` leave out (transformers, configuration_gemma3.py)."""


class Config(Section):
    """The keys of a `config.json` that are read, by the names it has them by."""

    model_type: Name
    hidden_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    intermediate_size: Count
    vocab_size: Annotated[int, Field(strict=True, ge=1, le=10**8)]
    max_position_embeddings: Context
    num_key_value_heads: Count | None = None
    head_dim: Count | None = None
    tie_word_embeddings: Switch | None = None
    attention_bias: Switch = False
    mlp_bias: Switch = False
    num_experts: Maybe = 0
    num_local_experts: Maybe = 0
    num_experts_per_tok: Maybe = 0
    moe_intermediate_size: Count | None = None
    shared_expert_intermediate_size: Maybe = 0
    decoder_sparse_step: Count = 1
    mlp_only_layers: tuple[int, ...] = ()
    sliding_window: Maybe | None = None
    use_sliding_window: Switch = True

    @property
    def windowed(self) -> bool:
        """Whether some layer attends to less than the longest context."""
        width = self.sliding_window or self.max_position_embeddings
        return self.use_sliding_window and width < self.max_position_embeddings


class Plain(ModelRow):
    """The columns of `models.csv`, the roofline's all there."""

    source: str = ""
    layers: Count
    hidden: Count
    heads: Count
    kv_heads: Count
    head_dim: Count


def read_architecture(path: str | Path, name: str | None = None) -> tuple[str, Architecture, str]:
    """Reads a model's architecture.

    Args:
      path: a Hugging Face `config.json` of one of `FAMILIES`, or JSON with the columns of
        `models.csv` as keys (`params_total`, `layers`, `hidden`, `heads`, `kv_heads`, `head_dim`,
        `max_context`, and of a mixture `params_active`, `experts`, `experts_per_token`).
      name: of the model; by default that in the file, else the file's stem, or for a `config.json`
        its folder's name.

    Returns:
      The name, the architecture, and what a reader has to know of it, which may be nothing.

    Raises:
      InputError: naming the file, the key, what was found and what was expected.
    """
    data = _json(path)
    if "params_total" in data:
        own = name or data.get("model") or _named(path)
        row = validate(data | {"model": own}, Plain, str(path))
        if row.dtype_bytes not in (None, DTYPE_BYTES):
            found = f"{row.dtype_bytes:g}"
            raise input_error(path, "dtype_bytes", found, f"{DTYPE_BYTES}: the roofline is of bf16")
        if row.heads % row.kv_heads:
            raise _uneven(path, "kv_heads", row.kv_heads, row.heads)
        shape = {key: getattr(row, key) for key in Plain.model_fields if key in _SHAPE}
        model = Architecture(**shape | {"params_active": row.params_active or row.params_total})
        return name or row.model, model, row.notes
    inner = data["text_config"] if isinstance(data.get("text_config"), dict) else data
    for key, why in (
        ("quantization_config", "bf16 weights: the roofline is of them"),
        ("kv_lora_rank", "keys and values of each head: latent attention is another roofline"),
    ):
        if inner.get(key) or data.get(key):
            raise input_error(path, key, shown(inner.get(key) or data.get(key)), why)
    kind = inner.get("model_type", data.get("model_type"))
    if inner is not data and f"{kind}_text" in FAMILIES:
        kind = f"{kind}_text"
    if isinstance(kind, str) and kind not in FAMILIES:
        mend = f"{known_names(kind, FAMILIES)}; or give params_total, layers, … as JSON"
        expected = "a model_type whose parameters can be counted"
        raise input_error(path, "model_type", shown(kind), expected, mend)
    given = {key: inner[key] for key in Config.model_fields if inner.get(key) is not None}
    given |= {} if kind is None else {"model_type": kind}
    defaults = DEFAULTS.get(kind, {}) if isinstance(kind, str) else {}
    config = validate(defaults | given, Config, str(path))
    origin = data.get("_name_or_path")
    own = Path(origin).name if isinstance(origin, str) else ""
    notes = []
    if inner is not data:
        notes.append("of its text_config alone")
    if config.windowed:
        notes.append("sliding windows not modelled: KV and attention are those of full attention")
    return name or own or _named(path), counted(config, str(path)), "; ".join(notes)


_SHAPE = set(Architecture.__dataclass_fields__)


def counted(config: Config, source: str = "config.json") -> Architecture:
    """The architecture of a `config.json`, its parameters counted.

    With V words, width h, H heads and K KV heads of size d, and a gated feed-forward of width f:

    - embeddings `V h`, twice unless tied; a norm `h` at the end;
    - a layer: queries and output `2 h H d`, keys and values `2 h K d`, their biases if any, norms;
    - dense feed-forward `3 h f`; of a mixture E of `3 h f_e`, of which k are active, a router
      `h E`, and a shared expert `3 h f_s + h` if there is one.

    Args:
      config: the keys.
      source: the file, for messages.

    Raises:
      InputError: if heads do not divide the width, or KV heads the heads, or experts are not whole.
    """
    family, h, layers = FAMILIES[config.model_type], config.hidden_size, config.num_hidden_layers
    heads, kv_heads = config.num_attention_heads, config.num_key_value_heads
    kv_heads = heads if kv_heads is None else kv_heads
    if config.head_dim is None and h % heads:
        found, expected = f"{heads} beside hidden_size {h}", "a number that divides it, or head_dim"
        raise input_error(source, "num_attention_heads", found, expected)
    if heads % kv_heads:
        raise _uneven(source, "num_key_value_heads", kv_heads, heads)
    d = config.head_dim or h // heads
    q, kv = heads * d, kv_heads * d
    attention = 2 * h * q + 2 * h * kv
    if family.qkv_bias or config.attention_bias:
        attention += q + 2 * kv + (h if config.attention_bias and not family.qkv_bias else 0)
    attention += 2 * d if family.qk_norm else 0
    dense = 3 * h * config.intermediate_size
    dense += (2 * config.intermediate_size + h) if config.mlp_bias else 0
    experts = config.num_experts or config.num_local_experts
    chosen = config.num_experts_per_tok if experts else 0
    if experts and not 1 <= chosen <= experts:
        raise input_error(source, "num_experts_per_tok", f"{chosen}", f"from 1 to {experts}")
    sparse = sum(
        (layer + 1) % config.decoder_sparse_step == 0 and layer not in config.mlp_only_layers
        for layer in range(layers if experts else 0)
    )
    expert = 3 * h * (config.moe_intermediate_size or config.intermediate_size)
    shared = config.shared_expert_intermediate_size
    around = h * experts + (3 * h * shared + h if shared else 0)
    tied = family.tied if config.tie_word_embeddings is None else config.tie_word_embeddings
    rest = config.vocab_size * h * (1 if tied else 2) + h
    rest += layers * (attention + family.norms * h) + (layers - sparse) * dense + sparse * around
    return Architecture(
        params_total=float(rest + sparse * experts * expert),
        params_active=float(rest + sparse * chosen * expert),
        layers=layers,
        hidden=h,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=d,
        max_context=config.max_position_embeddings,
        experts=experts if sparse else 0,
        experts_per_token=chosen if sparse else 0,
    )


def _uneven(path: str | Path, key: str, kv_heads: int, heads: int) -> InputError:
    return input_error(path, key, f"{kv_heads} beside {heads} heads", "a number that divides them")


def _named(path: str | Path) -> str:
    """The stem, if it is a name that a model can have."""
    if expected := refusal(Label, _stem(path)):
        raise input_error(path, "", f"the name {_stem(path)!r}", expected, "give one by --name")
    return _stem(path)


def _stem(path: str | Path) -> str:
    file = Path(path)
    return file.absolute().parent.name if file.stem == "config" else file.stem


def _json(path: str | Path) -> dict[str, Any]:
    file = resolve(path)
    size = file.stat().st_size
    if size > MOST_BYTES:
        raise input_error(path, "", f"{size:,} bytes", f"at most {MOST_BYTES:,}")
    try:
        data = json.loads(file.read_text("utf-8-sig"))
    except RecursionError as error:
        raise input_error(path, "", "JSON nested too deeply", "a model's config.json") from error
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise input_error(path, place, f"no JSON ({error.msg})", "a model's config.json") from error
    except (OSError, ValueError) as error:
        raise input_error(path, "", str(error)[:200], "a readable JSON file") from error
    if not isinstance(data, dict):
        raise input_error(path, "", f"JSON that is no object ({shown(data)})", "a config.json")
    return data
