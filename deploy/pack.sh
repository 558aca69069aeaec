#!/bin/bash
# deploy/pack.sh OUT PROGRAM...   puts built programs and the libraries that they need
# into a folder that runs on another x86-64 Linux with this glibc or a newer one:
#   OUT/bin/PROGRAM   finds ../lib by its rpath (.bazelrc)
#   OUT/lib/*.so*     all but glibc; UCX's tcp is in libuct, the modules beside it are
#                     for other ways
set -euo pipefail
if (($# < 2)) || [[ -e $1 ]]; then
  echo "usage: deploy/pack.sh OUT PROGRAM..., OUT not being there yet" >&2
  exit 2
fi
out=$1
shift
mkdir -p "$out/bin" "$out/lib"

glibc='^(ld-linux-x86-64|lib(c|m|dl|rt|pthread|resolv|util|anl))\.so'

# The libraries that $1 loads, themselves and theirs, by the names they are loaded by.
copy_libraries() {
  local name arrow path
  while read -r name arrow path _; do
    [[ $arrow == "=>" && ! $name =~ $glibc && ! -e $out/lib/$name ]] || continue
    [[ $path == /* ]] || {
      echo "$1 needs $name, which is not installed" >&2
      return 1
    }
    install -m 644 "$path" "$out/lib/$name"
  done <<<"$(ldd "$1")"
}

for program in "$@"; do
  install -m 755 "$program" "$out/bin/"
  copy_libraries "$program"
done

strip --strip-unneeded "$out"/bin/* "$out"/lib/*
