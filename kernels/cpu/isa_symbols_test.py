#!/usr/bin/env python3
"""What kernels of an instruction set define is theirs alone.

A symbol that other code may define too (an inline function, a template of the
standard library) would be kept once by the linker, for all callers: code for
AVX-512 could then run on any CPU. So every symbol that the linker can see must
lie in the namespace of its instruction set.

usage: isa_symbols_test.py LIBRARY...
"""

import re
import subprocess
import sys


def foreign_symbols(library, isa):
  """Symbols of `library` outside the namespace, and how many are inside."""
  listing = subprocess.run(
      ["nm", "--demangle", "--defined-only", library],
      check=True, stdout=subprocess.PIPE, text=True).stdout
  # Lower case is local to its object, but for the unique (u) and the weak (v, w).
  visible = re.findall(r"^[0-9a-f]+ ([A-Zuvw]) (.+)$", listing, re.MULTILINE)
  foreign = [name for _, name in visible if f"baton::{isa}::" not in name]
  return foreign, len(visible) - len(foreign)


def main():
  libraries = [path for path in sys.argv[1:] if path.endswith(".a")]
  failures = 0
  for library in libraries:
    isa = re.search(r"kernels_(\w+?)(\.pic)?\.a$", library).group(1)
    foreign, own = foreign_symbols(library, isa)
    if foreign or own < 10:
      failures += 1
      print(f"{library}: {own} symbols of its own, and {foreign}")
  if failures or len(libraries) < 3:
    sys.exit(f"{failures} of {len(libraries)} libraries fail")
  print(f"{len(libraries)} libraries define nothing but their own")


if __name__ == "__main__":
  main()
