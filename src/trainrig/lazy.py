"""Values that are made when first used: public names of packages, members of a sequence.

What a package offers belongs together; what a command uses of it is mostly one name, and to load
the others would double the time of a short command.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TypeVar, overload

Member = TypeVar("Member")


class Later(Sequence[Member]):
    """A sequence whose members are taken from an iterable as they are first asked for, once."""

    def __init__(self, source: Iterable[Member]) -> None:
        """Take nothing yet."""
        self._source = source
        self._rest: Iterator[Member] | None = None
        self._known: list[Member] = []

    def __iter__(self) -> Iterator[Member]:
        """Yield the members, those that are known first."""
        place = 0
        while place < len(self._known) or self._take():
            yield self._known[place]
            place += 1

    def _take(self) -> bool:
        """Make the next member known; False where there is none."""
        if self._rest is None:
            self._rest = iter(self._source)
        for member in self._rest:
            self._known.append(member)
            return True
        return False

    def _all(self) -> list[Member]:
        while self._take():
            pass
        return self._known

    def __len__(self) -> int:
        """Return the length, which makes all members."""
        return len(self._all())

    @overload
    def __getitem__(self, place: int) -> Member: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[Member]: ...
    def __getitem__(self, place: int | slice) -> Member | Sequence[Member]:
        """Return a member, or several: makes all."""
        return self._all()[place]

    def __eq__(self, other: object) -> bool:
        """Return whether another sequence has equal members."""
        return isinstance(other, Sequence) and list(self) == list(other)

    def __repr__(self) -> str:
        """Return the text of a tuple of the members, which makes all."""
        return repr(tuple(self))

    __hash__ = None  # type: ignore[assignment]


def exports(package: str, modules: Mapping[str, tuple[str, ...]]) -> Callable[[str], object]:
    """Return a package's ``__getattr__``.

    Args:
        package: The package's ``__name__``.
        modules: The names that each of its modules has for everybody.  No module is called as one
            of them: Python puts a module into its package under its own name.
    """
    homes = {name: module for module, names in modules.items() for name in names}

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{package}.{homes[name]}"), name)
        vars(sys.modules[package])[name] = value  # nobody asks twice
        return value

    return load
