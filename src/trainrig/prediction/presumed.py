"""What stands for options that were not given: the program that trains, and its defaults.

A program is named, or presumed for the layout (`workload.programs.usual`).  Its entry says what it
switches on; each value that is presumed carries its reason, so that an answer can say on what it
rests.  An option that was given is never overridden.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from trainrig.catalog.chip import Chip
from trainrig.errors import UsageError, unknown
from trainrig.workload.adapters import METHODS
from trainrig.workload.families import facts_of
from trainrig.workload.layout.groups import SOFTWARE
from trainrig.workload.model import ModelShape, parameters
from trainrig.workload.programs import (
    FRAMEWORKS,
    find_program,
    known_programs,
)
from trainrig.workload.programs.engine import EngineTraits
from trainrig.workload.programs.program import Program
from trainrig.workload.programs.usual import LayoutKind, usual_program
from trainrig.workload.programs.years import (
    SoftwareYear,
    check_program,
    check_software,
    latest,
    years,
)

QLORA = "nf4"
"""Frozen weights beside adapters, where their format is not said."""
LONGEST = 4096
"""Tokens of a sample where neither model nor program has fewer."""
LARGE = 1e9
"""Parameters from which a model on one machine is presumed to be tuned further."""
USUAL_RANK = 16


class Presumption(NamedTuple):
    """A value that stands for an option, by the flat key of a layout, and why."""

    key: str
    value: Any
    because: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Presumed:
    """The program that trains, and the values that stand for options that were not given."""

    program: Program
    because: str = ""
    """Reason that this program; "": it was named."""
    engine: str
    software: SoftwareYear = field(default_factory=latest)
    values: tuple[Presumption, ...] = ()

    def fields(self, *without: str) -> dict[str, Any]:
        """Return the values by their keys."""
        return {
            presumption.key: presumption.value
            for presumption in self.values
            if presumption.key not in without
        }

    def without(self, key: str) -> Presumed:
        """Return a copy that presumes nothing of that key."""
        return Presumed(
            program=self.program,
            because=self.because,
            engine=self.engine,
            software=self.software,
            values=tuple(presumption for presumption in self.values if presumption.key != key),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineTraits:
    """Facts about the machines that decide about defaults."""

    gpus: int
    gpus_per_node: int
    chip: Chip | None
    precision: str
    """The half precision that products are fastest in."""
    can_flash: bool
    """True if there is fused attention, in the precision that is asked for or presumed."""


def software_of(options: Mapping[str, Any]) -> tuple[SoftwareYear, dict[str, Any]]:
    """Return the year of the software, and the options with a year's word for it taken out.

    Raises:
        UsageError: The word is none, or a flag asks for what that year did not have.
    """
    word = str(options.get("software", SOFTWARE[0]))
    if word in SOFTWARE:
        return latest(), dict(options)
    if word not in years():
        raise unknown("software", word, (*SOFTWARE, *years()))
    check_software(options, years()[word])
    return years()[word], {key: value for key, value in options.items() if key != "software"}


def presume(
    options: Mapping[str, Any], software: SoftwareYear, shape: ModelShape, place: MachineTraits
) -> Presumed:
    """Return the program and what stands for each option that was not given.

    Raises:
        UsageError: The program is none, or came later than the software that is asked for.
    """
    named = find_program(options["framework"]) if "framework" in options else None
    adapters = dict(_adapters(options, named))
    stated = {**options, **{key: value for key, (value, _) in adapters.items()}}
    if named is not None:
        program, because = named, ""
        check_program(named, software)
    else:
        rule = usual_program(_spread(stated, place))
        program, because = known_programs()[rule.program], rule.reason
    engine = program.engine
    if program.defaults.stages_by and stated.get("zero") and stated.get("parallel") != "fsdp":
        engine = program.defaults.stages_by
    defaults = _Defaults(
        stated=stated,
        program=program,
        engine=FRAMEWORKS[engine],
        software=software,
        shape=shape,
        place=place,
    )
    values = [Presumption(key, value, reason) for key, (value, reason) in adapters.items()]
    for presumption in defaults.presumptions():
        if stated.get(presumption.key) is None and all(
            presumption.key != other.key for other in values
        ):
            values.append(presumption)
    return Presumed(
        program=program,
        because=because,
        engine=engine,
        software=software,
        values=tuple(values),
    )


def _adapters(
    options: Mapping[str, Any], named: Program | None
) -> Iterator[tuple[str, tuple[Any, str]]]:
    """Yield what stands for --lora-rank and --quantize.  Raises UsageError for a contradiction."""
    method, quantize = options.get("method"), options.get("quantize", "none")
    _check_method(options)
    rank = named.defaults.adapters.get("lora_rank", USUAL_RANK) if named else USUAL_RANK
    tunes = named.defaults.tunes if named is not None else ""
    if method is not None:
        if method == "full":
            yield "lora_rank", (0, "--method full")
        elif not options.get("lora_rank"):
            yield "lora_rank", (rank, f"--method {method}")
        if method == "qlora" and quantize == "none":
            yield "quantize", (QLORA, "--method qlora")
    elif "lora_rank" in options:
        return
    elif quantize != "none":
        yield "lora_rank", (rank, "weights are quantised beside adapters")
    elif tunes:
        yield "lora_rank", (rank, "adapters are its default")
        if "quantize" not in options:
            yield "quantize", (tunes, "4 bits are its default")


def _check_method(options: Mapping[str, Any]) -> None:
    method, rank = options.get("method"), options.get("lora_rank")
    quantize = options.get("quantize", "none")
    if method is None:
        return
    if method not in METHODS:
        raise unknown("method", method, METHODS)
    if method == "full" and (rank or quantize != "none"):
        other = f"--lora-rank {rank}" if rank else f"--quantize {quantize}"
        raise UsageError(f"--method full contradicts {other}", "leave one of them out")
    if method == "qlora" and options.get("quantize") == "none":
        raise UsageError("--method qlora contradicts --quantize none", "--method lora")
    if method != "full" and rank == 0:
        raise UsageError(f"--method {method} contradicts --lora-rank 0", "leave one of them out")
    if method == "lora" and quantize != "none":
        raise UsageError(f"--method lora contradicts --quantize {quantize}", "--method qlora")


def _spread(options: Mapping[str, Any], place: MachineTraits) -> LayoutKind:
    return LayoutKind(
        schedule=options.get("schedule", "1f1b"),
        split=any(options.get(name, 1) > 1 for name in ("tp", "pp", "cp")),
        sharded=options.get("zero", 0) >= 2 or options.get("parallel") == "fsdp",
        adapted=options.get("lora_rank", 0) > 0,
        wrapped=options.get("parallel") in ("ddp", "dataparallel"),
        nodes=place.gpus > place.gpus_per_node,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Defaults:
    """One question's options beside its program."""

    stated: Mapping[str, Any]
    program: Program
    engine: EngineTraits
    software: SoftwareYear
    shape: ModelShape
    place: MachineTraits

    def presumptions(self) -> Iterator[Presumption]:
        """Yield everything that may be presumed; of each key the first counts."""
        usual = {**self.program.defaults.usual}
        if self.is_adapted:
            usual |= self.program.defaults.adapters
        if "seq_len" in usual:
            usual["seq_len"] = min(usual["seq_len"], self.shape.position.max_positions)
        reason = f"{self.program.name}'s default"
        for key, value in usual.items():
            yield Presumption(key, value, reason)
        yield from self._numbers()
        yield Presumption("kernels", *self._kernels())
        yield from self._code()
        yield from self._spreading()
        yield Presumption("recompute", *self._recompute())
        for key, value in self.software.values(own_kernels=self._has_own_kernels).items():
            yield Presumption(key, value, f"software of {self.software.year}")
        length = min(self.shape.position.max_positions, LONGEST)
        yield Presumption("seq_len", length, f"the model's length, at most {LONGEST}")
        yield Presumption("batch_size", 1, "the least")

    @property
    def is_adapted(self) -> bool:
        return bool(self.stated.get("lora_rank", 0) > 0)

    @property
    def _is_quantized(self) -> bool:
        return bool(self.stated.get("quantize", "none") != "none")

    @property
    def _is_tuned(self) -> bool:
        """Return whether a trained model is tuned: by adapters, or a large one on one machine."""
        is_alone = self.place.gpus <= self.place.gpus_per_node
        return self.is_adapted or (is_alone and parameters(self.shape).total > LARGE)

    @property
    def _has_own_kernels(self) -> bool:
        return self.engine.models.own_kernels

    def _size(self, name: str) -> int:
        return int(self.stated.get(name, 1))

    @property
    def _dp(self) -> int:
        return self.place.gpus // max(1, self._size("tp") * self._size("pp") * self._size("cp"))

    def _numbers(self) -> Iterator[Presumption]:
        numbers, reason = self.program.numbers, f"{self.program.name}'s default"
        words = self.software.values(own_kernels=self._has_own_kernels)
        if "precision" in words and "fp32" not in self.place.precision:
            yield Presumption("precision", words["precision"], f"software of {self.software.year}")
        yield Presumption("precision", self.place.precision, "the fastest half precision")
        if numbers.states:
            yield Presumption("states", numbers.states, reason)
        of_latent = numbers.latent_moments if self.shape.latent.kv_rank else ""
        if moments := numbers.moments or of_latent:
            yield Presumption("moments", moments, reason)
        if numbers.grad_reduce and self.stated.get("precision", "bf16") in ("bf16", "fp8"):
            yield Presumption("grad_reduce", numbers.grad_reduce, reason)
        is_fp8 = self.stated.get("precision") == "fp8" and not self.stated.get("scaled")
        if numbers.fp8_weights and is_fp8 and self._has_own_kernels:
            yield Presumption("fp8_params", 1, reason)

    def _kernels(self) -> tuple[str, str]:
        """Return the kernels: of the rules below the first that holds."""
        code, chip, software = self.program.code, self.place.chip, self.software
        words = software.values(own_kernels=self._has_own_kernels)
        is_cuda = chip is None or chip.vendor in ("NVIDIA", "AMD")
        has_te = self._has_own_kernels and code.transformer_engine is not False and is_cuda
        rules = (
            (
                not self.place.can_flash,
                "fused" if "fused" in code.kernels else "eager",
                "no flash attention for the chip",
            ),
            (words.get("kernels") in ("eager", "fused"), words.get("kernels"), "of that year"),
            (bool(code.kernels), code.kernels, f"{self.program.name}'s default"),
            (code.xla is True, "flash+fused", "XLA fuses what is pointwise"),
            (has_te, "flash+fused", "layers of Transformer Engine"),
            (True, "flash", "torch's fused attention"),
        )
        return next((str(kernels), reason) for holds, kernels, reason in rules if holds)

    @property
    def _has_efficient_attention(self) -> bool:
        """True if attention on a chip without flash attention keeps no scores."""
        models, chip = self.engine.models, self.place.chip
        words = self.software.values(own_kernels=self._has_own_kernels)
        is_torchs = (
            not (models.own_models or models.own_kernels)
            and words.get("kernels", "flash") == "flash"
        )
        is_asked = "kernels" not in self.stated and not self.place.can_flash
        return is_asked and is_torchs and chip is not None and chip.vendor == "NVIDIA"

    def _code(self) -> Iterator[Presumption]:
        code, reason = self.program.code, f"{self.program.name}'s default"
        loss = "fused" if self.software.has(code.fuses_loss) else code.loss
        if self.program.key in facts_of(self.shape).eager_in:
            yield Presumption("plain_attention", 1, f"{reason} for this family")
            yield Presumption("loss", "chunked", f"{reason} for this family")
        if self._size("cp") > 1 and code.shared_loss:
            loss = code.shared_loss
        if loss:
            yield Presumption("loss", loss, reason)
        if self._has_efficient_attention:
            yield Presumption("efficient_attention", 1, "torch's memory-efficient kernels")
        if code.drops:
            yield Presumption("has_dropout", code.drops, reason)
        if code.graphed or code.xla:
            yield Presumption("cuda_graphs", "runtime", "nothing of Python between its kernels")
        if self.shape.moe.num_experts and self._is_quantized and code.quantized_experts:
            yield Presumption("experts", code.quantized_experts, reason)

    def _spreading(self) -> Iterator[Presumption]:
        spreading, reason = self.program.spreading, f"{self.program.name}'s default"
        is_spread = self._dp > 1 or (spreading.shards_weights and self.place.gpus > 1)
        if is_spread and (stage := self._stage()):
            yield Presumption("zero", stage, reason)
        tp, pp, ep = self._size("tp"), self._size("pp"), self._size("ep")
        if tp > 1 and self.software.has(spreading.splits_sequence):
            yield Presumption("sequence_parallel", 1, reason)
        if pp > 1 and spreading.schedule:
            yield Presumption("schedule", spreading.schedule, reason)
        if spreading.overlap:
            yield Presumption("overlap", spreading.overlap, reason)
        if self._size("cp") > 1 and spreading.cp_comm:
            yield Presumption("cp_comm", spreading.cp_comm, reason)
        is_narrow = 0 < self.shape.expert_width <= self.shape.hidden
        if tp > 1 and is_narrow and self.software.has(spreading.whole_experts):
            yield Presumption("whole_experts", 1, reason)
        if ep > 1 and spreading.sends_once:
            yield Presumption("dedup_internode_dispatch", 1, reason)
        chip = self.place.chip
        is_slow = ep > self.place.gpus_per_node or (
            chip is not None and (chip.product.year or 0) < 2024
        )
        if ep > 1 and spreading.overlaps_dispatch and is_slow:
            yield Presumption("overlap_dispatch", 1, reason)

    def _stage(self) -> int:
        """Return the stage of ZeRO; 0: nothing is sharded."""
        spreading, has_stages = self.program.spreading, self._size("pp") > 1
        if self.stated.get("parallel") in ("ddp", "dataparallel"):
            return 0
        if self.stated.get("parallel") == "fsdp":
            return 3
        if spreading.shards_weights:
            return 2 if has_stages else 3
        if spreading.shards_gradients:
            return 1 if has_stages else 2
        return int(self.software.has(spreading.shards_optimizer))

    def _recompute(self) -> tuple[str, str]:
        """Return what is computed again: of the rules below the first that holds."""
        saving, name = self.program.saving, self.program.name
        stage = self.stated.get("zero", self._stage() if self._dp > 1 else 0)
        checkpoints = self.software.has(saving.checkpoints_tuning)
        is_sharded = stage == 3
        rules = (
            (
                self._is_tuned and checkpoints and (is_sharded or not saving.recompute),
                "full",
                f"{name} checkpoints where it tunes",
            ),
            (bool(saving.recompute), saving.recompute, f"{name}'s default"),
            (
                self._is_tuned and self.program.defaults.checkpoints_large,
                "full",
                "transformers' models are tuned with gradient checkpointing",
            ),
            (
                bool(is_sharded and saving.checkpoints_sharded),
                "full",
                f"{name} checkpoints sharded blocks",
            ),
            (True, "none", f"{name} recomputes nothing unless asked"),
        )
        return next((str(word), reason) for holds, word, reason in rules if holds)
