"""Real servers on loopback for tests in Python, and stubs made from the .proto files."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

MODEL = "models/tiny-deepseek-v3"
PROTOS = ["proto/baton/v1/%s.proto" % name for name in ("error_details", "health", "inference")]
DEADLINE = 120  # Seconds; generous, since other work may be on the machine.
STUBS = os.path.join(os.environ["TEST_TMPDIR"], "stubs")


def _make_stubs():
    os.makedirs(STUBS)
    subprocess.run(["protoc", "-I.", "--python_out=" + STUBS, "--grpc_out=" + STUBS,
                    "--plugin=protoc-gen-grpc=/usr/bin/grpc_python_plugin", *PROTOS], check=True)
    sys.path.insert(0, STUBS)
    return [importlib.import_module("proto.baton.v1." + name) for name in
            ("inference_pb2", "inference_pb2_grpc", "error_details_pb2", "health_pb2", "health_pb2_grpc")]


pb, pb_grpc, errors_pb, health_pb, health_grpc = _make_stubs()


def await_condition(condition, what):
    """Waits until it is true and returns the seconds that took."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() > start + DEADLINE:
            raise AssertionError("timed out: " + what)
        signal.sigtimedwait([signal.SIGUSR1], 0.01)  # A signal that never comes is the pause.
    return time.monotonic() - start


def lines_of(url):
    with urllib.request.urlopen(url, timeout=DEADLINE) as page:
        return page.read().decode().splitlines()


def metric(url, name, label=""):
    """The sum over the lines of /metrics that start with `name` and hold `label`."""
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines_of(url) if line.startswith(name) and label in line)


def buckets(page, name):
    """A histogram of /metrics, summed up: [(bound, how many are at most that)]."""
    return [(float(line.split(',le="')[1].split('"')[0]), float(line.rsplit(" ", 1)[1]))
            for line in page if line.startswith(name + "_bucket{")]


def percentile(histogram, share):
    """The bound of the bucket that it is in."""
    return next(bound for bound, count in histogram if count >= share * histogram[-1][1])


def trims(urls):
    """How often the process of each metrics page has given back the memory that it kept."""
    return [metric(url, "baton_memory_trims_total") for url in urls]


def await_trims(urls, before):
    """What an allocator keeps is no leak: a process gives it back once, ten seconds after its last request."""
    await_condition(lambda: all(now > then for now, then in zip(trims(urls), before)), "idle processes' trims")


def resident(pid, what="VmRSS"):
    """KiB of memory that the process has; VmHWM: had at most."""
    with open("/proc/%d/status" % pid, encoding="utf-8") as status:
        return int(next(line for line in status if line.startswith(what)).split()[1])


def golden(name):
    with open("%s/golden/%s.json" % (MODEL, name), encoding="utf-8") as f:
        return json.load(f)


def ids_prompt(ids):
    return pb.Prompt(token_ids=pb.TokenIds(ids=ids))


def text_prompt(text):
    return pb.Prompt(text=pb.TextPrompt(text=text))


def greedy(prompt, max_tokens):
    return pb.GenerateRequest(prompt=prompt, sampling=pb.SamplingParams(temperature=0),
                              stopping=pb.StoppingParams(max_tokens=max_tokens, ignore_eos=True))


class Cluster:
    """What `baton local up` starts: a router, and its workers, on free ports."""

    def __init__(self, *flags):
        ready = os.path.join(os.environ["TEST_TMPDIR"], "ready")
        self._up = subprocess.Popen(["deploy/bin/baton", "local", "up", "--model=" + MODEL,
                                     "--bin_dir=deploy/bin", "--ready_file=" + ready, *flags])
        await_condition(lambda: os.path.exists(ready) or self._up.poll() is not None, "the servers' start")
        with open(ready, encoding="utf-8") as f:
            answer = json.load(f)
        os.unlink(ready)
        self.router = answer["router"]
        self.processes = answer["processes"]
        self.workers = [p["name"] for p in self.processes if p["name"] != "router"]

    def stop(self):
        self._up.terminate()
        assert self._up.wait(DEADLINE) == 0

    def url(self, process):
        return "http://%s/metrics" % next(p["http"] for p in self.processes if p["name"] == process)

    def page(self, process):
        return lines_of(self.url(process))

    def metric(self, process, name, label=""):
        return metric(self.url(process), name, label)

    def worker_metric(self, name, label=""):
        return sum(self.metric(worker, name, label) for worker in self.workers)

    def is_idle(self):
        """Every block of both pools is free, and no request is known."""
        return all(self.worker_metric(name) == 0 for name in
                   ("baton_kv_utilization_ratio", "baton_running_requests", "baton_waiting_requests"))
