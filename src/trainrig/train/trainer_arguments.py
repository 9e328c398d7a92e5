"""Trainer's arguments by their own names: the key ``trainer`` of an experiment.

    trainer = "optim=adamw_bnb_8bit,skip_memory_metrics=false"

What an experiment has a key for is said by that key and refused here, so that no value is said
twice.  Which of the other names exist is asked of the installed transformers, whose
training_args.py is read as text: a name of another version is refused with the one it has now.
Names and their successors are of transformers' release notes for 4.46 to 5.0 and its deprecation
warnings (github.com/huggingface/transformers/releases, read 2026-11).  Imports no torch.
"""

from __future__ import annotations

import difflib
import importlib.util
import re
from pathlib import Path

from trainrig.errors import NeedsGpuError, UnavailableError, UsageError
from trainrig.process.python_env import inspect_python, is_external, missing_requirement

Value = str | int | float | bool

LIBRARY_TRAINER = "huggingface"
"""The framework that trains, in one process, the reference of models that transformers builds."""

KEYS_FOR = {
    **dict.fromkeys(("per_device_train_batch_size", "per_gpu_train_batch_size"), "batch_size"),
    **dict.fromkeys(("bf16", "fp16", "tf32", "half_precision_backend"), "precision"),
    **dict.fromkeys(("gradient_checkpointing", "activation_checkpointing"), "recompute"),
    **dict.fromkeys(("use_cpu", "no_cuda"), "device"),
    **dict.fromkeys(("fsdp", "fsdp_config"), "zero"),
    **dict.fromkeys(("torch_compile", "torchdynamo"), "compile"),
    "gradient_accumulation_steps": "grad_accum",
    "max_steps": "steps",
    "num_train_epochs": "steps",
    "learning_rate": "lr",
    "lr_scheduler_type": "lr_schedule",
    "warmup_steps": "warmup",
    "warmup_ratio": "warmup",
    "adam_beta1": "beta1",
    "adam_beta2": "beta2",
    "adam_epsilon": "eps",
    "weight_decay": "weight_decay",
    "max_grad_norm": "clip",
    "dataloader_num_workers": "loader_workers",
    "use_liger_kernel": "liger",
    "report_to": "log",
    "seed": "seed",
    "deepspeed": "framework",
}
"""Arguments that an experiment's own keys decide."""
RESERVED = ("output_dir", "save_strategy", "logging_strategy", "disable_tqdm", "ddp_backend")
"""Arguments that the driver sets itself, so that timed steps save and print nothing."""
SUCCESSORS = {
    "adamw_hf": "adamw_torch",
    "adamw_apex_fused": "adamw_torch_fused",
    "adamw_torch_xla": "adamw_torch",
    "group_by_length": "train_sampling_strategy=group_by_length",
    "evaluation_strategy": "eval_strategy",
    "overwrite_output_dir": "nothing: output_dir is overwritten",
    "save_safetensors": "nothing: weights are always saved so",
    "jit_mode_eval": "nothing",
    "include_inputs_for_metrics": "include_for_metrics",
}
"""Removed names of values, with their successors."""
_PACKAGES = (
    (("bnb", "paged_", "lion_", "adamw_8bit", "ademamix"), "bitsandbytes"),
    (("adamw_torch_8bit", "adamw_torch_4bit"), "torchao"),
    (("galore_",), "galore_torch"),
    (("lomo", "adalomo"), "lomo_optim"),
    (("schedule_free_",), "schedulefree"),
    (("apollo_",), "apollo_torch"),
    (("grokadamw",), "grokadamw"),
    (("stable_adamw",), "optimi"),
    (("adamw_anyprecision",), "torchdistx"),
)
"""Packages that optimizers need, by a part of their names."""
_INSTALLED_AS = {"optimi": "torch-optimi"}
"""Package names on the index where they differ from the imported name."""


def parsed(text: str) -> dict[str, Value]:
    """Return names and values of ``name=value,name=value``.  Raises UsageError."""
    values: dict[str, Value] = {}
    for part in (word.strip() for word in text.split(",") if word.strip()):
        name, sign, value = (word.strip() for word in part.partition("="))
        if not sign or not value or not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise UsageError(f"trainer: {part!r}", 'trainer = "skip_memory_metrics=false"')
        if name in values:
            raise UsageError(f"trainer: {name} is given twice", "leave one of them out")
        if name in RESERVED:
            raise UsageError(f"trainer: {name} is what the measurement needs", "leave it out")
        if name in KEYS_FOR:
            raise UsageError(f"trainer: {name} has a key of its own", f"the key {KEYS_FOR[name]}")
        values[name] = _value(value)
    return values


def _value(text: str) -> Value:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text


def lacking(text: str, python: str, device: str) -> UnavailableError | None:
    """Return the argument that an interpreter's transformers or this machine lacks, or None."""
    for name, value in parsed(text).items():
        source = _source(python)
        if name == "optim":
            known = re.findall(r'^    [A-Z0-9_]+ = "(\w+)"', source, re.MULTILINE)
            if source and str(value) not in known:
                return _removed_argument(f"optim {value}", str(value), known)
            if (error := _lacking_package(str(value), python, device)) is not None:
                return error
        elif source and not re.search(rf"^    {name}\s*:", source, re.MULTILINE):
            known = re.findall(r"^    ([a-z]\w+)\s*:", source, re.MULTILINE)
            return _removed_argument(name, name, known)
    return None


def _source(python: str) -> str:
    """training_args.py of the interpreter's transformers; empty where it is not found."""
    if is_external(python):
        places = [Path(folder) / "transformers" for folder in inspect_python(python).folders]
    else:
        spec = importlib.util.find_spec("transformers")
        places = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    for place in places:
        try:
            return (place / "training_args.py").read_text(encoding="utf-8")
        except OSError:
            continue
    return ""


def _removed_argument(reason: str, name: str, known: list[str]) -> UnavailableError:
    near = difflib.get_close_matches(name, known, 1)
    now = SUCCESSORS.get(name) or (near[0] if near else "")
    hint = (
        f"it is called {now} now" if name in SUCCESSORS else f"did you mean {now}?" if now else ""
    )
    return UnavailableError(
        f"trainer: {reason} is not in the installed transformers", hint or "leave it out"
    )


def _lacking_package(optim: str, python: str, device: str) -> UnavailableError | None:
    for parts, package in _PACKAGES:
        if not any(part in optim for part in parts):
            continue
        if package == "bitsandbytes" and not device.startswith("cuda"):
            words = f"optim {optim}: unverified: needs CUDA: bitsandbytes' 8-bit states are its own"
            return NeedsGpuError(words, "optimizer adamw-8bit (torchao) on a CPU")
        if missing_requirement(python, {package: ""}) is not None:
            hint = f"pip install {_INSTALLED_AS.get(package, package)}"
            return UnavailableError(f"optim {optim} needs {package}", hint)
    return None
