#!/usr/bin/env python3
"""Checks the whole tree against rules.py and clang-format, after proving that each
rule fires on a bad sample and is silent on a good one.

The tree is the one that this file, by its real path, is in."""

import os
import shutil
import subprocess
import sys

sys.path.insert(0, os.path.dirname(os.path.realpath(__file__)))
sys.dont_write_bytecode = True  # nothing is left in the tree
import rules

SKIPPED_FOLDERS = {".git", ".build", "bazel-out", "dist", "node_modules", "__pycache__"}
TEXT = (".cc", ".h", ".cu", ".cuh", ".py", ".sh", ".md", ".proto", ".bzl", ".txt", ".yaml", ".toml")
TEXT_NAMES = {"BUILD", "WORKSPACE", "demo", "check", "run", ".bazelrc", ".clang-format", ".clang-tidy", ".gitignore"}

GUARD = "#ifndef BATON_BASE_A_H_\n#define BATON_BASE_A_H_\n#endif\n"
# One bad sample a rule: {path: text}. The rest of each sample must be clean.
PAGES = {"base/README.md": "", "engine/README.md": "", "server/README.md": "", "tests/README.md": ""}
BAD = [
    ("file_length", {"tests/long.cc": "\n" * 501}),
    ("file_length", {"base/long.h": "#ifndef BATON_BASE_LONG_H_\n#define BATON_BASE_LONG_H_\n" + "\n" * 200}),
    ("readme_length", {"base/README.md": "line\n" * 41}),
    ("banned_words", {"tests/a.cc": "const char* home = getenv(name);\n"}),
    ("banned_words", {"tests/a.cc": "usleep(10);\n"}),
    ("banned_words", {"tests/a.cc": "  std::this_thread::sleep_for(second);\n"}),
    ("banned_words", {"tests/a.cc": "  absl::SleepFor(second);\n"}),
    ("banned_words", {"tests/a.cc": "  sleep(1);\n"}),
    ("banned_words", {"base/a.h": GUARD + "std::cout << 1;\n"}),
    ("banned_words", {"tests/a.cc": "using namespace std;\n"}),
    ("shared_ownership", {"base/a.h": GUARD + "int a;\nstd::shared_ptr<int> b;\n"}),
    ("include_direction", {"base/a_test.cc": '#include "engine/sequence.h"\n'}),
    ("include_direction", {"engine/a_test.cc": '#include "server/edge/config.h"\n'}),
    ("include_direction", {"engine/a_test.cc": "#include <grpcpp/grpcpp.h>\n"}),
    ("include_direction", {"server/cli/a_test.cc": '#include "server/router/router.h"\n'}),
    ("include_direction", {"server/edge/a_test.cc": '#include "server/convert.h"\n'}),
    ("include_direction", {"server/router/a_test.cc": '#include "engine/sequence.h"\n'}),
    ("include_guard", {"base/a.h": "#ifndef A_H\n#define A_H\n#endif\n"}),
    ("build_files", {"base/BUILD": 'srcs = glob(["*.cc"])\n'}),
    ("build_files", {"base/BUILD": 'visibility = ["//visibility:public"]\n'}),
    ("foreign_words", {"base/BUILD": "# see /" + "home/me/notes\n"}),
    ("foreign_words", {"base/BUILD": "# TO" + "DO: later\n"}),
    ("foreign_words", {"base/BUILD": "# as in iss" + "ue #12\n"}),
    ("trailing_space", {"base/BUILD": "deps = [] \n"}),
    ("every_source_is_tested", {"base/a.cc": "int a;\n"}),
    ("folders_have_a_page", {"bench/a_main.cc": "int a;\n"}),
    ("pages_name_targets", {"base/README.md": "`bazel test //base:gone_test`\n"}),
]
GOOD = {
    "base/a.cc": "int a;\n",
    "base/a_test.cc": '#include "base/a.h"\nint b;  // shared_ptr, std::cout, sleep(1)\n',
    "base/a.h": "#ifndef BATON_BASE_A_H_\n#define BATON_BASE_A_H_\n#endif\n",
    "base/b.cc": "int a;\n// One owner a thread.\nstd::shared_ptr<int> b;\n",
    "base/b_test.cc": "int a;  // see /usr/include/stdio.h and //base/a\n",
    "engine/c_test.cc": '#include "base/a.h"\n#include "comm/b.h"\n#include "tests/fakes/c.h"\n',
    "server/router/r_test.cc": '#include "server/edge/config.h"\n#include "proto/baton/v1/worker.pb.h"\n#include <grpcpp/grpcpp.h>\n',
    "server/d_main.cc": "const char* home = getenv(name);\n",
    "base/BUILD": 'visibility = ["//:everyone"]\ncc_test(\n    name = "a_test",\n)\n',
    "base/PAGE.md": "`bazel test //base:a_test //base:all //base/...`\n",
}


def rules_of(tree):
    lines = {path: text.split("\n")[:-1] if text else [] for path, text in tree.items()}
    return [v for v in rules.check(lines) if v[0] != "lists_are_needed"]


def self_test():
    errors = ["silent rule: %s on %s" % (name, list(bad.items())[0]) for name, bad in BAD
              if [v[0] for v in rules_of({**PAGES, **bad})] != [name]]
    errors += ["%s fires on good code: %s" % (v[0], v[1:]) for v in rules_of({**PAGES, **GOOD})]
    proven = {name for name, _ in BAD} | {"lists_are_needed"}
    errors += ["%s has no bad sample" % r.__name__ for r in rules.FILE_RULES + rules.TREE_RULES
               if r.__name__ not in proven]
    if [v[0] for v in rules.check({}) if v[0] == "lists_are_needed"] == []:
        errors.append("silent rule: lists_are_needed on an empty tree")
    return errors


def read_tree(root):
    tree = {}
    for folder, folders, files in os.walk(root):
        folders[:] = [f for f in folders if f not in SKIPPED_FOLDERS]
        for name in files:
            path = os.path.relpath(os.path.join(folder, name), root)
            if (name.endswith(TEXT) or name in TEXT_NAMES) and path != "user.bazelrc":
                with open(os.path.join(folder, name), encoding="utf-8") as f:
                    tree[path] = f.read().splitlines()
    return tree


def badly_formatted(root, tree):
    """Files that clang-format would change; none where it is not installed."""
    tool = shutil.which("clang-format")
    files = [p for p in sorted(tree) if rules.is_code(p) and not p.startswith("third_party/")]
    if not tool or not files:
        print("clang-format: skipped")
        return []
    run = subprocess.run([tool, "--dry-run", "--Werror", "--ferror-limit=1"] + files, cwd=root,
                         stderr=subprocess.PIPE, text=True, check=False)
    return sorted({line.split(":")[0] for line in run.stderr.splitlines() if "error:" in line})


def main():
    errors = self_test()
    root = os.path.realpath(__file__).removesuffix("/tests/tidy/tidy_test.py")
    tree = read_tree(root)
    violations = rules.check(tree)
    errors += ["%s:%d: %s [%s]" % (path, number, message, rule) for rule, path, number, message in violations]
    errors += ["%s: run clang-format -i on it" % path for path in badly_formatted(root, tree)]
    print("\n".join(errors))
    print("%d files, %d samples, %d errors" % (len(tree), len(BAD) + len(GOOD), len(errors)))
    return 1 if errors or len(tree) < 50 else 0


if __name__ == "__main__":
    sys.exit(main())
