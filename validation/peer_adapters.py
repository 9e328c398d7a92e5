"""How other predictors are asked for the step of a row: Calculon, llm-analysis, SimuMax.

A peer is imported where it is importable and never shipped.  It is asked by its own Python
interface, with its own system file of the very chip and its own defaults, for the shape and the
layout that `case_of` reads from the row, of sequences as long as they are on average; where its own
validation or examples choose an option, theirs is chosen.  What it cannot express it is not asked
for (`why_not`): a near question would be ours, not its own.  No number of ours enters its files.

Calculon      blocks of Megatron's GPT alone: no embedding, no logits, whole scores; systems of the
              A100 80 GB and H100; activations unfused, as in its validation on Table 5 of
              Korthikanti et al. 2022 (of time that changes nothing); what runs beside computation
              as the layout has it.  Its memory is made large, as in its own "80e" system: the row
              was run, whatever it thinks of that
llm-analysis  FLOPs and bytes at shares of the peaks: 50 % and 90 %, which its README says to assume
              and its LLaMA training examples do; its defaults (1 and 1) are a bound.  No pipeline
              bubble, no exchange of gradients.  A choice of GPUs of NVIDIA and AMD.  Three slips
              of its code are gone around in its favour: weights are waited for though no rank
              shards them, recomputed scores are counted once for each block too often, and of
              several experts a token one is timed (such mixtures are not asked)
SimuMax       operators by measured tables of two machines: A100 PCIe and B200; Megatron with ZeRO 0
              or 1; fused cross-entropy and Transformer Engine 2.11 on the B200, as its release has
              it

What a peer itself refuses (an assertion, an error of its own) is its refusal.
"""

from __future__ import annotations

import importlib
import io
import json
import logging
import re
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from validation.normalise.case import Case


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a peer says of a case."""

    time_s: float
    memory_bytes: float | None = None
    """Of one GPU; None: it says nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """One other predictor."""

    name: str
    column: str
    """Its name in a column's."""
    modules: tuple[str, ...]
    """What is imported, the first its package."""
    systems: Mapping[str, str]
    """Our names of chips, and its own system file or configuration of each."""
    home: tuple[str, ...]
    """Groups of rows that its own validation is made of."""
    why_not: Callable[[Case], str]
    """What of a case it cannot express; empty: nothing."""
    ask: Callable[[Any, str, Case], Answer]
    """Its modules, its system and a case: what it says.  Raises whatever it raises."""

    def answer(self, modules: Any, case: Case) -> Answer | str:
        """Return what it says of a case, or why it says nothing."""
        if case.chip.name not in self.systems:
            return "chip"
        if reason := unlike_all(case) or self.why_not(case):
            return reason
        try:
            with redirect_stdout(io.StringIO()), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return self.ask(modules, self.systems[case.chip.name], case)
        except Exception as error:  # noqa: BLE001 - whatever a peer raises is its refusal
            place = traceback.extract_tb(error.__traceback__)[-1].name
            said = re.split(r"[;,:\n]", re.sub(r"\d+(\.\d+)?", "n", str(error)))[0]
            return f"refused by itself: {said[:80] or type(error).__name__ + ' in ' + place}"


def imported(peer: Peer) -> Any | None:
    """Its modules, by their last names; None where they cannot be imported."""
    try:
        modules = [importlib.import_module(name) for name in peer.modules]
    except ImportError:
        return None
    return dict(zip(peer.modules, modules, strict=True))


def commit_of(modules: Mapping[str, Any]) -> str:
    """The commit that a peer's folder has checked out; "unknown" where it is no checkout."""
    folder = _root(next(iter(modules.values()))) / ".git"
    try:
        head = (folder / "HEAD").read_text(encoding="utf-8").strip()
        name = head.removeprefix("ref: ")
        if name != head and (folder / name).exists():
            return (folder / name).read_text(encoding="utf-8").strip()[:12]
        packed = (folder / "packed-refs").read_text(encoding="utf-8") if name != head else ""
    except OSError:
        return "unknown"
    match = re.search(rf"^(\w+) {re.escape(name)}$", packed, re.MULTILINE)
    return (match[1] if match else head)[:12]


def _root(module: Any) -> Path:
    """The folder that holds a package."""
    return Path(module.__file__).resolve().parent.parent


def unlike_all(case: Case) -> str:
    """Return what of a case none of the peers has a word for; empty: nothing."""
    shape, x = case.shape, case.layout
    windows = [one for one in shape.attention.windows if 0 < one < case.timed.batch.seq_len]
    reasons = {
        "encoder": shape.family in ("bert", "t5"),
        "windows, states or memory": bool(
            windows or shape.state.width or shape.attention.memory_segments
        ),
        "tokens further ahead, an adaptive softmax or narrowed experts": bool(
            shape.head.ahead or shape.head.shortlist or shape.moe.expert_hidden
        ),
        "adapters": x.lora.rank > 0 or x.lora.quantize != "none",
        "offloading": x.memory.offload != "none" or case.moves,
        "optimizer other than Adam": x.memory.optimizer not in ("adamw", "adamw-fused"),
        "logits of some tokens": case.head < 1.0,
        "schedule": x.pipeline.schedule != "1f1b",
        "recomputation of some blocks": x.memory.recomputed_share < 1.0,
        "precision": x.precision.compute not in ("bf16", "fp16"),
    }
    return next((name for name, is_so in reasons.items() if is_so), "")


def _calculon_lacks(case: Case) -> str:
    shape, x = case.shape, case.layout
    reasons = {
        "ZeRO 3": x.sharding.zero == 3,
        "context parallelism": x.mesh.cp > 1,
        "experts": shape.moe.num_experts > 0,
        "gated feed-forward nets": shape.ffn.gated,
        "grouped or latent attention": shape.attention.num_kv_heads
        not in (1, shape.attention.num_heads)
        or shape.latent.kv_rank > 0,
        "flash attention": x.kernels.is_flash,
    }
    return next((name for name, is_so in reasons.items() if is_so), "")


def _ask_calculon(modules: Any, system: str, case: Case) -> Answer:
    shape, x = case.shape, case.timed
    package, llm = modules["calculon"], modules["calculon.llm"]
    tp, pp, dp = int(x.mesh.tp), int(x.mesh.pp), int(x.mesh.dp)
    shares_sequence = tp > 1 and int(x.mesh.sequence_parallel) == 1
    application = {
        "hidden": shape.hidden,
        "feedforward": shape.ffn.width,
        "seq_size": int(x.batch.seq_len),
        "attn_heads": shape.attention.num_heads,
        "attn_size": shape.attention.head_dim,
        "num_blocks": shape.num_layers,
    }
    execution = {
        "num_procs": tp * pp * dp,
        "tensor_par": tp,
        "pipeline_par": pp,
        "data_par": dp,
        # One node's network has eight places; neighbours are tensor, then data parallel ranks.
        "tensor_par_net": int(tp > _NODE),
        "data_par_net": int(tp * dp > _NODE),
        "pipeline_par_net": int(tp * dp * pp > _NODE),
        "batch_size": int(x.global_batch),
        "microbatch_size": int(x.batch.micro),
        "datatype": "float16",
        "fused_activation": False,
        "attention_type": "multihead"
        if shape.attention.num_kv_heads == shape.attention.num_heads
        else "multiquery",
        "activation_recompute": {"selective": "attn_only"}.get(
            x.memory.recompute, x.memory.recompute
        ),
        "pipeline_interleaving": int(x.pipeline.interleave),
        "optimizer_sharding": int(x.sharding.zero) > 0 and dp > 1,
        "tensor_par_comm_type": "rs_ag" if shares_sequence else "ar",
        "tensor_par_overlap": "ring" if x.overlaps == "tensor" and tp > 1 else "none",
        "seq_par_ag_redo": shares_sequence and x.memory.recompute != "full",
        "data_par_overlap": x.overlaps != "none" and dp > 1,
        "weight_offload": False,
        "activations_offload": False,
        "optimizer_offload": False,
        "training": True,
    }
    text = (_root(package) / "systems" / system).read_text(encoding="utf-8")
    parts = json.loads(text)
    parts["mem1"]["GiB"] = _ENOUGH
    machine = package.System(parts)
    model = llm.Llm(llm.Llm.Application(application), logging.getLogger("calculon"))
    model.compile(machine, llm.Llm.Execution.from_json(execution))
    model.run(machine)
    stats = model.get_stats_json(False)
    return Answer(time_s=stats["total_time"], memory_bytes=stats["proc_mem_tier1_cap_req"])


_NODE = 8
"""GPUs of a node in every system of Calculon's."""
_ENOUGH = 80_000_000_000
"""GiB, those of its own system without a limit (a100_80e)."""


def _llm_analysis_lacks(case: Case) -> str:
    shape, x = case.shape, case.layout
    reasons = {
        "context parallelism": x.mesh.cp > 1,
        "latent attention": shape.latent.kv_rank > 0,
        "several experts a token": shape.moe.experts_per_token > 1,
        "shared experts or dense blocks between": shape.moe.shared_experts + shape.moe.dense_layers
        > 0,
        "heads that are not as wide as the model": shape.attention.num_heads
        * shape.attention.head_dim
        != shape.hidden,
    }
    return next((name for name, is_so in reasons.items() if is_so), "")


def _ask_llm_analysis(modules: Any, system: str, case: Case) -> Answer:
    shape, x = case.shape, case.timed
    config, analysis = modules["llm_analysis.config"], modules["llm_analysis.analysis"]
    logging.getLogger("llm_analysis").setLevel(logging.ERROR)
    analysis.logger.setLevel(logging.ERROR)
    tp = int(x.mesh.tp)
    if tp > _NODE:
        raise ValueError("tensor parallelism beyond a node")  # an assertion of its entry point
    if not config.gpu_configs:
        config.populate_model_and_gpu_configs()
    model = config.ModelConfig(
        name=shape.name,
        num_layers=shape.num_layers,
        n_head=shape.attention.num_heads,
        hidden_dim=shape.hidden,
        vocab_size=shape.vocab,
        max_seq_len=int(x.batch.seq_len),
        num_key_value_heads=shape.attention.num_kv_heads,
        ffn_embed_dim=shape.expert_width if shape.moe.num_experts else shape.ffn.width,
        moe_num_experts=max(1, shape.moe.num_experts),
        moe_top_k=max(1, shape.moe.experts_per_token),
        mlp_gated_linear_units=shape.ffn.gated,
    )

    def training(sharding: int) -> Any:
        """Its answer with states sharded over so many ranks, the others replicas of them."""
        parallel = config.ParallelismConfig(
            tp_size=tp,
            pp_size=int(x.mesh.pp),
            dp_size=sharding,
            rdp_size=int(x.mesh.dp) // sharding,
            ep_size=int(x.mesh.ep),
            sp_size=tp if int(x.mesh.sequence_parallel) else 1,
        )
        asked = analysis.LLMAnalysis(
            model,
            config.get_gpu_config_by_name(system),
            config.get_dtype_config_by_name("w16a16e16"),
            parallel,
            flops_efficiency=_FLOPS_SHARE,
            hbm_memory_efficiency=_BYTES_SHARE,
        )
        return asked.training(
            batch_size_per_gpu=int(x.batch.micro),
            gradient_accumulation_steps=int(x.batch.grad_accum),
            seq_len=int(x.batch.seq_len),
            activation_recomputation=analysis.ActivationRecomputation(_AGAIN[x.memory.recompute]),
            ds_zero=analysis.DSZeRO(int(x.sharding.zero)),
            flash_attn=x.kernels.is_flash,
        )

    sharded = training(int(x.sharding.shard_size or x.mesh.dp) if x.sharding.zero else 1)
    # Weights are gathered under ZeRO 3 alone, as its README says; its code waits for it always.
    timed = sharded if x.sharding.zero == 3 else training(1)
    return Answer(
        time_s=timed["latency_per_iter"], memory_bytes=sharded["estimated_peak_memory_per_gpu"]
    )


_FLOPS_SHARE, _BYTES_SHARE = 0.5, 0.9
_AGAIN = {"none": 0, "selective": 2, "full": 4}
"""Its ActivationRecomputation: a whole block is 4, attention with its projections 2, as in its
examples of Megatron.  Scores alone are 1, but those of all blocks are counted for each block."""


def _simumax_lacks(case: Case) -> str:
    x = case.layout
    reasons = {
        "ZeRO 2 and 3": int(x.sharding.zero) > 1,
        "precision": x.precision.compute != "bf16",
        "context parallelism other than all-to-all": x.mesh.cp > 1 and x.context != "ulysses",
    }
    return next((name for name, is_so in reasons.items() if is_so), "")


def _ask_simumax(modules: Any, system: str, case: Case) -> Answer:
    shape, x = case.shape, case.timed
    config = modules["simumax.core.config"]
    is_b200 = "b200" in system
    is_fused = x.kernels.stack != "eager"
    recompute: dict[str, Any] = {"enable_recompute": x.memory.recompute != "none"}
    if x.memory.recompute != "none":
        recompute["recompute_granularity"] = (
            "full_block" if x.memory.recompute == "full" else "sdp_only"
        )
        recompute["recompute_layer_num"] = shape.num_layers
    strategy = config.StrategyConfig(
        seq_len=int(x.batch.seq_len),
        micro_batch_size=int(x.batch.micro),
        micro_batch_num=int(x.batch.grad_accum),
        world_size=int(x.mesh.gpus),
        tp_size=int(x.mesh.tp),
        cp_size=int(x.mesh.cp),
        pp_size=int(x.mesh.pp),
        ep_size=int(x.mesh.ep),
        etp_size=int(x.mesh.expert_tp) if shape.moe.num_experts else 1,
        enable_sequence_parallel=int(x.mesh.tp) > 1 and int(x.mesh.sequence_parallel) == 1,
        interleaving_size=int(x.pipeline.interleave),
        pp_comm_async=int(x.pipeline.interleave) > 1 and int(x.mesh.pp) == 2,
        zero_state=int(x.sharding.zero),
        use_flash_sdp=x.kernels.is_flash,
        use_math_sdp=not x.kernels.is_flash,
        use_fused_norm=is_fused,
        use_fused_swiglu=is_fused,
        cross_entropy_loss_fusion=is_b200 and is_fused,
        dispatch_probs=True,
        te_version="2.11.0" if is_b200 else None,
        **recompute,
    )
    model = config.ModelConfig(
        model_name=shape.name,
        hidden_size=shape.hidden,
        head_num=shape.attention.num_heads,
        kv_head_num=shape.attention.num_kv_heads,
        head_size=shape.attention.head_dim,
        intermediate_size=shape.ffn.width,
        layer_num=shape.num_layers,
        vocab_size=shape.vocab,
        use_swiglu=shape.ffn.gated,
        **_simumax_experts(case),
        **_simumax_latent(case),
    )
    folder = _root(modules["simumax"]) / "configs" / "system"
    asked = modules["simumax.core.perf_llm"].PerfLLM()
    asked.configure(
        strategy_config=strategy,
        model_config=model,
        system_config=config.SystemConfig.init_from_config_file(str(folder / system)),
        debug_points=[],
    )
    asked.run_estimate()
    stages = asked.analysis_mem().data
    stages = [stages] if "peak_mem" in stages else list(stages.values())
    peak = "peak_mem" if case.memory_kind == "allocated" else "peak_mem_with_reserved"
    return Answer(
        time_s=quantity(asked.analysis_cost().data["duration_time_per_iter"], _SECONDS),
        memory_bytes=max(quantity(one[peak], _BYTES) for one in stages),
    )


def _simumax_experts(case: Case) -> dict[str, Any]:
    shape = case.shape
    if not shape.moe.num_experts:
        return {"model_type": "dense"}
    shared = shape.moe.shared_experts * shape.expert_width
    return {
        "model_type": "moe",
        "expert_num": shape.moe.num_experts,
        "topk": shape.moe.experts_per_token,
        "moe_ffn_hidden_size": shape.expert_width,
        "moe_shared_expert_intermediate_size": shared or None,
        "dense_layers": shape.moe.dense_layers,
    }


def _simumax_latent(case: Case) -> dict[str, Any]:
    shape = case.shape
    if not shape.latent.kv_rank:
        return {"attention_type": "mha"}
    return {
        "attention_type": "mla",
        "qk_head_dim": shape.attention.head_dim - shape.latent.rope_dim,
        "qk_pos_emb_head_dim": shape.latent.rope_dim,
        "v_head_dim": shape.latent.value_dim,
        "q_lora_rank": shape.latent.q_rank or None,
        "kv_lora_rank": shape.latent.kv_rank,
    }


def quantity(text: str | float, units: Mapping[str, float]) -> float:
    """``"828.76 ms"`` in base units, as SimuMax prints them.  ValueError where it is none."""
    number, _, unit = str(text).partition(" ")
    if unit not in units:
        raise ValueError(f"unit {unit!r}")
    return float(number) * units[unit]


_SECONDS = {"ms": 1e-3, "s": 1.0}
_BYTES = {"B": 1.0, "KB": 2.0**10, "MB": 2.0**20, "GB": 2.0**30, "TB": 2.0**40}


PEERS: tuple[Peer, ...] = (
    Peer(
        name="Calculon",
        column="calculon",
        modules=("calculon", "calculon.llm"),
        systems={"A100 SXM4 80GB": "a100_80g.json", "H100 SXM5 80GB": "h100_80g_nvl8.json"},
        home=("korthikanti",),
        why_not=_calculon_lacks,
        ask=_ask_calculon,
    ),
    Peer(
        name="llm-analysis",
        column="llm_analysis",
        modules=("llm_analysis", "llm_analysis.config", "llm_analysis.analysis"),
        systems={
            "V100 SXM2 16GB": "v100-sxm-16gb",
            "V100 SXM2 32GB": "v100-sxm-32gb",
            "V100 PCIe 16GB": "v100-pcie-16gb",
            "V100 PCIe 32GB": "v100-pcie-32gb",
            "A100 SXM4 40GB": "a100-sxm-40gb",
            "A100 SXM4 80GB": "a100-sxm-80gb",
            "A100 PCIe 40GB": "a100-pcie-40gb",
            "A100 PCIe 80GB": "a100-pcie-80gb",
            "H100 SXM5 80GB": "h100-sxm-80gb",
            "H100 PCIe 80GB": "h100-pcie-80gb",
            "A10": "a10-pcie-28gb",
            "A10G": "a10g-pcie-24gb",
            "RTX A6000": "a6000-48gb",
            "MI100": "mi100-32gb",
            "MI210": "mi210-64gb",
        },
        home=(),
        why_not=_llm_analysis_lacks,
        ask=_ask_llm_analysis,
    ),
    Peer(
        name="SimuMax",
        column="simumax",
        modules=("simumax", "simumax.core.config", "simumax.core.perf_llm"),
        systems={"A100 PCIe 80GB": "a100_pcie.json", "B200 SXM": "b200_bf16_ceperm.json"},
        home=("simumax-b200",),
        why_not=_simumax_lacks,
        ask=_ask_simumax,
    ),
)
