"""A fuzz target, and its test."""

load("//tools/build:cc.bzl", "COPTS")

def fuzz_target(name, deps, runs, data = [], **kwargs):
    """NAME.cc defines the functions of fuzz_target.h; corpus/NAME.txt holds what once broke it.

    `runs`: inputs that libFuzzer tries under --config=fuzz. In any other build the test goes
    through the corpus and changes of it."""
    corpus = "corpus/%s.txt" % name
    native.cc_test(
        name = name,
        srcs = [name + ".cc"],
        copts = COPTS,
        args = [
            "$(location %s)" % corpus,
            "-runs=%d" % runs,
            "-seed=1",
            "-max_len=4096",
            "-rss_limit_mb=4096",
            "-timeout=25",
            "-print_final_stats=1",
        ],
        data = [corpus] + data,
        tags = ["fuzz"],
        deps = [":fuzz_main"] + deps,
        **kwargs
    )
