#!/bin/sh
# Writes a problem for each group of ten files below a directory, as NDJSON: files.sh /usr/share/doc
find "${1:?which directory}" -type f | python3 -c '
import itertools, json, sys
files = (line.rstrip("\n") for line in sys.stdin)
for n in itertools.count():
    group = list(itertools.islice(files, 10))
    if not group:
        break
    print(json.dumps({"key": f"group-{n}", "payload": {"files": group}}))
'
