"""What a plan says, and how it prints."""

import dataclasses

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


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a step costs; prints as a table.

    Attributes:
        groups: The matrices that have owners.
        without_owners: Number of matrices that stay where they are
            (``placement=None``).
        devices: Number of devices of the mesh.
        work: Work of the busiest device relative to an even split among all devices:
            twice as much on two slices that both do all of the work.
        sent_in_teams: Bytes that a device sends at most in teams in a step, if the
            kernel is `linalg.newton_schulz` with the steps and dtype of `CostModel`.
        state_bytes: Bytes of the whole optimizer's state on a device.
        stack_bytes: Bytes of the gradients of a device's own matrices, whole.
        others: For other owner axes the work of the busiest device, the least first.
        replicated_axes: Mesh axes that split no matrix with owners.
        with_teams: Work and bytes in teams with ``owners(teams="auto")``; None if there
            are teams already, or would be none.
    """

    groups: tuple[PlannedGroup, ...]
    without_owners: int
    devices: int
    work: float
    sent_in_teams: int
    state_bytes: int
    stack_bytes: int
    others: tuple[tuple[tuple[str, ...], float], ...]
    replicated_axes: tuple[str, ...]
    with_teams: tuple[float, int] | None

    @property
    def sent(self) -> int:
        """Bytes that a device sends in a step, at most."""
        return sum(group.sent for group in self.groups) + self.sent_in_teams

    @property
    def teams(self) -> dict[tuple[int, int], int]:
        """What to pass as ``owners(teams=...)`` to have the same teams."""
        ordered = sorted(self.groups, key=lambda group: group.team)
        return {group.shape: group.team for group in ordered if group.team > 1}

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
            lines += [
                f"busiest of {self.devices} devices: {self.work:.2f}x an even split",
                f"sent by a device: {_mib(self.sent)} MiB; its whole gradients: "
                f"{_mib(self.stack_bytes)} MiB",
            ]
        if self.sent_in_teams:
            lines += [
                f"of that in teams, by calculation: {_mib(self.sent_in_teams)} MiB",
                f"these teams by hand: teams={self.teams}",
            ]
        lines.append(f"state on a device: {_mib(self.state_bytes)} MiB")
        better = [(axes, work) for axes, work in self.others if work < 0.9 * self.work]
        for axes, work in better:
            line = f"owners({axes!r}): {work:.2f}x, if the partitioner splits the rest"
            along = ", ".join(repr(x) for x in axes if x in self.replicated_axes)
            gathered = f"; updates are gathered along {along}" if along else ""
            lines.append(f"{line} evenly{gathered}")
        if self.with_teams and self.with_teams[0] < 0.9 * self.work:
            work, sent = self.with_teams
            lines.append(
                f"owners(teams='auto'): {work:.2f}x with newton_schulz, "
                f"{_mib(sent)} MiB in teams"
            )
        return "\n".join(lines)


def _mib(size: int) -> str:
    return f"{size / _MIB:.1f}"
