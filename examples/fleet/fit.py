"""Fits a line by gradient descent: what a run of the example does."""

import argparse
import json
import os
import random
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=float, required=True)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    points = [(x, 3 * x + 1 + rng.gauss(0, 0.1)) for x in (rng.uniform(-1, 1) for _ in range(100))]
    slope = offset = 0.0
    for _ in range(options.steps):
        wrong = [(slope * x + offset - y, x) for x, y in points]
        slope -= options.rate * 2 * sum(e * x for e, x in wrong) / len(points)
        offset -= options.rate * 2 * sum(e for e, _ in wrong) / len(points)
    result = {"slope": slope, "offset": offset, "rate": options.rate, "seed": options.seed}
    Path(os.environ["CORRAL_OUTPUT_DIR"], "fit.json").write_text(json.dumps(result))
    print(f"slope {slope:.2f} offset {offset:.2f}")


if __name__ == "__main__":
    main()
