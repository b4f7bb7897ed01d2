"""How topics, offsets and records look to people: on a terminal, in a notebook, in a pipe.

Every view is a `Grid`, a titled table of plain strings, made by a pure function of what the client
returned; `rich_table`, `html_table` and `text_table` draw any grid. Invariants:

1. rich is imported when a table is drawn for a terminal, never when this module is imported.
2. Nothing that came out of the log reaches a terminal or a page unescaped: `preview` turns control
   characters into escapes (a record cannot move the cursor), HTML is escaped, rich gets `Text`,
   never markup.
3. Objects are read by attribute only; nothing here does I/O.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from streamlog.model import Record, TopicPartition, to_datetime

if TYPE_CHECKING:
    from rich.table import Table

    from streamlog.broker.acls import Rule
    from streamlog.broker.users import User
    from streamlog.compaction.doctor import Finding
    from streamlog.compaction.maintainer import Outcome
    from streamlog.consumer.group.admin import GroupDescription, GroupSummary, Move
    from streamlog.log.topics import TopicDescription, TopicInfo

PREVIEW_CHARACTERS = 80
"""How much of a key or a value a table shows."""

PREVIEW_RECORDS = 100
"""How many records a table shows; its title says how many there are."""


MUCH_LAG = 1_000
"""From so many records on, a partition's lag is drawn in red."""

_STATUS_COLOURS = {
    "done": "green",
    "planned": "dim",
    "void": "yellow",
    "failed": "red",
    "ok": "green",
    "warning": "yellow",
    "error": "red",
}

Row = tuple[str, ...]

# The same four colours for a terminal and, readable on white and on black, for a page.
_PAGE_COLOURS = {"green": "#2e8b57", "yellow": "#b8860b", "red": "#d1242f", "dim": "#808080"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A heading, whether its cells are numbers (which stand to the right), and a row's colour in it."""

    title: str
    number: bool = False
    colour: Callable[[Row], str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """A titled table of strings."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]


def preview(data: bytes | None, limit: int = PREVIEW_CHARACTERS) -> str:
    """A key or a value in one short line: as text, or in hexadecimal digits if it is no text.

    >>> preview(b"caf\\xc3\\xa9\\n"), preview(b"\\xff\\x00"), preview(None)
    ('café\\\\n', '0xff00', 'null')
    """
    if data is None:
        return "null"
    # A character has at most four bytes in UTF-8: no need to decode a megabyte to show eighty.
    head = data[: 4 * limit]
    cut = len(head) < len(data)
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        if not (cut and error.start >= len(head) - 3):
            return _shorten("0x" + data[:limit].hex(), limit, more=len(data) > limit)
        text = head[: error.start].decode("utf-8")
    return _shorten(printable(text), limit, more=cut)


def printable(text: str) -> str:
    r"""Text whose control and other unprintable characters are written as escapes."""
    if text.isprintable():
        return text
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def size(count: int) -> str:
    """Bytes in the unit a person would choose.

    >>> size(512), size(1536), size(134217728)
    ('512 B', '1.5 KiB', '128.0 MiB')
    """
    if count < 1024:
        return f"{count} B"
    amount = float(count)
    for unit in ("KiB", "MiB", "GiB", "TiB"):
        amount /= 1024
        if amount < 1024:
            return f"{amount:.1f} {unit}"
    return f"{amount / 1024:.1f} PiB"


def moment(when: datetime) -> str:
    """A time in UTC to the second, as in `2026-11-18 09:00:00Z`."""
    return when.strftime("%Y-%m-%d %H:%M:%SZ")


def lag_colour(text: str) -> str:
    """Nothing left is green, something yellow, much red.

    >>> [lag_colour(text) for text in ("0", "7", "5000", "-")]
    ['green', 'yellow', 'red', 'dim']
    """
    if not text.isdigit():
        return "dim"
    lag = int(text)
    return "green" if lag == 0 else "yellow" if lag < MUCH_LAG else "red"


def state_colour(text: str) -> str:
    """The colour of a group's state."""
    return {"stable": "green", "rebalancing": "yellow", "dead": "red"}.get(text, "dim")


# What is shown ------------------------------------------------------------------------------


def topics_grid(topics: Iterable[TopicInfo]) -> Grid:
    """One row a topic: what the registry knows, without opening a partition."""
    rows = tuple(
        (
            info.name,
            str(info.partitions),
            ", ".join(f"{key}={value}" for key, value in sorted(info.config.to_dict().items())),
            moment(info.created_at),
        )
        for info in topics
    )
    columns = (
        Column(title="topic"),
        Column(title="partitions", number=True),
        Column(title="config"),
        Column(title="created"),
    )
    return Grid(title="topics", columns=columns, rows=rows)


def summary_grid(description: TopicDescription) -> Grid:
    """The topic as a whole, one property a row."""
    info = description.info
    parts = description.partitions
    rows = (
        ("topic", info.name),
        ("id", info.id),
        ("partitions", str(info.partitions)),
        ("records", str(sum(part.records for part in parts))),
        ("size", size(sum(part.bytes for part in parts))),
        ("files", str(sum(part.files for part in parts))),
        ("created", moment(info.created_at)),
    )
    columns = (Column(title="property"), Column(title="value"))
    return Grid(title=f"topic {info.name}", columns=columns, rows=rows)


def partitions_grid(description: TopicDescription) -> Grid:
    """One row a partition of a topic."""
    rows = tuple(
        (
            str(part.partition),
            str(part.start),
            str(part.end),
            str(part.records),
            size(part.bytes),
            str(part.files),
            "-" if part.version < 0 else str(part.version),
        )
        for part in description.partitions
    )
    titles = ("partition", "start", "end", "records", "size", "files", "version")
    columns = tuple(Column(title=title, number=True) for title in titles)
    return Grid(title="partitions", columns=columns, rows=rows)


def config_grid(info: TopicInfo) -> Grid:
    """One row a config key, telling what was set for this topic from what is default."""
    chosen = info.config.to_dict()
    rows = tuple(
        (key, value, "set" if key in chosen else "default")
        for key, value in sorted(info.config.effective().items())
    )
    columns = (Column(title="config"), Column(title="value"), Column(title="source"))
    return Grid(title="config", columns=columns, rows=rows)


def description_grids(description: TopicDescription) -> tuple[Grid, Grid, Grid]:
    """All there is to say about a topic."""
    return (
        summary_grid(description),
        partitions_grid(description),
        config_grid(description.info),
    )


def groups_grid(groups: Iterable[GroupSummary]) -> Grid:
    """One row a consumer group."""
    rows = tuple((g.name, g.state, str(g.members), str(g.generation)) for g in groups)
    columns = (
        Column(title="group"),
        Column(title="state", colour=lambda row: state_colour(row[1])),
        Column(title="members", number=True),
        Column(title="generation", number=True),
    )
    return Grid(title="groups", columns=columns, rows=rows)


def users_grid(users: Iterable[User]) -> Grid:
    """One row a user who may log in to brokers; nothing of the password."""
    rows = tuple(
        (
            printable(user.name),
            ", ".join(("PLAIN", *user.mechanisms)),
            moment(user.created_at),
            moment(user.changed_at),
        )
        for user in users
    )
    titles = ("user", "mechanisms", "created", "password since")
    return Grid(title="users", columns=tuple(Column(title=title) for title in titles), rows=rows)


def rules_grid(rules: Iterable[Rule]) -> Grid:
    """One row an access rule."""
    rows = tuple(
        (
            printable(rule.principal.removeprefix("User:")),
            rule.permission,
            rule.operation,
            rule.kind,
            rule.pattern,
            printable(rule.name),
            rule.host,
        )
        for rule in rules
    )
    columns = (
        Column(title="user"),
        Column(title="permission", colour=lambda row: "red" if row[1] == "deny" else "green"),
        Column(title="operation"),
        Column(title="kind"),
        Column(title="pattern"),
        Column(title="name"),
        Column(title="host"),
    )
    return Grid(title="rules", columns=columns, rows=rows)


def group_grid(group: GroupDescription) -> Grid:
    """The group as a whole, one property a row."""
    rows = (
        ("group", group.name),
        ("state", group.state),
        ("generation", str(group.generation)),
        ("strategy", group.strategy or "-"),
        ("members", str(len(group.members))),
        ("lag", str(group.lag)),
    )

    def colour(row: Row) -> str:
        paint = {"lag": lag_colour, "state": state_colour}.get(row[0])
        return "" if paint is None else paint(row[1])

    columns = (Column(title="property"), Column(title="value", colour=colour))
    return Grid(title=f"group {group.name}", columns=columns, rows=rows)


def lag_grid(group: GroupDescription) -> Grid:
    """One row a partition: how far the group is."""
    rows = tuple(
        (
            part.topic,
            str(part.partition),
            "-" if part.committed is None else str(part.committed),
            str(part.end),
            "-" if part.lag is None else str(part.lag),
            part.owner or "-",
            "-" if part.committed_at is None else moment(part.committed_at),
        )
        for part in group.partitions
    )
    columns = (
        Column(title="topic"),
        Column(title="partition", number=True),
        Column(title="committed", number=True),
        Column(title="end", number=True),
        Column(title="lag", number=True, colour=lambda row: lag_colour(row[4])),
        Column(title="owner"),
        Column(title="last commit"),
    )
    return Grid(title="partitions", columns=columns, rows=rows)


def members_grid(group: GroupDescription) -> Grid:
    """One row a member."""
    rows = tuple(
        (
            member.id,
            member.instance or "-",
            member.host,
            moment(member.joined_at),
            "-" if member.last_heartbeat is None else moment(member.last_heartbeat),
            ", ".join(str(tp) for tp in member.partitions) or "-",
        )
        for member in group.members
    )
    titles = ("member", "instance", "host", "joined", "last heartbeat", "partitions")
    return Grid(title="members", columns=tuple(Column(title=t) for t in titles), rows=rows)


def moves_grid(moves: Iterable[Move]) -> Grid:
    """The plan of a reset."""
    rows = tuple(
        (
            move.topic,
            str(move.partition),
            "-" if move.before is None else str(move.before),
            str(move.after),
        )
        for move in moves
    )
    columns = (
        Column(title="topic"),
        Column(title="partition", number=True),
        Column(title="from", number=True),
        Column(title="to", number=True),
    )
    return Grid(title="reset", columns=columns, rows=rows)


def outcomes_grid(outcomes: Sequence[Outcome], title: str) -> Grid:
    """One row a step of maintenance."""
    rows = tuple(
        (
            f"{item.topic}-{item.partition}",
            item.action,
            f"{item.first}..{item.last}",
            f"{item.files_before} > {item.files_after}",
            f"{size(item.bytes_before)} > {size(item.bytes_after)}",
            str(item.records_dropped),
            item.status,
            "; ".join(text for text in (item.reason, item.note) if text),
        )
        for item in outcomes
    )
    columns = (
        Column(title="partition"),
        Column(title="action"),
        Column(title="offsets", number=True),
        Column(title="files", number=True),
        Column(title="bytes", number=True),
        Column(title="dropped", number=True),
        Column(title="status", colour=lambda row: _STATUS_COLOURS.get(row[6], "")),
        Column(title="why"),
    )
    return Grid(title=title, columns=columns, rows=rows)


def findings_grid(findings: Sequence[Finding]) -> Grid:
    """One row a finding of the doctor."""
    rows = tuple((item.severity, item.where, item.what, item.todo) for item in findings)
    columns = (
        Column(title="", colour=lambda row: _STATUS_COLOURS.get(row[0], "")),
        Column(title="where"),
        Column(title="what"),
        Column(title="run"),
    )
    return Grid(title="health", columns=columns, rows=rows)


def offsets_grid(
    offsets: Mapping[TopicPartition, int] | Mapping[TopicPartition, int | None],
    title: str = "offsets",
) -> Grid:
    """One row a partition: positions, ends or lags."""
    rows = tuple(
        (tp.topic, str(tp.partition), "-" if offset is None else str(offset))
        for tp, offset in sorted(offsets.items())
    )
    columns = (
        Column(title="topic"),
        Column(title="partition", number=True),
        Column(title="offset", number=True),
    )
    return Grid(title=title, columns=columns, rows=rows)


def records_grid(records: Sequence[Record]) -> Grid:
    """One row a record, for the first hundred of them."""
    shown = records[:PREVIEW_RECORDS]
    rows = tuple(
        (
            record.topic,
            str(record.partition),
            str(record.offset),
            to_datetime(record.timestamp).isoformat(timespec="milliseconds"),
            preview(record.key),
            preview(record.value),
            ", ".join(f"{printable(name)}={preview(value)}" for name, value in record.headers),
        )
        for record in shown
    )
    columns = (
        Column(title="topic"),
        Column(title="partition", number=True),
        Column(title="offset", number=True),
        Column(title="time"),
        Column(title="key"),
        Column(title="value"),
        Column(title="headers"),
    )
    count = f"{len(records)} record{'' if len(records) == 1 else 's'}"
    title = count if len(shown) == len(records) else f"first {len(shown)} of {count}"
    return Grid(title=title, columns=columns, rows=rows)


# How it is drawn ----------------------------------------------------------------------------


def rich_table(grid: Grid) -> Table:
    """The grid for a terminal."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        title=grid.title,
        title_justify="left",
        title_style="bold",
        header_style="bold cyan",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    for column in grid.columns:
        if column.number:
            table.add_column(Text(column.title), justify="right", no_wrap=True)
        else:
            table.add_column(Text(column.title), overflow="fold")
    for row in grid.rows:
        cells = zip(grid.columns, row, strict=True)
        table.add_row(*(Text(cell, style=_colour(column, row)) for column, cell in cells))
    return table


def html_table(grid: Grid) -> str:
    """The grid for a notebook."""
    head = "".join(
        f'<th style="text-align:{_align(column)}">{html.escape(column.title)}</th>'
        for column in grid.columns
    )
    body = "".join(
        "<tr>"
        + "".join(
            f'<td style="text-align:{_align(column)}{_paint(column, row)}">{html.escape(cell)}</td>'
            for column, cell in zip(grid.columns, row, strict=True)
        )
        + "</tr>"
        for row in grid.rows
    )
    return (
        f"<table><caption>{html.escape(grid.title)}</caption>"
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    )


def text_table(grid: Grid) -> str:
    """The grid for a pipe: a line a row, cells parted by tabs, headings first."""
    lines = ["\t".join(column.title.upper() for column in grid.columns)]
    lines += ["\t".join(row) for row in grid.rows]
    return "\n".join(lines) + "\n"


# Results that draw themselves ---------------------------------------------------------------


class Records(list[Record]):
    """Records that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        return records_html(self)


class Offsets(dict[TopicPartition, int]):
    """Offsets by partition that a notebook shows as a table."""

    def _repr_html_(self) -> str:
        return offsets_html(self)


# Ready-made pages for `_repr_html_` ---------------------------------------------------------


def topics_html(topics: Iterable[TopicInfo]) -> str:
    """A list of topics for a notebook."""
    return html_table(topics_grid(topics))


def description_html(description: TopicDescription) -> str:
    """One topic for a notebook."""
    return "".join(html_table(grid) for grid in description_grids(description))


def group_html(group: GroupDescription) -> str:
    """One group for a notebook."""
    return "".join(html_table(grid(group)) for grid in (group_grid, lag_grid, members_grid))


def groups_html(groups: Iterable[GroupSummary]) -> str:
    """A list of groups for a notebook."""
    return html_table(groups_grid(groups))


def offsets_html(
    offsets: Mapping[TopicPartition, int] | Mapping[TopicPartition, int | None],
    title: str = "offsets",
) -> str:
    """Offsets by partition for a notebook."""
    return html_table(offsets_grid(offsets, title))


def records_html(records: Sequence[Record]) -> str:
    """Records for a notebook."""
    return html_table(records_grid(records))


def _align(column: Column) -> str:
    return "right" if column.number else "left"


def _colour(column: Column, row: Row) -> str:
    return "" if column.colour is None else column.colour(row)


def _paint(column: Column, row: Row) -> str:
    colour = _PAGE_COLOURS.get(_colour(column, row))
    return "" if colour is None else f";color:{colour}"


def _shorten(text: str, limit: int, *, more: bool) -> str:
    if len(text) > limit:
        return text[: limit - 1] + "…"
    return text + "…" if more else text
