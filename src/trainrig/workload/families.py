"""What is true of a model's family and its published code: the one place that looks at names.

`families.toml` has the rules with their sources; `facts_of` applies them to a shape.  Nothing else
asks what a model is called, or guesses a family from its numbers.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from trainrig.workload.model import ModelShape

_PATH = Path(__file__).parent / "families.toml"


@dataclass(frozen=True, slots=True, kw_only=True)
class FamilyFacts:
    """Facts about a family's networks and published code that sizes do not say."""

    rms_norm: bool = False
    """Norms are RMSNorm, not LayerNorm."""
    one_norm: bool = False
    """Attention and feed-forward net lie side by side behind one norm."""
    outer_norms: bool = False
    """Each branch has a norm behind it, too."""
    head_norms: bool = False
    """Heads of queries and of keys have a norm."""
    wide_norm_weights: bool = False
    """Norms multiply their weights in fp32."""
    caps_scores: bool = False
    """Scores pass a tanh before the softmax."""
    has_position_bias: bool = True
    """Relative positions, where a family has them, are a bias on attention's scores."""
    unmasked: bool = False
    """Scores are neither masked nor dropped: images', all of whose patches are there."""
    joins_products: bool = False
    """Queries, keys and values come from one product, gate and up from another."""
    merges_heads: bool = False
    """A part of each head is turned and put together with the rest, head by head."""
    narrow_softmax: tuple[str, ...] = ()
    """Ages of software (`KernelChoices.software`) whose code has the softmax in the type of the
    scores."""
    eager_in: tuple[str, ...] = ()
    """Programs that run this family by transformers' code: attention's scores and all logits are
    written out."""
    wide_loss: tuple[str, ...] = ()
    """Ages of software whose code widens the logits to fp32 before the loss."""
    dropout: str = ""
    """published: where the published configuration has it; megatron: by Megatron's default alone;
    none: never unless it is asked for."""
    experts: str = "modules"
    """Way in which its code in transformers runs experts in turn (`Moe.experts`)."""
    all_experts: bool = False
    """Its code in transformers sends each token through every expert."""
    state_kernels: str = "delta"
    """Kernels of layers that keep a state."""
    nets_are_layers: bool = False
    """Feed-forward nets are layers of their own."""


@lru_cache(maxsize=1024)
def facts_of(shape: ModelShape) -> FamilyFacts:
    """Return what is true of a shape's family."""
    facts: dict[str, Any] = {}
    for rule in _rules():
        if _holds(rule, shape):
            facts |= rule["facts"]
    lists = {name: tuple(value) for name, value in facts.items() if isinstance(value, list)}
    return FamilyFacts(**(facts | lists))


@cache
def _rules() -> tuple[Mapping[str, Any], ...]:
    return tuple(tomllib.loads(_PATH.read_text(encoding="utf-8"))["rule"])


def _holds(rule: Mapping[str, Any], shape: ModelShape) -> bool:
    """Return whether all that a rule names is so of a shape."""
    return (
        shape.family in rule.get("family", (shape.family,))
        and shape.variant in rule.get("variant", (shape.variant,))
        and shape.name.startswith(tuple(rule.get("name", ("",))))
        and all(word in shape.name.lower() for word in rule.get("name_has", ()))
        and (not rule.get("mixture") or shape.moe.num_experts > 0)
        and ("vectors" not in rule or shape.vectors == _elements(rule["vectors"], shape))
        and ("vectors_above" not in rule or shape.vectors > _elements(rule["vectors_above"], shape))
    )


def _elements(widths: Mapping[str, int], shape: ModelShape) -> int:
    """Elements of so many vectors as wide as the model, or as a head."""
    return (
        widths.get("hidden", 0) * shape.hidden
        + widths.get("head_dim", 0) * shape.attention.head_dim
    )
