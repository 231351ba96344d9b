"""Draw collectives step by step: devices above what they hold, with an arrow for what is sent."""

import json
from collections.abc import Iterable

from shardlab._arguments import whole
from shardlab.arrays.layout import counted
from shardlab.pictures.arrays import name_html, name_text
from shardlab.pictures.products import pixels
from shardlab.pictures.svg import (
    PALETTE,
    Picture,
    escape,
    figure,
    haloed,
    ink,
    listed,
    number_text,
    rect,
    row,
    stripes,
    text,
    text_width,
)
from shardlab.programs.flows import Flow

__all__ = ["draw_all_reduce"]


def draw_all_reduce(flows: Iterable[Flow], nbytes: int) -> Picture:
    """Draw ring all-reduces on several numbers of devices, and count the bytes that each device
    sends.

    With an array of 4,096 bytes on 4 devices each device has 4 blocks of 1,024 bytes and sends 2
    (4 - 1) = 6 of them, together 6,144 bytes. On a page the reader chooses the number of devices
    and the bytes of the array, and goes from step to step; a notebook shows the first flow.

    Args:
      flows: for each number of devices n what `follow(program, mesh, chunks=n, steps=2 * (n - 1))`
        returned.
      nbytes: how many bytes the array has at first.

    Returns:
      A `Picture`.

    Raises:
      TypeError: an element of `flows` is no `Flow`.
      ValueError: there are not at least two flows, two have the same number of devices, one is no
        ring all-reduce in which each device sends one block in each step, or `nbytes` is not a
        whole number of at least 1.
    """
    flows, nbytes = list(flows), int(whole("nbytes", nbytes))
    for flow in flows:
        if not isinstance(flow, Flow):
            raise TypeError(
                f"draw_all_reduce() draws flows, which follow() returns, not {type(flow).__name__}"
            )
        _check_all_reduce(flow)
    if len({len(flow.devices) for flow in flows}) < max(2, len(flows)):
        raise ValueError(
            "draw_all_reduce() compares different numbers of devices, such as flows of 2, 4 "
            "and 8 devices"
        )
    html, words = flow_panel("", flows[0], flows[1:])
    n = len(flows[0].devices)
    block, total = number_text(nbytes / n), number_text(2 * (n - 1) * nbytes / n)
    sent = f"Each of {n} devices sends {2 * (n - 1)} blocks of {block} bytes: {total} bytes"
    sent += f", which is 2 × ({n} - 1) / {n} × {nbytes:,}."
    note = f'<p data-counter="" style="flex:0 0 100%;margin:0;font-size:.85em">{sent}</p>'
    html = (
        html.replace("data-steps=", f'data-bytes="{nbytes}" data-steps=', 1).removesuffix("</div>")
        + note
        + "</div>"
    )
    return Picture(html, f"{words}\n\n{sent}")


def _check_all_reduce(flow):
    n = len(flow.devices)
    everyone = [(place, slot) for place in range(n) for slot in range(flow.chunks)]
    complete = flow.chunks == n and all(
        flow.frames[-1].slots[place][slot] == tuple((owner, slot, 1) for owner in range(n))
        for place, slot in everyone
    )
    senders = [sorted(source for (source, _), _ in frame.sends) for frame in flow.frames[1:]]
    if not complete or senders != [list(range(n))] * (2 * (n - 1)):
        raise ValueError(
            f"a ring all-reduce on {n} devices has {n} blocks on each, whose sums are "
            f"complete after {2 * (n - 1)} steps, and in each step every device sends one "
            "block; this flow does not"
        )


def flow_panel(name, flow, more=()):
    """A figure for each frame; a page may show those marked as steps one by one, also on a ring,
    and more flows.
    """
    arrows = [_arrows(flow, number) for number in range(len(flow.frames))]
    # the same room in each frame
    lanes = max((1 + lane for of_frame in arrows for *_, lane in of_frame), default=0)
    frames = [
        _frame_figure(name, flow, number, arrows[number], lanes)
        for number in range(len(flow.frames))
    ]
    data = json.dumps(
        [_flow_data(drawn) for drawn in (flow, *more)], separators=(",", ":"), ensure_ascii=False
    )
    steps = (
        f'class="shardlab" data-steps="{len(frames)}" data-flow="{escape(data)}"'
        if len(frames) > 2
        else ""
    )
    lines = [_frame_text(flow, frame) for frame in flow.frames]
    return row("".join(frames), steps, "flex-start"), "\n".join([f"{name}:"] * bool(name) + lines)


def _flow_data(flow):
    """A flow for steps.js: its devices with their colours, all blocks once, and the frames with the
    blocks' numbers.
    """
    blocks = {(): 0}
    for content in (content for frame in flow.frames for slot in frame.slots for content in slot):
        blocks.setdefault(content, len(blocks))
    colours = [PALETTE[device % len(PALETTE)] for device in flow.devices]
    return {
        "devices": [
            [device, colour, ink(colour)]
            for device, colour in zip(flow.devices, colours, strict=True)
        ],
        "blocks": [
            [flow.name(content), _owners(content)] if content else ["", []] for content in blocks
        ],
        "frames": [
            {
                "title": frame.title,
                "slots": [[blocks[content] for content in slot] for slot in frame.slots],
                "sends": [[*source, *target] for source, target in frame.sends],
                "lines": frame.lines,
                **({"notes": frame.notes} if frame.notes else {}),
            }
            for frame in flow.frames
        ],
    }


def _owners(content):
    """The positions of the devices whose chunks are in it."""
    return list(dict.fromkeys(owner for owner, *_ in content))


def _arrows(flow, number):
    """The arrows above the devices of a frame, as (left, right, there, back, lane): what goes each
    way, how high.
    """
    spans = {}
    for (source, slot), (target, _) in flow.frames[number].sends:
        if source != target:
            both = spans.setdefault((min(source, target), max(source, target)), ([], []))
            both[source > target].append(flow.frames[number - 1].slots[source][slot])
    arrows = []
    for (left, right), (there, back) in sorted(
        spans.items(), key=lambda item: (item[0][1] - item[0][0], item[0])
    ):
        # Above all those between the same devices: the lowest lane in which it meets no other.
        taken = {lane for other, end, _, _, lane in arrows if other < right and left < end}
        arrows.append(
            (
                left,
                right,
                there,
                back,
                next(lane for lane in range(len(spans)) if lane not in taken),
            )
        )
    return arrows


_LANE = 17  # px: from one arrow to the next one above it
_NOTE = 13  # px: from one line below the slots to the next


def _frame_figure(name, flow, number, arrows, lanes):
    frame, earlier = flow.frames[number], flow.frames[number - 1] if number else None
    n, across, height, gap = len(flow.devices), 46 if len(flow.devices) <= 6 else 34, 26, 6
    across = max([across, *(text_width(line, 11) for lines in frame.notes for line in lines)])
    slots, notes = max(map(len, frame.slots)), max(map(len, frame.notes), default=0)
    head = lanes * _LANE + 5 if lanes else 0
    centres = [place * (across + gap) + across / 2 for place in range(n)]
    parts = []
    for left, right, there, back, lane in arrows:
        parts.append(
            _arrow(
                flow,
                centres[left],
                centres[right],
                there,
                back,
                head - 12 - lane * _LANE,
                head,
                lane,
            )
        )
    for place, (device, contents) in enumerate(zip(flow.devices, frame.slots, strict=True)):
        left, colour = place * (across + gap), PALETTE[device % len(PALETTE)]
        parts.append(
            (
                f'<circle cx="{left + across / 2:g}" cy="{head + 11:g}" r="11" fill="{colour}" '
                'stroke="currentColor"/>'
            )
            + text(left + across / 2, head + 15.5, str(device), size=13, fill=ink(colour))
        )
        before = earlier.slots[place] if earlier else contents
        for slot, content in enumerate(contents):
            changed = (
                content not in before if len(before) != len(contents) else before[slot] != content
            )
            box = left, head + 30 + slot * (height + 3), across, height
            parts.append(_slot(flow, content, box, changed and content, ' data-slot=""'))
    below = head + 30 + slots * (height + 3)
    for centre, lines in zip(centres, frame.notes, strict=bool(frame.notes)):
        parts += [
            text(centre, below + 10 + i * _NOTE, line, size=11) for i, line in enumerate(lines)
        ]
    width, tall = n * (across + gap) - gap, below + notes * _NOTE
    title = f"{name_text(name)}{frame.title}, {counted(n, 'device')}"
    caption = f"{name_html(name)}{escape(frame.title)}"
    notes = frame.notes or [()] * n
    description = listed(
        f"device {device} holds {_held_text(flow, contents)}"
        + (f" ({', '.join(lines)})" if lines else "")
        for device, contents, lines in zip(flow.devices, frame.slots, notes, strict=True)
    )
    if frame.sends:
        description = f"{_sent_text(flow, frame, earlier)} {description}"
    return figure(parts, width, tall, title, description, caption)


def _arrow(flow, left, right, there, back, y, head, lane):
    """An arrow above the devices, both ways if both send, with what is sent on it, nearest to its
    sender.
    """
    # of the middle of a device: several arrows may begin and end there
    aside = max(8 - 4 * lane, 0)
    left, right = left + aside, right - aside
    path = f"M{left:g} {head:g}V{y:g}H{right:g}V{head:g}"
    path += "m-3 -4l3 4l3 -4" * bool(there) + f"M{left - 3:g} {head - 4:g}l3 4l3 -4" * bool(back)
    parts = [f'<path d="{path}" fill="none" stroke="currentColor"/>']
    both = bool(there and back)
    width = min(26, (right - left - 8) / (1 + both))
    for contents, part in ((there, 0.27 if both else 0.5), (back, 0.73 if both else 0.5)):
        if len(contents) == 1:
            middle = left + (right - left) * part
            box = pixels(middle - width / 2), y - 7, pixels(width), 14
            parts.append(_slot(flow, contents[0], box, False, room=3))
    return f'<g data-sent="">{"".join(parts)}</g>'


def _slot(flow, content, box, changed, more="", room=9):
    """One slot of a device, or what is sent: empty, data of one device, or a sum hatched in its
    terms' colours.
    """
    left, top, width, height = box
    if not content:
        return rect(left, top, width, height, more=f' stroke-dasharray="2 3" opacity=".6"{more}')
    name = flow.name(content)
    colours = [PALETTE[flow.devices[owner] % len(PALETTE)] for owner in _owners(content)]
    several = len(content) > 1 or content[0][2] > 1
    size = round(min(12, (width - room - 5 * several * (room < 9)) / (0.62 * len(name))), 1)
    middle, down = left + width / 2, top + height / 2 + 4.5
    ground, hatch, label = colours[0], "", text(middle, down, name, size=size, fill=ink(colours[0]))
    if several:
        # Each colour has every k-th stripe. Eight colours get narrower ones, so that each shows.
        hatch = stripes(left, top, width, height, colours, 7 if len(colours) < 7 else 5)
        ground, label = "#fff", haloed(middle, down, name, size)
    label = label if size >= 7 else ""
    outline = rect(left, top, width, height, more=' stroke-width="3"' if changed else "")
    extent = f'x="{left:g}" y="{top:g}" width="{width:g}" height="{height:g}"'
    return f'<g{more}><rect {extent} fill="{ground}"/>{hatch}{outline}{label}</g>'


def _held_text(flow, held):
    owner = "" if flow.chunks > 1 else "the chunk of "
    names = [flow.name(content) if content else "" for content in held]
    return ", ".join((owner if name.isdigit() else "") + name or "nothing" for name in names)


def _sent_text(flow, frame, earlier):
    sent = (
        f"device {flow.devices[source]} sent {_held_text(flow, [earlier.slots[source][slot]])} "
        f"to device {flow.devices[target]}"
        for (source, slot), (target, _) in frame.sends
    )
    return listed(sent, noun="blocks")


def _frame_text(flow, frame):
    cells = [[flow.name(content) if content else "·" for content in slot] for slot in frame.slots]
    width = max(len(cell) for row in cells for cell in row)
    notes = ["  " + ", ".join(lines) for lines in frame.notes] or [""] * len(cells)
    rows = [
        f"  {device}: {' '.join(f'{cell:<{width}}' for cell in row)}{below}".rstrip()
        for device, row, below in zip(flow.devices, cells, notes, strict=True)
    ]
    return "\n".join([frame.title, *rows])
