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


def metric(url, name, label=""):
    """The sum over the lines of /metrics that start with `name` and hold `label`."""
    with urllib.request.urlopen(url, timeout=DEADLINE) as page:
        lines = page.read().decode().splitlines()
    return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name) and label in line)


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

    def metric(self, process, name, label=""):
        http = next(p["http"] for p in self.processes if p["name"] == process)
        return metric("http://%s/metrics" % http, name, label)

    def worker_metric(self, name, label=""):
        return sum(self.metric(worker, name, label) for worker in self.workers)

    def is_idle(self):
        """Every block of both pools is free, and no request is known."""
        return all(self.worker_metric(name) == 0 for name in
                   ("baton_kv_utilization_ratio", "baton_running_requests", "baton_waiting_requests"))
