"""Text from a training: its newest checkpoint, whatever layout saved it, in one process.

Each token is drawn from the distribution behind the last ``seq_len`` tokens, as many as the model
was trained on, which are read anew for it: there is no cache of keys and values.  Temperature 0
takes the most probable token (greedy) and is deterministic; above, logits are divided by it, the
``top_k`` most probable are kept, and one is drawn by a generator of its own, seeded.  Weights are
the fp32 ones that the optimizer updates.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own name for it
from torch import Tensor

from trainrig import models
from trainrig.data.tokenizer import TextTokenizer, load_tokenizer
from trainrig.errors import DataError, UsageError
from trainrig.train.checkpoint_folder import checkpoints_in, read_saved
from trainrig.train.config import Experiment, from_run, objective_of
from trainrig.train.native.checkpoint import load_weights
from trainrig.train.native.weight_source import weights_of
from trainrig.workload import find


@dataclass(frozen=True, slots=True, kw_only=True)
class Generated:
    """A continuation."""

    prompt: str
    text: str
    """Generated text, without the prompt."""
    tokens: int
    """Number of generated tokens."""
    ended_by: str
    """max_tokens, or end: the model ended the document."""
    checkpoint: str
    step: int | None
    """Steps that were trained before the checkpoint; None: its folder does not say."""


def generate(
    run: Path,
    prompt: str,
    *,
    max_tokens: int = 100,
    temperature: float = 0.0,
    top_k: int = 0,
    seed: int = 0,
    device: str = "cpu",
) -> Generated:
    """Go on with ``prompt``; ``run``: a training's run, its checkpoints, or one of them.

    Or a folder of weights with its config.json and tokenizer, as `trainrig export` writes it.
    ``top_k`` 0: all tokens.  Raises UsageError, DataError, UnavailableError.
    """
    if max_tokens < 1 or not 0.0 <= temperature < float("inf") or top_k < 0:
        wrong = f"max_tokens {max_tokens}, temperature {temperature:g}, top_k {top_k}"
        raise UsageError(wrong, "at least 1, 0 (greedy) or more, 0 (all) or more")
    is_elsewheres = (run / "config.json").is_file()
    saved = None if is_elsewheres else read_saved(checkpoints_in(run))
    generator_setting = (
        from_run(saved.experiment, str(saved.path))
        if saved
        else Experiment.of(model=str(run / "config.json"))
    )
    shape = find(generator_setting.model)
    if objective_of(shape) != "causal":
        raise UsageError(f"{shape.family} does not go on with a text", "a gpt2 or llama model")
    text = Path(generator_setting.data) if saved else run
    tokenizer = load_tokenizer(text)
    if tokenizer.info.vocab_size > shape.vocab:
        raise DataError(
            f"{text} has {tokenizer.info.vocab_size} tokens, and the model {shape.vocab}: "
            "another text was prepared there",
            "prepare the text of the training again",
        )
    model = models.build(shape, device="meta", attention=generator_setting.kernels.attention)
    model.to_empty(device=device)
    if saved:
        load_weights(saved, model)
    else:
        read = weights_of(run, shape)
        with torch.no_grad():
            for name, weight in model.named_parameters():
                weight.copy_(read(name))
    seq_len = generator_setting.seq_len if saved else shape.position.max_positions
    tokens = _ids(tokenizer, prompt)
    random = torch.Generator(device=device).manual_seed(seed)
    new_tokens: list[int] = []
    while len(new_tokens) < max_tokens:
        context = torch.tensor([(tokens + new_tokens)[-seq_len:]], device=device)
        logits = _last_logits(model, context)[: tokenizer.info.vocab_size]
        token = int(_chosen(logits, temperature, top_k, random))
        if token == tokenizer.info.end:
            break
        new_tokens.append(token)
    return Generated(
        prompt=prompt,
        text=tokenizer.tokenizer.decode(new_tokens),
        tokens=len(new_tokens),
        ended_by="max_tokens" if len(new_tokens) == max_tokens else "end",
        checkpoint=str(saved.path if saved else run),
        step=saved.next_step if saved else None,
    )


def _ids(tokenizer: TextTokenizer, prompt: str) -> list[int]:
    """Return the prompt's token ids; for an empty prompt the end token."""
    ids = tokenizer.tokenizer.encode(prompt, add_special_tokens=False).ids
    if ids:
        return list(ids)
    if tokenizer.info.end is None:
        raise UsageError("an empty prompt, and the tokenizer has no end token", "--prompt TEXT")
    return [tokenizer.info.end]


@torch.no_grad()
def _last_logits(model: torch.nn.Module, tokens: Tensor) -> Tensor:
    """Return (1, T) → (V,): of the token behind the last."""
    module: torch.nn.Module = model
    hidden = module.hidden(tokens)[0, -1]
    return F.linear(hidden, module.head_weight)


def _chosen(logits: Tensor, temperature: float, top_k: int, random: torch.Generator) -> Tensor:
    if temperature == 0.0:
        return logits.argmax()
    if 0 < top_k < len(logits):
        least = logits.topk(top_k).values[-1]
        logits = logits.masked_fill(logits < least, float("-inf"))
    shares = torch.softmax(logits.double() / temperature, dim=-1)
    return torch.multinomial(shares, 1, generator=random)[0]
