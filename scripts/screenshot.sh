#!/bin/sh
# Take the picture of a page that README.md shows. Needs Chromium, and the site built by `make book`.
#   scripts/screenshot.sh [FILE [TOP]]    by default book/static/page.png, from 5670 px down
set -eu
cd "$(dirname "$0")/.."
out=${1:-book/static/page.png}
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome) ||
  { echo "screenshot: no Chromium found on PATH; install chromium" >&2; exit 1; }
profile=$(mktemp -d)
trap 'rm -rf "$profile"' EXIT
"$browser" --headless --no-sandbox --disable-gpu --disable-background-networking --hide-scrollbars \
  --user-data-dir="$profile" --window-size=1240,8000 --virtual-time-budget=4000 \
  --screenshot="$out" "file://$PWD/_build/html/arrays.html" 2>/dev/null
# The part with the first sharded array, in few colours, so that a picture in the repository stays small.
.venv/bin/python -c "
import sys
from PIL import Image
page = Image.open(sys.argv[1]).convert('RGB')
page.crop((240, int(sys.argv[2]), page.width - 200, int(sys.argv[2]) + 880)).quantize(224, dither=Image.Dither.NONE).save(sys.argv[1], optimize=True)
print(sys.argv[1], Image.open(sys.argv[1]).size)" "$out" "${2:-5670}"
