"""plan: search the layouts, ask what upgrades bring or how many GPUs are needed, write the winners.

A winner is written as an experiment file: the keys of `train.files`, and for what only Megatron
and DeepSpeed run their own words (tp, pp, interleave, …).  Its prediction is in its comment, so
that what is measured later can be held against it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomli_w

from trainrig.errors import StoreError, UsageError
from trainrig.predict.prediction import Answer, answer, answer_dict, plan_dict
from trainrig.predict.scenario import Question, Site, positive, space
from trainrig.predict.search import Candidate, Found, search
from trainrig.predict.search.gpu_count import Budget, gpus_needed
from trainrig.predict.search.space import Space
from trainrig.predict.search.upgrades import Ranked, upgrades_of_search
from trainrig.runner.predict import measured
from trainrig.store import write_atomic
from trainrig.units import format_memory, format_time

MOST_SHOWN = 10_000
STEPS = 50
"""Of a written experiment: enough to measure a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Planned:
    """What a plan came to."""

    space: Space
    site: Site
    search: Found
    answer: Answer
    """Of the best layout."""
    tokens: float | None
    budget: Budget | None
    upgrades: tuple[Ranked, ...]
    written: tuple[Path, ...]

    @property
    def fits(self) -> bool:
        """Whether any layout does."""
        return self.search.best[0].fits

    @property
    def device(self) -> str:
        """Whose rates were taken."""
        return self.answer.rates.device

    def to_dict(self) -> dict[str, Any]:
        """As others script against it."""
        told = plan_dict(self.space, self.site, self.search, self.device)
        told["prediction"] = answer_dict(self.answer, self.tokens)
        if self.budget is not None:
            told["budget"] = {
                "gpus": self.site.gpus,
                "nodes": -(-self.site.gpus // self.site.gpus_per_node),
                "days": self.budget.days,
                "counts_tried": self.budget.tried,
            }
        if self.upgrades:
            told["upgrades"] = [one.to_dict() for one in self.upgrades]
        if self.written:
            told["written"] = [str(path) for path in self.written]
        return told


def plan(
    asked: Mapping[str, Any],
    *,
    rates: Path | None = None,
    top: int = 10,
    tokens: float | None = None,
    days: float | None = None,
    what_if: str | None = None,
    write: Path | None = None,
) -> Planned:
    """Search for the best layouts of what is asked.  Raises UsageError for what cannot be."""
    if not 1 <= top <= MOST_SHOWN:
        raise UsageError(f"top = {top}", f"a whole number from 1 to {MOST_SHOWN}")
    _check_budget(asked, tokens, days)
    every, site = space(_with_gpus(asked, days), measured(rates))
    budget = None
    if days is not None and tokens is not None:
        budget = gpus_needed(every, site, tokens, days)
        site = budget.site
        base = every.base.replace(gpus=site.gpus, gpus_per_node=site.gpus_per_node)
        every = every.replace(base=base)
    found = search(every, site.rates(), top=top)
    best = found.best[0]
    before = best.time if best.fits else None
    ranked = () if what_if is None else upgrades_of_search(every, site, before, what_if)
    chosen = found.best if best.fits else ()
    return Planned(
        space=every,
        site=site,
        search=found,
        answer=answer(Question(shape=every.shape, layout=best.layout, site=site)),
        tokens=tokens,
        budget=budget,
        upgrades=ranked,
        written=() if write is None else write_winners(chosen, str(asked["model"]), write),
    )


def _check_budget(asked: Mapping[str, Any], tokens: float | None, days: float | None) -> None:
    if tokens is not None:
        positive("tokens", tokens)
    if days is None:
        if "gpus" not in asked:
            raise UsageError(
                "on how many GPUs?", "--gpus 8; or --tokens 140e9 --days 60 to compute it"
            )
        return
    positive("days", days)
    if tokens is None:
        raise UsageError("how many tokens in these days?", "as --tokens 140e9")
    if "gpus" in asked:
        raise UsageError(
            "--days asks how many GPUs are needed, and --gpus says it",
            "leave one of them out; --gpus with --tokens gives the days",
        )


def _with_gpus(asked: Mapping[str, Any], days: float | None) -> Mapping[str, Any]:
    """Where the number of GPUs is asked for, one node stands for it meanwhile."""
    if days is None:
        return asked
    per_node = asked.get("gpus_per_node", 8)
    return {**asked, "gpus": per_node, "gpus_per_node": per_node}


def write_winners(best: tuple[Candidate, ...], model: str, folder: Path) -> tuple[Path, ...]:
    """One experiment file for each layout, in their order.  Raises StoreError."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"cannot write {folder}: {error.strerror}", "name another folder"
        ) from None
    written = []
    for number, one in enumerate(best, 1):
        path = folder / f"{number:02d}-{_slug(one)}.toml"
        write_atomic(path, experiment_text(one, model))
        written.append(path)
    return tuple(written)


def experiment_text(one: Candidate, model: str) -> str:
    """An experiment file: its prediction as a comment, then its keys."""
    said = (
        f"# Predicted: {format_time(one.time)} a step, {format_memory(one.memory)} a GPU, on "
        f"{one.layout.gpus} GPUs in nodes of {one.layout.gpus_per_node}.\n"
    )
    return said + tomli_w.dumps(experiment_keys(one, model))


_BACKENDS = {"plain": "native", "ddp": "native", "fsdp": "native"}
_OPTIMIZERS = {"adamw-fused": "adamw", "adamw": "adamw-plain"}


def experiment_keys(one: Candidate, model: str) -> dict[str, Any]:
    """The keys of an experiment file; what is usual is left out."""
    layout = one.layout
    keys: dict[str, Any] = {
        "name": _slug(one),
        "backend": _BACKENDS.get(layout.engine, layout.engine),
        "model": model,
        "device": "cuda",
        "nproc": layout.gpus,
        "batch_size": layout.batch_size,
        "grad_accum": layout.grad_accum,
        "seq_len": layout.seq_len,
        "precision": layout.precision,
        "optimizer": _OPTIMIZERS.get(layout.optimizer, layout.optimizer),
        "recompute": layout.recompute,
        "steps": STEPS,
    }
    for name in ("zero", "shard_size", "sequence_parallel"):
        if getattr(layout, name):
            keys[name] = getattr(layout, name)
    for name in ("tp", "pp", "interleave"):
        if getattr(layout, name) > 1:
            keys[name] = getattr(layout, name)
    if layout.pp > 1:
        keys["schedule"] = layout.schedule
    if layout.offload != "none":
        keys["offload"] = layout.offload
    if layout.kernels == "compiled":
        keys["compile"] = True
    return keys


def _slug(one: Candidate) -> str:
    """``megatron-tp8-pp4-b2``: what tells one winner from another."""
    layout = one.layout
    words = [layout.engine]
    for name, value in (("tp", layout.tp), ("pp", layout.pp), ("v", layout.interleave)):
        words += [f"{name}{value}"] if value > 1 else []
    words += [f"zero{layout.zero}"] if layout.zero else []
    words += [f"shard{layout.shard_size}"] if layout.shard_size else []
    words += ["sp"] if layout.sequence_parallel else []
    words += [f"b{layout.batch_size}"]
    words += [layout.recompute] if layout.recompute != "none" else []
    words += ["gpipe"] if layout.schedule == "gpipe" else []
    return "-".join(words)
