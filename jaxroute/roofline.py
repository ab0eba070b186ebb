"""A profile from an architecture, by the roofline that the bundled profiles were made by.

With tp GPUs of bandwidth BW and peak F, weights W = 2P bytes, batch B, context C and kv bytes of KV
a token:

- decode step s = a layers + W/(tp BW MBU) + b B C kv/(tp BW) + c 2 P B/(tp F);
- step J = tp P_static s + e_byte (W + B C kv) + e_flop 2 P B, at most tp TDP s;
- prefill s a token = 2P/(tp F MFU) + two all-reduces a layer, and for each token of context
  4 layers heads head_dim/(tp F MFU_attention); at 0.98 TDP.

Coefficients: `roofline_coefficients.csv`, fitted to the ML.ENERGY Benchmark v3 (H100, B200) and v2
(A100) and to prefill kernels; `jaxroute/data/README.md` tells of them and of their errors.
"""

import dataclasses
from collections.abc import Callable, Mapping

from jaxroute.load.messages import input_error

__all__ = [
    "Architecture", "decode", "decode_step_j", "decode_step_s", "kv_capacity_tokens",
    "least_tensor_parallel", "prefill_s", "profile", "provenance", "weights_read_bytes",
]  # fmt: skip

DTYPE_BYTES = 2
"""Of a weight and of a number in the KV cache: bf16, which the coefficients were fitted to."""

REF_CONTEXT_TOKENS = 1024
"""The context at which decode costs are stated."""

FLOOR_CONTEXT_TOKENS = 512
"""Context of the one-sequence decode step that bounds the time to first token below."""

ROOM_TOKENS = 2048
"""Context of each sequence of a batch that a replica must hold."""

MEMORY_SHARE = 0.9
"""Of a GPU's memory, for weights and KV: vLLM's default `gpu_memory_utilization`."""

MOST_GPUS = 8
"""Of a replica: those of one server."""

PROVENANCE = "derived, ±30 %"

MOST_BATCH = 32
"""Of a mixture of experts, beyond which the roofline was found far too low."""

Gpu = Mapping[str, float]
"""A GPU type's columns of `gpus.csv` and of `roofline_coefficients.csv`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Architecture:
    """What the roofline has to know of a model.

    Attributes:
      params_total, params_active: all parameters, and those that a token passes.
      layers, hidden, heads, kv_heads, head_dim: of the transformer.
      max_context: tokens.
      experts, experts_per_token: of a mixture; 0 if dense, or if not known: then every decode step
        is taken to read all weights.
    """

    params_total: float
    params_active: float
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    max_context: int
    experts: int = 0
    experts_per_token: int = 0

    @property
    def kv_bytes_per_token(self) -> int:
        """`2 layers kv_heads head_dim` numbers, as if every layer attended to the whole context."""
        return 2 * self.layers * self.kv_heads * self.head_dim * DTYPE_BYTES

    @property
    def weights_bytes(self) -> float:
        """Of all parameters."""
        return DTYPE_BYTES * self.params_total


def weights_read_bytes(model: Architecture, batch: float) -> float:
    """Bytes of weights that a decode step reads.

    All of a dense model. Of E experts, k a token, a batch of B is expected to choose
    `d = E (1 - (1 - k/E)^B)` where they are chosen alike; then `2 (A + (T - A)(d - k)/(E - k))`,
    with T parameters in all and A active.
    """
    spare = model.experts - model.experts_per_token
    if not (model.experts and spare):
        return model.weights_bytes
    missed = (spare / model.experts) ** batch
    chosen = model.experts * (1 - missed) - model.experts_per_token
    idle = model.params_total - model.params_active
    return DTYPE_BYTES * (model.params_active + idle * chosen / spare)


def _kv_bytes(model: Architecture, tensor_parallel: int) -> float:
    """A token's, over all GPUs: heads are copied where there are more GPUs than KV heads."""
    return model.kv_bytes_per_token * max(1, tensor_parallel / model.kv_heads)


def decode_step_s(
    model: Architecture, gpu: Gpu, tensor_parallel: int, batch: float, context_tokens: float
) -> float:
    """Seconds of one decode step, in which each of `batch` sequences gains a token."""
    bytes_s = tensor_parallel * gpu["hbm_gb_s"] * 1e9
    flop_s = tensor_parallel * gpu["peak_bf16_dense_tflops"] * 1e12
    kv_bytes = batch * context_tokens * _kv_bytes(model, tensor_parallel)
    return (
        gpu["overhead_us_per_layer"] * 1e-6 * model.layers
        + weights_read_bytes(model, batch) / (bytes_s * gpu["mbu_weights"])
        + gpu["inv_mbu_kv"] * kv_bytes / bytes_s
        + gpu["inv_mfu_decode"] * 2 * model.params_active * batch / flop_s
    )


def decode_step_j(
    model: Architecture, gpu: Gpu, tensor_parallel: int, batch: float, context_tokens: float
) -> float:
    """Joules of the GPUs in one decode step, of the whole batch."""
    seconds = decode_step_s(model, gpu, tensor_parallel, batch, context_tokens)
    kv_bytes = batch * context_tokens * _kv_bytes(model, tensor_parallel)
    moved = weights_read_bytes(model, batch) + kv_bytes
    joules = (
        tensor_parallel * gpu["p_static_active_w"] * seconds
        + gpu["e_pj_per_byte"] * 1e-12 * moved
        + gpu["e_pj_per_flop"] * 1e-12 * 2 * model.params_active * batch
    )
    return min(joules, tensor_parallel * gpu["tdp_w"] * seconds)


def prefill_s(model: Architecture, gpu: Gpu, tensor_parallel: int) -> tuple[float, float]:
    """Seconds of prefill for a token, and more for each token of context it attends to.

    Among tp GPUs two all-reduces a layer move `2 (tp - 1)/tp` times a token's activations at the
    speed fitted for 2 or 4 GPUs; at that of the most there is a fit for, where there are more.
    """
    flop_s = tensor_parallel * gpu["peak_bf16_dense_tflops"] * 1e12
    seconds = 2 * model.params_active / (flop_s * gpu["mfu_prefill_tp1"])
    if tensor_parallel > 1:
        known = [gpu["allreduce_gb_s_tp2"]]
        if tensor_parallel > 2 and gpu["allreduce_gb_s_tp4"] > 0:
            known.append(gpu["allreduce_gb_s_tp4"])
        moved = 2 * model.layers * model.hidden * DTYPE_BYTES
        ring = 2 * (tensor_parallel - 1) / tensor_parallel
        seconds += ring * moved / (known[-1] * 1e9)
    attention = 4 * model.layers * model.heads * model.head_dim
    return seconds, attention / (flop_s * gpu["mfu_attention"])


def kv_capacity_tokens(model: Architecture, gpu: Gpu, tensor_parallel: int) -> int:
    """Tokens whose KV a replica holds: `(0.9 memory - weights) / kv`; negative where too small."""
    memory = MEMORY_SHARE * tensor_parallel * gpu["memory_gb"] * 1e9
    return int((memory - model.weights_bytes) // _kv_bytes(model, tensor_parallel))


def least_tensor_parallel(model: Architecture, gpu: Gpu, batch: int) -> int | None:
    """The least of 1, 2, 4 and 8 GPUs that share the heads evenly and hold a batch at 2,048 tokens.

    None if there is none: a replica is one server. The bundled profiles follow the same rule.
    """
    for count in (1, 2, 4, MOST_GPUS):
        room = kv_capacity_tokens(model, gpu, count)
        if model.heads % count == 0 and room >= batch * min(ROOM_TOKENS, model.max_context):
            return count
    return None


def provenance(model: Architecture, batch: float) -> str:
    """How a derived profile's costs were made, in words.

    Against ML.ENERGY v3 (Qwen3-30B-A3B on H100 and B200), seconds and joules of a mixture are 26 %
    too low to 5 % too high at batches of 8 to 32, and half too low at 256.
    """
    if model.experts and batch > MOST_BATCH:
        return f"derived; a mixture of experts at a batch over {MOST_BATCH}: up to half too low"
    return PROVENANCE


def decode(model: Architecture, gpu: Gpu, tensor_parallel: int, batch: int) -> dict[str, float]:
    """The numbers of a row of `profiles_by_batch.csv`, costs to five digits."""

    def step(cost: Callable[..., float], context_tokens: float) -> float:
        return cost(model, gpu, tensor_parallel, batch, context_tokens)

    def slope(cost: Callable[..., float]) -> float:
        return step(cost, REF_CONTEXT_TOKENS + 1) - step(cost, REF_CONTEXT_TOKENS)

    row = {
        "decode_j_per_token": step(decode_step_j, REF_CONTEXT_TOKENS) / batch,
        "decode_j_per_token_per_ctx": slope(decode_step_j) / batch,
        "decode_s_per_token": step(decode_step_s, REF_CONTEXT_TOKENS),
        "decode_s_per_token_per_ctx": slope(decode_step_s),
    }
    return {
        "tensor_parallel": tensor_parallel,
        "batch": batch,
        **{name: float(f"{value:.5g}") for name, value in row.items()},
        "ref_context": REF_CONTEXT_TOKENS,
    }


def profile(
    model: Architecture, gpu: Gpu, *, batch: int = 32, tensor_parallel: int | None = None
) -> dict[str, float]:
    """The numbers of a row of `profiles.csv`, to five digits.

    Args:
      model: its architecture.
      gpu: the GPU type.
      batch: sequences served together.
      tensor_parallel: GPUs of a replica; by default `least_tensor_parallel`.

    Raises:
      InputError: if no replica, or not the one asked for, holds the model and a batch.
    """
    room = batch * min(ROOM_TOKENS, model.max_context)
    weights = f"{model.weights_bytes / 1e9:.4g} GB of weights"
    size = f"{gpu['memory_gb']:g} GB"
    count = tensor_parallel or least_tensor_parallel(model, gpu, batch)
    if count is None:
        found = f"{weights} and {model.heads} heads"
        expected = f"at most {MOST_GPUS} GPUs of {size} to hold them and {room:,} tokens of KV"
        raise input_error("--derive", "", found, expected, "a smaller --batch, or another --gpu")
    if model.heads % count:
        found = f"{count} GPUs for {model.heads} attention heads"
        raise input_error("--tensor-parallel", "", found, "a number that divides them")
    capacity = kv_capacity_tokens(model, gpu, count)
    if capacity < room:
        held = max(capacity, 0)
        found = f"room for {held:,} tokens of KV beside {weights} on {count} GPUs of {size}"
        expected = f"{room:,}, for a batch of {batch}"
        raise input_error("--tensor-parallel", "", found, expected, "more GPUs, a smaller --batch")
    seconds, seconds_ctx = prefill_s(model, gpu, count)
    prefill_w = gpu["p_prefill_frac_tdp"] * gpu["tdp_w"] * count
    row = {
        "prefill_j_per_token": prefill_w * seconds,
        "prefill_j_per_token_per_ctx": prefill_w * seconds_ctx,
        "prefill_s_per_token": seconds,
        "prefill_s_per_token_per_ctx": seconds_ctx,
        "ttft_floor_s": decode_step_s(model, gpu, count, 1, FLOOR_CONTEXT_TOKENS),
    }
    return {
        **{name: float(f"{value:.5g}") for name, value in row.items()},
        **decode(model, gpu, count, batch),
        "kv_bytes_per_token": model.kv_bytes_per_token,
        "kv_capacity_tokens": capacity,
        "idle_w_per_replica": gpu["idle_w"] * count,
        "host_w_per_replica": gpu["host_power_share_w"] * count,
    }
