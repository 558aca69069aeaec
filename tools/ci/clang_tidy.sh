#!/bin/bash
# tools/ci/clang_tidy.sh [FILES...]   clang-tidy, with the checks of .clang-tidy, over
# this project's own sources, or over FILES; ends with "clean" or a non-zero status.
set -euo pipefail
cd "$(dirname "$0")/../.."
command -v clang-tidy >/dev/null || {
  echo "clang-tidy is missing: run deploy/setup.sh --dev" >&2
  exit 1
}
# Generated headers have to be there.
bazel build --keep_going //...
tools/ci/compile_commands.py
if (($# == 0)); then
  mapfile -t files < <(python3 -c '
import json, os
top = os.getcwd() + "/"
for entry in json.load(open("compile_commands.json")):
    path = entry["file"]
    if path.startswith(top) and ".pb." not in path:
        print(path[len(top):])')
  set -- "${files[@]}"
fi
echo "clang-tidy: $# files"
printf '%s\0' "$@" | xargs -0 -n 1 -P "$(nproc)" clang-tidy --quiet -p . \
  --extra-arg=-Wno-unknown-warning-option 2> >(grep -v 'warnings generated' >&2)
echo "clean"
