"""Write every bundled table from its source table.

`python -m jaxroute.data.build SOURCE_DIR`, where SOURCE_DIR holds carbon/, serving/, quality/ and
traces/. The README beside this file says what each table is and where its numbers come from.
Numbers are copied as text, so nothing is rounded on the way; only irt.json and the speeds of
all-reduces are computed.
"""

import argparse
import gzip
import io
import json
import sys
from pathlib import Path

import pandas as pd

from jaxroute.errors import InputError
from jaxroute.quality import expected_accuracy, fit_irt

HERE = Path(__file__).parent
GPUS = ["A100-80GB-SXM", "H100-80GB-SXM", "B200-180GB-SXM"]
QUALITY_DATASETS = ["math-l5", "crux"]
FORECAST_REGIONS = {
    "CISO": "US-CISO", "ERCO": "US-ERCO", "PJM": "US-PJM", "DE": "DE", "SE": "SE",
}  # fmt: skip
FORECAST_COLUMNS = ["region", "window", "n", "sd_log", "ac1", "source"]
MODEL_COLUMNS = [
    "model", "params_total", "params_active", "layers", "hidden", "heads", "kv_heads", "head_dim",
    "dtype_bytes", "kv_bytes_per_token", "max_context", "notes", "arch_source",
]  # fmt: skip
PRICE_COLUMNS = ["region", "year", "mean_usd_per_mwh", "source"]
EWIF_COLUMNS = ["technology", "l_per_kwh", "source"]
ROOFLINE_COLUMNS = [
    "gpu", "mbu_weights", "overhead_us_per_layer", "inv_mbu_kv", "inv_mfu_decode",
    "mfu_prefill_tp1", "mfu_attention", "p_static_active_w", "e_pj_per_byte", "e_pj_per_flop",
    "p_prefill_frac_tdp",
]  # fmt: skip


def read(path: Path) -> pd.DataFrame:
    """Read a CSV file as text: no number is reformatted and Norway's `NO` stays `NO`."""
    if not path.is_file():
        raise InputError(f"{path}: found no such file, expected a source table")
    return pd.read_csv(path, dtype=str, keep_default_na=False)


def tables(source: Path) -> dict[str, pd.DataFrame]:
    """Return the tables to ship, by file name."""
    models = read(source / "serving/models.csv")
    models = models.loc[models["recommended_set"] == "default", MODEL_COLUMNS]
    gpus = read(source / "serving/gpus.csv")
    profiles = read(source / "serving/profiles.csv")
    profiles = profiles[profiles["model"].isin(models["model"]) & profiles["gpu"].isin(GPUS)]
    if len(profiles) != len(models) * len(GPUS):
        raise InputError(
            f"{source / 'serving/profiles.csv'}: found {len(profiles)} rows of the default models "
            f"and GPU types, expected {len(models)} x {len(GPUS)}"
        )
    by_batch = read(source / "serving/profiles_by_batch.csv")
    by_batch = by_batch.merge(profiles[["model", "gpu"]])
    coefficients = read(source / "serving/roofline_coefficients.csv")
    coefficients = coefficients[coefficients["gpu"].isin(GPUS)]
    forecast = read(source / "carbon/forecast_error_dayahead.csv")
    forecast = forecast.assign(region=forecast["region"].map(FORECAST_REGIONS))
    return {
        "models.csv": models,
        "gpus.csv": gpus[gpus["gpu"].isin(GPUS)],
        "profiles.csv": profiles,
        "profiles_by_batch.csv": by_batch,
        "roofline_coefficients.csv": roofline(coefficients, models, gpus, profiles),
        "regions.csv": read(source / "carbon/regions.csv"),
        "pue.csv": read(source / "carbon/pue.csv"),
        "electricity_price.csv": read(source / "carbon/electricity_price.csv")[PRICE_COLUMNS],
        "ewif_by_technology.csv": read(source / "carbon/ewif_by_technology.csv")[EWIF_COLUMNS],
        "rtt_ms.csv": read(source / "carbon/rtt_ms.csv"),
        "forecast_error_dayahead.csv": forecast.dropna(subset="region")[FORECAST_COLUMNS],
        "typical_day_2023.csv": read(source / "carbon/climatology_2023.csv"),
        "sharegpt.csv.gz": read(source / "traces/sharegpt.csv.gz"),
    }


def roofline(
    coefficients: pd.DataFrame, models: pd.DataFrame, gpus: pd.DataFrame, profiles: pd.DataFrame
) -> pd.DataFrame:
    """Return the roofline's coefficients, and the speeds of all-reduces in the profiles' prefill.

    Prefill of a token on tp GPUs takes `2P/(tp F MFU)` and two all-reduces a layer, each of
    `2 (tp - 1)/tp` times a token's activations of 2 bytes: the speed, in GB/s, is what the rest of
    the time tells.
    """
    numbers = ["params_total", "layers", "hidden"]
    rows = profiles.merge(models[["model", *numbers]]).merge(gpus).merge(coefficients)
    numbers += ["tensor_parallel", "prefill_s_per_token", "peak_bf16_dense_tflops"]
    rows[numbers] = rows[numbers].astype(float)
    tp = rows["tensor_parallel"]
    flop_s = tp * rows["peak_bf16_dense_tflops"] * 1e12 * rows["mfu_prefill_tp1"].astype(float)
    rest_s = rows["prefill_s_per_token"] - 2 * rows["params_total"] / flop_s
    speed = 2 * (tp - 1) / tp * 4 * rows["layers"] * rows["hidden"] / rest_s / 1e9
    out = coefficients[ROOFLINE_COLUMNS].copy()
    for count in (2, 4):
        mean = speed[tp == count].groupby(rows["gpu"]).mean()
        out[f"allreduce_gb_s_tp{count}"] = out["gpu"].map(mean.map("{:.4g}".format))
    return out


def quality(answers: pd.DataFrame, models: list[str]) -> dict[str, object]:
    """Fit the quality model to the prompts that every model answered."""
    answers = answers[answers["dataset"].isin(QUALITY_DATASETS)].astype({"score": float})
    wide = answers.pivot(index=["dataset", "prompt_id"], columns="model", values="score")
    wide = wide[models].dropna()
    irt = fit_irt(wide.to_numpy())
    observed, by_dataset = wide.mean(), wide.groupby(level="dataset").mean()

    def rounded(value: float) -> float:
        return round(float(value), 5)  # the optimiser's own error is below 1e-6

    return {
        "source": "0/1 exact-match scores of ZeroEval outputs (Apache-2.0); fitted by "
        "jaxroute.quality.fit_irt",
        "datasets": QUALITY_DATASETS,
        "prompts": len(wide),
        "difficulty_mean": irt.difficulty_mean,
        "difficulty_sd": irt.difficulty_sd,
        "discrimination": rounded(irt.discrimination),
        "models": {
            model: {
                "ability": rounded(ability),
                "observed_accuracy": rounded(observed[model]),
                "expected_accuracy": rounded(expected),
                "observed_accuracy_by_dataset": {
                    dataset: rounded(by_dataset[model][dataset]) for dataset in QUALITY_DATASETS
                },
            }
            for model, ability, expected in zip(
                models, irt.ability, expected_accuracy(irt), strict=True
            )
        },
    }


def csv_bytes(frame: pd.DataFrame, compress: bool) -> bytes:
    """Return the CSV text of a table, gzipped without a time stamp or a name if asked."""
    text = frame.to_csv(index=False, lineterminator="\n").encode()
    if not compress:
        return text
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0) as file:
        file.write(text)
    return buffer.getvalue()


def build(source: Path, target: Path) -> None:
    """Compute all tables, then write them to `target` and print what was written."""
    frames = tables(source)
    irt = quality(
        read(source / "quality/graded_answers.csv.gz"), frames["models.csv"]["model"].tolist()
    )
    licence = source / "carbon/LICENSE-ODbL-1.0.txt"
    if not licence.is_file():
        raise InputError(f"{licence}: found no such file, expected the licence text")
    files = {name: csv_bytes(frame, name.endswith(".gz")) for name, frame in frames.items()}
    files["irt.json"] = (json.dumps(irt, indent=2) + "\n").encode()
    files[licence.name] = licence.read_bytes()
    for name, content in files.items():
        (target / name).write_bytes(content)
        rows = f"{len(frames[name]):,} rows" if name in frames else ""
        print(f"{name:<24}{rows:>14}{len(content):>12,} bytes")
    print(f"{'total':<38}{sum(map(len, files.values())):>12,} bytes")
    print(json.dumps(irt, indent=2))


def main() -> int:
    """Run the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m jaxroute.data.build", description=__doc__)
    parser.add_argument("source", type=Path, metavar="SOURCE_DIR")
    try:
        build(parser.parse_args().source, HERE)
    except InputError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
