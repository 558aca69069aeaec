#!/usr/bin/env python3
"""The stages of ./check, one after the other; ends with the time and the sum

    N passed, N failed, N skipped

usage: tools/ci/check.py [--long]"""

import sys
import time

import bazel_test

# Life signs of a long build, every failure rather than the first, and time for tests
# under a sanitizer on a busy machine: by size, in seconds.
COMMON = ["--keep_going", "--build_tests_only", "--show_progress", "--show_progress_rate_limit=20",
          "--test_timeout=300,600,1200,3600", "//..."]
UNITS = ["-noasan", "-integration", "-tidy"]
# (name, flags, tags: one of these is wanted, and none of those with a minus)
# To compile and run each unit twice would take a third of the whole: --long does.
STAGES = [
    ("systems and whole models, as shipped", [], ["noasan", "integration", "tidy"]),
    ("units and fault points under ASan and UBSan", ["--config=asan"], UNITS),
    ("threaded tests under TSan", ["--config=tsan"], ["tsan"]),
    ("digests under clang", ["--config=clang"], ["digest"]),
    ("fuzz targets under libFuzzer", ["--config=fuzz"], ["fuzz"]),
]
# The tag is not "long": Bazel's filter would take every test of size large for it.
LONG = [
    ("long tests", ["--nocache_test_results"], ["extended"]),
    ("units, as shipped", [], UNITS + ["-fault_points"]),
    ("units under clang", ["--config=clang"], UNITS + ["-fault_points"]),
]


def say(start, text):
    seconds = int(time.monotonic() - start)
    print("[%2d:%02d] %s" % (seconds // 60, seconds % 60, text), flush=True)


def main(argv):
    if argv not in ([], ["--long"]):
        sys.exit("usage: ./check [--long | --tidy]")
    stages = STAGES + (LONG if argv else [])
    start = time.monotonic()
    total = [0, 0, 0]
    for number, (name, flags, tags) in enumerate(stages, 1):
        say(start, "stage %d of %d: %s" % (number, len(stages), name))
        stage_start = time.monotonic()
        if "extended" not in tags:
            tags = tags + ["-extended"]
        _, counts = bazel_test.run(flags + ["--test_tag_filters=" + ",".join(tags)] + COMMON)
        passed, failed, skipped = counts
        if sum(counts) == 0 and tags != ["extended"]:
            print("FAILED: no test ran in this stage")
            failed = 1
        total = [total[0] + passed, total[1] + failed, total[2] + skipped]
        say(start, "%s: %d passed, %d failed, %d skipped in %.0f s" %
            (name, passed, failed, skipped, time.monotonic() - stage_start))
    print("checked in %.0f s" % (time.monotonic() - start))
    print("%d passed, %d failed, %d skipped" % tuple(total), flush=True)
    return 1 if total[1] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
