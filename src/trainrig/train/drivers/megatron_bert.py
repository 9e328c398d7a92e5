"""BERT of Megatron-Core's parts: its layers, its head, and the norms where BERT has them.

Megatron-Core's own BERT has its norms before attention and net, and one behind the last layer; BERT
(Devlin et al. 2019), ours and Hugging Face's has them behind the sums, and one behind the
embedding.  Losses of the two cannot be compared.  Megatron's layers are made of a spec: here the
places before are empty, and what adds a residual (``self_attn_bda``, ``mlp_bda``) is followed by a
norm.  Attention, net, embedding, head, and how ranks split them are Megatron's, and so is the work
of a layer: two norms.

Attention has no mask: samples are packed, and there is no padding.  No fused spec of Transformer
Engine fits, whose products hold the norm before them: layers are the local ones, "unfused".

Imports torch; megatron-core where it is used.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch

Norms = Callable[..., Any]
"""(config, hidden_size, eps) → a norm, marked for sequence parallelism."""


class AddAndNorm(torch.nn.Module):
    """norm(residual + x + bias), in the place of Megatron's bias, dropout and add."""

    def __init__(self, config: Any, norms: Norms) -> None:
        super().__init__()
        self.norm = norms(config, config.hidden_size, config.layernorm_epsilon)

    def forward(self, *_: Any) -> Callable[..., torch.Tensor]:
        """Return the function that adds x and its bias to the residual; its dropout is 0."""
        return self._add

    def _add(self, x_with_bias: Any, residual: torch.Tensor, _: float) -> torch.Tensor:
        x, bias = x_with_bias
        # In one rounding, as Megatron's fused kernel adds.
        total = x.float() if bias is None else x.float() + bias
        normalized: torch.Tensor = self.norm((total + residual).to(residual.dtype))
        return normalized


def bert(
    config: Any, norms: Norms, core: Any, *, vocab: int, given: dict[str, Any], **place: Any
) -> Any:
    """Return a stage of BERT.

    ``core``: attention in the place of Megatron's, or None.  ``place``: pre_process, post_process,
    vp_stage.
    """
    from megatron.core.models.bert import bert_layer_specs, bert_lm_head
    from megatron.core.models.bert.bert_model import BertModel
    from megatron.core.transformer import transformer_block
    from megatron.core.transformer.identity_op import IdentityOp
    from megatron.core.transformer.spec_utils import ModuleSpec

    spec = copy.deepcopy(bert_layer_specs.bert_layer_local_spec)
    parts = spec.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = IdentityOp
    after = ModuleSpec(module=AddAndNorm, params={"config": config, "norms": norms})
    parts.self_attn_bda = parts.mlp_bda = after
    bert_lm_head.LNImpl = transformer_block.LayerNormImpl = norms
    model = BertModel(
        config=config, transformer_layer_spec=spec, vocab_size=vocab, **given, **place
    )
    model.encoder.final_layernorm = None
    if core is not None:  # its check of the spec knows its own attention alone
        for layer in model.encoder.layers:
            layer.self_attention.core_attention = core()
    if place["pre_process"]:
        embedding = model.embedding
        embedding.norm = norms(config, config.hidden_size, config.layernorm_epsilon)
        embedding.register_forward_hook(lambda module, _, out: module.norm(out))
    return model
