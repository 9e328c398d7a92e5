"""Configurations of models that only transformers builds, by name and by file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trainrig.errors import UsageError
from trainrig.workload import find
from trainrig.workload.hf_config import library_config, shape_of_config


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("qwen3-0.6B", "qwen3"),
        ("gemma-2B", "gemma"),
        ("gemma-2-2B", "gemma2"),
        ("gemma-3-1B", "gemma3_text"),
    ],
)
def test_a_known_name_has_the_configuration_of_its_type(name: str, kind: str) -> None:
    shape = find(name)
    config = library_config(shape)
    assert config["model_type"].startswith(kind.removesuffix("_text"))
    assert shape_of_config(config, name).replace(variant=shape.variant) == shape


def test_a_file_keeps_its_own_keys_and_loses_layers_where_asked(tmp_path: Path) -> None:
    keys = {"model_type": "qwen3", "vocab_size": 512, "hidden_size": 64, "head_dim": 16}
    keys |= {"intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4}
    path = tmp_path / "config.json"
    path.write_text(json.dumps(keys | {"partial": 0.5}))
    assert library_config(find(str(path)))["partial"] == 0.5
    assert library_config(find(f"{path}:num_layers=2"))["num_hidden_layers"] == 2


def test_what_no_type_describes_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="phi-2: the configuration"):
        library_config(find("phi-2"))
