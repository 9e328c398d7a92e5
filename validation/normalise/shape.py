"""Which model a row of a table means: by its name, its numbers, or its number of parameters.

The architecture is the one that the model's name says (it is what is run); otherwise the one that
the numbers say: a feed-forward width near 8/3 of the hidden is a gated Llama; fewer heads of keys
than heads is a Llama, gated unless its width is 4·hidden; the rest is a GPT.  Where the number of
parameters is printed, it decides whether the feed-forward net is gated and the head tied.  A model
that is known by its name lends what the row leaves blank; one of which nothing but the number of
parameters is known is a Llama of about as many.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from trainrig.errors import UsageError
from trainrig.workload.arrays import divisors
from trainrig.workload.model import SHAPE_KEYS, ModelShape, parameters
from trainrig.workload.model_lookup import of_size, spelled
from trainrig.workload.presets import custom
from validation.normalise.cells import Cells, meanings, means, mentions
from validation.normalise.training_programs import affirmed


@lru_cache(maxsize=1024)
def _usual_heads(hidden: int, tp: int) -> int:
    """Where heads are not stated: a number that tensor parallel divides, each about 64 wide."""
    fitting = [tp * n for n in divisors(hidden // tp)] if hidden % tp == 0 else []
    aligned = [n for n in fitting if hidden // n % 8 == 0] or fitting or [1]
    return min(aligned, key=lambda n: abs(hidden / n - 64))


_MIXTURE = {
    "num_experts": "num_experts",
    "experts_per_token": "topk",
    "expert_ffn": "moe_ffn",
    "shared_experts": "shared_experts",
    "dense_layers": "first_dense_layers",
}
"""Numbers of a mixture of experts and the columns that state them."""
_MAY_BE_NONE = ("shared_experts", "dense_layers")
"""Of which a mixture may have none: a zero says so."""
_PLAIN = {
    "num_layers": "layers",
    "hidden": "hidden",
    "num_heads": "heads",
    "num_kv_heads": "kv_heads",
    "ffn": "ffn",
    "vocab": "vocab",
}
"""Numbers of any model, and theirs."""
_COLUMNS = (*_MIXTURE.values(), *_PLAIN.values(), "model", "params_b", "seq", "tp", "ep")
"""All that a shape depends on."""


def _mixture_of(cells: Cells) -> dict[str, int]:
    """Return what a row states of its mixture of experts: nothing of a dense model."""
    mixture = {field: cells.whole(name, 0) for field, name in _MIXTURE.items() if cells[name]}
    if mixture.get("num_experts", 0) <= 1 and (cells["num_experts"] or _is_dense(cells)):
        return {}
    mixture = {field: n for field, n in mixture.items() if n or field in _MAY_BE_NONE}
    words = set(re.split("[^a-z]+", cells.word("model")))
    if several := _SEVERAL.search(cells.word("model")) or _EXPERTS.search(cells.word("model")):
        mixture = {"num_experts": int(several[1])} | mixture
    is_named = words & {"moe", "dmoe", "mixtral", "experts", "switch"}
    if any(mixture.values()) or is_named or _active_of(cells) or _is_spread(cells):
        if _EVERY_SECOND.search(cells.word("model")) and cells["layers"]:
            mixture = {"dense_layers": cells.whole("layers") // 2} | mixture
        return {"num_experts": 0} | mixture
    return {}


_EVERY_SECOND = re.compile(
    r"(?:every|each) (?:second|other|2nd|two|2)(?: \w+)? (?:layer|block)s?\b"
)
"""Experts in half of the layers, as in GShard: which ones, a step's work does not depend on."""


def _is_dense(cells: Cells) -> bool:
    """Say whether the model's words say that it has no experts: ``Llama 4 dense``, ``no MoE``."""
    word = cells.word("model")
    if _NAMED.search(affirmed(word)):
        return False  # "dense" are some of its layers
    return bool(_NAMED.search(word) or re.search(r"\bdense\b", word))


_NAMED = re.compile(r"moe\b|\bexperts?\b|\bmixtral\b")


def _is_spread(cells: Cells) -> bool:
    """Return whether devices share experts, of a model that is not known as one without."""
    known = spelled(cells["model"])
    return cells.whole("ep", 1) > 1 and (known is None or bool(known.moe.num_experts))


_ACTIVE = re.compile(r"(\d+(?:\.\d+)?)b[-_ ]*a(\d+(?:\.\d+)?)([bm])")
"""``30B-A3B``: parameters in all, and those that a token meets."""
_EXPERTS = re.compile(r"\b(\d{1,4})[- _]?e(?:xperts?)?\b")
"""``2B-8E``, ``1.3B + 64 experts``."""
_SEVERAL = re.compile(r"\b(\d{1,3})[x*×](\d+(?:\.\d+)?)([bm])")
"""``8x7B``: experts, each in a model of that size."""


def _active_of(cells: Cells) -> float:
    """Parameters that a token meets, by a mixture's name; 0: it does not say."""
    match = _ACTIVE.search(cells.word("model"))
    return float(match[2]) * {"b": 1e9, "m": 1e6}[match[3]] if match else 0.0


def _published(cells: Cells, mixture: Mapping[str, int]) -> ModelShape | None:
    """A model that is known by its name, with those of its numbers that a row states.

    None where no name is known, or the row's numbers are another model's.
    """
    shape = spelled(cells["model"])
    if shape is None or (mixture and not shape.moe.num_experts):
        return None
    stated: dict[str, Any] = {f: cells.whole(name) for f, name in _PLAIN.items() if cells[name]}
    stated |= {f: number for f, number in mixture.items() if number or f in _MAY_BE_NONE}
    if shape.state.width:  # heads and nets are those of some layers, which it counts one by one
        for field in ("num_heads", "num_kv_heads", "ffn"):
            stated.pop(field, None)
        if "num_layers" in stated:
            stated["num_layers"] = min(stated["num_layers"], shape.num_layers)
    leaves_open = not (cells["layers"] and cells["hidden"]) or (
        bool(mixture) and not mixture["num_experts"]
    )
    if stated.get("hidden", shape.hidden) != shape.hidden:
        if not leaves_open:
            return None
        raise UsageError(f"hidden = {stated['hidden']}: {shape.name} has {shape.hidden}")
    is_other = any(
        field in stated and stated[field] != SHAPE_KEYS.get(shape, field)
        for field in ("num_heads", "ffn", "num_kv_heads")
    )
    if not leaves_open and (
        is_other or (shape.family != "llama" and not shape.attention.memory_segments)
    ):
        return None
    layers = stated.get("num_layers", shape.num_layers)
    every = shape.attention.windows or (0,)
    windows = (
        tuple(every[at % len(every)] for at in range(layers)) if shape.attention.windows else ()
    )
    dense = min(shape.moe.dense_layers, layers - 1)
    heads, keys = stated.get("num_heads", shape.attention.num_heads), stated.get("num_kv_heads")
    if (
        keys is None and heads % shape.attention.num_kv_heads
    ):  # as many as there are, or that share evenly
        is_plain = shape.attention.num_kv_heads == shape.attention.num_heads
        stated["num_kv_heads"] = (
            heads if is_plain else math.gcd(heads, shape.attention.num_kv_heads)
        )
    if shape.num_decoder_layers:
        stated["num_decoder_layers"] = shape.num_decoder_layers * layers // shape.num_layers
    known = shape.replace(**({"windows": windows, "dense_layers": dense} | stated))
    is_right = leaves_open or not cells["params_b"] or _is_number_of(cells, known)
    return known if is_right else None


def _is_number_of(cells: Cells, shape: ModelShape) -> bool:
    """Return whether the printed number of parameters is the shape's."""
    return abs(math.log(parameters(shape).total / _printed(cells))) < _MOST_APART


def _printed(cells: Cells) -> float:
    """Parameters as printed."""
    printed = cells.number("params_b") * 1e9
    if not 1e3 < printed < 1e16:
        raise UsageError(f"params_b = {cells['params_b'][:40]}: billions of parameters")
    return printed


def shape_of(cells: Cells) -> ModelShape:
    """The shape of a row.  UsageError where numbers are missing or contradict."""
    shape, presumed = _shape_of(tuple(cells[name] for name in _COLUMNS))
    cells.presume(*presumed)
    is_sparse = means("attends", cells.word("model")) == "sparse"
    if is_sparse and not mentions("selects", cells.text_of("kernel_stack")):
        shape = shape.replace(windows=())
    words = cells.text_of("model", "framework", "kernel_stack")
    if shape.attention.windows or shape.num_decoder_layers:
        return shape
    if window := _WINDOW.search(words):
        width = int(window[1])
    elif _SLIDES.search(affirmed(words)):
        cells.presume("model")
        width = _USUAL_WINDOW
    else:
        return shape
    near = int(ratio[1]) + 1 if (ratio := _OF_LAYERS.search(words)) else shape.num_layers + 1
    windows = (width * ((at + 1) % near > 0) for at in range(shape.num_layers))
    return shape.replace(windows=tuple(windows))


_WINDOW = re.compile(r"\bwindow(?: size)?(?: of)?[ =:]*(\d{2,6})\b")
_SLIDES = re.compile(r"\b(?:sliding|local)[- ](?:window|attention)|\bswa\b")
_USUAL_WINDOW = 1024
"""Tokens of a window whose width nobody states: Gemma 3's; gpt-oss has 128, Mistral 4096."""
_OF_LAYERS = re.compile(r"\b(\d{1,2}):1\b")
"""Of so many layers with a stated window one looks at everything; else all have it."""


@lru_cache(maxsize=1 << 14)
def _shape_of(row: tuple[str, ...]) -> tuple[ModelShape, tuple[str, ...]]:
    """The shape, and which cells a default stands for: tables have many rows of one model."""
    stated = dict(zip(_COLUMNS, row, strict=True))
    named = _numbers_of(stated["model"].lower())
    cells = Cells(stated | {name: n for name, n in named.items() if not stated[name]})
    return _read_shape(cells), cells.presumed


def _numbers_of(model: str) -> dict[str, str]:
    """Numbers in the model's cell, in small letters: ``gpt (24 layers, hidden 1024)``."""
    matches = ((name, pattern.search(model)) for name, pattern in _NUMBERS)
    return vision_numbers(model) | {name: match[1] for name, match in matches if match}


_NUMBERS = (
    ("layers", re.compile(r"(?<![\d.+-])(\d{1,3})[- ]?layers?\b(?! of)")),
    ("layers", re.compile(r"\b(\d{1,2})e\1d\b")),  # so many of an encoder, as many of a decoder
    ("hidden", re.compile(r"\b(?:hidden(?: size)?|d_model|width)[ =:]*(\d{3,5})\b")),
    ("heads", re.compile(r"(?<![\d.])(\d{1,3})[- ]?heads\b")),
)


def _read_shape(cells: Cells) -> ModelShape:
    shape = _read_transformer(cells)
    if (
        "transformer-xl" in cells.word("model")
        and shape.family == "gpt2"
        and not shape.attention.memory_segments
    ):
        shape = shape.replace(memory=1)
    attends = means("attends", cells.word("model"))
    if attends == "sparse":  # its index of all that is before is not modelled
        cells.presume("model")
    if attends == "states":  # what their kernels take is presumed
        cells.presume("layers")
    if attends != "recurrent" or shape.family != "llama" or shape.attention.windows:
        return shape
    cells.presume("model")
    every = (*[_NEAR] * (_ONE_OF - 1), 0)
    windows = tuple(every[at % _ONE_OF] for at in range(shape.num_layers))
    return shape.replace(windows=windows)


_ONE_OF, _NEAR = 8, 128
"""Of a recurrent model one layer in so many attends to everything (Jamba's of 8, Evo 2's 5 of 32,
Nemotron-H's of 12); the others count as a window of so many tokens."""


def _read_transformer(cells: Cells) -> ModelShape:
    mixture = _mixture_of(cells)
    if (known := _published(cells, mixture)) is not None:
        return known
    if (part := _part_of(cells, mixture)) is not None:
        return part
    if mixture:
        mixture = _completed(cells, mixture)
    if not (cells["layers"] and cells["hidden"]):
        return _mixture_of_parameters(cells, mixture) if mixture else _of_parameters(cells)
    hidden = cells.whole("hidden")
    heads = cells.whole("heads", _usual_heads(hidden, cells.whole("tp", 1)))
    kv_heads, ffn = cells.whole("kv_heads", heads), cells.whole("ffn", 0)
    if heads % kv_heads:
        cells.presume("heads")
        kv_heads = math.gcd(heads, kv_heads)
    word = cells.word("model")
    if is_vision(word):
        word = "bert"
    is_gated = 2.2 < ffn / hidden < 3.9 or (kv_heads != heads and ffn != 4 * hidden)
    is_gated = is_gated or 4.1 < ffn / hidden < 7.0
    stated = means("family", word)
    if is_gated and re.search(r"(?<=[a-z])gpt", word):
        stated = None  # AuroraGPT's are Llamas: a GPT's net is four times as wide as the model
    family = stated or ("llama" if is_gated else "gpt2")
    sizes = {"num_heads": heads, "ffn": ffn, "vocab": cells.whole("vocab", 0)}
    numbers: dict[str, Any] = {"num_layers": cells.whole("layers"), "hidden": hidden}
    numbers |= {field: size for field, size in sizes.items() if size}
    usual = 512 if family == "bert" else 1024 if re.search(r"gpt-?2(?!\d)", word) else 2048
    longest = max(cells.whole("seq", usual), 512)
    numbers |= {"name": cells["model"] or None, "max_positions": longest}
    if hidden % heads or (hidden // heads % 2 and family == "llama"):
        # Such models state how wide heads are: the usual width next to their share.
        apart = {size: abs(math.log(size * heads / hidden)) for size in (64, 96, 128, 256)}
        numbers["head_dim"] = min(apart, key=apart.__getitem__)
        family = "llama" if family == "gpt2" else family
        cells.presume("heads")
    if mixture:
        return _of_total(cells, numbers | mixture | {"num_kv_heads": kv_heads})
    return _dense(cells, family, is_stated=stated is not None, kv_heads=kv_heads, numbers=numbers)


def _dense(
    cells: Cells, family: str, *, is_stated: bool, kv_heads: int, numbers: dict[str, Any]
) -> ModelShape:
    """A model without experts: gated and tied as the number of parameters says, or as is usual."""
    if family == "t5":  # layers of each stack, or of both together, and T5 1.1's are gated
        num_layers = numbers["num_layers"]
        nets: list[dict[str, Any]] = [{}]
        nets += [{"gated_ffn": True, "activation": "gelu_tanh", "tied": False}]
        depths = [
            {"num_layers": n, "num_decoder_layers": n}
            for n in (num_layers, max(1, num_layers // 2))
        ]
        shapes = [custom(family, **numbers | both | net) for both in depths for net in nets]
        return _nearest(shapes, cells)
    if family == "bert":
        return custom(family, **numbers)
    shared: dict[str, Any] = {"num_kv_heads": kv_heads}
    is_tanh = any(word in cells.word("model") for word in _TANH)
    plain: dict[str, Any] = {"activation": "gelu_tanh" if is_tanh else "gelu"}
    gated, ungated = ("llama", shared), ("llama", shared | {"gated_ffn": False} | plain)
    if family == "llama":
        ways = [gated] if is_stated else [gated, ungated]
    else:  # a GPT whose heads share keys is told by the numbers alone
        ways = [("gpt2", plain) if kv_heads == numbers["num_heads"] else ungated]
        ways += [] if is_stated else [gated]
    tied = [{}, {"tied": True}, {"tied": False}]
    if not cells["params_b"]:
        ways, tied = ways[:1], tied[:1]
    shapes = [custom(kind, **numbers | more | end) for end in tied for kind, more in ways]
    return _with_vocabulary(_nearest(shapes, cells), cells)


def _with_vocabulary(shape: ModelShape, cells: Cells) -> ModelShape:
    """The shape with the words that its parameters have room for, where nobody says how many.

    Of stated layers, width and net: what else there is in the printed number, or the name's.
    """
    if cells["vocab"] or not (
        cells["ffn"] and (cells["params_b"] or _SIZED.search(cells["model"]))
    ):
        return shape
    wanted, counted = _wanted(cells), parameters(shape).total
    tables = 1 if shape.head.tied else 2
    vocab = 64 * round((shape.vocab + (wanted - counted) / (tables * shape.hidden)) / 64)
    is_off = abs(math.log(counted / wanted)) > _MOST_APART
    return shape.replace(vocab=vocab) if is_off and vocab in _WORDS else shape


_WORDS = range(16_000, 270_000)
"""Entries of vocabularies: from BERT's to Gemma's."""


def _nearest(shapes: Sequence[ModelShape], cells: Cells) -> ModelShape:
    """The usual one (the first), unless another has the number of parameters that is printed."""
    if not cells["params_b"]:
        return shapes[0]
    printed = _printed(cells)
    off = [abs(math.log(parameters(shape).total / printed)) for shape in shapes]
    best = min(range(len(shapes)), key=off.__getitem__)
    if off[best] > _MOST_APART:
        cells.presume("params_b")
    return shapes[0] if off[0] < off[best] + _ROUNDED else shapes[best]


_ROUNDED = 0.02
"""Parameters are printed rounded: what fits no worse than this is as good (natural logarithm)."""
_MOST_APART = 0.1
"""Beyond it, the printed number and the shape contradict each other."""


def _of_parameters(cells: Cells) -> ModelShape:
    """A Llama with as many parameters as are printed, or as the name ends with.

    Raises UsageError where neither says how many.
    """
    shape = of_size(_wanted(cells), cells["model"] or "a model")
    return shape.replace(max_positions=max(cells.whole("seq", 4096), 512))


def _part_of(cells: Cells, mixture: Mapping[str, int]) -> ModelShape | None:
    """The stated layers, and experts, of a larger model whose size is named; None: it is whole.

    Told by layers that are far fewer than a model of that size has, where no width is stated.
    """
    layers = cells.whole("layers", 0)
    if not layers or cells["hidden"] or not (cells["params_b"] or _SIZED.search(cells["model"])):
        return None
    if mixture:
        whole = _mixture_of_parameters(cells, _completed(cells, {**mixture, "num_experts": 0}))
    else:
        whole = _of_parameters(cells)
    if layers >= _PART * whole.num_layers:
        return None
    num = mixture.get("num_experts") or whole.moe.num_experts
    chosen = min(whole.moe.experts_per_token, num)
    whole = whole.replace(num_experts=num, experts_per_token=chosen)
    return whole.replace(num_layers=layers)


_PART = 0.6
_SIZED = re.compile(r"\d\s*[bmt](?![a-z0-9])", re.IGNORECASE)


def _wanted(cells: Cells) -> float:
    """Parameters as printed, or as the name ends with, where numbers are lacking."""
    lacking = next((name for name in ("layers", "hidden") if not cells[name]), "params_b")
    if lacking != "params_b":
        cells.presume("layers")
    if cells["params_b"]:
        wanted = cells.number("params_b") * 1e9
    elif match := re.search(r"(\d+(?:\.\d+)?)\s*([bmt])(?![a-z0-9])", cells.word("model")):
        wanted = float(match[1]) * {"t": 1e12, "b": 1e9, "m": 1e6}[match[2]]
    else:
        if not cells["model"]:
            raise UsageError(f"{lacking}: not stated")
        raise UsageError(f"{lacking}: not stated, and the name of the model does not say")
    if not 1e6 < wanted < 1e14:
        raise UsageError(f"{lacking}: not stated, nor a number of parameters that is one")
    return wanted


def _completed(cells: Cells, mixture: Mapping[str, int]) -> dict[str, int]:
    """A mixture with its experts, stated or presumed.

    Mixtral's 2 of 8 where the name says no more, 8 of 128 where more devices than that share them
    (Qwen 3, GLM 4.5).  Where it says what a token meets: 8 of as many, a power of two, as make
    experts six tenths of that (128 of Qwen3-30B-A3B, 256 of DeepSeek-V3).
    """
    active, is_wide = _active_of(cells), cells.whole("ep", 1) > 8
    num = 128 if is_wide else 8
    chosen = mixture.get("experts_per_token", 8 if active or is_wide else 2)
    if active and not mixture["num_experts"]:
        num = chosen * (1.0 + (_wanted(cells) / active - 1.0) / 0.6)  # type: ignore[assignment]
        num = 1 << max(1, round(math.log2(max(num, 2))))
    if not mixture["num_experts"]:
        cells.presume("num_experts")
    num = mixture["num_experts"] or max(num, 4 * chosen)
    return {**mixture, "num_experts": num, "experts_per_token": min(chosen, num)}


def _of_total(cells: Cells, numbers: dict[str, Any]) -> ModelShape:
    """A mixture of stated layers; experts of no stated width have what the printed number leaves.

    A net's usual width (`custom`) where no number is printed either, or where the number is that of
    the dense model whose nets became experts ("410m, 8 experts").
    """
    shape = custom("llama", **numbers)
    if not cells["params_b"] or _is_number_of(cells, shape):
        return shape
    plain = custom("llama", **(numbers | {"gated_ffn": False}))
    if _is_number_of(cells, plain):  # nets of two matrices, as before Mixtral
        return plain
    if cells["moe_ffn"]:
        return shape
    none: dict[str, Any] = {
        "num_experts": 0,
        "experts_per_token": 0,
        "shared_experts": 0,
        "dense_layers": 0,
    }
    if _is_number_of(cells, shape.replace(**none)):
        return shape
    width = shape.expert_width
    thin = shape.replace(expert_ffn=1)
    per_width = (parameters(shape.replace(expert_ffn=2)).total - parameters(thin).total) or 1
    found = 1 + (_printed(cells) - parameters(thin).total) / per_width
    cells.presume("ffn")
    near = 64 * max(1, round(found / 64)) if width / 16 < found < width * 16 else width
    return shape.replace(expert_ffn=near)


def _mixture_of_parameters(cells: Cells, mixture: dict[str, int]) -> ModelShape:
    """A mixture with as many parameters as are printed, of as many active ones as its name says.

    Of published ones, those of sixteen experts and fewer are 128 times as wide as they have layers
    and a token's experts together seven times as wide as the model (Mixtral, DBRX), the others 64
    and three times (Qwen 3, GLM 4.5, DeepSeek); there is one head of keys for every eighth.
    """
    total, name = _wanted(cells), cells["model"] or "a mixture"
    if several := _SEVERAL.search(cells.word("model")):  # each expert is in a model of that size
        dense = of_size(float(several[2]) * {"b": 1e9, "m": 1e6}[several[3]], name)
        return dense.replace(**mixture)
    num, chosen, active = mixture["num_experts"], mixture["experts_per_token"], _active_of(cells)
    flat, wide = (128, 7.0) if num <= 16 else (64, 3.0)

    def of_width(hidden: int) -> ModelShape:
        layers, heads = max(4, hidden // flat), hidden // 128
        width = wide * hidden / (chosen + mixture.get("shared_experts", 0))
        if active and num > chosen:
            width = (total - active) / (3.0 * hidden * layers * (num - chosen))
        sizes = {"num_layers": layers, "hidden": hidden, "num_heads": heads}
        sizes["num_kv_heads"] = next(n for n in range(max(1, heads // 8), 0, -1) if heads % n == 0)
        sizes |= {"vocab": cells.whole("vocab", 128256), "expert_ffn": 64 * round(width / 64) or 64}
        return custom("llama", name=name, **(sizes | mixture))

    def off(shape: ModelShape) -> float:
        found = parameters(shape).total
        idle = shape.num_layers * 3.0 * shape.hidden * shape.expert_width * (num - chosen)
        met = abs(math.log(max(found - idle, 1.0) / active)) if active else 0.0
        return abs(math.log(found / total)) + met

    shape = min(map(of_width, range(512, 16384, 256)), key=off)
    return shape.replace(max_positions=max(cells.whole("seq", 4096), 512))


_TANH = ("gpt-2", "gpt2", "neo")
"""Models whose GELU is the tanh form, which is written out in Python where nothing fuses it."""


_MASKED = 0.16
"""Of a sequence: 20 of 128 tokens, 80 of 512 (max_predictions_per_seq of Google's BERT)."""


def head_share(cells: Cells, family: str) -> float:
    """Share of the tokens that logits are computed for: a fine-tuned encoder has a small head.

    ``masked_share`` is of the tokens that a masked language model is asked for, where its code
    computes no other logits.
    """
    if family != "bert":
        return 1.0
    if cells.is_tuning or is_vision(cells.word("model")):
        return 0.0
    text, program = cells["masked_share"], cells.program
    is_gathered = program.code.masked_logits and not program.code.transformers_models
    try:
        share = float(text) if text else _MASKED if is_gathered else 1.0
    except ValueError:
        share = math.nan
    if not 0.0 < share <= 1.0:
        raise UsageError(f"masked_share = {text[:40]!r}: a share, above 0 and at most 1")
    return share


_VISION = re.compile(r"\b(?:vit|deit3?|beit)(?=[-_ /\d]|$)|vision[ _-]transformer")
_VISION_SIZED = re.compile(
    r"(?:vit|deit3?|beit|transformer)[-_ /]*"
    r"(?:(tiny|small|base|large|huge|giant)|([tsblhg])(?=[-_ /\d]|$))"
)
_PATCH = re.compile(r"(?:patch|/|[-_ ][tsblhg][-_ ]?)([1-9]\d?)(?!\d)")
_IMAGE = re.compile(r"(?<![\d.])([1-9]\d\d)(?!\d| ?(?:m|b|mio|million|params)\b)")


def is_vision(model: str) -> bool:
    """Return whether the words, in small letters, name a transformer of one image's patches."""
    return _VISION.search(model) is not None


def vision_numbers(model: str) -> dict[str, str]:
    """Cells that a vision transformer's name fills: sizes, and a vocabulary of few classes."""
    if not is_vision(model):
        return {}
    match = _VISION_SIZED.search(model)
    letter = match and (match[1] or match[2])[0]
    sizes = next((size for name, size in meanings()["vision"] if name[0] == letter), "")
    numbers = zip(("layers", "hidden", "heads", "ffn"), sizes.split(), strict=False)
    return {"vocab": "1000", **dict(numbers)}


def image_tokens(model: str) -> int:
    """Tokens of an image: its patches, and one for its class; 224 pixels and patches of 16."""
    patch, image = _PATCH.search(model), _IMAGE.search(model)
    side = (int(image[1]) if image else 224) // (int(patch[1]) if patch else 16)
    return side * side + 1
