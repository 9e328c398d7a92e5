"""Count what Hugging Face's own models keep for backward, and compare it with `workload.memory`.

    python -m validation.memory_families            every family, precision and attention
    python -m validation.memory_families llama t5   these alone

Models of `transformers`, as their library runs them, on torch's meta device: sizes without content.
What is alive between forward and backward is counted for one and for three blocks; the difference is
two blocks' activations (narrow copies of weights, which autocast keeps, are taken off).  Beside it
stands the peak of a whole step with AdamW.  On the meta device autocast does nothing, so that CUDA's
is played by the lists of operations in torch's own header (`ATen/autocast_mode.h`).
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F  # noqa: N812
import transformers
from torch.overrides import TorchFunctionMode

from trainrig.workload.hf_config import shape_of_config
from trainrig.workload.layout import Layout
from trainrig.workload.memory import memory
from trainrig.workload.memory.pipeline_stage import stage_of
from trainrig.workload.model import ModelShape
from validation.memory_golden import Tracker, as_on_gpu

WORST = 0.03
"""Of a block's bytes: what a family may be off by."""


def _listed(name: str) -> frozenset[str]:
    """The operations of one of autocast's lists, from torch's header."""
    header = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    body = header.read_text().partition(f"#define AT_FORALL_{name}(_)")[2].partition("#define")[0]
    return frozenset(re.findall(r"_\((\w+)", body))


class Autocast(TorchFunctionMode):
    """CUDA's autocast for tensors of any device, without its list of promotions."""

    narrow, wide = _listed("LOWER_PRECISION_FP"), _listed("FP32")
    typed = _listed("FP32_SET_OPT_DTYPE")

    def __init__(self) -> None:
        super().__init__()
        self.weights: dict[int, torch.Tensor] = {}
        self.caches = True

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        name = func.__name__.strip("_")
        if name == "cross_entropy":
            return self._entropy(*args, **kwargs)
        if name in self.narrow:
            args, kwargs = self._cast(args, torch.bfloat16), self._cast(kwargs, torch.bfloat16)
        elif name in self.wide:
            args, kwargs = self._cast(args, torch.float32), self._cast(kwargs, torch.float32)
        elif name in self.typed and not kwargs.get("dtype") and args[0].is_floating_point():
            kwargs["dtype"] = torch.float32
        return func(*args, **kwargs)

    def _entropy(self, logits: Any, labels: Any, **more: Any) -> Any:
        """`cross_entropy` is two calls: the softmax's type is named, which is respected."""
        named = F.log_softmax(logits, 1, dtype=logits.dtype)
        more.pop("label_smoothing", None)
        return F.nll_loss(named.to(torch.float32), labels, **more)

    def _cast(self, values: Any, to: torch.dtype) -> Any:
        if isinstance(values, dict):
            return {name: self._cast(value, to) for name, value in values.items()}
        if isinstance(values, (list, tuple)):
            return type(values)(self._cast(value, to) for value in values)
        if not isinstance(values, torch.Tensor) or not values.is_floating_point():
            return values
        if values.dtype == to:
            return values
        kept = values.is_leaf and values.requires_grad and to != torch.float32 and self.caches
        if not kept:
            return values.to(to)
        return self.weights.setdefault(id(values), values.to(to))


def narrowed(value: Any) -> Any:
    """As autocast hands numbers to a fused attention."""
    is_wide = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.to(torch.bfloat16) if is_wide else value


class Answering(Tracker):
    """A tracker that answers what models ask of contents ("is nothing packed?") with yes."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            return 1
        return super().__torch_dispatch__(func, types, args, kwargs)


@contextmanager
def as_trained() -> Iterator[None]:
    """Kernels of a GPU: fused attention, and dropout that keeps a byte for each number."""

    def dropout(x: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        return torch.native_dropout(x, p, True)[0] if training and p else x

    with as_on_gpu(), patch.object(F, "dropout", dropout):
        fused = F.scaled_dot_product_attention

        def attention(*args: Any, **how: Any) -> Any:
            if torch.overrides._get_current_function_mode():  # the one mode here is autocast
                args = tuple(narrowed(each) for each in args)
                how = {name: narrowed(each) for name, each in how.items()}
            return fused(*args, **how)

        with patch.object(F, "scaled_dot_product_attention", attention):
            yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A model of transformers and the words it is built by."""

    kind: str
    """`model_type` of its configuration."""
    head: str
    words: dict[str, Any]
    depth: str = "num_hidden_layers"

    def config(self, layers: int, **more: Any) -> Any:
        """Its configuration with so many blocks."""
        words = {**self.words, self.depth: layers} | more
        if self.kind == "t5":
            words["num_decoder_layers"] = layers
        return transformers.AutoConfig.for_model(self.kind, **words)


_CAUSAL = "AutoModelForCausalLM"
_LLAMA = {
    "hidden_size": 1024,
    "num_attention_heads": 16,
    "num_key_value_heads": 4,
    "intermediate_size": 3072,
    "vocab_size": 8192,
}
_WIDE = {"hidden_size": 1024, "num_attention_heads": 16, "vocab_size": 8192}
FAMILIES = {
    "bert": Family(kind="bert", head="AutoModelForMaskedLM", words=_WIDE | {"intermediate_size": 4096}),
    "roberta": Family(
        kind="roberta",
        head="AutoModelForMaskedLM",
        words=_WIDE | {"intermediate_size": 4096, "max_position_embeddings": 1026},
    ),
    "gpt2": Family(
        kind="gpt2",
        head=_CAUSAL,
        words={"n_embd": 1024, "n_head": 16, "vocab_size": 8192},
        depth="n_layer",
    ),
    "gpt_neo": Family(
        kind="gpt_neo",
        head=_CAUSAL,
        words={"hidden_size": 1024, "num_heads": 16, "vocab_size": 8192, "intermediate_size": 4096},
        depth="num_layers",
    ),
    "gpt_neox": Family(kind="gpt_neox", head=_CAUSAL, words=_WIDE | {"intermediate_size": 4096}),
    "gptj": Family(
        kind="gptj",
        head=_CAUSAL,
        words={"n_embd": 1024, "n_head": 16, "vocab_size": 8192},
        depth="n_layer",
    ),
    "opt": Family(
        kind="opt",
        head=_CAUSAL,
        words=_WIDE | {"ffn_dim": 4096, "word_embed_proj_dim": 1024},
    ),
    "bloom": Family(
        kind="bloom",
        head=_CAUSAL,
        words={"hidden_size": 1024, "n_head": 16, "vocab_size": 8192},
        depth="n_layer",
    ),
    "t5": Family(
        kind="t5",
        head="AutoModelForSeq2SeqLM",
        words={"d_model": 1024, "num_heads": 16, "d_ff": 4096, "d_kv": 64, "vocab_size": 8192},
        depth="num_layers",
    ),
    "llama": Family(kind="llama", head=_CAUSAL, words=_LLAMA),
    "llama-mha": Family(kind="llama", head=_CAUSAL, words=_LLAMA | {"num_key_value_heads": 16}),
    "mistral": Family(kind="mistral", head=_CAUSAL, words=_LLAMA),
    "qwen2": Family(kind="qwen2", head=_CAUSAL, words=_LLAMA),
    "qwen3": Family(kind="qwen3", head=_CAUSAL, words=_LLAMA | {"head_dim": 128}),
    "gemma": Family(kind="gemma", head=_CAUSAL, words=_LLAMA | {"head_dim": 256}),
    "gemma2": Family(kind="gemma2", head=_CAUSAL, words=_LLAMA | {"head_dim": 256}),
    "gemma3_text": Family(kind="gemma3_text", head=_CAUSAL, words=_LLAMA | {"head_dim": 256}),
    "phi": Family(kind="phi", head=_CAUSAL, words=_WIDE | {"intermediate_size": 4096}),
    "phi3": Family(kind="phi3", head=_CAUSAL, words=_LLAMA | {"pad_token_id": 0}),
    "falcon": Family(kind="falcon", head=_CAUSAL, words=_WIDE),
    "mixtral": Family(kind="mixtral", head=_CAUSAL, words=_LLAMA | {"num_local_experts": 8}),
    "qwen3_moe": Family(
        kind="qwen3_moe",
        head=_CAUSAL,
        words=_LLAMA | {"num_experts": 16, "num_experts_per_tok": 4, "moe_intermediate_size": 768, "head_dim": 64},
    ),
}

BATCH, LENGTH = 4, 512
MODES = ("fp32", "autocast", "pure")


def build(family: Family, layers: int, attention: str, mode: str) -> Any:
    """The model in training, on the meta device."""
    config = family.config(layers)
    config._attn_implementation = attention
    config.use_cache = False
    if family.kind == "t5":
        config.decoder_start_token_id = config.pad_token_id = 0
    dtype = torch.bfloat16 if mode in ("pure", "loaded") else torch.float32
    with torch.device("meta"):
        model = getattr(transformers, family.head).from_config(config, dtype=dtype)
    return model.train()


def inputs(family: Family) -> dict[str, torch.Tensor]:
    tokens = torch.zeros(BATCH, LENGTH, dtype=torch.int64, device="meta")
    return {"input_ids": tokens, "labels": tokens}


def kept(family: Family, layers: int, attention: str, mode: str) -> int:
    """Bytes alive between forward and backward that were not before."""
    model, tracker = build(family, layers, attention, mode), Answering()
    given = inputs(family)
    with as_trained(), tracker:
        for tensor in (*model.parameters(), *model.buffers()):
            tracker.add(tensor)
        before = tracker.now
        with Autocast() if mode in ("autocast", "loaded") else nullcontext():
            loss = model(**given).loss
        made = tracker.now - before
    del loss
    return made


def step_peak(family: Family, layers: int, attention: str, mode: str, **more: Any) -> int:
    """Bytes at the peak of the second step of a plain loop, or Trainer's, with fused AdamW."""
    model, tracker = build(family, layers, attention, mode), Answering()
    if more.get("recompute"):
        model.gradient_checkpointing_enable({"use_reentrant": False})
    if rank := more.get("lora_rank"):
        import peft

        words = {"r": rank, "lora_alpha": rank, "target_modules": "all-linear"}
        narrow = {"autocast_adapter_dtype": mode != "pure"}
        with torch.device("meta"):
            model = peft.get_peft_model(model, peft.LoraConfig(**words, lora_dropout=0.0), **narrow)
        if mode == "pure":
            model.to(torch.bfloat16)
        if more.get("recompute"):
            model.enable_input_require_grads()
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, fused=True)
    given = inputs(family)
    with as_trained(), tracker:
        for tensor in (*model.parameters(), *model.buffers()):
            tracker.add(tensor)
        for _ in range(2):
            tracker.peak = tracker.now
            autocast = Autocast()
            with autocast if mode in ("autocast", "loaded") else nullcontext():
                loss = model(**given).loss
                autocast.weights.clear()
                autocast.caches = False
                engine = torch.autograd.Variable._execution_engine
                ones = (torch.ones_like(loss),)
                engine.run_backward(
                    (loss,), ones, False, False, (), allow_unreachable=True, accumulate_grad=True
                )
            del loss
            optimizer.step()
            optimizer.zero_grad()
    return tracker.peak


def layout_of(family: Family, attention: str, mode: str) -> Layout:
    words: dict[str, Any] = {"framework": "huggingface", "batch_size": BATCH, "seq_len": LENGTH}
    words |= {"precision": "fp32" if mode == "fp32" else "bf16"}
    words |= {"states": "pure"} if mode == "pure" else {}
    words |= {"kernels": "flash" if attention == "sdpa" else "eager"}
    return Layout(**words)


def shape_of(family: Family, layers: int) -> ModelShape:
    return shape_of_config(family.config(layers).to_dict(), family.kind)


def rows(names: list[str]) -> Iterator[tuple[str, str, str, float, float]]:
    for name in names:
        family = FAMILIES[name]
        for mode in MODES:
            for attention in ("eager", "sdpa"):
                try:
                    one, three = (kept(family, n, attention, mode) for n in (1, 3))
                    shape = shape_of(family, 3)
                    stage = stage_of(shape, layout_of(family, attention, mode), "last")
                    copies = stage.states.weight_copies
                    block = stage.block_parameters() + (
                        stage.block_parameters(decoder=True) if shape.num_decoder_layers else 0
                    )
                    measured = (three - one) / 2 - copies * block
                    predicted = sum(stage.of_one) / 3
                    yield name, mode, attention, measured, predicted
                except Exception as error:  # noqa: BLE001
                    print(name, mode, attention, type(error).__name__, str(error)[:150])


def main_steps(names: list[str]) -> None:
    ways: tuple[dict[str, Any], ...] = (
        {},
        {"recompute": "full"},
        {"lora_rank": 16},
        {"lora_rank": 16, "recompute": "full"},
    )
    for name in names:
        family = FAMILIES[name]
        for more in ways:
            for mode in ("loaded", "pure") if "lora_rank" in more else MODES:
                for attention in ("eager", "sdpa"):
                    try:
                        peak = step_peak(family, 8, attention, mode, **more)
                    except Exception as error:  # noqa: BLE001
                        print(name, mode, attention, more, type(error).__name__, str(error)[:120])
                        continue
                    shape = shape_of(family, 8)
                    layout = layout_of(family, attention, mode).replace(**more)
                    parts = memory(shape, layout)
                    print(
                        f"{name:12} {mode:9} {attention:6} {more!s:40} {peak / 2**20:9.1f} "
                        f"{parts.allocated / 2**20:9.1f} {parts.allocated / peak - 1:+7.1%}",
                        flush=True,
                    )


def main() -> int:
    if sys.argv[1] == "steps":
        main_steps(sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("families", nargs="*", default=list(FAMILIES))
    found = parser.parse_args().families
    tokens = BATCH * LENGTH
    for name, mode, attention, measured, predicted in rows(found):
        wide = 1024
        print(
            f"{name:12} {mode:9} {attention:6} {measured / tokens / wide:8.2f} "
            f"{predicted / tokens / wide:8.2f}  {predicted / measured - 1:+7.1%}", flush=True
        )
    return 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main())
