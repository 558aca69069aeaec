#!/usr/bin/env python3
"""batond as its operator meets it: its start, its refusals, its end."""

import importlib
import os
import signal
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request

import grpc

BATOND = sys.argv.pop(1)
MODEL = "models/tiny-deepseek-v3"
DEADLINE = 120  # Seconds; generous, since other work may be on the machine.


def make_stubs():
    out = os.path.join(os.environ["TEST_TMPDIR"], "stubs")
    os.makedirs(out)
    subprocess.run(["protoc", "-I.", "--python_out=" + out, "--grpc_out=" + out,
                    "--plugin=protoc-gen-grpc=/usr/bin/grpc_python_plugin",
                    "proto/baton/v1/inference.proto", "proto/baton/v1/worker.proto"], check=True)
    sys.path.insert(0, out)
    return [importlib.import_module("proto.baton.v1." + name) for name in ("worker_pb2", "worker_pb2_grpc")]


pb, pb_grpc = make_stubs()


def decode_request(counter, max_tokens):
    return pb.DecodeRequest(request=pb.WorkerRequest(
        id=pb.RequestId(router_nonce=1, counter=counter), token_ids=[0, 100, 200], original_prompt_tokens=3,
        sampling=pb.WorkerSampling(temperature=0, top_p=1), max_tokens=max_tokens))


class Worker:
    def __init__(self, *flags):
        self.process = subprocess.Popen([BATOND, "--model=" + MODEL, "--kv_blocks=128", *flags],
                                        stdout=subprocess.PIPE, text=True)
        words = self.process.stdout.readline().split()
        self.role = words[1]
        self.http = words[3].split("=")[1]
        self.stub = pb_grpc.WorkerServiceStub(grpc.insecure_channel(words[2].split("=")[1]))

    def get(self, path):
        try:
            with urllib.request.urlopen("http://%s%s" % (self.http, path), timeout=DEADLINE) as page:
                return page.status, page.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, ""

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.end()

    def end(self):
        code = self.process.wait(DEADLINE)
        self.process.stdout.close()
        return code


class BatondTest(unittest.TestCase):
    def refused(self, *flags, environment=None, code=2):
        start = time.monotonic()
        ended = subprocess.run([BATOND, *flags], capture_output=True, text=True, timeout=DEADLINE, check=False,
                               env={**os.environ, **(environment or {})})
        print("refused in %.2f s: %s" % (time.monotonic() - start, ended.stderr.splitlines()[-1]))
        self.assertEqual(ended.returncode, code, ended.stderr)
        return ended.stderr.splitlines()[-1]

    def test_a_bad_configuration_names_its_key(self):
        model = "--model=" + MODEL
        for flags, key in [
            ([], "--model"), ([model, "--no_such_flag"], "no_such_flag"), ([model, "--threads=x"], "threads"),
            ([model, "--ep_size=3", "--local_ranks=2"], "local_ranks"),
            ([model, "--ep_size=4", "--local_ranks=2"], "leader"),
            ([model, "--kv_blocks=0"], "kv_blocks"), ([model, "--kv_cache_bytes=1MiB", "--kv_blocks=3"], "kv_blocks"),
            ([model, "--role=both"], "role"), ([model, "--max_chunk_tokens=600"], "max_chunk_tokens"),
        ]:
            self.assertIn(key, self.refused(*flags))
        self.assertIn("BATON_NO_SUCH_KEY", self.refused(model, environment={"BATON_NO_SUCH_KEY": "1"}))
        self.assertIn("BATON_THREADS", self.refused(model, environment={"BATON_THREADS": "x"}))

    def test_what_the_machine_cannot_give_names_its_flag(self):
        model = "--model=" + MODEL
        for role in ("unified", "decode"):
            last = self.refused(model, "--role=" + role, "--kv_cache_bytes=1000000GiB", code=1)
            self.assertIn("kv_cache_bytes", last)
        self.assertIn("listen", self.refused(model, "--kv_blocks=8", "--listen=256.0.0.1:1", code=1))
        self.assertIn("no-such-folder", self.refused("--model=no-such-folder", code=1))

    def test_check_only_checks(self):
        ended = subprocess.run([BATOND, "--model=" + MODEL, "--check"], capture_output=True, check=False)
        self.assertEqual(ended.returncode, 0)
        self.assertIn("no-such-folder", self.refused("--model=no-such-folder", "--check", code=1))
        self.assertIn("max_context_tokens", self.refused("--model=" + MODEL, "--max_context_tokens=1", "--check"))
        self.assertIn("num_redundant_experts", self.refused("--model=" + MODEL, "--ep_size=8",
                                                            "--num_redundant_experts=3", "--check", code=1))
        self.assertIn("max_context_tokens", self.refused("--model=" + MODEL, "--max_context_tokens=999999", "--check", code=1))

    def test_sigterm_before_it_serves_is_a_good_end(self):
        process = subprocess.Popen([BATOND, "--model=" + MODEL, "--kv_blocks=128"], stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True)
        while " start role " not in " " + process.stderr.readline():
            pass
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=DEADLINE)
        self.assertEqual(process.returncode, 0)

    def test_each_role_starts_warm_and_ends_at_once(self):
        for role in ("unified", "prefill", "decode"):
            start = time.monotonic()
            worker = Worker("--role=" + role)
            print("%s ready in %.2f s" % (role, time.monotonic() - start))
            self.assertEqual(worker.role, role)
            self.assertEqual(worker.get("/healthz")[0], 200)
            self.assertEqual(worker.get("/readyz")[0], 200)
            self.assertEqual(worker.get("/nothing")[0], 404)
            transports = worker.stub.GetWorkerInfo(pb.GetWorkerInfoRequest()).kv_transports
            self.assertEqual([way.split("@")[0] for way in transports], [] if role == "unified" else ["shm", "tcp"])
            metrics = worker.get("/metrics")[1]
            self.assertIn('baton_kv_blocks{role="%s",state="free"} 128' % role, metrics)
            self.assertIn('baton_steps_total{role="%s",type="prefill"} 1' % role, metrics)
            self.assertEqual(worker.stop(), 0)

    def test_sigterm_lets_running_streams_finish_and_takes_no_more(self):
        worker = Worker()
        stream = worker.stub.Decode(decode_request(1, 2000))
        self.assertTrue(next(stream).chunk.token_ids)
        worker.process.send_signal(signal.SIGTERM)
        while worker.get("/readyz")[0] != 503:
            pass
        with self.assertRaises(grpc.RpcError) as refused:
            list(worker.stub.Decode(decode_request(2, 5)))
        self.assertEqual(refused.exception.code(), grpc.StatusCode.UNAVAILABLE)
        last = list(stream)[-1]
        self.assertEqual(last.finished.completion_tokens, 2000)
        self.assertEqual(worker.end(), 0)

    def test_a_second_signal_cancels_what_runs(self):
        worker = Worker()
        stream = worker.stub.Decode(decode_request(1, 4000))
        next(stream)
        worker.process.send_signal(signal.SIGTERM)
        while worker.get("/readyz")[0] != 503:
            pass
        worker.process.send_signal(signal.SIGINT)
        with self.assertRaises(grpc.RpcError):
            list(stream)
        self.assertEqual(worker.end(), 0)

    def test_the_grace_ends_the_wait(self):
        worker = Worker("--drain_grace=0s")
        stream = worker.stub.Decode(decode_request(1, 4000))
        next(stream)
        self.assertEqual(worker.stop(), 0)
        with self.assertRaises(grpc.RpcError) as cut:
            list(stream)
        self.assertEqual(cut.exception.code(), grpc.StatusCode.UNAVAILABLE)
        self.assertIn(b"DRAINING", dict(cut.exception.trailing_metadata())["grpc-status-details-bin"])


if __name__ == "__main__":
    unittest.main()
