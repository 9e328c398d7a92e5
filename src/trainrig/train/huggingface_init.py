"""What a driver of Hugging Face's models needs from us: configuration, first weights, rates.

Run as ``python -m trainrig.train.huggingface_init FOLDER`` before the driver, whose
environment has no models of ours.  It reads FOLDER/experiment.json and adds to the folder

    theirs.json   class names, configuration, objective, and the learning rate of each step
    weights.pt    the very weights that our engine begins with, under their names
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from trainrig import models
from trainrig.models.hf_weights import to_hugging_face
from trainrig.process.child import die_with_parent
from trainrig.train.config import Experiment, check, objective_of
from trainrig.train.native.weight_source import first_weights
from trainrig.train.parity import probe_of
from trainrig.train.trainer_arguments import parsed
from trainrig.units import format_memory
from trainrig.workload import ModelShape
from trainrig.workload.hf_config import class_names, config_of


def main() -> None:
    """Write both files."""
    folder, experiment, shape = requested()
    config_class, model_class = class_names(shape)
    config = {
        name: experiment.dropout if "drop" in name else value
        for name, value in config_of(shape).items()
    }
    hf = {"config_class": config_class, "model_class": model_class, "config": config}
    hf["trainer"] = parsed(experiment.trainer)
    given = first_weights(experiment, shape)
    model = models.build(shape, seed=experiment.seed, given=given)
    state = to_hugging_face(shape, model.state_dict())
    hand_over(folder, experiment, shape, hf, state)


def requested() -> tuple[Path, Experiment, ModelShape]:
    """The folder on the command line, and what is asked for in it."""
    die_with_parent()
    folder = Path(sys.argv[1])
    request = json.loads((folder / "experiment.json").read_text())
    experiment = Experiment.of(**request["experiment"])
    return folder, experiment, check(experiment)


def hand_over(
    folder: Path,
    experiment: Experiment,
    shape: ModelShape,
    given: Mapping[str, Any],
    state: Mapping[str, torch.Tensor],
) -> None:
    """Write theirs.json and weights.pt: what a driver is ``given``, and what every driver needs."""
    probe, of_probe = probe_of(experiment), ("steps", "optimizer", "lr", "weight_decay", "clip")
    content = {
        **given,
        "objective": objective_of(shape),
        "vocab": shape.vocab,
        "rates": [experiment.learning_rate(step) for step in range(experiment.steps)],
        "probe": {
            **{name: getattr(probe, name) for name in of_probe},
            "rates": [probe.learning_rate(step) for step in range(probe.steps)],
        },
    }
    (folder / "theirs.json").write_text(json.dumps(content))
    check_room(folder, sum(weight.numel() * weight.element_size() for weight in state.values()))
    torch.save(dict(state), folder / "weights.pt")


def check_room(folder: Path, needed: int) -> None:
    """End with a line on stderr where weights do not fit: a full disk could not take one."""
    free = shutil.disk_usage(folder).free
    if needed > free:
        sizes = f"{format_memory(needed)}, and {format_memory(free)} are free"
        sys.exit(f"the disk is full: the first weights take {sizes} in {folder}")


if __name__ == "__main__":
    main()
