"""The layout that was requested, the one that was observed, and what sets them apart.

An observed layout comes from the facts that a rank read from its live objects (`native.layout_look`
and the drivers): the request is never repeated as a result.  A difference is a fault of the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trainrig.train.config import Experiment
from trainrig.train.trainer_arguments import parsed
from trainrig.workload import ModelShape, find
from trainrig.workload.exchanges import Exchange, Place, StageParts, exchanges
from trainrig.workload.model import FP8_RECIPES
from trainrig.workload.rank_layout import RANK_KEYS, REQUESTED, RankLayout
from trainrig.workload.span_corruption import written_tokens

_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
_SHARE = 0.75
"""A rank that holds less than this share of something does not hold it all."""
_OPTIMIZERS = {
    "adamw": ("AdamW", False),
    "adamw-fused": ("AdamW", True),
    "adamw-8bit": ("AdamW8bit", False),
    "sgd": ("SGD", False),
    "adafactor": ("Adafactor", False),
}


def requested_layout(experiment: Experiment) -> RankLayout:
    """Return the layout that an experiment asks for; None in it: it asks for nothing."""
    optimizer, fused = _OPTIMIZERS[experiment.optimizer]
    layout, mesh = experiment.layout, experiment.mesh
    cp = int(layout.mesh.cp)
    shards = (experiment.shard_size or mesh.dp) * cp if experiment.zero else 1
    sequence = mesh.tp if layout.mesh.sequence_parallel else 1
    on_gpu = experiment.device.startswith("cuda")
    named = "optim" in parsed(experiment.kernels.trainer)
    # "auto" asks for nothing, and what is compiled is not seen.
    seen = experiment.kernels.attention != "auto" and not experiment.compile
    return RANK_KEYS.make(
        wrapped="",
        ranks=mesh.ranks,
        tp=mesh.tp,
        sequence_parallel=bool(layout.mesh.sequence_parallel) if mesh.tp > 1 else None,
        pp=mesh.pp,
        interleave=int(layout.pipeline.interleave),
        cp=cp,
        ep=int(layout.mesh.ep),
        zero=experiment.zero,
        shard_ranks=None if mesh.ep > 1 else shards,
        grad_accum=experiment.grad_accum,
        micro_tokens=experiment.batch_size * experiment.seq_len // (cp * sequence),
        precision=experiment.precision,
        fp8_recipe=(experiment.kernels.fp8_recipe or FP8_RECIPES[0])
        if experiment.precision == "fp8"
        else None,
        gradient_precision="fp32",
        master_precision="fp32",
        recompute=experiment.recompute,
        optimizer=None if named else optimizer,
        fused_optimizer=None if named or layout.traits.models.own_kernels else fused,
        compile=experiment.compile,
        # A processor's shards lie in the host's memory anyhow.
        offload=experiment.offload == "host" if on_gpu else None,
        device=experiment.device or "cpu",
        attention=experiment.kernels.attention if seen else None,
        liger=True if experiment.kernels.liger else None,
        loader_workers=experiment.placement.loader_workers or None,
        lora_rank=experiment.lora_rank or None,
    )


_ALWAYS_READ = ("num_parameters", "optimizer", "placements", "threads", "transport", "wrapped")
_READ = (
    *("micro_tokens", "attention", "attention_kernel", "loader_workers", "lora_rank", "tf32"),
    *("p2p", "pinned", "allocator", "cores"),
)
"""Facts of a layout that stand in it as they were read; not every engine reads all of them."""


def observed_layout(facts: Mapping[str, Any]) -> RankLayout:
    """Return the layout of a rank from the facts that it read."""
    exchanges = None
    if facts.get("exchanges") is not None:
        exchanges = tuple(Exchange(**exchange) for exchange in facts["exchanges"])
    counted = exchanges or ()
    split, copied = facts.get("split", {}), facts.get("copied", {})
    local_elements = facts["states"] if facts["moments"] else facts["masters"]
    whole = facts.get("num_parameters_here") or facts["num_parameters"]
    summed = facts.get("reduce_dtype") or _dtypes(_reduced(counted)) or facts.get("gradient_dtype")
    collectives = facts.get("gradient_collectives")
    if collectives is None and exchanges is not None:
        collectives = sum(exchange.count for exchange in _reduced(counted))
    sizes = facts.get("axes", {})
    tp, device = split.get("tp"), facts["device"].split(":")[0]
    # Sums of activations are scattered along the sequence.
    scattered = any(exchange.operation == "reduce_scatter" for exchange in _on(counted, "tp"))
    on_host = device == "cpu" or "master_device" not in facts
    as_read: dict[str, Any] = {name: facts[name] for name in _ALWAYS_READ}
    as_read |= {name: facts.get(name) for name in _READ}
    return RANK_KEYS.make(
        **as_read,
        ranks=_ranks(facts, local_elements >= _SHARE * whole, collectives, counted),
        zero=_zero(facts, local_elements, whole, counted),
        shard_ranks=round(whole / local_elements) if local_elements else 1,
        grad_accum=facts["micro_batches"],
        precision=_precision(facts),
        fp8_recipe=(facts.get("float8") or {}).get("recipe"),
        gradient_precision=_word(summed),
        master_precision=_word(facts["master_dtype"]),
        recompute=_recompute(facts),
        fused_optimizer=facts["fused"],
        liger=None if facts.get("liger") is None else bool(facts["liger"]),
        kernels=", ".join(facts.get("liger") or ()) or None,
        compile=facts["compiled"],
        offload=facts.get("offloaded") if on_host else facts["master_device"] == "cpu",
        device=device,
        held_weights=facts["weights"] / whole,
        held_weights_in_backward=facts["weights_between"] / whole,
        held_gradients=facts["gradients"] / whole,
        held_states=local_elements / whole,
        state_precision=_word(facts["state_dtype"]),
        gradient_collectives=collectives,
        exchanges=exchanges,
        tp=tp,
        sequence_parallel=scattered if (tp or 1) > 1 else None,
        pp=sizes.get("pp", 1) if exchanges is not None else None,
        interleave=facts.get("stages"),
        cp=(sizes.get("cp", 1) if _on(counted, "cp") else 1) if exchanges is not None else None,
        ep=sizes.get("ep", 1) if exchanges is not None else None,
        replicas=copied.get("dp_replicate"),
    )


def _precision(facts: Mapping[str, Any]) -> str:
    """Return the precision of products; TF32 for fp32 is a setting of the process."""
    word, float8 = _word(facts["weight_dtype"]) or "", facts.get("float8")
    if float8 and facts.get("float8_products"):
        where = (
            "" if float8["layers"] == float8["matrices"] else " in {layers} of {matrices} matrices"
        )
        return "fp8" + where.format_map(float8) + (" (emulated)" if float8["emulated"] else "")
    return "tf32" if word == "fp32" and facts.get("tf32") else word


def _word(dtype: Any) -> str | None:
    return None if dtype is None else _DTYPES.get(str(dtype), str(dtype))


def _on(exchanges: Sequence[Exchange], *axes: str) -> list[Exchange]:
    return [exchange for exchange in exchanges if exchange.axis in axes]


def _reduced(exchanges: Sequence[Exchange]) -> list[Exchange]:
    """Return the exchanges that reduce gradients over data-parallel ranks."""
    return [
        exchange
        for exchange in exchanges
        if exchange.axis.startswith("dp") and exchange.operation in ("all_reduce", "reduce_scatter")
    ]


def _dtypes(exchanges: Sequence[Exchange]) -> str | None:
    return ", ".join(sorted({exchange.dtype for exchange in exchanges})) or None


def _recompute(facts: Mapping[str, Any]) -> str | None:
    again = facts.get("products_again")
    forwards = facts["block_forwards"] >= 2 * facts["micro_batches"]
    if again is None:  # a driver's: its frameworks know one kind
        return "full" if forwards else "none"
    if again >= 0.5:
        return "full"
    if forwards:
        return "selective"
    if not facts["compiled"]:
        return "none"
    # No product is run again, and what else is cannot be seen from outside of compiled code: the
    # blocks say what they are wrapped in.  Full recomputation that repeats no product is none.
    wrapped = facts.get("wrapped_policy")
    return "none" if wrapped == "full" else wrapped


def _ranks(
    facts: Mapping[str, Any], whole: bool, collectives: int | None, exchanges: Sequence[Exchange]
) -> int:
    """Ranks that train one model: those that exchange nothing and share nothing are alone."""
    silent = facts["transport"] is not None and collectives == 0 and not exchanges
    return 1 if silent and whole else int(facts["ranks"])


def _zero(
    facts: Mapping[str, Any], local_elements: int, whole: int, exchanges: Sequence[Exchange]
) -> int:
    """Return the ZeRO stage that a rank's shares of states, gradients and weights show.

    Under stage 3 some weights are not there between forward and backward; embedding and head are.
    FSDP2 shares gradients under stage 1 too, but reduces them once a step: with one micro-batch
    stages 1 and 2 are the same program, called 2.
    """
    if facts["ranks"] == 1 or local_elements >= _SHARE * whole:
        return 0
    if facts["gradients"] >= _SHARE * whole:
        return 1
    if facts["weights_between"] < whole:
        return 3
    scattered = sum(e.count for e in _reduced(exchanges) if e.operation == "reduce_scatter")
    once = scattered == facts.get("units") and facts["micro_batches"] > 1
    return 1 if once else 2


def differences(requested: RankLayout, found: RankLayout) -> list[str]:
    """Return what was requested and is not there, each with both values."""
    differing = []
    for name in REQUESTED:
        ask, have = RANK_KEYS.get(requested, name), RANK_KEYS.get(found, name)
        if ask is None or have is None or ask == have:
            continue
        if name == "zero" and (ask, have, requested.batch.grad_accum) == (1, 2, 1):
            continue  # the same program
        differing.append(f"{name}: asked {ask}, found {have} ({found.wrapped})")
    return differing


def expected_exchanges(
    experiment: Experiment, facts: Mapping[str, Any], shape: ModelShape | None = None
) -> tuple[Exchange, ...] | None:
    """Return a rank's exchanges by the formula; None for layouts that it doesn't cover.

    Which stages a rank has, and where on the mesh it is, is what it found.
    """
    if not facts.get("mesh_axes") or experiment.mesh.ranks == 1:
        return None
    shape = shape or find(experiment.model)
    here = sorted(facts["stages_here"], key=lambda stage: stage["from"])
    ends = {stage["from"] + stage["blocks"] for stage in here}
    begins = {stage["from"] for stage in here}
    stages = [
        StageParts(
            blocks=stage["blocks"],
            decoder_blocks=stage["decoder_blocks"],
            first=stage["first"],
            last=stage["last"],
            next_is_here=not stage["last"] and stage["from"] + stage["blocks"] in begins,
            previous_is_here=not stage["first"] and stage["from"] in ends,
        )
        for stage in here
    ]
    place = Place(**{name: facts["place"].get(name, 0) for name in ("tp", "dp_shard")})
    rows, routed = facts.get("chunk_rows") or 1, facts.get("routed_rows")
    return exchanges(
        shape,
        experiment.layout.replace(target_seq_len=written_tokens(shape, experiment.seq_len)),
        stages,
        place=place,
        chunk_rows=rows,
        routed=(routed[0], routed[1]) if routed else None,
    )


def exchange_differences(
    expected: Sequence[Exchange], found: Sequence[Exchange] | None
) -> list[str]:
    """Collectives and messages that a step had to have, and those that it had."""
    if found is None:
        return []
    want, have = ({(e.operation, e.axis, e.dtype): e for e in part} for part in (expected, found))
    differing = []
    for key in sorted({*want, *have}):
        if want.get(key) != have.get(key):
            sides = (
                f"{part[key].count} of {part[key].num_bytes} B" if key in part else "none"
                for part in (want, have)
            )
            operation, axis, dtype = key
            ask, got = sides
            differing.append(f"{operation} over {axis} in {dtype}: formula {ask}, found {got}")
    return differing
