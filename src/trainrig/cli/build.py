"""`trainrig build`: parts lists checked, the best builds under a budget, the order of assembly."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from trainrig.cli.output import say
from trainrig.cli.predict_options import WHAT
from trainrig.cli.verb import PAGES, PATH, TOKENS, Pages, Verb, json_option, option, options, rows

if TYPE_CHECKING:
    from trainrig.procure.parts_list import Build

PRICES = option(
    "--prices",
    type=PATH,
    metavar="CSV",
    default_text="what trainrig prices import keeps",
    help="A price list, for parts without a price.",
)
CURRENCY = option(
    "--currency", metavar="XXX", default_text="the list's", help="Three letters: CNY, USD."
)


@click.group()
def command() -> None:
    """Check a parts list, find the best build under a budget, or print how to assemble one."""


def read_list(file: Path, prices: Path | None, currency: str | None) -> Build:
    """Return the build of a file, priced.  Raises DataError and UsageError."""
    from trainrig.procure.parts_list import read_build
    from trainrig.procure.price_list import read_prices

    return read_build(file, read_prices(prices), currency or "")


def _described_build(
    file: Path | None,
    described: dict[str, tuple[str, ...]],
    prices: Path | None,
    currency: str | None,
    volts: float | None,
    breaker_amps: float | None,
) -> Build:
    """Return the build of a file, of options, or of a file in which options stand for tables."""
    from trainrig.errors import UsageError
    from trainrig.procure.part_words import entries_of
    from trainrig.procure.parts_list import build_of, read_content
    from trainrig.procure.price_list import read_prices

    tables = entries_of({kind: texts for kind, texts in described.items() if texts})
    if file is None and not tables:
        raise UsageError(
            "missing FILE, or parts by name",
            'trainrig build check --gpu "2x RTX 4090" --psu 1000 --cpu 7950X --board B650E',
        )
    content: dict[str, Any] = {} if file is None else dict(read_content(file))
    room = {"volts": volts, "breaker_amps": breaker_amps}
    stated = {name: value for name, value in room.items() if value is not None}
    content |= {**tables, "room": {**content.get("room", {}), **stated}}
    where = "parts named by options" if file is None else str(file)
    return build_of(
        content,
        where,
        read_prices(prices),
        currency or "",
        is_complete=file is not None,
        described=tables,
    )


_PART_HELP = {
    "gpu": ('"2x RTX 4090", or a card\'s name.', "none"),
    "psu": ("Power supply: its watts, or its name.", "none"),
    "cpu": ("Processor: 7950X.", "none"),
    "board": ("Motherboard: its name, or its chipset (B650E).", "none"),
    "ram": ('"2x 32 GB DDR5-5600 UDIMM".', "none"),
    "case": ('PC case, by name or kind: "ATX case".', "none"),
    "cooling": ('Cooler of the processor: its name, or "360 mm water-cooled".', "none"),
    "disk": ('"4 TB NVMe", or a name.', "none"),
    "nic": ("Network card, by name.", "none"),
    "riser": ("Riser, by name.", "none"),
    "bridge": ("NVLink bridge, by name.", "none"),
}
_PARTS = rows(
    "Parts, repeatable",
    *((f"--{kind}", ["PART"], default, text) for kind, (text, default) in _PART_HELP.items()),
    ("--volts", float, "not checked", "Voltage of the outlet."),
    ("--breaker-amps", float, "not checked", "Amperes of its circuit."),
)


@command.command(cls=Verb, short_help="Is a parts list legal?  With the arithmetic.")
@click.argument("file", type=PATH, required=False)
@options(_PARTS)
@PRICES
@CURRENCY
@options(PAGES)
@json_option()
def check(
    file: Path | None,
    volts: float | None,
    breaker_amps: float | None,
    prices: Path | None,
    currency: str | None,
    pages: Pages,
    as_json: bool,
    **described: tuple[str, ...],
) -> int:
    """Check parts, named or in FILE: sockets, slots, lanes, watts, plugs, air, RAM, circuits.

    \b
    trainrig build check --gpu "2x RTX 4090" --psu 1000 --cpu 7950X --board B650E
    trainrig build check machine.toml
    trainrig build check machine.toml --psu "1600 W ATX 3.1" --html machine.html

    A part is named by the catalog, by enough of its name, or in words: a chip, watts of a
    supply, a chipset, "2x 32 GB DDR5-5600 UDIMM", "4 TB NVMe", "360 mm water-cooled", "ATX
    case"; with a maker before it, in Chinese as well, and a price behind it: "技嘉 B650E @
    2499".  What is not known is not judged.  With FILE, options stand for its tables.

    A list has tables of parts ([[gpu]], [[board]], [[cpu]], [[ram]], [[psu]], [[case]],
    [[cooling]], [[disk]], [[nic]], [[riser]], [[bridge]]), each with part, count and price,
    and says in [use] and [room] what it is for and where it stands.  A part that the
    catalog does not know is described by its fields.

    \b
    Fields (docs/parts.md has their meaning):
      gpu      chip length_mm slots cooling connectors watts radiator_mm noise_db
      board    socket form_factor memory_type memory_slots memory_channels slots m2_slots
               memory_max_gib registered so_dimm eps_connectors sata_ports
               u2_ports sockets lane_modes management
      cpu      socket watts lanes generation memory_channels memory_types cores
      ram      capacity_gib memory_type registered so_dimm speed_mt_s watts
      psu      watts atx connectors efficiency length_mm watts_115v form_factor noise_db
      case     form_factors gpu_length_mm slots cooler_height_mm airflow psu_bays
               radiator_mm radiators riser_cards rack_units noise_db
      cooling  sockets watts height_mm radiator_mm noise_db
      disk     capacity_tb interface watts endurance_tb qlc
      nic      gbps lanes generation ports watts
      riser    generation length_mm splits retimer powered
      bridge   chips span

    Exit code 1 where a rule is broken.
    """
    from trainrig.cli.output import publish
    from trainrig.errors import EXIT_FINDING, EXIT_OK
    from trainrig.procure.build_rules import check_build, report_dict
    from trainrig.report.build_report import build_document

    report = check_build(_described_build(file, described, prices, currency, volts, breaker_amps))

    def content() -> dict[str, Any]:
        return report_dict(report)

    publish(as_json, content, lambda: build_document(report), pages)
    return EXIT_OK if report.legal else EXIT_FINDING


_SEARCH = rows(
    "Search",
    ("--budget", float, "", "Money for all parts."),
    ("--currency", "XXX", "that of --own", "Currency of the budget: CNY, USD."),
    ("--global-batch", int, "about a million tokens", "Samples of a step."),
    ("--tokens", TOKENS, "no data on disk", "Tokens of the training: disks are sized for them."),
    ("--volts", float, "not checked", "Voltage of the outlet."),
    ("--breaker-amps", float, "not checked", "Amperes of its circuit."),
    ("--noise-limit-db", float, "no limit", "Loudest that the room allows."),
    ("--own", PATH, "none", "A parts list whose parts and prices may be chosen as well."),
)


@command.command(cls=Verb, short_help="The five best legal builds under a budget.")
@options(_SEARCH, WHAT)
@PRICES
@options(PAGES)
@json_option()
def suggest(
    budget: float | None,
    currency: str | None,
    tokens: float | None,
    volts: float | None,
    breaker_amps: float | None,
    noise_limit_db: float | None,
    own: Path | None,
    prices: Path | None,
    pages: Pages,
    as_json: bool,
    **keys: Any,
) -> None:
    """Find the five legal builds that train a model fastest for the money, of parts with a price.

    \b
    trainrig build suggest --budget 35000 --currency CNY --model gpt3-1.3B
    trainrig build suggest --budget 20000 --currency USD --model llama-7B --prices usd.csv

    Prices are those that trainrig prices import keeps.  Each build has its tokens a day,
    watts and price, what it waits for, and what 10 % more money would buy.
    """
    from trainrig.cli.output import publish
    from trainrig.errors import UsageError
    from trainrig.procure.build_search import offers_of, suggestions_dict
    from trainrig.procure.build_search import suggest as search
    from trainrig.procure.parts_list import Room, Use
    from trainrig.procure.price_list import currency_of, read_prices
    from trainrig.report.build_report import suggestions_document

    if budget is None:
        raise UsageError("how much money?", "as --budget 35000 --currency CNY")
    listed = read_list(own, prices, currency) if own is not None else None
    money = listed.currency if listed is not None else currency or ""
    if not money:
        raise UsageError("a budget in which currency?", "as --currency CNY")
    money = currency_of(money)
    offers = offers_of(read_prices(prices), listed, money)
    if not offers:
        raise UsageError(
            f"no part has a price in {money}",
            "trainrig prices template, then trainrig prices import",
        )
    suggestions = search(
        offers,
        {name: value for name, value in keys.items() if value is not None},
        budget=budget,
        currency=money,
        use=Use(model=keys.get("model"), tokens=tokens),
        room=Room(volts=volts, breaker_amps=breaker_amps, noise_limit_db=noise_limit_db),
    )
    publish(
        as_json,
        lambda: suggestions_dict(suggestions),
        lambda: suggestions_document(suggestions),
        pages,
    )


@command.command(cls=Verb, short_help="The order of assembly, and what to measure when.")
@click.argument("file", type=PATH)
@option("--out", type=PATH, metavar="FILE", default_text="stdout", help="Write it there.")
@json_option("A JSON array of steps.")
def checklist(file: Path, out: Path | None, as_json: bool) -> None:
    """Print how to assemble the machine of FILE, as markdown: the order, and what to measure when.

    \b
    trainrig build checklist machine.toml > assembly.md

    A list that is not legal gets its broken rules at the top: mend them before you order.
    """
    from trainrig.cli.output import print_json
    from trainrig.language import translate
    from trainrig.procure.assembly import as_markdown, steps_of
    from trainrig.procure.build_rules import check_build
    from trainrig.store import write_atomic

    report = check_build(read_list(file, None, None))
    if as_json:
        print_json([{"title": step.title, "items": list(step.items)} for step in steps_of(report)])
    elif out is not None:
        write_atomic(out, as_markdown(report, translate))
        say(f"wrote {out}", err=True)
    else:
        click.echo(as_markdown(report, translate), nl=False)


_CLUSTER = rows(
    "Cluster",
    ("--budget", float, "", "Money for machines and network."),
    ("--tokens", TOKENS, "", "Tokens of the training."),
    ("--network", ["GBPS=PRICE"], "", "Gb/s of a machine, and its price for each; repeatable."),
    ("--global-batch", int, "about a million tokens", "Samples of a step."),
)


@command.command(cls=Verb, short_help="What a budget for several machines trains.")
@click.argument("file", type=PATH)
@options(_CLUSTER, WHAT)
@PRICES
@CURRENCY
@options(PAGES)
@json_option("A JSON array, an object a network.")
def cluster(
    file: Path,
    budget: float | None,
    tokens: float | None,
    network: tuple[str, ...],
    prices: Path | None,
    currency: str | None,
    pages: Pages,
    as_json: bool,
    **keys: Any,
) -> None:
    """Say how many machines of FILE a budget buys, the best layout on each network, days and kWh.

    \b
    trainrig build cluster machine.toml --budget 1500000 --tokens 200e9 \\
        --model gpt2:num_layers=48,hidden=4096,num_heads=32 --network 10=1500 --network 100=9000

    The price of a network is that of a machine's card, cables and share of the switch.
    """
    from trainrig.cli.output import publish
    from trainrig.errors import UsageError
    from trainrig.procure.build_rules import check_build
    from trainrig.procure.several_machines import clusters_dict, network_of, plan_cluster
    from trainrig.report.build_report import cluster_document

    if budget is None or tokens is None:
        raise UsageError("how much money, and how many tokens?", "--budget 1.5e6 --tokens 200e9")
    if not network:
        raise UsageError("which networks?", "Gb/s and a price a machine: --network 100=9000")
    report = check_build(read_list(file, prices, currency))
    options_given = {name: value for name, value in keys.items() if value is not None}
    networks = [network_of(text) for text in network]
    plans = plan_cluster(report, options_given, networks, budget=budget, tokens=tokens)
    money = report.build.currency
    publish(
        as_json,
        lambda: clusters_dict(plans, money),
        lambda: cluster_document(report, plans, budget),
        pages,
    )
