"""Count what Hugging Face's own models keep for backward, and compare it with `workload.memory`.

    python -m validation.memory_families             blocks, then whole steps, of every family
    python -m validation.memory_families llama t5    of these alone
    python -m validation.memory_families --write     and write memory_families.csv for the tests

Models as `transformers` runs them, with fresh weights, on torch's meta device: sizes, no content.

blocks      what is alive between forward and backward, of three blocks less that of one, without
            narrow copies of weights; for each token and column of the residual stream
steps       the peak of a whole step with AdamW, as it is, recomputed, and with peft's LoRA, of
            published sizes

fp32, autocast (bf16 around fp32 weights), pure (all bf16) and, with adapters, loaded (autocast
around bf16 weights, fp32 adapters).  On the meta device autocast does nothing: CUDA's is played by
the lists of operations in torch's own header (`ATen/autocast_mode.h`).  What kernels allocate
inside is not seen, nor is what the allocator does.
"""

from __future__ import annotations

import argparse
import csv
import json
import logging
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
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
from trainrig.workload.model import SHAPE_KEYS, ModelShape
from validation.memory_golden import GOLDEN, Tracker, as_on_gpu

FIXTURE = GOLDEN.with_name("memory_families.csv")
WORST = 0.03
"""What a figure may be off by, but those of `KNOWN`."""
KNOWN = {("t5", "sdpa"): 0.09, ("falcon", "sdpa"): 0.05}
"""Attention whose bias or mask is written out by each block, once for all samples: not counted,
since it is nothing beside many samples."""
_ATEN = torch.ops.aten


def _listed(name: str) -> frozenset[str]:
    """The operations of one of autocast's lists, from torch's header."""
    header = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    body = header.read_text().partition(f"#define AT_FORALL_{name}(_)")[2].partition("#define")[0]
    return frozenset(re.findall(r"_\((\w+)", body))


def _cast(values: Any, cast: Any) -> Any:
    """Arguments with ``cast`` done to the tensors of real numbers among them."""
    if isinstance(values, dict):
        return {name: _cast(value, cast) for name, value in values.items()}
    if isinstance(values, (list, tuple)):
        return type(values)(_cast(value, cast) for value in values)
    is_real = isinstance(values, torch.Tensor) and values.is_floating_point()
    return cast(values) if is_real else values


class Autocast(TorchFunctionMode):
    """CUDA's autocast to bf16 for tensors of any device, without its list of promotions."""

    narrow, wide = _listed("LOWER_PRECISION_FP"), _listed("FP32")
    typed = _listed("FP32_SET_OPT_DTYPE")

    def __init__(self) -> None:
        super().__init__()
        self.copies: dict[int, torch.Tensor] | None = {}
        """Narrow weights of this forward pass; None: in backward, which casts anew."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = dict(kwargs or {}), func.__name__.strip("_")
        if name == "cross_entropy":  # two calls, of which the first names its type
            kwargs.pop("label_smoothing", None)
            named = F.log_softmax(args[0], 1, dtype=args[0].dtype)
            return F.nll_loss(named.to(torch.float32), *args[1:], **kwargs)
        if name in self.narrow:
            args, kwargs = _cast(args, self._narrowed), _cast(kwargs, self._narrowed)
        elif name in self.wide:
            args, kwargs = _cast(args, torch.Tensor.float), _cast(kwargs, torch.Tensor.float)
        elif name in self.typed and not kwargs.get("dtype") and args[0].is_floating_point():
            kwargs["dtype"] = torch.float32
        return func(*args, **kwargs)

    def _narrowed(self, x: torch.Tensor) -> torch.Tensor:
        is_weight = x.is_leaf and x.requires_grad and x.dtype == torch.float32
        if self.copies is None or not is_weight:
            return x.to(torch.bfloat16)
        if id(x) not in self.copies:
            self.copies[id(x)] = x.to(torch.bfloat16)
        return self.copies[id(x)]


class Answering(Tracker):
    """A tracker that says yes where a model asks of contents ("is nothing packed?").

    Where gradients of one tensor meet, autograd adds in place; below a dispatch mode it does not.
    """

    def __init__(self, twice: Iterable[torch.Tensor] = ()) -> None:
        super().__init__()
        self._twice = {tensor.shape for tensor in twice}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is _ATEN._local_scalar_dense.default:
            return 1
        is_sum = func is _ATEN.add.Tensor and isinstance(args[1], torch.Tensor)
        if is_sum and args[0].shape == args[1].shape and args[0].shape in self._twice:
            return args[0]
        return super().__torch_dispatch__(func, types, args, kwargs)


@contextmanager
def as_trained() -> Iterator[None]:
    """A GPU's kernels: fused attention, and dropout that keeps a byte for each number."""

    def dropout(x: Any, p: float = 0.5, training: bool = True, _: bool = False) -> Any:
        return torch.native_dropout(x, p, True)[0] if training and p else x

    def attention(*args: Any, **how: Any) -> Any:
        if torch.overrides._get_current_function_mode():  # the one mode here is autocast
            narrowed = partial(torch.Tensor.to, dtype=torch.bfloat16)
            args, how = _cast(args, narrowed), _cast(how, narrowed)
        return fused(*args, **how)

    with as_on_gpu(), patch.object(F, "dropout", dropout):
        fused = F.scaled_dot_product_attention
        with patch.object(F, "scaled_dot_product_attention", attention):
            yield


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A model of transformers and the words it is built by."""

    kind: str
    """`model_type` of its configuration."""
    words: dict[str, Any]
    depth: str = "num_hidden_layers"
    head: str = "AutoModelForCausalLM"
    attention: tuple[str, ...] = ("eager", "sdpa")
    modes: tuple[str, ...] = ("fp32", "autocast", "pure")

    def config(self, layers: int) -> Any:
        """Its configuration with so many blocks."""
        words = {**self.words, self.depth: layers}
        if self.kind == "t5":
            words["num_decoder_layers"] = layers
        config = transformers.AutoConfig.for_model(self.kind, **words)
        config.use_cache = False
        if self.kind == "t5":
            config.decoder_start_token_id = config.pad_token_id = 0
        return config

    def build(self, layers: int, attention: str, mode: str) -> Any:
        """The model in training, on the meta device."""
        config = self.config(layers)
        config._attn_implementation = attention
        dtype = torch.bfloat16 if mode in ("pure", "loaded") else torch.float32
        with torch.device("meta"):
            model = getattr(transformers, self.head).from_config(config, dtype=dtype)
        return model.train()

    def shape(self, layers: int) -> ModelShape:
        """Return what a user's config.json would be read as."""
        return shape_of_config(self.config(layers).to_dict(), self.kind)


def _llama(kind: str, **more: Any) -> Family:
    heads = {"num_attention_heads": 16, "num_key_value_heads": 4}
    sizes = {"hidden_size": 1024, "intermediate_size": 3072, "vocab_size": 8192}
    modes = {name: more.pop(name) for name in ("attention", "modes") if name in more}
    return Family(kind=kind, words=heads | sizes | more, **modes)


_GPT = {"n_embd": 1024, "n_head": 16, "vocab_size": 8192, "bos_token_id": 0, "eos_token_id": 0}
_PLAIN = {"hidden_size": 1024, "num_attention_heads": 16, "vocab_size": 8192}
_T5 = {"d_model": 1024, "num_heads": 16, "d_ff": 4096, "d_kv": 64, "vocab_size": 8192}
_MASKED = "AutoModelForMaskedLM"
_ONLY_PURE = ("pure",)
"""A mixture's grouped products want bf16 on the meta device."""
FAMILIES = {
    "bert": Family(kind="bert", head=_MASKED, words=_PLAIN | {"intermediate_size": 4096}),
    "gpt2": Family(kind="gpt2", words=_GPT, depth="n_layer"),
    "t5": Family(kind="t5", head="AutoModelForSeq2SeqLM", words=_T5, depth="num_layers"),
    "llama": _llama("llama"),
    "llama, all heads": _llama("llama", num_key_value_heads=16),
    "mistral": _llama("mistral"),
    "qwen2": _llama("qwen2"),
    "qwen3": _llama("qwen3", head_dim=128),
    "gemma": _llama("gemma", head_dim=256),
    "gemma2": _llama("gemma2", head_dim=256, attention=("eager",)),
    "gemma3": _llama("gemma3_text", head_dim=256),
    "phi": Family(kind="phi", words=_PLAIN | {"intermediate_size": 4096}),
    "phi3": _llama("phi3", pad_token_id=0),
    "falcon": Family(kind="falcon", words=_PLAIN),
    "mixtral": _llama("mixtral", num_local_experts=8, modes=_ONLY_PURE),
    "qwen3_moe": _llama(
        "qwen3_moe", num_experts=16, moe_intermediate_size=768, head_dim=64, modes=_ONLY_PURE
    ),
}


def _sized(kind: str, *numbers: int, **more: Any) -> Family:
    names = (
        *("hidden_size", "num_attention_heads", "num_key_value_heads"),
        *("intermediate_size", "vocab_size"),
    )
    return Family(kind=kind, words=dict(zip(names, numbers, strict=True)) | more)


STEPS: dict[str, tuple[Family, int, int, int]] = {
    "Llama 2 7B": (_sized("llama", 4096, 32, 32, 11008, 32000), 32, 1, 2048),
    "Llama 3.1 8B": (_sized("llama", 4096, 32, 8, 14336, 128256), 32, 4, 1024),
    "Qwen2.5 7B": (_sized("qwen2", 3584, 28, 4, 18944, 152064), 28, 1, 2048),
    "Gemma 2B": (_sized("gemma", 2048, 8, 1, 16384, 256000, head_dim=256), 18, 4, 1024),
    "BERT-large": (
        Family(
            kind="bert",
            head=_MASKED,
            words=_PLAIN | {"intermediate_size": 4096, "vocab_size": 30522},
        ),
        *(24, 16, 512),
    ),
    "GPT-2 XL": (
        Family(
            kind="gpt2",
            words=_GPT | {"n_embd": 1600, "n_head": 25, "vocab_size": 50257},
            depth="n_layer",
        ),
        *(48, 4, 1024),
    ),
}
"""Family, blocks, samples, tokens of a sample."""
WAYS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("autocast", {}),
    ("pure", {}),
    ("autocast", {"recompute": "full"}),
    ("pure", {"recompute": "full"}),
    ("loaded", {"lora_rank": 16}),
    ("pure", {"lora_rank": 16}),
    ("loaded", {"lora_rank": 16, "recompute": "full"}),
)


COLUMNS = ("family", "mode", "attention", "bytes", "shape")


def shape_words(name: str) -> str:
    """The numbers of a family's shape of three blocks, those that are not usual, as JSON."""
    numbers = FAMILIES[name].shape(3).flat()
    usual = {key: field.default for key, field in SHAPE_KEYS.fields().items()}
    return json.dumps({key: value for key, value in numbers.items() if value != usual[key]})


def layout_of(attention: str, mode: str, batch_size: int, seq: int, **more: Any) -> Layout:
    """Return what a user would say of it."""
    return Layout.of(
        framework="huggingface",
        batch_size=batch_size,
        seq_len=seq,
        precision="fp32" if mode == "fp32" else "bf16",
        states="pure" if mode == "pure" else "auto",
        kernels="flash" if attention == "sdpa" else "eager",
        **more,
    )


def _inputs(batch_size: int, seq: int) -> dict[str, torch.Tensor]:
    tokens = torch.zeros(batch_size, seq, dtype=torch.int64, device="meta")
    return {"input_ids": tokens, "labels": tokens}


def _cast_in(mode: str) -> Any:
    return Autocast() if mode in ("autocast", "loaded") else nullcontext()


def kept(family: Family, layers: int, attention: str, mode: str) -> int:
    """Bytes alive between forward and backward that were not before, of BATCH samples."""
    model, tracker = family.build(layers, attention, mode), Answering()
    for tensor in (*model.parameters(), *model.buffers()):
        tracker.add(tensor)
    before = tracker.now
    with as_trained(), tracker, _cast_in(mode):
        loss = model(**_inputs(BATCH, SEQ)).loss
    bytes_kept = tracker.now - before
    del loss
    return bytes_kept


BATCH, SEQ = 4, 512
Row = tuple[str, str, str, float, float]
"""Family, mode, attention, measured, predicted."""


def blocks(name: str) -> Iterator[Row]:
    """Bytes a token and column of the stream, by mode and attention."""
    family = FAMILIES[name]
    shape = family.shape(3)
    for mode in family.modes:
        for attention in family.attention:
            one, three = (kept(family, layers, attention, mode) for layers in (1, 3))
            stage = stage_of(shape, layout_of(attention, mode, BATCH, SEQ), "last")
            weights = stage.block_parameters()
            if shape.num_decoder_layers:
                weights += stage.block_parameters(decoder=True)
            column_bytes = BATCH * SEQ * shape.hidden
            measured = ((three - one) / 2 - stage.states.weight_copies * weights) / column_bytes
            yield name, mode, attention, measured, sum(stage.of_one) / 3 / column_bytes


def step_peak(
    family: Family,
    layers: int,
    batch_size: int,
    seq: int,
    mode: str,
    *,
    lengths: Sequence[int] = (),
    **more: Any,
) -> int:
    """Bytes at the peak of the second step of a loop that keeps the loss alone, as Trainer's.

    ``lengths``: those of a loop's batches, of which the last one's peak is told.
    """
    model = family.build(layers, "sdpa", mode)
    if rank := more.get("lora_rank"):
        model = _with_adapters(model, rank, mode)
    if more.get("recompute"):
        model.gradient_checkpointing_enable({"use_reentrant": False})
        if rank:
            model.enable_input_require_grads()
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, fused=True)
    head = model.get_output_embeddings().weight
    tracker = Answering([head] if head is model.get_input_embeddings().weight else ())
    for tensor in (*model.parameters(), *model.buffers()):
        tracker.add(tensor)
    with as_trained(), tracker:
        for length in lengths or (seq, seq):
            tracker.peak = tracker.now
            with _cast_in(mode) as autocast:
                loss = model(**_inputs(batch_size, length)).loss
                if autocast:
                    autocast.copies = None
                _run_backward(loss)
            del loss
            optimizer.step()
            optimizer.zero_grad()
    return tracker.peak


def _with_adapters(model: Any, rank: int, mode: str) -> Any:
    import peft

    words: dict[str, Any] = {"r": rank, "target_modules": "all-linear", "lora_dropout": 0.0}
    with torch.device("meta"):
        adapted: Any = peft.get_peft_model(model, peft.LoraConfig(**words))
    return adapted.to(torch.bfloat16) if mode == "pure" else adapted


def _run_backward(loss: torch.Tensor) -> None:
    """`loss.backward()`, in which a function mode stays on for what is computed again."""
    engine: Any = torch.autograd.Variable._execution_engine
    ones, how = (torch.ones_like(loss),), {"allow_unreachable": True, "accumulate_grad": True}
    engine.run_backward((loss,), ones, False, False, (), **how)


def steps(name: str) -> Iterator[tuple[str, float, float]]:
    """Way, measured bytes and predicted ones."""
    family, layers, batch_size, seq = STEPS[name]
    shape = family.shape(layers)
    for mode, more in WAYS:
        peak = step_peak(family, layers, batch_size, seq, mode, **more)
        predicted = memory(shape, layout_of("sdpa", mode, batch_size, seq, **more))
        yield " ".join((mode, *(f"{k}={v}" for k, v in more.items()))), peak, predicted.allocated


def main() -> int:
    """Count all, print, store if asked.  Exit code 1 if one is off by more than is known."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="families, or models of the steps (default: all)")
    parser.add_argument("--write", action="store_true", help=f"write {FIXTURE.name}")
    arguments = parser.parse_args()
    chosen = [n for n in (*FAMILIES, *STEPS) if not arguments.names or n in arguments.names]
    rows, is_fine = [], True
    for name in filter(FAMILIES.__contains__, chosen):
        for row in blocks(name):
            _, mode, attention, measured, predicted = row
            error = predicted / measured - 1
            is_fine &= abs(error) <= KNOWN.get((name, attention), WORST)
            rows.append((name, mode, attention, round(measured, 3), shape_words(name)))
            print(f"{name:17}{mode:9}{attention:6}{measured:8.2f} B  {error:+.1%}", flush=True)
    for name in filter(STEPS.__contains__, chosen):
        for way, peak, told in steps(name):
            is_fine &= abs(told / peak - 1) <= WORST
            print(f"{name:17}{way:33}{peak / 2**30:8.2f} GiB  {told / peak - 1:+.1%}", flush=True)
    if arguments.write:
        with FIXTURE.open("w", newline="") as file:
            csv.writer(file).writerows([COLUMNS, *rows])
    return int(not is_fine)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.getLogger("transformers").setLevel(logging.ERROR)
    sys.exit(main())
