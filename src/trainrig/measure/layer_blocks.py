"""Blocks of the layer benchmark: trainrig's and Hugging Face's, with equal weights.

A `Runnable` is a block (or a part of one) with its inputs.  Both codes begin with our weights, so
that one reference serves for both, and both speak of a weight by our name.  There is no dropout.
Hugging Face's classes are made from a configuration that is written here; nothing is loaded.
Runs in the worker only: every function needs torch.

Letters: B batch, T tokens of a sequence, C width.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from trainrig.benchmarks.layer import layer_shape
from trainrig.measure.timing import Unsupported
from trainrig.record import Case
from trainrig.workload import ModelShape
from trainrig.workload.hf_config import class_names, config_of

if TYPE_CHECKING:
    import torch

State = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Runnable:
    """A block or a part of one, ready to be called."""

    run: Callable[[], torch.Tensor]
    """One forward pass → (B, T, C), or (B, T, F) of a dense layer."""
    inputs: dict[str, torch.Tensor]
    """Inputs that have a gradient: x, and for t5 bias and memory."""
    weights: dict[str, torch.Tensor]
    """Parameters by the name that this code has for them."""
    native: Callable[[State], State]
    """A gradient for each weight, by this code's names → by our names and in our layout."""


def native(case: Case, state: State, x: torch.Tensor, memory: torch.Tensor) -> Runnable:
    """Our block with the weights ``state``, in the dtype and on the device of ``x``."""
    from trainrig import models

    shape, decoder = layer_shape(case)
    attention = str(case.get("attention", "sdpa"))
    block = models.build_block(shape, decoder=decoder, device="meta", attention=attention)
    _load(block, state, x)
    arguments = models.block_inputs(shape, x, memory if decoder else None)
    runs = {
        "dense h->4h": lambda: block.ffn.up(x),
        "dense+GELU": lambda: block.ffn.act(block.ffn.up(x)),
        "FFN": lambda: block.norm_2(x + block.ffn(x)),
        "attention block": lambda: block.norm_1(x + block.attention(x)),
    }
    return Runnable(
        run=runs.get(str(case["layer"]), lambda: block(*arguments)),
        inputs=_inputs(x, memory if decoder else None, arguments[1:2]),
        weights=dict(block.named_parameters()),
        native=dict,
    )


def hf(case: Case, state: State, x: torch.Tensor, memory: torch.Tensor) -> Runnable:
    """Hugging Face's block with the same weights.  Unsupported without transformers."""
    from trainrig import models

    shape, decoder = layer_shape(case)
    names = _Names(shape, decoder)
    attention = case.get("attention", "plain")
    if attention == "tiles":
        raise Unsupported("Hugging Face has no attention in tiles")
    plain = attention == "plain"
    block = _their_block(shape, decoder, "eager" if plain else "sdpa")
    _load(block, names.hf(state), x)
    arguments = models.block_inputs(shape, x, memory if decoder else None)
    hf_arguments = _their_arguments(shape, x, arguments, is_plain=plain)
    runs = {
        "dense h->4h": lambda: block.intermediate.dense(x),
        "dense+GELU": lambda: block.intermediate(x),
        "FFN": lambda: block.output(block.intermediate(x), x),
        "attention block": lambda: _first(block.attention(x)),
    }
    return Runnable(
        run=runs.get(str(case["layer"]), lambda: _first(block(x, **hf_arguments))),
        inputs=_inputs(x, memory if decoder else None, arguments[1:2]),
        weights=dict(block.named_parameters()),
        native=names.native,
    )


def fresh_state(case: Case, generator: torch.Generator) -> State:
    """Weights for a case in fp32: normal with 1/√width, biases and norms off their 0 and 1.

    So that no weight is without effect: a missing bias would hide behind zeros.
    """
    import torch

    from trainrig import models

    shape, decoder = layer_shape(case)
    block = models.build_block(shape, decoder=decoder, device="meta")
    state = {}
    for name, weight in block.named_parameters():
        values = torch.randn(weight.shape, generator=generator, device=generator.device)
        if weight.ndim == 2:
            state[name] = values * weight.shape[1] ** -0.5
        else:
            is_scale = "norm" in name and name.endswith("weight")
            state[name] = 0.1 * values + float(is_scale)
    if shape.family == "t5":  # its scores are not divided by √D
        for name in state:
            if name.endswith(".q.weight"):
                state[name] *= shape.attention.head_dim**-0.5
    return state


def _load(block: Any, state: State, like: torch.Tensor) -> None:
    """Put weights into a block whose own lie on the meta device."""
    block.to(like.dtype)
    block.to_empty(device=like.device)
    block.load_state_dict(state)


def _inputs(
    x: torch.Tensor, memory: torch.Tensor | None, others: tuple[Any, ...]
) -> dict[str, torch.Tensor]:
    inputs = {"x": x}
    if others and others[0].requires_grad:
        inputs["bias"] = others[0]
    return inputs if memory is None else inputs | {"memory": memory}


def _first(result: Any) -> Any:
    return result[0] if isinstance(result, tuple) else result


# ---- Hugging Face's


def _their_block(shape: ModelShape, decoder: bool, attention: str) -> Any:
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch

    try:
        import transformers
    except ImportError:
        raise Unsupported("transformers is not installed") from None
    hf_arguments: dict[str, Any] = {"dtype": "float32"}
    if shape.family == "t5":
        hf_arguments |= {"is_decoder": decoder, "is_encoder_decoder": False}
    config = getattr(transformers, class_names(shape)[0])(**config_of(shape) | hf_arguments)
    config._attn_implementation = attention
    with torch.device("meta"):
        return _their_class(shape)(config)


def _their_class(shape: ModelShape) -> Callable[[Any], Any]:
    if shape.family == "bert":
        from transformers.models.bert.modeling_bert import BertLayer

        return BertLayer
    if shape.family == "gpt2":
        from transformers.models.gpt2.modeling_gpt2 import GPT2Block

        gpt2: Any = GPT2Block
        return lambda config: gpt2(config, layer_idx=0)
    if shape.family == "t5":
        from transformers.models.t5.modeling_t5 import T5Block

        return lambda config: T5Block(config, layer_idx=0)
    from transformers.models.llama.modeling_llama import LlamaDecoderLayer

    return lambda config: LlamaDecoderLayer(config, 0)


def _their_arguments(
    shape: ModelShape, x: torch.Tensor, native: tuple[Any, ...], *, is_plain: bool
) -> dict[str, Any]:
    """Convert our block's arguments besides x into those of Hugging Face's block."""
    import torch

    hf_arguments: dict[str, Any] = {}
    if shape.family == "t5":
        names = ("position_bias", "encoder_hidden_states")
        return dict(zip(names, native[1:], strict=False))
    if is_plain and shape.causal:  # their plain attention looks at what the mask lets it
        mask = torch.full((x.shape[1], x.shape[1]), torch.finfo(x.dtype).min, device=x.device)
        hf_arguments["attention_mask"] = mask.to(x.dtype).triu(1)[None, None]
    if shape.family == "llama":
        hf_arguments["position_embeddings"] = tuple(
            torch.cat((angles, angles), dim=-1)[None].to(x.dtype) for angles in native[1:]
        )
    return hf_arguments


_PREFIXES = {
    ("bert", False): "bert.encoder.layer.0.",
    ("gpt2", False): "transformer.h.0.",
    ("t5", False): "encoder.block.0.",
    ("t5", True): "decoder.block.0.",
    ("llama", False): "model.layers.0.",
}


class _Names:
    """One block's weights to and from Hugging Face's, by way of a model of one layer.

    The rest of that model lies on the meta device and is dropped.
    """

    def __init__(self, shape: ModelShape, decoder: bool) -> None:
        """``shape``'s block; ``decoder``: t5's with cross-attention."""
        from trainrig import models

        self._shape = dataclasses.replace(
            shape, num_layers=1, num_decoder_layers=int(shape.family == "t5"), vocab=8
        )
        self._rest = models.build(self._shape, device="meta").state_dict()
        self._native = "decoder_blocks.0." if decoder else "blocks.0."
        self._hf = _PREFIXES[shape.family, decoder]

    def hf(self, state: State) -> State:
        """Return tensors under Hugging Face's names and layout, from trainrig's."""
        from trainrig.models import hf_weights

        tensors = self._rest | {self._native + name: weight for name, weight in state.items()}
        return _under(self._hf, hf_weights.to_hugging_face(self._shape, tensors))

    def native(self, state: State) -> State:
        """Return tensors under trainrig's names and layout, from Hugging Face's."""
        from trainrig.models import hf_weights

        others = hf_weights.to_hugging_face(self._shape, self._rest)
        tensors = others | {self._hf + name: weight for name, weight in state.items()}
        return _under(self._native, hf_weights.from_hugging_face(self._shape, tensors))


def _under(prefix: str, state: State) -> State:
    return {
        name.removeprefix(prefix): weight
        for name, weight in state.items()
        if name.startswith(prefix) and not weight.is_meta
    }


def build(case: Case, state: State, x: torch.Tensor, memory: torch.Tensor) -> Runnable:
    """Build the block that a case runs, chosen by its ``code``."""
    chosen = hf if case["code"] == "huggingface" else native
    return chosen(case, state, x, memory)
