"""Rules on RAM: its kind, modules and slots, sizes, and how its channels are filled.

Each rule compares with what the board states.  Where the board is not named, or its figure is not
known, a limit of the platform (`platforms`) can refuse the build, but cannot pass it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from trainrig.procure.parts import Board, MemoryModule, Processor
from trainrig.procure.parts_list import Build
from trainrig.procure.platforms import Platform, largest_module_gib, platform_of
from trainrig.procure.rule_book import Check, bounded, check, graded, not_known
from trainrig.units import counted


def memory_type(build: Build) -> Iterator[Check]:
    """Check that modules are of a generation and a form that board, processor and platform take."""
    modules = build.part_counts(MemoryModule)
    board, platform = build.board, platform_of(build)
    processors = build.pieces(Processor)
    if not modules or (board is None and not processors):
        return
    name = board.name if board else processors[0].name
    types = _memory_types(board, processors, platform)
    is_exact = board is None or board.memory_type is not None
    registered = _registered(board, platform)
    kinds = {True: "RDIMM", False: "UDIMM", None: "RDIMM or UDIMM"}
    accepted = f"{' or '.join(types) or '?'} {kinds[registered]}"
    for module, _ in modules:
        if module.memory_type is None:
            yield not_known("memory-type", module, "memory_type")
            continue
        form = "SO-DIMM" if module.so_dimm else kinds[module.registered]
        fits = module.memory_type in types or not types
        fits = fits and registered in (None, module.registered)
        fits = fits and module.so_dimm == (board is not None and board.so_dimm)
        if fits and not is_exact and board is not None:
            yield not_known("memory-type", board, "memory_type")
            continue
        yield check(
            "memory-type",
            fits,
            f"{name} takes {accepted}",
            f"{module.memory_type} {form} {'=' if fits else '≠'} {accepted}",
            f"modules of {accepted}",
        )


def _memory_types(
    board: Board | None, processors: list[Processor], platform: Platform | None
) -> tuple[str, ...]:
    """Return generations of memory that may be plugged in; none where nothing is known."""
    if board is not None and board.memory_type is not None:
        return (board.memory_type,)
    if processors:
        return processors[0].memory_types
    return platform.memory_types if platform else ()


def _registered(board: Board | None, platform: Platform | None) -> bool | None:
    """Return whether modules must be registered; None where both kinds are taken, or unknown."""
    if board is not None and board.registered is not None:
        return board.registered
    return platform.registered if platform else None


def memory_slots(build: Build) -> Iterator[Check]:
    """Check that there is a slot for each module."""
    count = len(build.pieces(MemoryModule))
    board, platform = build.board, platform_of(build)
    if not count or (board is None and platform is None):
        return
    ceiling, ceiling_text = None, ""
    if platform is not None and platform.modules_per_channel is not None:
        channels = board.memory_channels if board else platform.memory_channels
        per_channel = platform.modules_per_channel
        ceiling = channels * per_channel
        ceiling_text = f"{channels} channels × {per_channel} modules of {platform.socket}"
    yield bounded(
        "memory-slots",
        count,
        board.memory_slots if board else None,
        f"{counted(count, 'module')} in {{}} slots",
        part=board,
        field="memory_slots",
        ceiling=ceiling,
        ceiling_text=ceiling_text,
        fix="fewer and larger modules",
    )


def memory_module(build: Build) -> Iterator[Check]:
    """Check that no module is larger than its kind is made, or than a slot of the board takes."""
    board = build.board
    slot_gib = None
    if board is not None and board.memory_max_gib and board.memory_slots:
        slot_gib = board.memory_max_gib // board.memory_slots
    for module, count in build.part_counts(MemoryModule):
        generation = module.memory_type
        largest = largest_module_gib(generation, module.registered) if generation else None
        size, kind = module.capacity_gib, "RDIMM" if module.registered else "UDIMM"
        if largest is not None and size > largest:
            yield check(
                "memory-module",
                False,
                f"no {generation} {kind} is made of {size} GiB",
                f"{size} GiB > {largest} GiB, the largest {generation} {kind}",
                "smaller modules",
            )
        elif slot_gib is not None and size <= slot_gib:
            text = f"{size} GiB ≤ {board.memory_max_gib if board else 0} GiB / slots = {slot_gib}"
            yield check("memory-module", True, "size of each module", text, used=size / slot_gib)
        elif board is not None and board.memory_max_gib is None:
            yield not_known("memory-module", board, "memory_max_gib")
        elif board is not None and board.memory_slots is None:
            yield not_known("memory-module", board, "memory_slots")
        elif board is not None:  # larger than an equal share: the maker's list of modules says
            slots = counted(count, "module")
            message = "larger than an equal share of the board's memory: see its list of modules"
            text = f"{slots} of {size} GiB > {board.memory_max_gib} GiB / {board.memory_slots}"
            yield graded("memory-module", 0.99, 0.5, message, text, "smaller modules")


def memory_capacity(build: Build) -> Iterator[Check]:
    """Check that all modules are no more than board and processor address."""
    modules = build.pieces(MemoryModule)
    board, platform = build.board, platform_of(build)
    if not modules or (board is None and platform is None):
        return
    total = sum(module.capacity_gib for module in modules)
    ceiling = platform.memory_max_gib if platform else None
    if ceiling is not None and board is not None:
        ceiling *= board.sockets
    yield bounded(
        "memory-capacity",
        total,
        board.memory_max_gib if board else None,
        f"{total:,} GiB of at most {{}} GiB",
        part=board,
        field="memory_max_gib",
        ceiling=ceiling,
        ceiling_text=f"the limit of {platform.socket}" if platform else "",
        unit=" GiB",
        fix="less RAM, or another board",
    )


def memory_channels(build: Build) -> Iterator[Check]:
    """Check that channels are filled alike, with modules of one kind."""
    board, processors = build.board, build.pieces(Processor)
    modules = build.pieces(MemoryModule)
    if board is None or not modules or not processors:
        return
    channels = min(
        board.memory_channels, sum(processor.memory_channels for processor in processors)
    )
    count = len(modules)
    kinds = Counter(module.name for module in modules)
    yield check(
        "memory-channels",
        len(kinds) == 1,
        "all channels hold the same" if len(kinds) == 1 else "modules of several kinds",
        " + ".join(f"{number} × {name}" for name, number in kinds.items()),
        "modules of one kind",
    )
    even = count % channels == 0
    used = f"{count} modules / {channels} channels = {count / channels:.3g} a channel"
    yield graded(
        "memory-channels",
        0.0 if even else 0.99,
        0.5,
        "channels are filled alike" if even else "some channels are empty: bandwidth is lost",
        used,
        f"{-(-count // channels) * channels} modules",
    )
    platform = platform_of(build)
    supported = platform.two_modules_mt_s if platform else None
    fastest = min((module.speed_mt_s or 0 for module in modules), default=0)
    if supported is not None and count > channels and fastest > supported:
        yield graded(
            "memory-channels",
            0.99,
            0.5,
            f"two modules on a channel are supported to DDR5-{supported} alone",
            f"{count} modules / {channels} channels: {fastest:g} MT/s > {supported} MT/s",
            f"{channels} larger modules, or expect {supported} MT/s",
        )
