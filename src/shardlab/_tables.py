"""Rows of text as a table: with aligned columns for consoles, and as HTML for notebooks."""

from html import escape


def aligned(rows, align="<"):
    """Lines with two spaces between columns: `aligned([("a", "10"), ("bcd", "2")], "<>")` ends both
    numbers alike.

    Args:
      rows: the texts of each row, as many in one as in another; headings are a row too.
      align: for each column "<" (left) or ">" (right); the last one is also for the columns that
        follow.
    """
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = align + align[-1] * len(widths)
    lines = (
        "  ".join(f"{cell:{sides[n]}{widths[n]}}" for n, cell in enumerate(row)) for row in rows
    )
    return "\n".join(line.rstrip() for line in lines)


def html_table(head, rows, code=None, under=()):
    """An HTML table, with the texts of one column set as code.

    Args:
      head: the texts of the headings; () for none.
      rows: the texts of each row.
      code: the number of that column.
      under: what stands under each row, over all columns: a pair of code and text for each.
    """
    heads = "".join(f"<th>{escape(text)}</th>" for text in head)
    cells = [
        [f"<code>{escape(text)}</code>" if n == code else escape(text) for n, text in enumerate(r)]
        for r in rows
    ]
    lines = ["<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in cells]
    for n, (heading, text) in enumerate(under):
        words = f"<code>{escape(heading)}</code><br>" if heading else ""
        lines[n] += f'<tr><td colspan="{len(head)}">{words}{escape(text)}</td></tr>'
    body = "".join(lines)
    heads = f"<thead><tr>{heads}</tr></thead>" if heads else ""
    return f'<table class="dataframe">{heads}<tbody>{body}</tbody></table>'
