"""Reports of programs, and what changed from one to another, as text, as HTML and as JSON."""

import itertools
import json
import re
from collections import Counter
from dataclasses import asdict, dataclass, field, replace
from html import escape
from linecache import getline
from textwrap import wrap

from shardlab._tables import aligned, html_table
from shardlab.arrays.layout import bytes_text, counted
from shardlab.programs.origins import where
from shardlab.report.causes import is_expected
from shardlab.report.findings import Finding
from shardlab.report.moves import Move
from shardlab.report.names import pattern, stacked
from shardlab.report.storage import Array, Temporary, whole_memory

__all__ = ["Comparison", "Report"]

MOST = 10  # rows that are printed; the others are added up
WIDE = 88  # columns
LINES = 60  # of a report that is printed

_COLUMNS = ("bytes", "ms", "times", "collective", "along", "overlap", "pass", "line")
_AT_PEAK = ("at the peak", "", "temporary", "made by", "line")
_STORED = ("stored", "", "argument", "type", "spec")


@dataclass(frozen=True, eq=False)
class Report:
    """What a program sends, what it stores, and what to change; printed as text, and as HTML in a
    notebook.

    Attributes:
      name: of the function.
      devices: how many devices it is for.
      mesh: sizes by axis; {} if unknown.
      compiled_for: the backend, such as "cpu" or "v5e:2x4".
      chip: the chip of the predicted times.
      moves: its communication as `Move`s, the longest predicted time first.
      arrays: its arguments as `Array`s, the largest first; () for a text.
      memory: bytes of each device: "arguments", "results", "temporaries", "donated", where the
        program has large ones "constants", and "peak", the most at once: the peak of a TPU's
        compiler, or else the sum; "gathered" are arguments among the temporaries that are gathered
        in the forward pass and kept for the backward pass; {} if unknown.
      findings: what to change, as `Finding`s.
      idle: how many devices of this backend a program for one device leaves idle; 0 for all other
        programs.
      kernels: kernels that communicate by themselves, by name, each with the bytes that it
        declares, or None: what they send is not in the program, and not in `bytes`.
      temporaries: what is alive where a device holds most, as `Temporary`s, the most bytes first;
        () for a text.
    """

    name: str
    devices: int
    mesh: dict[str, int]
    compiled_for: str
    chip: str
    moves: tuple[Move, ...]
    arrays: tuple[Array, ...] = ()
    memory: dict[str, int] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    idle: int = 0
    kernels: dict[str, int | None] = field(default_factory=dict)
    temporaries: tuple[Temporary, ...] = ()

    @property
    def bytes(self) -> int | None:
        """Bytes that a device sends in one call, on rings; None if only the run decides."""
        totals = [move.total for move in self.moves]
        return None if None in totals else sum(totals)

    @property
    def seconds(self) -> float | None:
        """Predicted time of its communication, one after the other; None if unknown."""
        times = [move.seconds for move in self.moves]
        return None if None in times else sum(times)

    def to_json(self) -> str:
        """The report as JSON, for other programs."""
        return json.dumps({**asdict(self), "bytes": self.bytes, "seconds": self.seconds}, indent=1)

    def __repr__(self) -> str:
        lines = [*_wrapped(self._head()), "", *_wrapped(self._sum())]
        texts = [f"{n}. {one.title}: {one.says}" for n, one in enumerate(self.findings, 1)]
        blocks = [_wrapped(text) for text in texts]
        fitting = _fitting(blocks, LINES // 3 - 2, least=1)
        lines += [""] if blocks else []
        lines += [line for block in blocks[:fitting] for line in block]
        left = len(blocks) - fitting
        more = counted(left, "finding")
        lines += [f"and {more} more: findings of the report has them"] if left else []
        if self.moves:
            shown = self._shown(MOST)
            under = [_details(move) for move in shown]
            sentences = [_sentence(code, about, cause) for code, about, cause in under]
            blocks = _under([_COLUMNS, *map(_cells, shown)], "><", ["", *sentences])
            fitting = _fitting(blocks, LINES - len(lines) - LINES // 4)
            if fitting < len(blocks):
                by_move = dict(zip(shown, blocks[1:], strict=True))
                shown = self._shown(fitting - 1)
                blocks = [blocks[0], *map(by_move.__getitem__, shown)]
            lines += ["", *(line for block in blocks for line in block), *self._others(shown)]
        rows = self._stored()
        lines += ["", *_wrapped(self._memory())]
        if rows:
            blocks = _table([_STORED, *rows[:MOST]], "><")
            fitting = _fitting(blocks, LINES // 7)
            lines += [line for block in blocks[:fitting] for line in block]
            left = len(rows) - fitting + 1
            kinds = "kinds" if left > 1 else "kind"
            lines += [f"and {left} {kinds} of smaller ones"] if left else []
        if at_peak := self._at_peak():
            lines += ["", *(line for block in _table([_AT_PEAK, *at_peak], "><") for line in block)]
        return "\n".join(lines)

    def _repr_html_(self):
        paragraph = lambda text: f"<p>{escape(text)}</p>"  # noqa: E731
        shown = self._shown(MOST)
        parts = [paragraph(self._head()), paragraph(self._sum()), self._findings_html(shown)]
        if self.moves:
            details = map(_details, shown)
            under = [(code, "; ".join(filter(None, about))) for code, *about in details]
            parts += [
                html_table(_COLUMNS, map(_cells, shown), under=under),
                *map(paragraph, self._others(shown)),
            ]
        rows = self._stored()
        parts.append(paragraph(self._memory()))
        parts += [html_table(_STORED, rows[:MOST])] if rows else []
        if len(rows) > MOST:
            parts.append(paragraph(f"and {len(rows) - MOST} kinds of smaller ones"))
        if at_peak := self._at_peak():
            parts.append(html_table(_AT_PEAK, at_peak))
        return "".join(parts)

    def _findings_html(self, shown):
        """A list of the findings, each with the place of the row that it is about."""
        places = sorted({where(move.file, move.line) for move in shown if move.line})
        items = ""
        for finding in self.findings:
            place = next((one for one in places if _names(finding, one)), "")
            # A page of the book lights the rows of this line when one points at the finding.
            own = f' data-place="{escape(place)}" tabindex="0"' if place else ""
            title, says = escape(finding.title), escape(finding.says)
            items += f"<li{own}><strong>{title}</strong>: {says}</li>"
        return f"<ol>{items}</ol>" if items else ""

    def _shown(self, most):
        """The moves that are printed, in their order: the longest, and of the others those that
        surprise.

        A third of the rows is for what a correct program seldom sends, and one of each kind comes
        before a second one.
        """
        if len(self.moves) <= most:
            return list(self.moves)
        longest, others = self.moves[: most - most // 3], self.moves[most - most // 3 :]
        kinds = {move.kind for move in longest}
        newest = [
            next(move for move in others if move.kind == kind)
            for kind in dict.fromkeys(move.kind for move in others)
            if kind not in kinds
        ]
        surprising = [move for move in others if not is_expected(move.cause)]
        chosen = [*longest, *dict.fromkeys((*surprising, *newest, *others))][:most]
        return [move for move in self.moves if move in chosen]

    def _head(self):
        mesh = " × ".join(f"{axis} {size}" for axis, size in self.mesh.items())
        on = counted(self.devices, "device") + (f" ({mesh})" if mesh else "")
        return f"{self.name}, for {on}, compiled for {self.compiled_for}"

    def _sum(self):
        if self.idle and not self.moves:
            devices = counted(self.idle + 1, "device")
            return (
                f"It sends nothing, and leaves {self.idle} of {devices} idle: "
                "no argument is placed on a mesh of several."
            )
        kernels = "its kernel" if len(self.kernels) == 1 else "its kernels"
        beside = f"Beside {kernels} it" if self.kernels else "It"
        declared = "".join(
            f" Kernel `{name}` communicates; "
            + (f"it declares {bytes_text(size)}." if size else "its bytes are not in the program.")
            for name, size in self.kernels.items()
        ).lstrip()
        if not self.moves:
            return f"{declared} {beside} sends nothing.".lstrip()
        size, time = bytes_text(self.bytes), _ms(self.seconds)
        sent = f"{beside} sends {size} from each device, {time} on {self.chip}."
        return f"{declared} {sent}".lstrip()

    def _others(self, shown):
        others = replace(self, moves=tuple(move for move in self.moves if move not in shown))
        count, size = len(others.moves), bytes_text(others.bytes)
        return [f"and {count} others: {size}, {_ms(others.seconds)}"] if count else []

    def _memory(self):
        if not self.memory:
            return "Its memory is unknown: this is only the text of a program."
        sizes, words = self.memory, {}
        kinds = ("arguments", "results", "temporaries", "constants")
        if sizes.get("gathered"):
            words["temporaries"] = (
                f"temporaries, of which {bytes_text(sizes['gathered'])} are gathered arguments "
                "kept for the backward pass"
            )
        known = [kind for kind in kinds if kind in sizes]
        parts = ", ".join(f"{bytes_text(sizes[kind])} {words.get(kind, kind)}" for kind in known)
        bound = "all of it" if sizes["peak"] == whole_memory(sizes) else "the compiler's peak"
        peak = f"at most {bytes_text(sizes['peak'])} at once, {bound}"
        shared = bytes_text(sizes["donated"])
        return f"Each device stores {parts} ({shared} shared by donation); {peak}."

    def _stored(self):
        together, lists = {}, stacked(array.name for array in self.arrays)
        for array in self.arrays:
            key = pattern(array.name, lists), array.type, array.spec
            count, total = together.get(key, (0, 0))
            together[key] = count + 1, total + array.bytes
        rows = sorted(together.items(), key=lambda row: -row[1][1])
        return [
            (bytes_text(total), f"{count} ×" if count > 1 else "", name, kind, spec)
            for (name, kind, spec), (count, total) in rows
        ]

    def _at_peak(self):
        """The largest temporaries, where they are a good part of the memory."""
        if self.memory.get("temporaries", 0) < self.memory.get("peak", 0) / 4:
            return []
        return [
            (
                bytes_text(one.bytes),
                f"{one.count} ×" if one.count > 1 else "",
                one.type,
                ", ".join(filter(None, (one.operation, one.phase))) or "unknown",
                where(one.file, one.line),
            )
            for one in self.temporaries[:3]
        ]


@dataclass(frozen=True, eq=False)
class Comparison:
    """What changed between two programs, `before` and `after`: `Report`s; as text, and as HTML in a
    notebook."""

    before: Report
    after: Report

    @property
    def gone(self) -> tuple[Move, ...]:
        """The `Move`s that only the first program has, or has more bytes of."""
        return _more(self.before, self.after)

    @property
    def new(self) -> tuple[Move, ...]:
        """The `Move`s that only the second program has, or has more bytes of."""
        return _more(self.after, self.before)

    def __repr__(self) -> str:
        lines = aligned([("", "before", "after"), *self._sums()], "<>").splitlines()
        if moves := self._moves():
            blocks = _table([("", *_COLUMNS, "array"), *moves], "<><")
            lines += ["", *(line for block in blocks for line in block)]
        changes = self._changes()
        lines += [""] if changes else []
        for sign, finding in changes:
            lines += _wrapped(f"{sign} {finding.title}: {finding.says}")
        return "\n".join(lines)

    def _repr_html_(self):
        parts = [html_table(("", "before", "after"), self._sums())]
        if moves := self._moves():
            parts.append(html_table(("", *_COLUMNS, "array"), moves))
        items = "".join(
            f"<li>{sign} <strong>{escape(finding.title)}</strong>: {escape(finding.says)}</li>"
            for sign, finding in self._changes()
        )
        return "".join(parts) + (f"<ul>{items}</ul>" if items else "")

    def _sums(self):
        """What is sent, and what is stored that differs: rows of a name, before, and after."""
        before, after = self.before, self.after
        rows = [("sent", bytes_text(before.bytes), bytes_text(after.bytes))]
        chips = before.chip if before.chip == after.chip else f"{before.chip} and {after.chip}"
        rows.append((f"predicted on {chips}", _ms(before.seconds), _ms(after.seconds)))
        if not before.memory or not after.memory:
            return rows
        for part in dict.fromkeys((*before.memory, *after.memory)):
            sizes = before.memory.get(part, 0), after.memory.get(part, 0)
            if sizes[0] != sizes[1]:
                rows.append((part, *map(bytes_text, sizes)))
        return rows

    def _moves(self):
        """The rows of communication that is gone, with "-", and that is new, with "+"."""
        signs = (("-", self.gone), ("+", self.new))
        return [(sign, *_cells(move), move.array) for sign, moves in signs for move in moves[:MOST]]

    def _changes(self):
        """The findings that only one of the programs has, each with its sign."""
        before, after = self.before.findings, self.after.findings
        gone = [("-", finding) for finding in before if finding not in after]
        return gone + [("+", finding) for finding in after if finding not in before]


def _cells(move):
    along = f"groups of {move.group}"
    if move.axes is not None:
        along = ", ".join(move.axes)
    elif move.within:
        along = f"{move.group} within {', '.join(move.within)}"
    times = "?" if move.times is None else f"{move.times:,}"
    ms = "?" if move.seconds is None else f"{move.seconds * 1e3:.3g}"
    size = "?" if move.total is None else f"{move.total:,}"
    line = where(move.file, move.line)
    return size, ms, times, move.kind, along, move.overlap, move.phase, line


def _details(move):
    """The code of a line, the array with the types, and the usual cause."""
    code = " ".join(getline(move.file, move.line).split()) if move.line else ""
    made = move.made and f"made in {move.made}"
    called = move.callers and f"called in {', '.join(move.callers)}"
    array = f"{move.array} and {counted(move.others, 'other')}" if move.others else move.array
    return code, ", ".join(filter(None, (array, " ".join(move.types), made, called))), move.cause


def _sentence(code, about, cause):
    """What stands under a row; for what is long the report's `moves` have all of it."""
    parts = (code and f"`{_shortened(code, 60)}`", _shortened(about, 110), cause)
    return "; ".join(filter(None, parts))


def _names(finding, place):
    """Whether a finding names a line of the source."""
    return re.search(rf"\b{re.escape(place)}\b", finding.says) is not None


def _wrapped(text, indent=""):
    return wrap(text, WIDE, initial_indent=indent, subsequent_indent=indent + "   ")


def _shortened(text, most):
    """A text, with a mark where its end is left out."""
    return text if len(text) <= most else f"{text[: most - 2]} …"


def _under(rows, align, texts):
    """The lines of each row of a table, with a text under it; what is too long goes on below."""
    lines = aligned(rows, align).splitlines()
    return [
        [*(_wrapped(line) if len(line) > WIDE else [line]), *_wrapped(text, "      ")]
        for line, text in zip(lines, texts, strict=True)
    ]


def _fitting(blocks, most, least=4):
    """How many blocks of lines fit, together: at least four, such as a heading and three rows."""
    lines = itertools.accumulate(map(len, blocks))
    return max(min(least, len(blocks)), sum(total <= most for total in lines))


def _table(rows, align):
    """The lines of each row of a table; of a wide one the last column stands under the others."""
    lines = aligned(rows, align).splitlines()
    if max(map(len, lines)) <= WIDE:
        return [[line] for line in lines]
    return _under([row[:-1] for row in rows], align, [row[-1] for row in rows])


def _ms(seconds):
    return "unknown ms" if seconds is None else f"{seconds * 1e3:.3g} ms"


def _more(one, other):
    had = Counter()
    for move in other.moves:
        had[_key(move)] += move.total or 0
    return tuple(move for move in one.moves if (move.total or 0) > had.get(_key(move), -1))


def _key(move):
    """What the moves of two programs have in common where they do the same."""
    return move.kind, move.axes, move.phase, move.line, move.array, move.types
