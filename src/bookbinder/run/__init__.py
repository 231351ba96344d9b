"""Run chapters and keep what they put out.

- `bookbinder.run.run_notebook`: run one notebook with any Python; imports nothing of ours
- `bookbinder.run.protect`: run a command that can neither write nor delete sources, where the
  system can; imports nothing of ours
- `bookbinder.run.stale`: the digests by which what was made before is known to be of today's
  sources
- `bookbinder.run.runs`: run notebooks, several at once; what was run under a key is not run again
  under it
- `bookbinder.run.execute`: run the chapters for the site, reusing outputs that are still valid
- `bookbinder.run.compare`: run chapters anew, and compare what they show with what the pages show
- `bookbinder.run.environments`: the versions of JAX that readers have, and an environment for each
- `bookbinder.run.matrix`: run the chapters on each of these: a table of chapters by versions
"""
