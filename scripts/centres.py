"""Name the rows of book/your_centre.md whose sources were read more than half a year ago.

    make centres

Exits with 1 if there is one, each in one line. To renew a row, read its sources again, correct it,
and change the day in its last cell.
"""

import re
import sys
from datetime import date
from pathlib import Path

FILE = Path(__file__).parent.parent / "book" / "your_centre.md"
DAYS = 183
ROW = re.compile(r"^\| ([^|]+?) \|.* (20\d\d-\d\d-\d\d) \|$")


def read_on(text):
    """The line, the centre, and the day on which its sources were read, of each row with a day."""
    found = ((number, ROW.match(line)) for number, line in enumerate(text.splitlines(), 1))
    return [(number, row[1], date.fromisoformat(row[2])) for number, row in found if row]


def old(text, today):
    """What there is to say of each row that is too old."""
    return [
        f"book/your_centre.md:{number}: {centre}: its sources were read on {day}; read them again, "
        "correct the row, and change the day"
        for number, centre, day in read_on(text)
        if (today - day).days > DAYS
    ]


if __name__ == "__main__":
    lines = old(FILE.read_text("utf-8"), date.today())
    print("\n".join(lines) or "no row is older than half a year")
    sys.exit(bool(lines))
