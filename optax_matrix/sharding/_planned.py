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
        chips: Number of devices among which the parameters split each.
        team: Number of owners that share the work on each that is left over.
        held: Number of matrices for which a device has room, padding included.
        work: Work on them relative to that of the step.
        sent: Bytes that a device sends in a step: gradients, and updates back.
    """

    name: str
    shape: tuple[int, int]
    matrices: int
    owners: int
    chips: int
    team: int
    held: int
    work: float
    sent: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """What a step costs; prints as a table.

    Attributes:
        groups: The matrices that have owners.
        kept: Number of matrices that stay where they are (``placement=None``).
        devices: Number of devices of the mesh.
        work: Work of the busiest device relative to an even split among all devices:
            twice as much on two slices that both do all of the work.
        shared: Bytes that a device sends at most in teams in a step, if the kernel is
            `linalg.newton_schulz` with the steps and dtype of `CostModel`.
        state_bytes: Bytes of the whole optimizer's state on a device.
        stack_bytes: Bytes of the gradients of a device's own matrices, whole.
        others: For other owner axes the work of the busiest device, the least first.
        whole_along: Mesh axes that split no matrix with owners.
        auto: Work and bytes in teams with ``owners(plan="auto")``; None if there are
            teams already, or would be none.
    """

    groups: tuple[PlannedGroup, ...]
    kept: int
    devices: int
    work: float
    shared: int
    state_bytes: int
    stack_bytes: int
    others: tuple[tuple[tuple[str, ...], float], ...]
    whole_along: tuple[str, ...]
    auto: tuple[float, int] | None

    @property
    def sent(self) -> int:
        """Bytes that a device sends in a step, at most."""
        return sum(group.sent for group in self.groups) + self.shared

    @property
    def teams(self) -> dict[tuple[int, int], int]:
        """What to pass as ``owners(plan=...)`` to have the same teams."""
        ordered = sorted(self.groups, key=lambda group: group.team)
        return {group.shape: group.team for group in ordered if group.team > 1}

    def __str__(self) -> str:
        head = (
            "group",
            "matrices",
            "owners",
            "chips",
            "team",
            "held",
            "work",
            "sent MiB",
        )
        rows = [
            (
                x.name,
                x.matrices,
                x.owners,
                x.chips,
                x.team,
                x.held,
                f"{x.work:.0%}",
                _mib(x.sent),
            )
            for x in self.groups
        ]
        table = [head, *(tuple(map(str, row)) for row in rows)]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in table]
        if self.kept:
            lines.append(f"{self.kept} matrices stay where they are, without owners")
        if self.groups:
            lines += [
                f"busiest of {self.devices} devices: {self.work:.2f}x an even split",
                f"sent by a device: {_mib(self.sent)} MiB; its whole gradients: "
                f"{_mib(self.stack_bytes)} MiB",
            ]
        if self.shared:
            lines += [
                f"of that in teams, by calculation: {_mib(self.shared)} MiB",
                f"these teams by hand: plan={self.teams}",
            ]
        lines.append(f"state on a device: {_mib(self.state_bytes)} MiB")
        better = [(axes, work) for axes, work in self.others if work < 0.9 * self.work]
        for axes, work in better:
            line = f"owners({axes!r}): {work:.2f}x, if the partitioner splits the rest"
            whole = [axis for axis in axes if axis in self.whole_along]
            gathered = f"; updates are gathered along {', '.join(map(repr, whole))}"
            lines.append(f"{line} evenly{gathered if whole else ''}")
        if self.auto and self.auto[0] < 0.9 * self.work:
            work, shared = self.auto
            lines.append(
                f"owners(plan='auto'): {work:.2f}x with newton_schulz, "
                f"{_mib(shared)} MiB in teams"
            )
        return "\n".join(lines)


def _mib(size: int) -> str:
    return f"{size / _MIB:.1f}"
