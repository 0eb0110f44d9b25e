"""The numbers of a plan, and how they are printed."""

import dataclasses
from typing import NamedTuple

from optax_matrix._printed import Printed
from optax_matrix.sharding._chips import CHIPS, ChipName

_MIB = 2**20


@dataclasses.dataclass(frozen=True)
class PlannedGroup:
    """Matrices that are exchanged together.

    Attributes:
        name: Names of their stacks.
        shape: Sides of each, the shorter first.
        matrices: Number of matrices.
        owners: Number of devices that own some of them.
        shards: Number of devices among which the parameters split each.
        team: Number of owners that share the work on each that is left over.
        each: Number of matrices that an owner has, padding included.
        work: Work on them relative to that of the step.
        sent: Bytes that a device sends in a step: gradients, and updates back.
    """

    name: str
    shape: tuple[int, int]
    matrices: int
    owners: int
    shards: int
    team: int
    each: int
    work: float
    sent: int


class PlannedChoice(NamedTuple):
    """Another choice of owner axes.

    Attributes:
        axes: The owner axes.
        work: Work of the busiest device, as in `Plan`.
        sent: Bytes that a device sends in a step, without teams.
        has_inside: As in `Plan`.
        cut: A replicated axis of which only eight devices own matrices, those of a
            host; None for axes as they are.
    """

    axes: tuple[str, ...]
    work: float
    sent: int
    has_inside: bool
    cut: str | None = None

    def beats(self, work: float, sent: int) -> bool:
        """Whether it has no more of either and less of one."""
        most = self.work <= work and self.sent <= sent
        return most and (self.work, self.sent) != (work, sent)


class PlannedTeams(NamedTuple):
    """What a step costs with another number of ``teams``.

    Attributes:
        teams: The argument of `owners`.
        work: Work of the busiest device, as in `Plan`.
        sent: Bytes that a device sends in a step, in teams too.
    """

    teams: int
    work: float
    sent: int


@dataclasses.dataclass(frozen=True)
class Plan(Printed):
    """What a step costs; prints as a table.

    Attributes:
        groups: The matrices that have owners.
        without_owners: Number of matrices that stay where they are
            (``placement=None``).
        devices: Number of devices of the mesh.
        work: Work of the busiest device relative to an even split among all devices:
            twice as much on two slices that both do all of the work.
        operations: Those of an iteration of Newton-Schulz on a device if all had
            equally many.
        sent_in_teams: Bytes that a device sends at most in teams in a step, if the
            kernel is `linalg.newton_schulz` with five steps in bfloat16.
        least_sent: Bytes that a device would send in a step without padding, if all
            sent equally much, without teams.
        padding: How many of the bytes that a device sends belong to no matrix, on
            average of all devices.
        sent_for_replicas: Bytes that a device sends in a step to reduce all gradients
            along `replicas`, with any optimizer.
        replicas: The mesh axes along which all parameters are replicated.
        state_bytes: Bytes of the whole optimizer's state on a device.
        even_state_bytes: The same without padding, if all devices had equally much.
        stack_bytes: Bytes of the gradients of a device's own matrices, whole.
        teams: The argument of `owners`.
        by_teams: The cost with each number that ``teams`` can be; empty if there is no
            last round.
        no_teams: Why no number but 1 is possible; empty if one is.
        others: All choices of owner axes; of equally many axes that with the least work
            comes first.
        replicated_axes: Mesh axes that split no matrix with owners.
        has_inside: Whether mesh axes stay inside the matrices. The partitioner then
            sends more than the plan counts.
        chip: The chip of the milliseconds that are printed, if any.
    """

    groups: tuple[PlannedGroup, ...]
    without_owners: int
    devices: int
    work: float
    operations: float
    sent_in_teams: int
    least_sent: int
    padding: int
    sent_for_replicas: int
    replicas: tuple[str, ...]
    state_bytes: int
    even_state_bytes: int
    stack_bytes: int
    teams: int
    by_teams: tuple[PlannedTeams, ...]
    no_teams: str
    others: tuple[PlannedChoice, ...]
    replicated_axes: tuple[str, ...]
    has_inside: bool
    chip: ChipName | None = None

    @property
    def sent(self) -> int:
        """Bytes that a device sends in a step, at most."""
        return sum(group.sent for group in self.groups) + self.sent_in_teams

    def __str__(self) -> str:
        counts = "matrices", "owners", "shards", "team", "each"
        table: list[tuple[str, ...]] = [("group", *counts, "work", "sent MiB")]
        for x in self.groups:
            numbers = (str(getattr(x, name)) for name in counts)
            table.append((x.name, *numbers, f"{x.work:.0%}", _mib(x.sent)))
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in table]
        if self.without_owners:
            count = self.without_owners
            lines.append(f"{count} matrices stay where they are, without owners")
        if self.groups:
            sent = self._bytes(self.sent, self.has_inside)
            least = f" of {_mib(self.least_sent)} MiB" if self.least_sent else ""
            lines += [
                f"busiest of {self.devices} devices: {self.work:.2f}x an even split",
                f"sent by a device: {sent}{least}; "
                f"{_mib(self.padding)} MiB are padding",
            ]
        if self.sent_in_teams:
            lines.append(f"of that in teams: {_mib(self.sent_in_teams)} MiB")
        if self.replicas:
            along = " and ".join(map(repr, self.replicas))
            lines.append(
                f"gradients besides: {_mib(self.sent_for_replicas)} MiB, an all-reduce "
                f"along {along} with any optimizer"
            )
        even = _mib(self.even_state_bytes)
        held = _mib(self.state_bytes)
        lines.append(f"state on a device: {held} MiB; an even split: {even} MiB")
        if self.chip is not None and self.groups:
            lines += self._times(self.chip)
        if self.no_teams:
            lines.append(f"no teams: {self.no_teams}")
        for x in self.by_teams:
            if x.teams != self.teams:
                sent = self._bytes(x.sent, self.has_inside)
                time = self._time(x.work, x.sent)
                lines.append(f"teams={x.teams}: {x.work:.2f}x; {sent}{time}")
        return "\n".join([*lines, *map(self._line, self.better)])

    @property
    def better(self) -> tuple[PlannedChoice, ...]:
        """Choices with at least 10% less work or bytes, unless one has less of both."""
        saves = lambda x: x.work < 0.9 * self.work or x.sent < 0.9 * self.sent
        beaten = lambda x: any(y.beats(x.work, x.sent) for y in self.others)
        return tuple(x for x in self.others if saves(x) and not beaten(x))

    def _line(self, choice: PlannedChoice) -> str:
        sent = self._bytes(choice.sent, choice.has_inside)
        line = f"owners({choice.axes!r}): {choice.work:.2f}x; {sent}"
        line += self._time(choice.work, choice.sent, within=bool(choice.cut))
        if choice.cut:
            line += f", if {choice.cut!r} were the eight devices of a host"
        if choice.has_inside:
            line += ", if the partitioner splits the rest evenly"
        along = ", ".join(repr(x) for x in choice.axes if x in self.replicated_axes)
        return f"{line}; updates are gathered along {along}" if along else line

    def _times(self, name: ChipName) -> list[str]:
        """The least that a step takes on a chip; nothing runs beside products."""
        flag = CHIPS[name].flag
        hidden = f", hidden only with the compiler's {flag}" if flag else ", exposed"
        products, exchange = self._milliseconds(name, self.work, self.sent)
        even, least = self._milliseconds(name, 1.0, self.least_sent)
        return [
            f"Newton-Schulz on {name}: at least {products:.1f} ms, exposed; "
            f"an even split: {even:.1f} ms",
            f"exchange on {name}: at least {exchange:.1f} ms{hidden}; "
            f"the least of {_mib(self.least_sent)} MiB: {least:.1f} ms",
        ]

    def _time(self, work: float, sent: int, within: bool = False) -> str:
        if self.chip is None:
            return ""
        products, exchange = self._milliseconds(self.chip, work, sent, within)
        return f"; at least {products:.1f} + {exchange:.1f} ms"

    def _milliseconds(
        self, name: ChipName, work: float, sent: int, within: bool = False
    ) -> tuple[float, float]:
        """Those of products and exchange; `within` says that it stays in a host."""
        chip = CHIPS[name]
        products = chip.of_work(work * self.operations)
        return 1e3 * products, 1e3 * chip.of_bytes(sent, 1 if within else self.devices)

    def _bytes(self, sent: int, has_inside: bool) -> str:
        said = f"{_mib(sent)} MiB" + (" or more" if has_inside else "")
        if not self.least_sent:
            return said
        return f"{said}, {sent / self.least_sent:.1f}x the least"


def _mib(size: int) -> str:
    return f"{size / _MIB:.1f}"
