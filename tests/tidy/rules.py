"""The rules that no compiler checks, each a function of one file's path and lines.

A rule yields (line number, message). TREE_RULES see the whole tree instead."""

import os
import re

MAX_LINES = {".cc": 500, ".cu": 500, ".h": 200, ".cuh": 200, ".py": 500, ".sh": 300}
MAX_README_LINES = 40

# What each layer may include of ours. A longer prefix wins over a shorter one.
LAYERS = {
    "base": {"base"},
    "kernels": {"base", "kernels"},
    "comm": {"base", "comm", "kernels"},
    "engine": {"base", "comm", "engine", "kernels"},
    "proto": {"proto"},
    "server": {"base", "comm", "engine", "kernels", "proto", "server"},
    "server/edge": {"base", "proto", "server/edge"},
    "server/text": {"base", "proto", "server/text"},
    "server/router": {"base", "proto", "server/edge", "server/text", "server/router"},
    "server/cli": {"base", "proto", "server/edge", "server/text", "server/cli"},
}
# Folders that may include all of ours.
OUTER = ("bench", "tests", "tools", "deploy")
# Libraries that only these folders may include.
EDGE_LIBRARIES = re.compile(r"#\s*include\s*[<\"](grpc|grpcpp|prometheus|google/protobuf)/")
EDGE_FOLDERS = ("server", "tests", "bench", "tools")

# A .cc, or a folder of them, with no test of its own: the test it is tested through.
TESTED_THROUGH = {
    "comm/expert_boards.cc": "comm/shared_expert_dispatch_test.cc",
    "comm/group_formation_leader.cc": "comm/group_formation_test.cc",
    "comm/group_formation_member.cc": "comm/group_formation_test.cc",
    "comm/group_links_loop.cc": "comm/group_links_test.cc",
    "comm/kv_exporter.cc": "comm/kv_transfer_agent_test.cc",
    "comm/kv_importer.cc": "comm/kv_transfer_agent_test.cc",
    "comm/ucx_context.cc": "comm/ucx_transport_test.cc",
    "comm/ucx_messenger.cc": "comm/ucx_transport_test.cc",
    "engine/drafter.cc": "engine/cpu_step_executor_test.cc",
    "engine/model/deepseek_v3_attention.cc": "engine/model/deepseek_v3_test.cc",
    "engine/llm_engine_commands.cc": "engine/llm_engine_test.cc",
    "engine/llm_engine_commit.cc": "engine/llm_engine_test.cc",
    "engine/llm_engine_transfer.cc": "engine/llm_engine_test.cc",
    "engine/scheduler_admission.cc": "engine/scheduler_test.cc",
    "engine/scheduler_pause.cc": "engine/llm_engine_pause_test.cc",
    "kernels/cpu/": "kernels/linear_test.cc",
    "kernels/cuda/cuda_device_stream.cc": "engine/cuda_step_executor_gpu_test.cc",
    "kernels/rope_tables.cc": "kernels/elementwise_test.cc",
    "server/cli/load_loop.cc": "server/cli/bench_test.cc",
    "server/cli/generation_stream.cc": "server/cli/commands_test.cc",
    "server/cli/worker_poll.cc": "server/cli/top_test.cc",
    "server/router/generation_call.cc": "server/router/router_test.cc",
    "server/router/generation_call_log.cc": "server/router/router_test.cc",
    "server/router/generation_failover.cc": "server/router/generation_fault_test.cc",
    "server/router/sample.cc": "server/router/generation_samples_test.cc",
    "server/engine_loop.cc": "server/worker_service_test.cc",
    "server/token_stream_reactor.cc": "server/worker_service_test.cc",
    "server/transfer_thread.cc": "server/worker_service_test.cc",
    "server/worker_rank.cc": "tests/integration/python_client_test.py",
    "server/worker_process.cc": "tests/integration/python_client_test.py",
}
# A .cc that no test needs, and why that is so.
UNTESTED = {
    "base/clock.cc": "one call of the system's clock",
    "tools/build/sanitizer_defaults.cc": "data for the sanitizers' own runtime",
    "tools/build/tsan_mutex.cc": "every test under TSan runs through it",
}
PUBLIC_FOLDERS = ("models", "third_party", "tools")
NO_README = (".ci",)

# Folders that are one machine's or one person's own.
OWN_PATH = re.compile(r"(?<![\w.)}*])/(home|root|tmp|mnt|media|srv|work|workspace|Users)\b")
UNFINISHED = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"]) + r")\b")
TICKET = re.compile(r"\b(issue|ticket|pull request)s?\s+#?\d+", re.IGNORECASE)

CODE = (".cc", ".h", ".cu", ".cuh")


def is_code(path):
    return path.endswith(CODE)


def is_test(path):
    return path.endswith("_test.cc") or path.startswith("tests/")


def is_main(path):
    return path.endswith("_main.cc") or path.startswith("bench/")


def code_of(line):
    """The line without its string literals and its // comment."""
    return re.sub(r'"(?:[^"\\]|\\.)*"', '""', line).split("//")[0]


def file_length(path, lines):
    limit = MAX_LINES.get(os.path.splitext(path)[1])
    if path.startswith("kernels/cpu/") and path.endswith(".h"):
        limit = MAX_LINES[".cc"]  # bodies compiled once a vector width, no interface
    if limit and len(lines) > limit and not path.startswith("third_party/"):
        yield limit + 1, "%d lines, at most %d: split it" % (len(lines), limit)


def readme_length(path, lines):
    if re.fullmatch(r"[^/]+/README\.md", path) and len(lines) > MAX_README_LINES:
        yield MAX_README_LINES + 1, "%d lines, at most %d" % (len(lines), MAX_README_LINES)


def banned_words(path, lines):
    if not is_code(path):
        return
    for number, line in enumerate(lines, 1):
        code = code_of(line)
        if re.search(r"\bgetenv\b", code) and not is_main(path):
            yield number, "getenv outside a main file: pass the value in"
        if re.search(r"\b(usleep|nanosleep|sleep_for|sleep_until|SleepFor)\b|(?<![\w.:>])sleep\(", code):
            yield number, "a sleep: wait on a condition with a deadline"
        if re.search(r"\bstd::(cout|cerr)\b", code) and not is_main(path) and not is_test(path):
            yield number, "std::cout in a library: return text, or LOG"
        if re.search(r"\busing\s+namespace\b", code):
            yield number, "using namespace: name what you use"


def shared_ownership(path, lines):
    """shared_ptr needs its reason in a comment on the same line or just above."""
    if not is_code(path) or is_test(path):
        return
    for number, line in enumerate(lines, 1):
        if not re.search(r"\b(shared_ptr|make_shared)\b", code_of(line)):
            continue
        above = lines[number - 2] if number > 1 else ""
        if "//" not in line and "//" not in above:
            yield number, "shared_ptr without a comment that says why"


def layer_of(path):
    folder = os.path.dirname(path)
    while folder and folder not in LAYERS:
        folder = os.path.dirname(folder)
    return folder


def include_direction(path, lines):
    if not is_code(path):
        return
    layer = layer_of(path)
    for number, line in enumerate(lines, 1):
        if EDGE_LIBRARIES.match(line) and path.split("/")[0] not in EDGE_FOLDERS:
            yield number, "gRPC, protobuf and prometheus are the server's alone"
        include = re.match(r'#\s*include\s*"([^"]+)"', line)
        if not include or not layer:
            continue
        target = include.group(1)
        for_test = is_test(path) or path.endswith("_for_test.h")
        if target.startswith("tests/") and for_test:
            continue
        if target.split("/")[0] in OUTER or not allowed(target, LAYERS[layer]):
            yield number, "%s may not include %s: it would point up" % (layer, target)


def allowed(target, folders):
    layer = layer_of(target)
    return not layer or layer in folders or any(layer.startswith(f + "/") for f in folders)


def include_guard(path, lines):
    if not path.endswith(".h"):
        return
    guard = "BATON_" + re.sub(r"[^A-Z0-9]", "_", path.upper()) + "_"
    if "#ifndef " + guard not in lines or "#define " + guard not in lines:
        yield 1, "the include guard is not " + guard


def build_files(path, lines):
    if os.path.basename(path) != "BUILD":
        return
    for number, line in enumerate(lines, 1):
        code = line.split("#")[0]
        if re.search(r"\bglob\(", code) and not path.startswith("third_party/"):
            yield number, "glob: name the files"
        if "//visibility:public" in code and not path.startswith(PUBLIC_FOLDERS):
            yield number, "public visibility: name the layer's group"


def foreign_words(path, lines):
    """Nothing speaks of one machine, of work left, or of the way the work was done."""
    if path == ".gitignore":
        return  # its patterns look like paths
    for number, line in enumerate(lines, 1):
        if match := OWN_PATH.search(line):
            yield number, "/%s is a path of one machine" % match.group(1)
        if UNFINISHED.search(line):
            yield number, "unfinished work: finish it, or leave it out"
        if TICKET.search(line):
            yield number, "a ticket's number says nothing to the reader"


def trailing_space(path, lines):
    for number, line in enumerate(lines, 1):
        if line != line.rstrip():
            yield number, "space at the end of the line"


FILE_RULES = [file_length, readme_length, banned_words, shared_ownership, include_direction,
              include_guard, build_files, foreign_words, trailing_space]


def every_source_is_tested(tree):
    """foo.cc has a foo_test, or a test includes its header, or a list above has it."""
    tested_headers = set()
    for path, lines in tree.items():
        if is_test(path):
            tested_headers.update(re.findall(r'#\s*include\s*"([^"]+)"', "\n".join(lines)))
    for path in tree:
        if not path.endswith(".cc") or is_test(path) or is_main(path) or path in UNTESTED:
            continue
        stem = path[:-len(".cc")]
        through = TESTED_THROUGH.get(path) or TESTED_THROUGH.get(os.path.dirname(path) + "/")
        tests = {stem + "_test.cc", stem + "_test.py", through}
        if not tests & set(tree) and stem + ".h" not in tested_headers:
            yield path, 1, "no test: write %s_test.cc, or say in tests/tidy/rules.py what tests it" % stem


def lists_are_needed(tree):
    for path in sorted(set(UNTESTED) | set(TESTED_THROUGH)):
        if not any(p.startswith(path) for p in tree):
            yield "tests/tidy/rules.py", 1, "%s is in a list there, and nowhere else" % path


def folders_have_a_page(tree):
    folders = {path.split("/")[0] for path in tree if "/" in path}
    for folder in sorted(folders - set(NO_README)):
        if folder + "/README.md" not in tree:
            yield folder + "/README.md", 1, "each top-level folder has a page of its own"


def pages_name_targets(tree):
    """A target that a page names is in its BUILD file."""
    for path in sorted(tree):
        for number, line in enumerate(tree[path] if path.endswith(".md") else [], 1):
            for package, name in re.findall(r"//([a-z_0-9/]+):([a-zA-Z_0-9.-]+)", line):
                if name != "all" and '    name = "%s",' % name not in tree.get(package + "/BUILD", []):
                    yield path, number, "there is no target //%s:%s" % (package, name)


TREE_RULES = [every_source_is_tested, lists_are_needed, folders_have_a_page, pages_name_targets]


def check(tree):
    """All violations of {path: lines} as (rule, path, line, message)."""
    found = []
    for path in sorted(tree):
        for rule in FILE_RULES:
            found += [(rule.__name__, path, number, message) for number, message in rule(path, tree[path])]
    for rule in TREE_RULES:
        found += [(rule.__name__, path, number, message) for path, number, message in rule(tree)]
    return found
