"""What Megatron-Core's driver needs from us: the model in Megatron's words, first weights, rates.

Run as ``python -m trainrig.train.megatron_init FOLDER`` before the driver.  theirs.json holds the
arguments of TransformerConfig and GPTModel, weights.pt the very weights that our engine begins
with, whole, under Megatron's names.
"""

from __future__ import annotations

from typing import Any

from trainrig import models
from trainrig.models.megatron_weights import to_megatron
from trainrig.train.huggingface_init import hand_over, requested
from trainrig.train.native.weight_source import first_weights
from trainrig.workload import ModelShape


def main() -> None:
    """Write both files."""
    folder, experiment, shape = requested()
    given = first_weights(experiment, shape)
    model = models.build(shape, seed=experiment.seed, given=given)
    state = to_megatron(shape, model.state_dict())
    hand_over(folder, experiment, shape, megatron_model(shape), state)


def megatron_model(shape: ModelShape) -> dict[str, Any]:
    """Arguments of TransformerConfig (``transformer``) and of GPTModel (``model``)."""
    rotary = shape.family == "llama"
    return {
        "transformer": {
            "num_layers": shape.num_layers,
            "hidden_size": shape.hidden,
            "num_attention_heads": shape.num_heads,
            "num_query_groups": shape.num_kv_heads,
            "kv_channels": shape.head_dim,
            "ffn_hidden_size": shape.ffn,
            "normalization": "LayerNorm" if shape.norm_bias else "RMSNorm",
            "layernorm_epsilon": shape.norm_eps,
            "gated_linear_unit": shape.gated_ffn,
            "add_bias_linear": shape.ffn_bias,
            "add_qkv_bias": shape.qkv_bias,
            "hidden_dropout": 0.0,
            "attention_dropout": 0.0,
        },
        "activation": shape.activation,
        "model": {
            "max_sequence_length": shape.max_positions,
            "share_embeddings_and_output_weights": shape.tied,
            "position_embedding_type": "rope" if rotary else "learned_absolute",
            **({"rotary_base": shape.rope_theta} if rotary else {}),
        },
    }


if __name__ == "__main__":
    main()
