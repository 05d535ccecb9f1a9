"""Fits a logistic regression to made-up points, with nothing but the standard library.

It shows the whole child contract: progress and metrics, checkpoints that are announced when they are
complete, resuming from the newest one, SIGTERM, and an output folder that becomes the artifact.
"""

import json
import math
import os
import random
import signal
import sys
from pathlib import Path

FEATURES = 8

spec = json.loads(Path(os.environ["CORRAL_SPEC"]).read_text())
params = spec["params"]
events = Path(os.environ["CORRAL_EVENTS"])
checkpoints = Path(os.environ["CORRAL_CHECKPOINT_DIR"])
output = Path(os.environ["CORRAL_OUTPUT_DIR"])

stopping = False


def ask_to_stop(_number, _frame):
    global stopping
    stopping = True


def tell(**event):
    with events.open("a") as file:
        file.write(json.dumps(event) + "\n")


def make_points(count, seed):
    chance = random.Random(seed)
    truth = [chance.uniform(-2, 2) for _ in range(FEATURES)]
    points = []
    for _ in range(count):
        x = [chance.gauss(0, 1) for _ in range(FEATURES)]
        noisy = sum(w * v for w, v in zip(truth, x, strict=True)) + chance.gauss(0, 0.5)
        points.append((x, 1.0 if noisy > 0 else 0.0))
    return points


def epoch(weights, points, rate):
    """One step of gradient descent over all points; the mean loss and the share that is right."""
    gradient = [0.0] * FEATURES
    loss = right = 0.0
    for x, y in points:
        z = max(-30.0, min(30.0, sum(w * v for w, v in zip(weights, x, strict=True))))
        p = 1.0 / (1.0 + math.exp(-z))
        loss -= math.log(p if y else 1.0 - p)
        right += (p > 0.5) == (y > 0.5)
        for i, v in enumerate(x):
            gradient[i] += (p - y) * v
    for i, g in enumerate(gradient):
        weights[i] -= rate * g / len(points)
    return loss / len(points), right / len(points)


def save_checkpoint(step, weights, loss):
    folder = checkpoints / f"epoch-{step}"
    folder.mkdir(exist_ok=True)
    (folder / "state.json").write_text(json.dumps({"epoch": step, "weights": weights}))
    # Said only now, when all of it is there.
    tell(checkpoint=folder.name, step=step, metric=loss)


def resume():
    folder = os.environ.get("CORRAL_RESUME_DIR")
    if folder is None:
        return 0, [0.0] * FEATURES
    state = json.loads((Path(folder) / "state.json").read_text())
    print(f"going on after epoch {state['epoch']}")
    return state["epoch"], state["weights"]


def main():
    signal.signal(signal.SIGTERM, ask_to_stop)
    points = make_points(params["points"], spec["seed"] or 0)
    done, weights = resume()
    for step in range(done + 1, params["epochs"] + 1):
        loss, accuracy = epoch(weights, points, params["rate"])
        tell(step=step, total=params["epochs"], metrics={"loss": loss, "accuracy": accuracy})
        if step % 30 == 0 or stopping:
            print(f"epoch {step:3d} of {params['epochs']}: loss {loss:.4f}, accuracy {accuracy:.1%}")
            save_checkpoint(step, weights, loss)
        if stopping:
            return 1
    (output / "model.json").write_text(json.dumps({"weights": weights}, indent=2) + "\n")
    return 0


sys.exit(main())
