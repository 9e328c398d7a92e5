"""How many tokens a sequence of a row has: of plain text, of a task's examples, of an image.

Answers the length where none is stated, how much longer the longest example is than the average,
and what a token of packed examples looks at.  What is presumed is noted (`Cells.presume`).
"""

from __future__ import annotations

import re
from functools import lru_cache

from trainrig.prediction.rates.from_chip import fuses_attention
from trainrig.workload.layout import Layout
from trainrig.workload.model import ModelShape
from trainrig.workload.model_lookup import spelled
from validation.normalise.cells import Cells, means, mentions
from validation.normalise.machines import chip_of
from validation.normalise.shape import image_tokens, is_vision
from validation.normalise.training_programs import affirmed


def length_of(cells: Cells, shape: ModelShape) -> int:
    """Tokens of a sequence, as stated or as is usual; of a tuning's examples little is usual.

    A round number that programs of transformers' models state is the most that an example may have,
    and a micro-batch is as long as its longest: how long that is nobody says.
    """
    tokens = cells.whole("seq", _of_mean(cells, shape) or usual_length(cells, shape))
    is_most = cells.program.code.transformers_models and not (
        longest(cells, tokens) or cells["mean_seq"]
    )
    if not cells["seq"]:
        cells.presume("seq_len")
    if cells.is_tuning and (is_most or not cells["seq"]):
        cells.presume("mean_seq")
    return tokens


def _of_mean(cells: Cells, shape: ModelShape) -> int:
    """Tokens of the longest example where words state the average alone; 0: they don't.

    A micro-batch of a number of tokens has as many whatever its examples are: their average.
    """
    if not (mean := stated_mean(cells)):
        return 0
    most = _longest_stated(cells) or round(_LONGEST * mean)
    is_even = batch_tokens(cells) or _even(cells) or not cells.is_tuning
    return mean if is_even else max(mean, min(shape.position.max_positions, most))


def stated_mean(cells: Cells) -> int:
    """Tokens of an average example, as words beside the program state it; 0: they don't."""
    return _mean_in(cells.text_of("framework", "kernel_stack", "model"))


@lru_cache(maxsize=1 << 12)
def _mean_in(words: str) -> int:
    match = _MEAN.search(words)
    number = (match[1] or match[3] or match[5]).replace(",", "") if match else "0"
    is_thousands = match is not None and (match[2] or match[4])
    return round(float(number) * (1024 if is_thousands else 1))


_MEAN = re.compile(
    r"\b(?:mean|average|avg\.?)\b[a-z ]{0,24}\W{0,3}(\d[\d,]*(?:\.\d+)?)(k?)[ -]?tok"
    r"|(?<![\d.,])(\d[\d,]*(?:\.\d+)?)(k?)[ -]?tok(?:en)?s?"
    r"(?: on average| avg| ?(?:/|per|an?|each) ?(?:sample|example|conversation)\b)"
    r"|(?<![\d.,])(\d[\d,]*) tokens ?[*x×] ?\d+ rows"
)
"""``mean 931.25 tokens``, ``1.2k tokens per sample``, ``8055 tokens * 12000 rows``."""


def batch_tokens(cells: Cells) -> int:
    """Tokens of a micro-batch where that is its limit (fairseq's max-tokens); 0: it isn't."""
    match = _IN_TOKENS.search(cells.word("micro_batch") or cells.word("framework"))
    if match is None:
        return 0
    return int(re.sub("[,_]", "", match[1] or match[2])) * (1024 if match[3] else 1)


_IN_TOKENS = re.compile(
    r"(?:batch|max)[-_ ]?tokens(?:[-_ ]per[-_ ][a-z]{3,6})?\W{1,3}(\d[\d,_]*)"
    r"|^(\d[\d,_]*) ?(k?) *tok"
)


def usual_length(cells: Cells, shape: ModelShape) -> int:
    """Tokens of a sequence that is not stated: as is usual, or as many as the model knows.

    Examples of a task are short, and a micro-batch is padded to its longest: Alpaca's have 100 to
    200 tokens, Dolly's 200, OpenAssistant's 400, and the longest of eight is twice the average
    (lengths spread as a lognormal of 0.7).  transformers' own scripts cut plain text into pieces of
    1024 (run_clm, `block_size`).
    """
    words = cells.text_of("model", "kind", "framework")
    filled = _FILLED.search(cells.text_of("kernel_stack"))
    if named := filled[1].replace(",", "") if filled else means("read", words):
        return min(shape.position.max_positions, int(named))
    if is_vision(cells.word("model")):
        return image_tokens(cells.word("model"))
    if shape.family == "bert":
        return min(shape.position.max_positions, _encoded(cells, shape))
    is_blank = not any(cells[name] for name in ("global_batch", "micro_batch", "grad_accum"))
    if cells.is_finetuning and is_blank:
        return min(shape.position.max_positions, _BENCHMARKED)
    is_text = cells.is_finetuning and cells.program.code.transformers_models
    samples = min(cells.whole("micro_batch", usual_samples(cells)), 8)
    longest_stated = _longest_stated(cells)
    is_chat = longest_stated > 0 and mentions("chat", cells.word("model"))
    average = _OF_CHAT if is_chat else _OF_TASK
    padded = 1024 if is_text else 8 * round(average * samples ** (1 / 3) / 8)
    tuned = cells.program.batches.tuning_length or padded
    if cells.is_tuning:
        return min(
            shape.position.max_positions, longest_stated or shape.position.max_positions, tuned
        )
    is_known = spelled(cells["model"]) is not None
    return min(shape.position.max_positions, _pretrained(cells)) if is_known else _pretrained(cells)


_FILLED = re.compile(r"\bpack\w*(?: (?:in)?to| of)? (\d{1,3}(?:,\d{3})+|\d{3,6}) tokens")
"""``packed 32,768 tokens``: a sequence of several examples."""
_BENCHMARKED = 4096
"""Tokens of a sequence where all weights are tuned with neither length nor batch: what is printed
is a benchmark's, of filled sequences (NeMo AutoModel's examples/llm_benchmark have so many)."""
_OF_TASK, _OF_CHAT = 256, 512
"""Tokens of an average example: of instructions, and of conversations in several turns, which are
cut where a length is stated, of models that were taught to talk (OpenHermes' 400, UltraChat's 1000:
presumed between them)."""


def _longest_stated(cells: Cells) -> int:
    """Tokens that an example may have at most, where words beside the program say so; 0: none."""
    words = cells.text_of("framework", "kernel_stack")
    match = _STATED.search(words)
    return int(match[1].replace(",", "")) if match else 0


_STATED = re.compile(
    r"\b(?:model_)?max[a-z.]{0,5}[ _-]?(?:seq[a-z]{0,5}|source)?[ _-]?len(?:gth)?(?: of)?"
    r"\W{1,3}(\d{1,3}(?:,\d{3})|\d{2,6})\b"
)
"""``max_seq_length: 2048``, ``max length of 512``."""


def _pretrained(cells: Cells) -> int:
    """Tokens of a pre-training's sequence: those of the model's line, else of the year's models.

    GPT-3's and Llama's 2,048, Llama 2's 4,096 (2023-07), Llama 3's 8,192 (2024-04); others follow.
    """
    if tokens := means("seq", cells.word("model")):
        return int(tokens)
    return 8192 if cells.is_since("2024-07") else 4096 if cells.is_since("2023-07") else 2048


def _encoded(cells: Cells, shape: ModelShape) -> int:
    """Tokens of an encoder's samples.

    Tasks' examples are padded to 128 (`max_seq_length` of transformers' run_glue).  BERT is
    trained on 128 tokens in its first phase, on all that it knows in its second (Devlin et al.
    2019, A.2), of which no more than some tens of samples are one micro-batch, and no more than
    the chip holds: its examples compute nothing again.
    """
    phase = re.search(r"\bph(?:ase)?[ _-]*([12])\b", cells.text_of("model", "kind"))
    samples = cells.whole("micro_batch", 1)
    is_short = samples >= _SHORT_ONES or samples * _of_sample(cells, shape, 512) > 1.0
    is_short = phase[1] == "1" if phase else is_short
    return 128 if cells.is_tuning or is_short else 2048


def _of_sample(cells: Cells, shape: ModelShape, tokens: int) -> float:
    """Share of the chip's memory that a sample's activations take (Korthikanti et al. 2022, eq. 2).

    Scores are none of them where the chip fuses attention; in fp32 all have twice the bytes.
    """
    chip = chip_of(cells)
    scores = 0 if fuses_attention(chip) else 5 * shape.attention.num_heads * tokens
    width = 2 if re.search(r"fp-?32|float32|tf-?32", cells.word("precision")) else 1
    held = width * shape.num_layers * tokens * (34 * shape.hidden + scores)
    return held / chip.memory.size if chip.memory.size else 0.0


_SHORT_ONES = 96
"""Samples of a micro-batch from which on they are the first phase's: examples of NVIDIA, Huawei and
Habana have 8 to 64 of the second's."""


def longest(cells: Cells, seq: int) -> int:
    """Tokens of the longest batch, where ``seq`` is what examples have on average; 0: it is not.

    Lengths that are set are round; an average is not.  Memory is the longest batch's.
    """
    if cells.is_tuning and not cells["seq"] and seq < _BENCHMARKED:
        return 0 if cells.program.batches.tuning_length else max(seq, _CUT)
    is_mean = cells.is_tuning and seq % 8 and seq > 32
    return -(-round(_LONGEST * seq) // 64) * 64 if is_mean else 0


def mean_of(cells: Cells, shape: ModelShape) -> int:
    """Tokens of an average sample, as stated or of BERT without padding; 0: all are as long.

    Attention that is written by hand sees the padding, too.
    """
    is_sorted = cells.does(cells.program.batches.sorts_samples) and not cells.program.code.scores
    fills = is_sorted and cells["seq"] == "512"
    of_articles = cells.is_pretraining and shape.family == "bert" and fills
    stated = 0 if batch_tokens(cells) else stated_mean(cells)
    if stated and cells.is_tuning and not _even(cells):  # as long as the longest of a micro-batch
        stated = round(stated * min(cells.whole("micro_batch", 1), 8) ** (1 / 3))
    stated = min(stated, cells.whole("seq", stated))
    return cells.whole("mean_seq", stated or (_OF_ARTICLES if of_articles else 0))


_OF_ARTICLES = 256
"""Tokens of Wikipedia's samples cut at 512: half is padding (Krell et al. 2021, 2107.02027)."""
_CUT = 512
"""Tokens that examples of a task are cut to where nobody says (`model_max_length` of Stanford
Alpaca's train.py, which many scripts took over): memory is the longest's, time the average's."""
_LONGEST = 3.5
"""Of the average, presumed: lengths of instructions and answers are skewed, and one published table
(peft's, memory beside an average length) shows by how much."""


def varies(cells: Cells, layout: Layout, mean_seq: int) -> bool:
    """Whether micro-batches are as long as their examples: of a tuning on torch, if not filled."""
    is_torch = layout.framework in ("huggingface", "deepspeed") and not cells.is_xla
    is_cut = layout.mesh.cp > 1  # what ranks share is longer than they could hold, and cut to that
    return cells.is_tuning and is_torch and not (mean_seq or is_cut or _even(cells))


def _even(cells: Cells) -> bool:
    """Return whether words say that all micro-batches have as many tokens."""
    words = cells.text_of("kind", "framework", "kernel_stack")
    return re.search(r"pack|padding.?free|\bfake|synthetic|dummy|random data", words) is not None


def packed(cells: Cells, shape: ModelShape, seq: int) -> ModelShape:
    """The shape as a training sees it whose sequences are filled with several texts.

    Where no token looks beyond its own text, it looks at half of one on average: in tunings of
    programs that pack so, and wherever words say it.
    """
    words = affirmed(cells.text_of("framework", "kernel_stack"))
    is_packed = cells.is_tuning and cells.program.batches.packs_tuning
    is_apart = is_packed or mentions("apart", words)
    text = _EXAMPLE if cells.is_tuning else _DOCUMENT
    is_plain = shape.causal and not (shape.attention.windows or shape.num_decoder_layers)
    if not (is_apart and is_plain) or seq <= text:
        return shape
    return shape.replace(windows=(text // 2,) * shape.num_layers)


_EXAMPLE, _DOCUMENT = 512, 1024
"""Tokens of an example, at most, and of a text of the web, presumed: FineWeb's have 690 on average
(15 T tokens in 22 G documents, its data card), C4's 420, and long ones count more."""


def usual_samples(cells: Cells) -> int:
    """Samples of a micro-batch, at most, where no batch is stated.

    Of a tuning two: torchtune's recipes, and at most so many LLaMA-Factory's examples; of a BERT's
    32 (Devlin et al. 2019, A.3).  Of other trainings the program's own number.  Examples that
    Megatron packs are one sample at a time (micro_batch_size of Megatron-Bridge's recipes/common).
    """
    if cells.is_tuning and cells.program.batches.packs_tuning:
        return 1
    if cells["global_batch"]:
        return 1 << 10
    tuned = 32 if "bert" in cells.word("model") else 2
    return tuned if cells.is_tuning else cells.program.batches.samples or 1 << 10
