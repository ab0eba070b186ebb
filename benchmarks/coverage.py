"""How often a 95 % interval of a saving holds the true one: `python benchmarks/coverage.py`.

Sessions are drawn from populations whose true saving is known: bills log-normal with sigma 0.5
(light tails) or 2.77 (as heavy as the bundled trace's), and a policy that saves the same share of
every session but for noise, or more of the larger ones.
"""

import argparse
import itertools
import time

import numpy as np

from jaxroute import bootstrap

SAVING = 0.35
SIGMAS = {"light": 0.5, "heavy": 2.77}
SESSIONS = (300, 2_000, 7_349)
BATCH = 50


def share_saved(z: np.ndarray, sigma: float, grows: bool) -> np.ndarray:
    """The expected share that the policy saves of a session whose bill is `exp(sigma z)`."""
    return SAVING / (1 + np.exp(2 - sigma * z)) if grows else np.full(z.shape, SAVING)


def sample(rng: np.random.Generator, shape: tuple[int, ...], sigma: float, grows: bool):
    """Bills under the policy and under the baseline."""
    z = rng.standard_normal(shape)
    baseline_g = np.exp(sigma * z)
    noise = np.exp(0.2 * rng.standard_normal(shape) - 0.02)
    return (1 - share_saved(z, sigma, grows)) * baseline_g * noise, baseline_g


def true_saving(sigma: float, grows: bool) -> float:
    """Of the population: sessions weighed by their bills are normal about sigma."""
    z, weight = np.polynomial.hermite_e.hermegauss(101)
    return float(share_saved(z + sigma, sigma, grows) @ weight / weight.sum())


def percentile(sums: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ends of the plain percentile interval, beside which ours is judged."""
    low, high = np.percentile(sums[..., 0, 1:] / sums[..., 1, 1:], [2.5, 97.5], axis=-1)
    return 1 - high, 1 - low


def held(rng: np.random.Generator, sessions: int, sigma: float, grows: bool) -> np.ndarray:
    """Of a batch of samples, the shares of our and of the percentile intervals that hold, in %.

    The samples of a batch are independent but for the bootstrap's weights, which they share.
    """
    policy_g, baseline_g = sample(rng, (BATCH, sessions), sigma, grows)
    hashes = rng.integers(2**64, size=sessions, dtype=np.uint64)
    sums = bootstrap.sums(policy_g, baseline_g, hashes, seed=0)[0]
    truth = true_saving(sigma, grows)
    saving = 1 - sums[:, 0, 0] / sums[:, 1, 0]
    low, high = percentile(sums)
    ours = abs(saving - truth) <= bootstrap.half_width(sums)
    return 100 * np.stack([ours, (low <= truth) & (truth <= high)]).mean(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=2_000, help="samples of each (default 2000)")
    trials = -(-parser.parse_args().trials // BATCH) * BATCH
    print(f"{trials:,} samples each; how many 95 % intervals of the saving hold the true one, in %")
    print("tails  saves more of larger  sessions   ours  percentile")
    began = time.perf_counter()
    for (tails, sigma), grows, sessions in itertools.product(
        SIGMAS.items(), (False, True), SESSIONS
    ):
        rng = np.random.default_rng([sessions, int(100 * sigma), grows])
        batches = [held(rng, sessions, sigma, grows) for _ in range(trials // BATCH)]
        ours, plain = np.mean(batches, axis=0)
        larger = "yes" if grows else "no"
        print(f"{tails:5}  {larger:>20}  {sessions:>8,}  {ours:>5.1f}  {plain:>10.1f}", flush=True)
    print(f"{time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
