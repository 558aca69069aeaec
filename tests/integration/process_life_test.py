#!/usr/bin/env python3
"""What a process leaves behind, whatever ends it: nothing. And an operator's drain."""

import re
import signal
import subprocess
import threading
import time
import unittest

import grpc

from cluster import DEADLINE, MODEL, await_condition, greedy, pb_grpc, text_prompt

KILLS = 100


def start_program(name, *flags):
    return subprocess.Popen(["deploy/bin/" + name, "--model=" + MODEL, *flags],
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)


def start(*flags):
    return start_program("batond", "--role=prefill", "--threads=1", *flags)


def read_maps(process):
    try:
        with open("/proc/%d/maps" % process.pid, encoding="utf-8") as maps:
            return maps.read()
    except OSError:
        return ""


def address(process, kind):
    """What the process says of itself when it is ready."""
    return re.search(kind + r"=(\S+)", process.stdout.readline()).group(1)


def end(process, number):
    process.send_signal(number)
    code = process.wait(DEADLINE)
    process.stdout.close()
    return code


class LeavesNothingTest(unittest.TestCase):
    def expect_no_names(self, process):
        """Memory that is shared by no file that has a name goes with its process."""
        named = [line for line in read_maps(process).splitlines() if "/dev/shm" in line or "/SYSV" in line]
        self.assertEqual(named, [])

    def test_a_process_killed_a_hundred_times_starts_again_on_its_ports(self):
        begin = time.monotonic()
        first = start("--kv_cache_bytes=16MiB")
        listen, metrics = re.search(r"grpc=(\S+) http=(\S+)", first.stdout.readline()).groups()
        cold = time.monotonic() - begin
        self.expect_no_names(first)
        end(first, signal.SIGKILL)
        flags = ["--kv_cache_bytes=16MiB", "--listen=" + listen, "--metrics_listen=" + metrics]
        for i in range(KILLS):
            process = start(*flags)
            if i % 10 == 0:  # Ready; the others are killed on their way there.
                self.assertEqual(address(process, "grpc"), listen)
            elif i % 2 == 0:
                await_condition(lambda p=process: "memfd:baton-kv" in read_maps(p) or p.poll() is not None, "a pool")
            self.expect_no_names(process)
            self.assertEqual(end(process, signal.SIGKILL), -signal.SIGKILL)
        begin = time.monotonic()
        last = start(*flags)
        self.assertEqual(address(last, "grpc"), listen)
        print("ready after %.3f s at first, %.3f s behind %d kills" % (cold, time.monotonic() - begin, KILLS))
        self.assertEqual(end(last, signal.SIGTERM), 0)

    def test_a_signal_while_the_pool_is_taken_ends_the_start_with_code_zero(self):
        process = start("--kv_cache_bytes=1GiB")
        await_condition(lambda: "memfd:baton-kv" in read_maps(process), "a pool that is being taken")
        self.expect_no_names(process)
        self.assertEqual(end(process, signal.SIGTERM), 0)


class DrainTest(unittest.TestCase):
    def drain(self, target, *flags):
        return subprocess.run(["deploy/bin/baton", "drain", target, *flags], capture_output=True, text=True,
                              timeout=DEADLINE, check=False)

    def test_an_operator_drains_a_router_that_streams(self):
        worker = start_program("batond", "--role=unified", "--threads=1", "--kv_cache_bytes=64MiB")
        router = start_program("baton-router", "--unified=" + address(worker, "grpc"), "--listen=127.0.0.1:0",
                               "--metrics_listen=127.0.0.1:0")
        target = address(router, "grpc")
        channel = grpc.insecure_channel(target)
        call = pb_grpc.InferenceServiceStub(channel).Generate(greedy(text_prompt("Once upon a time"), 600))
        stream = [next(call)]
        outcome = []
        drainer = threading.Thread(target=lambda: outcome.append(self.drain(target)))
        drainer.start()
        stream += list(call)
        drainer.join()
        self.assertEqual(stream[-1].WhichOneof("event"), "finished")
        self.assertEqual(stream[-1].finished.usage.completion_tokens, 600)
        self.assertEqual(outcome[0].returncode, 0, outcome[0].stderr)
        self.assertIn("%s is gone after " % target, outcome[0].stdout)
        self.assertEqual(router.wait(DEADLINE), 0)
        channel.close()
        with grpc.insecure_channel(target) as gone, self.assertRaises(grpc.RpcError) as refused:
            list(pb_grpc.InferenceServiceStub(gone).Generate(greedy(text_prompt("x"), 1), timeout=DEADLINE))
        self.assertEqual(refused.exception.code(), grpc.StatusCode.UNAVAILABLE)
        router.stdout.close()
        self.assertEqual(end(worker, signal.SIGTERM), 0)

    def test_an_idle_worker_is_gone_at_once(self):
        worker = start("--kv_cache_bytes=16MiB")
        target = address(worker, "grpc")
        self.assertEqual(self.drain(target).returncode, 0)
        self.assertEqual(worker.wait(DEADLINE), 0)
        worker.stdout.close()


if __name__ == "__main__":
    unittest.main()
