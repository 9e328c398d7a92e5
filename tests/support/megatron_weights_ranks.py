"""A rank of real Megatron-Core that loads a distributed checkpoint and saves it again.

``python megatron_weights_ranks.py EXPORTED OUT TP PP`` with torchrun's variables: EXPORTED is what
``trainrig export --to megatron`` wrote, OUT where Megatron's own save goes.  With one rank OUT gets
logits.pt beside it: the model's answer to tokens 1 to 16.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import psutil
import torch
import torch.nn.functional as F  # noqa: N812

from trainrig.train.drivers import megatron_cpu


def main() -> None:
    exported, out, tp, pp = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    megatron_cpu.install()
    torch.distributed.init_process_group("gloo")
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.models.gpt.gpt_model import GPTModel
    from megatron.core.tensor_parallel import random as randoms
    from megatron.core.transformer.transformer_config import TransformerConfig

    from trainrig.train.drivers.megatron import Norm, SdpaCore

    parallel_state.initialize_model_parallel(tp, pp)
    randoms.initialize_rng_tracker(inference_rng_tracker=True, force_reset=True)
    given = json.loads((exported / "megatron_model.json").read_text())
    activation = {"gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu}
    config = TransformerConfig(
        **given["transformer"],
        activation_func=activation[given["activation"]],
        use_cpu_initialization=True,
        perform_initialization=True,
        tensor_model_parallel_size=tp,
        pipeline_model_parallel_size=pp,
        pipeline_dtype=torch.float32,
        bias_activation_fusion=False,
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        apply_rope_fusion=False,
        gradient_accumulation_fusion=False,
    )
    spec = get_gpt_layer_local_spec(normalization=config.normalization)
    from megatron.core.transformer import transformer_block

    spec.submodules.input_layernorm = spec.submodules.pre_mlp_layernorm = Norm
    spec.submodules.self_attention.submodules.core_attention = SdpaCore
    transformer_block.LayerNormImpl = Norm
    model = GPTModel(
        config,
        spec,
        vocab_size=400,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        **given["model"],
    )
    folder = exported / (exported / "latest_checkpointed_iteration.txt").read_text()
    loaded = dist_checkpointing.load(model.sharded_state_dict(), str(folder))
    assert (loaded.pop("checkpoint_version"), loaded.pop("iteration")) == (3.0, 6)
    model.load_state_dict(loaded)
    if tp == pp == 1:
        with torch.no_grad():
            tokens = torch.arange(1, 17)[None]
            logits = model(tokens, torch.arange(16)[None], None)
        torch.save(logits, out.with_name("logits.pt"))
    if torch.distributed.get_rank() == 0:
        out.mkdir()
    torch.distributed.barrier()
    dist_checkpointing.save(model.sharded_state_dict(), str(out))
    torch.distributed.barrier()
    for helper in psutil.Process().children(recursive=True):  # Megatron's save leaves its writers
        helper.kill()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads may abort at exit


if __name__ == "__main__":
    main()
