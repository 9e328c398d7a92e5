"""Shapes to and from Hugging Face configurations, without transformers.

Read: gpt2, gpt_neo, bert, t5 and llama configurations, and those of Llama's followers (`OTHERS`),
whose parameters are counted exactly and whose details (norms in other places, windows, part of a
head turned) are not built: they are predicted, not trained.  What would change the mathematics and
is not built here (another activation, another kind of rotary scaling, cross-attention in GPT-2) is
refused in one line instead of being ignored.  Dropout is ignored: see `models`; what is written has
none.  A shape that a configuration cannot express is refused, too: `config_of` reads back what it
has written.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from trainrig.errors import DataError, UsageError, invalid, meant_by, reading
from trainrig.workload.hf_families import (
    CONFIGS,
    CONFIGURED_AS,
    OTHERS,
    RENAMED,
    FamilyConfig,
    WindowedConfig,
    copied_keys,
    keys_of,
)
from trainrig.workload.model import SHAPE_KEYS, ModelShape
from trainrig.workload.presets import custom

_HINT = "--model takes a name, as gpt2-medium, or the config.json of a model of Hugging Face's"


def class_names(shape: ModelShape) -> tuple[str, str]:
    """Return the classes of a shape's configuration and model in transformers."""
    family = CONFIGS[shape.family]
    return family.config_class, family.model_class


def config_of(shape: ModelShape) -> dict[str, Any]:
    """Return the arguments of a shape's Hugging Face configuration, without dropout.

    Raises UsageError where that configuration would describe another model.
    """
    family = CONFIGS[shape.family]
    config = (
        copied_keys(family, SHAPE_KEYS.flat(shape)) | family.extra_keys(shape) | family.constants
    )
    key = keys_of(family, SHAPE_KEYS.places).get("activation")
    if key and shape.ffn.activation == "gelu_tanh":
        config[key] = "gelu_new"
    try:
        known = _shape_from(shape.family, config, shape.name)
    except (DataError, UsageError):
        known = None
    windows = shape.attention.windows or (known.attention.windows if known else ())
    if known != shape.replace(windows=windows):
        raise UsageError(
            f"Hugging Face has no {shape.family} model like {shape.name}",
            "train it with the native framework",
        )
    return config


def library_config(shape: ModelShape) -> dict[str, Any]:
    """Return the arguments of `transformers.AutoConfig.for_model` for a model not built here.

    A shape that was read from a config.json has that file's keys; one known by name has the keys of
    the model type that reads back as this very shape.  Raises UsageError where there is none.
    """
    name, _, layers = shape.name.rpartition(":num_layers=")
    name = name or shape.name
    if name.endswith(".json"):
        keys: dict[str, Any] = json.loads(Path(name).read_bytes())
        inner = keys.get("text_config")
        if isinstance(inner, dict):  # the language model of one that also reads pictures
            keys = {"model_type": f"{keys['model_type']}_text"} | inner
        if layers and isinstance(keys.get("layer_types"), list):
            keys["layer_types"] = keys["layer_types"][: shape.num_layers]
        return keys | ({"num_hidden_layers": shape.num_layers} if layers else {})
    values = SHAPE_KEYS.flat(shape)
    extra: dict[str, Any] = {"rope_theta": shape.position.rope_theta}
    if windows := shape.attention.windows:
        kinds = ["sliding_attention" if window else "full_attention" for window in windows]
        extra |= {"sliding_window": max(windows), "layer_types": kinds}
    for kind, family in OTHERS.items():
        is_kind = kind.replace("_", "").startswith(shape.variant)
        if not (is_kind or shape.variant == "mixture"):
            continue
        config = copied_keys(family, values) | extra | {"model_type": kind}
        try:
            known = shape_of_config(config, shape.name)
        except (DataError, UsageError):
            continue
        if known.replace(variant=shape.variant) == shape:
            return config
    raise UsageError(
        f"{shape.name}: the configuration that transformers builds it from is not known",
        "--model with its config.json",
    )


def read_config(path: Path) -> ModelShape:
    """Return shape in the config.json at ``path``; DataError if it is none, or not built here."""
    try:
        with reading(path, _HINT):
            config = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        raise DataError(f"{path} is not JSON", _HINT) from None
    return shape_of_config(config, str(path))


def shape_of_config(config: object, where: str) -> ModelShape:
    """Return the shape of a parsed config.json; ``where`` names it in errors."""
    families = {name.replace("-", "_"): name for name in CONFIGS} | dict.fromkeys(OTHERS, "llama")
    keys: dict[str, Any] = config if isinstance(config, dict) else {}
    kind = keys.get("model_type")
    inner = keys.get("text_config")
    if isinstance(inner, dict) and kind == "gemma3":  # what reads pictures is left out
        keys = inner | {"model_type": kind}
    if kind == "mistral" and keys.get("sliding_window"):
        return _windowed(_shape_from("llama", keys, where, WindowedConfig), keys)
    if isinstance(kind, str) and (other := CONFIGURED_AS.get(kind)):
        keys = keys | (inner if isinstance(inner, dict) else {}) | {"model_type": other}
        keys = {RENAMED.get(key, key): keys[key] for key in keys}
        return replace(shape_of_config(keys, where), variant=kind)
    if kind is None:
        words = meant_by("model_type", keys) or "one of: " + ", ".join(families)
        raise DataError(f"{where}: model_type is missing", words)
    if not isinstance(kind, str) or kind not in families:
        raise DataError(f"{where}: unknown model_type {kind!r}", "one of: " + ", ".join(families))
    return _windowed(_shape_from(families[kind], keys, where, OTHERS.get(kind)), keys)


def _windowed(shape: ModelShape, keys: Mapping[str, Any]) -> ModelShape:
    """With the sliding windows of a model that is only predicted, layer by layer.

    ``layer_types`` says which slide; older configurations have a pattern (Gemma 2: every second
    layer is whole, Gemma 3: every sixth), a switch (Qwen), or one window for all (Mistral, Phi 3).
    """
    window, kinds = keys.get("sliding_window"), keys.get("layer_types")
    if not isinstance(window, int) or window < 1 or not shape.variant:
        return shape
    if isinstance(kinds, list) and len(kinds) == shape.num_layers:
        slides = [kind == "sliding_attention" for kind in kinds]
    elif keys.get("use_sliding_window") is False or str(keys.get("model_type")).startswith("qwen"):
        return shape
    else:
        usual = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "gpt_oss": 2}
        every = keys.get("sliding_window_pattern", usual.get(str(keys.get("model_type")), 0))
        every = every if isinstance(every, int) else 0
        slides = [every < 1 or (layer + 1) % every != 0 for layer in range(shape.num_layers)]
    return shape.replace(windows=tuple(window if slide else 0 for slide in slides))


def _shape_from(
    name: str, config: Mapping[str, Any], where: str, reader: type[FamilyConfig] | None = None
) -> ModelShape:
    family = reader or CONFIGS[name]
    try:
        read = family.model_validate(config)
    except ValidationError as error:
        raise invalid(error, where, family, _HINT) from None
    copied = {field: getattr(read, field) for field in keys_of(family, SHAPE_KEYS.places)}
    if copied.get("activation") in ("gelu_new", "gelu_pytorch_tanh"):
        copied["activation"] = "gelu_tanh"
    stated = {field: value for field, value in copied.items() if value is not None}
    return custom(name, name=where, **(stated | read.extra()))
