"""What is to be predicted: a model, a layout of it, and the machines that it runs on.

Whatever was not given is as the program does that trains, named or presumed (`presumed`); which
rates hold on the machines, of which none need exist, follows from their entries.  What is given and
cannot be is refused, by the rules of layouts where they say so.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from trainrig.catalog.arithmetic import HALF, Accelerator, arithmetic_of
from trainrig.catalog.chip import Chip, has_block_scales, peak
from trainrig.catalog.lookup import candidates, find_chip
from trainrig.catalog.servers import Server, find_server
from trainrig.errors import UsageError, unknown
from trainrig.prediction.cluster import (
    FLASH_VERSIONS,
    JOIN_NO_TRAYS,
    USUAL_NODE,
    Cluster,
    check_racks,
    joined_units,
    unit_size,
)
from trainrig.prediction.presumed import MachineTraits, Presumed, presume, software_of
from trainrig.prediction.rates.from_chip import (
    LINKS,
    fuses_attention,
    has_cuda_graphs,
    takes_any_order,
    usual_tray,
)
from trainrig.prediction.verdict import host_verdict
from trainrig.workload.layout import PLACES, Layout, check_layout, check_sizes, is_legal
from trainrig.workload.layout.batch_split import samples_of, split_batch
from trainrig.workload.layout.groups import PRECISIONS, RECOMPUTE, SCALED
from trainrig.workload.layout_rules import MOST_COUNT, has_schedule, usual_interleave, who_has
from trainrig.workload.model import ModelShape
from trainrig.workload.model_lookup import find, note_of
from trainrig.workload.option_words import usual_word
from trainrig.workload.programs import (
    FRAMEWORKS,
    LEAST_RESTRICTED,
    NATIVE,
    find_program,
)
from trainrig.workload.programs.program import Program
from trainrig.workload.programs.usual import usual_program
from trainrig.workload.programs.years import SoftwareYear

if TYPE_CHECKING:
    from trainrig.prediction.search.space import Space
    from trainrig.record import Record


GBIT = 1e9 / 8.0
MOST_GBPS = 1e6
Options = Mapping[str, Any]
"""Options by their names with underscores; one that is None was not given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Records of a run, in place of the catalog's rates."""

    records: tuple[Record, ...] = ()
    device: str | None = None
    """Name of the device that was measured; it stands where no chip is named."""
    memory: float | None = None
    """B that it has, where the catalog does not say."""


NOTHING = Measured()


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A model, a layout of it and the machines: the subject of a prediction."""

    shape: ModelShape
    layout: Layout
    cluster: Cluster
    notes: tuple[str, ...] = ()
    """Notes on how names of models and machines were read."""
    presumed: Presumed | None = None
    """The program that trains, and what it does by default; None: the layout says it all."""
    model: str = ""
    """The model's name as it was typed."""

    @property
    def program(self) -> Program:
        """Return the program that trains."""
        return self.presumed.program if self.presumed else find_program(self.layout.framework)

    @property
    def host_verdict(self) -> str:
        """Return one of `verdict.VERDICTS`.

        Whether a node's memory is enough for what is offloaded.
        """
        return host_verdict(self.shape, self.layout, self.cluster.host_memory)


def question(stated: Options, measured: Measured = NOTHING) -> Question:
    """Return one layout of one model at one cluster.  Raises UsageError for what cannot be."""
    shape, options = _model(stated)
    software, options = software_of(options)
    cluster = _cluster(options, measured)
    presumed = presume(options, software, shape, _place(options, cluster))
    if "global_batch" in options:
        options |= _batch(options, cluster, presumed)
        presumed = presumed.without("batch_size")
    layout = _asked_layout(options, cluster, presumed)
    for key in _GIVES_WAY:
        if not is_legal(shape, layout) and key in presumed.fields():
            presumed = presumed.without(key)
            layout = _asked_layout(options, cluster, presumed)
    check_layout(shape, layout)
    model = str(stated["model"])
    return Question(
        shape=shape,
        layout=layout,
        cluster=cluster,
        notes=notes_of(model, shape, cluster, layout.batch.seq_len),
        presumed=presumed,
        model=model,
    )


_GIVES_WAY = (
    *("sequence_parallel", "zero", "whole_experts", "overlap", "offload_checkpoints", "recompute"),
)
"""Keys that are presumed only where the layout can be run with them."""


def _asked_layout(options: Options, cluster: Cluster, presumed: Presumed) -> Layout:
    known = {key: options[key] for key in PLACES.keys() & options.keys()}
    fields = {**presumed.fields(), **known}
    is_sharded = fields.get("parallel") == "fsdp"
    fields |= {"zero": fields.get("zero", 3 if is_sharded else 0), "framework": presumed.engine}
    return _layout(fields, cluster)


def _place(options: Options, cluster: Cluster) -> MachineTraits:
    half = _fastest(cluster)
    return MachineTraits(
        gpus=cluster.gpus,
        gpus_per_node=cluster.gpus_per_node,
        chip=cluster.chip,
        precision=half,
        can_flash=has_flash(cluster.chip, options.get("precision", half)),
    )


def notes_of(
    model: str, shape: ModelShape, cluster: Cluster, seq_len: int | None = None
) -> tuple[str, ...]:
    """Return what was presumed of a model's and a chip's name, a sentence each.

    ``seq_len``: where it is longer than the model's own, that is said, too.
    """
    notes, longest = [note_of(model, shape)], shape.position.max_positions
    if seq_len is not None and seq_len > longest:
        notes.append(
            f"a sequence of {seq_len} is longer than the {longest} that {shape.name} was made for"
        )
    if cluster.requested_name is not None and cluster.chip is not None:
        notes.append(chip_note(cluster.requested_name, cluster.chip))
    return tuple(filter(None, notes))


def chip_note(requested: str, chip: Chip) -> str:
    """Return which chip a short name is presumed to mean, and what else it may mean."""
    others = [other for other in candidates(requested) if other is not chip]
    same = [other for other in others if other.memory.size == chip.memory.size]
    listed = " / ".join(other.name for other in others[:_MOST_OTHERS])
    text = f"{requested} is presumed to be {chip.name}, the most common; others: {listed}"
    return f"{text}, with as much memory" if len(same) == len(others) else text


_MOST_OTHERS = 4


def check_values(stated: Options) -> None:
    """Raise UsageError for a word, number or name that no model and no machine makes valid."""
    options = {name: usual_word(name, value) for name, value in stated.items() if value is not None}
    if "model" in options:
        _model(options)
    else:
        _check_alone(options)
    _server(options)
    _check_network(options)


def _check_global_batch(options: Options) -> None:
    """Raise UsageError for what is no number of samples of a step, nor of its tokens."""
    if isinstance(options.get("global_batch"), str):
        samples_of(options["global_batch"], 1)
    elif not 1 <= (batch := options.get("global_batch", 1)) <= MOST_COUNT:
        raise UsageError(f"global-batch = {batch}", f"a whole number from 1 to {MOST_COUNT}")


def machine(stated: Options, measured: Measured = NOTHING) -> Cluster:
    """Return the machines alone, where no model is asked about.  Raises UsageError."""
    return _cluster({name: value for name, value in stated.items() if value is not None}, measured)


def space(stated: Options, measured: Measured = NOTHING) -> tuple[Space, Cluster]:
    """Return all layouts of one model at one cluster.  Raises UsageError for what cannot be."""
    shape, options = _model(stated)
    cluster = _cluster(options, measured)
    if "global_batch" not in options:
        raise UsageError(
            "missing --global-batch",
            "samples per optimizer step over all GPUs, e.g. --global-batch 512",
        )
    if options.get("recompute", RECOMPUTE[0]) not in RECOMPUTE:
        raise unknown("recompute", options["recompute"], RECOMPUTE)
    software, options = software_of(options)
    presumed = presume(options, software, shape, _place(options, cluster))
    words = {key: options[key] for key in PLACES.keys() & options.keys() - {*_SIZES, "zero"}}
    fields = {**presumed.fields(*_SEARCHED), "framework": presumed.engine}
    if "framework" not in options:  # of each engine as its own program does
        fields = {key: fields[key] for key in _SHARED & fields.keys()}
    common_layout = _layout(
        {**fields, **words, "framework": fields.get("framework", NATIVE)}, cluster
    )
    schedules, common_layout = (
        (common_layout.pipeline.schedule,),
        common_layout.replace(schedule="1f1b"),
    )
    named = presumed.engine if "framework" in options else None
    if named and not has_schedule(FRAMEWORKS[named], schedules[0]):
        raise UsageError(f"{named} has no schedule {schedules[0]}", who_has(schedules[0]))
    batch = samples_of(options["global_batch"], common_layout.batch.seq_len)
    if not 1 <= batch <= MOST_COUNT:
        raise UsageError(f"global-batch = {batch}", f"a whole number from 1 to {MOST_COUNT}")
    # What all of the space have in common.
    check_layout(shape, common_layout.replace(framework=LEAST_RESTRICTED, parallel="auto"))
    from trainrig.prediction.search.space import Space  # numpy: one layout needs none

    every = Space(
        shape=shape,
        base=common_layout,
        global_batch=batch,
        framework=named,
        programs=_programs(options, software, cluster, presumed, (shape, common_layout)),
        recompute=(options["recompute"],) if "recompute" in options else RECOMPUTE,
        host_memory=cluster.host_memory,
        micro_batch=options.get("batch_size"),
        grad_accum=options.get("grad_accum"),
    )
    if "schedule" in options:
        every = every.replace(schedules=schedules)
    return every, cluster


def _batch(options: Options, cluster: Cluster, presumed: Presumed) -> dict[str, int]:
    """Return the micro-batch and the accumulation of the global batch that is given."""
    seq_len = options.get("seq_len") or presumed.fields()["seq_len"]
    split = _split(options)
    micro, accum = split_batch(
        samples_of(options["global_batch"], seq_len),
        options.get("batch_size"),
        options.get("grad_accum"),
        max(1, cluster.gpus // max(1, split)),
    )
    return {"batch_size": micro, "grad_accum": accum}


def _programs(
    options: Options,
    software: SoftwareYear,
    cluster: Cluster,
    presumed: Presumed,
    every: tuple[ModelShape, Layout],
) -> dict[str, Presumed]:
    """Return what is presumed of a search's layouts, by the engine that runs them."""
    if "framework" in options:
        return {presumed.engine: presumed}
    shape, base = every
    programs: dict[str, Presumed] = {}
    for split, sharded, nodes in itertools.product((False, True), repeat=3):
        spread = dataclasses.replace(base.spread, split=split, sharded=sharded, nodes=nodes)
        rule = usual_program(spread)
        named = {**options, "framework": rule.program}
        other = presume(named, software, shape, _place(options, cluster))
        values = tuple(
            presumption for presumption in other.values if presumption.key not in _SEARCHED
        )
        other = dataclasses.replace(other, because=rule.reason, values=values)
        programs[other.engine] = other
    return programs


_SEARCHED = ("zero", "sequence_parallel", "batch_size", "recompute", "schedule", "whole_experts")
"""Keys that a search varies, and so does not presume."""
_SHARED = {"seq_len", "precision", "lora_rank", "quantize"}
"""Keys that all layouts of a search have in common, whatever program runs them."""
_SIZES = (
    "tp",
    "pp",
    "cp",
    "ep",
    "interleave",
    "batch_size",
    "grad_accum",
    "shard_size",
    "sequence_parallel",
)
WORDS_AND_LENGTHS = (
    *(
        "seq_len",
        "target_seq_len",
        "precision",
        "scaled",
        "kernels",
        "parallel",
        "optimizer",
        "offload",
    ),
    *("lora_rank", "lora_on", "schedule", "recompute", "overlap"),
    *("states", "moments", "software", "quantize", "optimizer_in_backward", "offload_overlap"),
    "offload_checkpoints",
    *("cp_comm", "loss", "cuda_graphs", "grad_reduce", "fp8_params", "router_spread", "experts"),
)
"""Fields of a layout that are asked for, besides its sizes."""


def _model(stated: Options) -> tuple[ModelShape, dict[str, Any]]:
    options = {name: usual_word(name, value) for name, value in stated.items() if value is not None}
    _check_alone(options)
    if (scaled := options.get("precision")) in SCALED:
        options |= {"precision": SCALED[scaled], "scaled": scaled}
    if "model" not in options:
        raise UsageError("missing --model", "as --model gpt2-medium; or a path to a config.json")
    return find(options["model"]), options


def _check_alone(options: Options) -> None:
    """Raise UsageError for a word or a number that is none whatever the model and the machine."""
    precision = options.get("precision", PRECISIONS[0])
    if precision not in (*PRECISIONS, *SCALED):
        raise unknown("precision", precision, (*PRECISIONS, *SCALED))
    keys = PLACES.keys() - {"precision", "framework", "software"}
    check_sizes(Layout.of(**{name: options[name] for name in options if name in keys}))
    _check_global_batch(options)


def _cluster(options: Options, measured: Measured) -> Cluster:
    """Return the machines: as options say, else as a server's entry, else as is usual."""
    server = _server(options)
    chip = _chip(server, measured)
    _check_network(options)
    link = options.get("link", server.link if server else None)
    nodes = _nodes(options, server, chip, link)
    of_server = _of_server(server, nodes) if server else {}
    stated = {
        "fabric": options["fabric_gbps"] * GBIT * nodes.trays if "fabric_gbps" in options else None,
        "p2p": options.get("p2p"),
        "host_memory": _host_memory(options, nodes.trays),
    }
    return Cluster(
        chip=chip,
        is_fp4=options.get("scaled", "").endswith("fp4"),
        flash_version=options.get("flash_version", "auto"),
        gpus=nodes.gpus,
        gpus_per_node=nodes.per_node,
        trays=nodes.trays,
        unit=nodes.unit,
        link=link,
        records=measured.records,
        memory=measured.memory if chip is None else None,
        uncounted=server.name if server and server.is_uncounted and "gpus" not in options else None,
        **(of_server | {name: value for name, value in stated.items() if value is not None}),
    )


def _server(options: Options) -> Server | None:
    """Return the server, or the chip as one, that ``on`` names."""
    if "on" not in options:
        return None
    return find_server(options["on"])


def _split(options: Options) -> int:
    """Return how many GPUs share one copy of the model."""
    return math.prod(options.get(name, 1) for name in ("tp", "pp", "cp"))


def _chip(server: Server | None, measured: Measured) -> Chip | None:
    """Return the chip that is named, else the one that was measured.  Raises UsageError."""
    of_records = None if measured.device is None else find_chip(measured.device)
    if server is None and of_records is None and not measured.records:
        raise UsageError("missing --on", 'as --on "RTX 4090"; trainrig catalog lists the chips')
    if server is None:
        return of_records
    if measured.device is not None and server.chip is not of_records:
        raise UsageError(
            f"the measured rates are those of {measured.device}, not of {server.chip.name}",
            "leave out --on, or --rates",
        )
    return server.chip


def _check_network(options: Options) -> None:
    """Raise UsageError for what is no network, or no link."""
    fabric = options.get("fabric_gbps")
    if fabric is not None and not 0.0 < fabric <= MOST_GBPS:
        raise UsageError(
            f"a fabric of {fabric:g} Gb/s", "Gb/s of a node, as 400 for one port of InfiniBand NDR"
        )
    if options.get("link", LINKS[0]) not in LINKS:
        raise unknown("link", options["link"], LINKS)
    if (version := options.get("flash_version", "auto")) not in FLASH_VERSIONS:
        raise unknown("flash-version", version, FLASH_VERSIONS)


class _Nodes(NamedTuple):
    """Arrangement of GPUs in nodes."""

    gpus: int
    per_node: int
    unit: int
    """GPUs that are together before a link joins more of them to a node."""
    trays: int
    """Hosts of a node."""
    servers: int
    """Servers, as their entry or file describes one, that make a node."""


def _nodes(options: Options, server: Server | None, chip: Chip | None, link: str | None) -> _Nodes:
    """Return how many GPUs there are, and how they come in nodes.  Raises UsageError."""
    sold = server.gpus if server else None
    whole = (sold or 1) * server.nodes if server else 1
    split = _split(options)
    is_counted = server is not None and sold and (server.name == server.chip.name or whole > sold)
    if is_counted and "gpus" not in options and split > whole:
        sizes = " ".join(
            f"--{name} {options[name]}" for name in ("tp", "pp", "cp") if name in options
        )
        raise UsageError(
            f'--on "{options["on"]}" has {whole} GPUs, and {sizes} need {split} for one copy',
            f"--gpus {split}, or smaller sizes",
        )
    gpus = options.get("gpus", max(split, whole))
    unit = unit_size(chip, options.get("gpus_per_node"), sold, gpus)
    per_node, trays = joined_units(chip, unit, gpus, link)
    if chip is not None and unit > 0 and link not in JOIN_NO_TRAYS:
        check_racks(chip, unit, per_node, gpus)
    servers = max(1, per_node // sold) if sold and trays > 1 else trays
    return _Nodes(gpus=gpus, per_node=per_node, unit=unit, trays=trays, servers=servers)


def _of_server(server: Server, nodes: _Nodes) -> dict[str, Any]:
    """Return what a server's entry says of a node, which may be several servers."""
    return {
        "fabric": None if server.fabric is None else server.fabric * nodes.servers,
        "p2p": server.p2p,
        "host_memory": server.memory and server.memory * nodes.servers,
        "host_bandwidth": server.host_memory and server.host_memory * nodes.servers / nodes.trays,
        "disk": server.disk,
        "requested_name": server.requested_name,
    }


def _host_memory(options: Options, hosts: int) -> float | None:
    """B of a node's memory, of each host as given in GiB; None: it is not given."""
    if "host_memory" not in options:
        return None
    return hosts * positive("host-memory", options["host_memory"]) * 1024.0**3


def one_node(stated: Options) -> int:
    """GPUs of one whole node of the machine that is named: of a rack all that its link joins."""
    server = find_server(stated["on"]) if stated.get("on") is not None else None
    per_node, sold = stated.get("gpus_per_node"), server.gpus if server is not None else None
    if server is None or usual_tray(server.chip) is None:
        return per_node or sold or USUAL_NODE
    domain = server.chip.link.domain or USUAL_NODE
    unit = unit_size(server.chip, per_node, sold, domain)
    is_apart = (stated.get("link") or server.link) in JOIN_NO_TRAYS
    return unit if is_apart else unit * max(1, domain // max(1, unit))


def _layout(fields: Options, cluster: Cluster) -> Layout:
    """Return a layout of flat keys, and of defaults that suit the chip."""
    fields = {key: value for key, value in fields.items() if key not in ("gpus", "gpus_per_node")}
    chip = cluster.chip
    half = _fastest(cluster)
    precision = fields.setdefault("precision", half)
    if chip is not None and chip.peaks:
        _check_narrow(chip, precision, fields.get("scaled", ""), half)
    fields.setdefault("kernels", "flash" if has_flash(chip, precision) else "eager")
    if "flash" in fields["kernels"] and chip is not None and (chip.product.year or 2020) < 2020:
        raise UsageError(
            f"{chip.name} has no flash attention: its kernels are for chips from 2020 on",
            "--kernels eager, fused or compiled",
        )
    graphs = fields.get("cuda_graphs")
    if graphs in ("layers", "iteration") and chip is not None and not has_cuda_graphs(chip):
        raise UsageError(
            f"{chip.name} has no CUDA graphs, nor HIP's", "--cuda-graphs none, or runtime for XLA"
        )
    groups = usual_interleave(fields.get("schedule", ""), fields.get("pp", 1))
    fields.setdefault("interleave", groups)
    if chip is not None:
        fields["supports_non_tn_fp8"] = int(takes_any_order(chip))
    return Layout.of(**fields, gpus=cluster.gpus, gpus_per_node=cluster.gpus_per_node)


def _fastest(cluster: Cluster) -> str:
    """Return the precision that products are fastest in.

    As claimed, or as measured where no chip is.
    """
    if cluster.chip is not None:
        return arithmetic_of(Accelerator(chip=cluster.chip)).fastest
    from trainrig.benchmarks.spec import Role, role_of  # a chip needs none of it
    from trainrig.record import dtype_of

    rates = {
        str(dtype_of(record.case)): record.value
        for record in sorted(cluster.records, key=lambda record: record.value or 0.0)
        if record.metric == "flop_rate" and role_of(record.benchmark) is Role.PRODUCT
    }
    usual = [dtype for dtype in (*HALF, "fp32") if rates.get(dtype)]
    return max(usual, key=lambda dtype: rates[dtype] or 0.0, default=HALF[0])


def _check_narrow(chip: Chip, precision: str, scaled: str, half: str) -> None:
    """A chip without units for eight or four bits does not compute in them; the wider are emulated.

    Raises UsageError.
    """
    if precision == "fp8" and peak(chip, "fp8") is None:
        raise UsageError(f"{chip.name} has no fp8 products", f"--precision {half}")
    if scaled.endswith("fp4") and peak(chip, "fp4") is None:
        raise UsageError(f"{chip.name} has no fp4 products", f"--precision fp8 or {half}")
    if scaled and not has_block_scales(chip):
        raise UsageError(
            f"{chip.name} has no products with a scale for each block, as {scaled} needs them",
            f"--precision fp8 or {half}",
        )


def has_flash(chip: Chip | None, precision: str) -> bool:
    """Flash attention needs half precision and a chip that it is built for; or a processor."""
    modern = chip is None or fuses_attention(chip)
    return modern and precision in ("bf16", "fp16", "fp8")


def positive(name: str, value: float) -> float:
    """Return ``value``, if it is a number above 0."""
    if not 0.0 < value < math.inf:
        raise UsageError(f"{name} = {value:g}", "a number above 0")
    return value
