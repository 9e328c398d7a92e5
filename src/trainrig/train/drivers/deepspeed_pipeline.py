"""Hugging Face's GPT-2 and Llama as stages of DeepSpeed's own pipeline (`PipelineModule`).

A model becomes a list of layers (`LayerSpec`): tokens, positions, blocks, the last norm, the head.
A rank makes those of its stage alone and fills them with its part of FOLDER/weights.pt, which is
mapped, not read.  Stages have equally many blocks.  Tied embeddings are one
`TiedLayerSpec` at both ends: DeepSpeed sums their gradients over the two ranks.

What a layer computes is the module of transformers' own model; only what its model's forward does
between modules is written here: which positions there are, and that attention is causal.

Used by `trainrig.train.drivers.deepspeed`, in its environment.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
import transformers
from torch import Tensor, nn

import trainrig.train.native.host_sums as host_sums


@dataclass(frozen=True, slots=True, kw_only=True)
class _Names:
    """Attribute names of a transformers model's parts."""

    base: str
    tokens: str
    blocks: str
    norm: str
    positions: str = ""
    """Learned ones; empty: they are rotated in each block."""


_MODELS = {
    "GPT2LMHeadModel": _Names(
        base="transformer", tokens="wte", positions="wpe", blocks="h", norm="ln_f"
    ),
    "LlamaForCausalLM": _Names(base="model", tokens="embed_tokens", blocks="layers", norm="norm"),
}
"""Names of parts by model class, for the classes that `refusals.refused_by_deepspeed` allows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Whole:
    """A model without memory, and the weights that its parts begin with."""

    base: Any
    config: Any
    names: _Names
    weights: Mapping[str, Tensor]

    def filled(self, part: Any, name: str) -> Any:
        """Return ``part`` with the weights that are called ``name`` and something."""
        head = f"{name}."
        weights = {k.removeprefix(head): v for k, v in self.weights.items() if k.startswith(head)}
        part.load_state_dict(weights, strict=False)
        missing = [key for key, _ in part.named_parameters() if key not in weights]
        if missing:
            raise ValueError(f"weights.pt has no {name}.{missing[0]}")
        return part


class PipedTokens(nn.Module):
    """The embedding of tokens, which may be the head as well.  (B, T) → (B, T, H)"""

    def __init__(self, whole: _Whole, name: str) -> None:
        super().__init__()
        table = getattr(whole.base, whole.names.tokens)
        embedding = whole.filled(nn.Embedding(table.num_embeddings, table.embedding_dim), name)
        self.weight = embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Return the tokens' embeddings."""
        return host_sums.embedding(ids, self.weight)


class PipedPositions(nn.Module):
    """Learned positions are added.  (B, T, H) → (B, T, H)"""

    def __init__(self, whole: _Whole, name: str) -> None:
        super().__init__()
        table = getattr(whole.base, whole.names.positions)
        embedding = nn.Embedding(table.num_embeddings, table.embedding_dim)
        self.table = whole.filled(embedding, name)

    def forward(self, x: Tensor) -> Tensor:
        """Return the first T of them."""
        return x + self.table(torch.arange(x.shape[1], device=x.device))


class PipedBlock(nn.Module):
    """One of the model's blocks, causal.  (B, T, H) → (B, T, H)"""

    def __init__(self, whole: _Whole, name: str, number: int) -> None:
        super().__init__()
        kind: Any = type(getattr(whole.base, whole.names.blocks)[0])
        self.inner = whole.filled(kind(whole.config, number), name)
        self.config = whole.config
        rotary: Any = getattr(whole.base, "rotary_emb", None)
        # No submodule: a half-precision engine would round the frequencies with the weights.
        self._angles = None if rotary is None else [type(rotary)(config=whole.config)]

    def forward(self, x: Tensor) -> Tensor:
        """Attention and the net behind it."""
        masked = self.config._attn_implementation == "eager"
        known: dict[str, Any] = {"attention_mask": self._mask(x) if masked else None}
        if self._angles is not None:
            places = torch.arange(x.shape[1], device=x.device)[None]
            rotary = self._angles[0] = self._angles[0].to(x.device)
            known |= {"position_embeddings": rotary(x, places), "position_ids": places}
        out = self.inner(x, **known)
        return out[0] if isinstance(out, tuple) else out

    def _mask(self, x: Tensor) -> Tensor:
        """Attention without a kernel is told what lies ahead: (1, 1, T, T) to be added."""
        ahead = torch.full((x.shape[1],) * 2, torch.finfo(x.dtype).min, device=x.device)
        return ahead.triu(1).to(x.dtype)[None, None]


class PipedNorm(nn.Module):
    """The last norm.  (B, T, H) → (B, T, H)"""

    def __init__(self, whole: _Whole, name: str) -> None:
        super().__init__()
        library_norm: Any = getattr(whole.base, whole.names.norm)
        size = library_norm.weight.shape[0]
        if isinstance(library_norm, nn.LayerNorm):
            norm: Any = nn.LayerNorm(size, eps=library_norm.eps)
        else:
            norm = type(library_norm)(size, eps=library_norm.variance_epsilon)
        self.inner = whole.filled(norm, name)

    def forward(self, x: Tensor) -> Tensor:
        """Return the last block's result, normalized."""
        normalized: Tensor = self.inner(x)
        return normalized


class PipedHead(nn.Module):
    """A head of its own.  (B, T, H) → (B, T, V)"""

    def __init__(self, whole: _Whole, name: str) -> None:
        super().__init__()
        table = getattr(whole.base, whole.names.tokens)
        head = nn.Linear(table.embedding_dim, table.num_embeddings, bias=False)
        self.inner = whole.filled(head, name)

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.inner(x)
        return logits


def logits_by(tokens: Any, x: Tensor) -> Tensor:
    """Return the head that is the embedding of tokens."""
    return F.linear(x, tokens.weight)


Loss = Callable[[Tensor, Tensor], Tensor]


def pipelined(
    folder: Path, options: dict[str, Any], description: dict[str, Any], stages: int, loss: Loss
) -> Any:
    """Return this rank's part of a model in ``stages``; ``loss`` is the last one's."""
    from deepspeed.pipe import PipelineModule

    layers = layers_of(folder, options, description)
    pipeline = PipelineModule(
        layers=layers, num_stages=stages, loss_fn=loss, partition_method="type:^pipedblock$"
    )
    if not options["device"].startswith("cuda"):
        host_sums.apply(pipeline)
    return pipeline


def layers_of(folder: Path, options: dict[str, Any], description: dict[str, Any]) -> list[Any]:
    """Return a model as DeepSpeed's specs of layers, from token numbers to logits.

    Nothing is made yet.
    """
    from deepspeed.pipe import LayerSpec, TiedLayerSpec

    names = _MODELS[description["model_class"]]
    hugging_face: Any = transformers
    config = getattr(hugging_face, description["config_class"])(**description["config"])
    if options["attention"] != "auto":
        how = {"plain": "eager"}.get(options["attention"], options["attention"])
        config._attn_implementation = how
    with torch.device("meta"):
        model = getattr(hugging_face, description["model_class"])(config)
    weights = torch.load(folder / "weights.pt", weights_only=True, mmap=True)
    base = getattr(model, names.base)
    whole = _Whole(base=base, config=model.config, names=names, weights=weights)

    def tokens(name: str, **how: Any) -> Any:
        return TiedLayerSpec("tokens", PipedTokens, whole, name, **how)

    base_name, tied = names.base, bool(model.config.tie_word_embeddings)
    table = f"{base_name}.{names.tokens}"
    positions = f"{base_name}.{names.positions}" if names.positions else ""
    return [
        tokens(table) if tied else LayerSpec(PipedTokens, whole, table),
        *([LayerSpec(PipedPositions, whole, positions)] if positions else ()),
        *(
            LayerSpec(PipedBlock, whole, f"{base_name}.{names.blocks}.{number}", number)
            for number in range(len(getattr(base, names.blocks)))
        ),
        LayerSpec(PipedNorm, whole, f"{base_name}.{names.norm}"),
        tokens(table, forward_fn=logits_by) if tied else LayerSpec(PipedHead, whole, "lm_head"),
    ]
