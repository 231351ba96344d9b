#!/bin/sh
# Take the pictures that are kept in the repository. Needs Chromium, and the site built by `make book`.
#   scripts/screenshot.sh [TOP]    book/static/page.png, which README.md shows, from TOP (7770) px down the page,
#                                  and book/static/card.png, which others show with a link, from scripts/card.svg
set -eu
cd "$(dirname "$0")/.."
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) ||
  { echo "screenshot: no Chromium found on PATH; install chromium" >&2; exit 1; }
profile=$(mktemp -d)
trap 'rm -rf "$profile"' EXIT
shoot() { # FILE WIDTH,HEIGHT ADDRESS
  "$browser" --headless --no-sandbox --disable-gpu --disable-background-networking --hide-scrollbars \
    --user-data-dir="$profile" --window-size="$2" --virtual-time-budget=4000 --screenshot="$1" "$3" 2>/dev/null
}
shoot book/static/page.png 1240,10000 "file://$PWD/_build/html/arrays.html"
shoot book/static/card.png 1200,630 "file://$PWD/scripts/card.svg"
# Crop the page to the part with the first sharded array, and use few colours, so that the repository stays small.
.venv/bin/python -c "
import sys
from PIL import Image
top = int(sys.argv[1])
for name, box in (('page', (292, top, 1092, top + 880)), ('card', (0, 0, 1200, 630))):
    file = f'book/static/{name}.png'
    picture = Image.open(file).convert('RGB').crop(box).quantize(224, dither=Image.Dither.NONE)
    picture.save(file, optimize=True)
    print(file, picture.size)" "${1:-7770}"
