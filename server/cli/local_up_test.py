#!/usr/bin/env python3
"""local_up_test.py BATON: `baton local up` with a batond and a baton-router of a few
lines, which write down what they are told and what happens to them."""

import json
import os
import signal
import subprocess
import sys
import time
import unittest

PROGRAM = '''#!/usr/bin/env python3
import os, signal, sys
def note(text):
    with open("events", "a") as f: f.write(text + "\\n")
role = next((a[7:] for a in sys.argv if a.startswith("--role=")), "router")
note("start %s %s" % (role, " ".join(sys.argv[1:])))
note("environment " + " ".join(k for k in os.environ if k.startswith("BATON_")))
if os.environ.get("FAIL") == role:
    sys.exit(print("the model is broken", file=sys.stderr) or 3)
together = next((int(a[11:]) for a in sys.argv if a.startswith("--together=")), 0)
def end(*_):
    note("told " + role)
    while sum(line.startswith("told " + role) for line in open("events")) < together:
        signal.sigtimedwait([signal.SIGUSR1], 0.01)  # waits without a signal ever coming
    note("end " + role)
    sys.exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN if "--stubborn" in sys.argv else end)
print("baton %s grpc=127.0.0.1:%d http=127.0.0.1:1" % (role, os.getpid()), flush=True)
while True: signal.pause()
'''
BATON = os.path.abspath(sys.argv.pop(1))
DEADLINE = 60


def await_condition(condition, what):
    end = time.monotonic() + DEADLINE
    pause = signal.sigtimedwait  # waits without a signal ever coming
    while not condition():
        if time.monotonic() > end:
            raise AssertionError("timed out: " + what)
        pause([signal.SIGUSR1], 0.01)


def gone(pid):
    try:
        with open("/proc/%d/stat" % pid) as f:
            return f.read().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


class LocalUpTest(unittest.TestCase):
    def setUp(self):
        folder = os.path.join(os.environ["TEST_TMPDIR"], self._testMethodName)
        os.makedirs(folder + "/bin")
        os.makedirs(folder + "/model")
        os.chdir(folder)
        for name in ("batond", "baton-router"):
            with open("bin/" + name, "w") as f:
                f.write(PROGRAM)
            os.chmod("bin/" + name, 0o755)

    def start(self, *flags, **environment):
        self.up = subprocess.Popen(
            [BATON, "local", "up", "--model=model", "--bin_dir=bin", "--ready_file=ready", *flags],
            env={**os.environ, **environment}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.addCleanup(self.up.kill)

    def start_ready(self, *flags, **environment):
        self.start(*flags, **environment)
        await_condition(lambda: os.path.exists("ready") or self.up.poll() is not None, "ready")
        with open("ready") as f:
            self.ready = json.load(f)
        self.processes = {p["name"]: p for p in self.ready["processes"]}

    def finish(self, *signals):
        for s in signals:
            self.up.send_signal(s)
        out, err = self.up.communicate(timeout=DEADLINE)
        return self.up.returncode, out, err

    def events(self, kind):
        with open("events") as f:
            return [line[len(kind) + 1:].strip() for line in f if line.startswith(kind + " ")]

    def test_starts_both_pools_and_ends_them_in_reverse_order(self):
        self.start_ready("--worker_flags=--threads=1,--cache=bf16", "--prefill=2")
        starts = self.events("start")
        self.assertEqual(sorted(s.split()[0] for s in starts), ["decode", "prefill", "prefill", "router"])
        self.assertTrue(any(s.startswith("decode --listen=127.0.0.1:0 --metrics_listen=127.0.0.1:0 --role=decode "
                                         "--model=model --threads=1 --cache=bf16") for s in starts), starts)
        prefills = ",".join(self.processes[n]["grpc"] for n in ("prefill-0", "prefill-1"))
        self.assertIn("--prefill=%s --decode=%s" % (prefills, self.processes["decode-0"]["grpc"]),
                      starts[-1])
        self.assertEqual(self.ready["router"], self.processes["router"]["grpc"])
        workers = prefills + "," + self.processes["decode-0"]["grpc"]
        self.assertEqual(self.ready["workers"], workers)
        code, out, _ = self.finish(signal.SIGTERM)
        self.assertEqual(code, 0)
        self.assertIn("ready after", out)
        self.assertIn("baton top --workers=%s\n" % workers, out)
        self.assertEqual(self.events("end"), ["router", "decode", "prefill", "prefill"])
        self.assertFalse(os.path.exists("ready"))

    def test_unified_is_one_worker_and_ctrl_c_ends_it(self):
        self.start_ready("--unified")
        self.assertEqual(list(self.processes), ["unified-0", "router"])
        self.assertIn("--unified=" + self.processes["unified-0"]["grpc"], self.events("start")[-1])
        self.assertEqual(self.finish(signal.SIGINT)[0], 0)

    def test_a_workers_ranks_are_shared_out_over_its_processes(self):
        self.start_ready("--decode=2", "--decode_ep=6", "--decode_processes=3", "--prefill_ep=2")
        self.assertEqual(list(self.processes), ["prefill-0"] + ["decode-%d.%d" % (worker, process)
                         for worker in (0, 1) for process in (0, 1, 2)] + ["router"])
        # The processes of a worker have its leader's endpoint in common.
        ranks = {}
        for flags in (s.split() for s in self.events("start") if s.startswith("decode ")):
            told = dict(flag.split("=") for flag in flags[1:])
            self.assertEqual((told["--ep_size"], told["--local_ranks"]), ("6", "2"))
            ranks.setdefault(told["--leader"], []).append(told["--rank_offset"])
        self.assertEqual([sorted(offsets) for offsets in ranks.values()], [["0", "2", "4"]] * 2)
        for leader in ranks:
            self.assertRegex(leader, r"^127\.0\.0\.1:[1-9]\d+$")
        prefill = next(s for s in self.events("start") if s.startswith("prefill "))
        self.assertIn("--ep_size=2", prefill)
        self.assertNotIn("--leader", prefill)
        decodes = ",".join(p["grpc"] for name, p in self.processes.items() if name.startswith("decode"))
        self.assertTrue(self.events("start")[-1].endswith("--decode=" + decodes))
        self.assertEqual(self.finish(signal.SIGTERM)[0], 0)
        self.assertEqual(self.events("end"), ["router"] + ["decode"] * 6 + ["prefill"])

    def test_the_processes_of_a_worker_are_told_to_end_at_once(self):
        # Each ends only when all three were told: one after the other they would be killed.
        self.start_ready("--unified", "--unified_ep=3", "--unified_processes=3",
                         "--worker_flags=--together=3", "--grace=%ds" % DEADLINE)
        code, _, err = self.finish(signal.SIGTERM)
        self.assertEqual((code, err), (0, ""))
        self.assertEqual(self.events("end"), ["router"] + ["unified"] * 3)

    def test_our_keys_do_not_reach_the_children(self):
        self.start_ready(BATON_GRACE="9s")
        self.assertEqual(set(self.events("environment")), {""})
        self.assertEqual(self.finish(signal.SIGTERM)[0], 0)

    def test_a_worker_that_cannot_start_ends_all_with_its_code_and_log(self):
        self.start(FAIL="decode")
        code, _, err = self.finish()
        self.assertEqual(code, 3)
        self.assertIn("ended with exit code 3", err)
        self.assertIn("decode-0", err)
        self.assertIn("the model is broken", err)

    def test_a_worker_that_dies_later_does_so_too(self):
        self.start_ready()
        os.kill(self.processes["decode-0"]["pid"], signal.SIGKILL)
        code, _, err = self.finish()
        self.assertEqual(code, 128 + signal.SIGKILL)
        self.assertIn("decode-0", err)
        self.assertEqual(self.events("end"), ["router", "prefill"])

    def test_what_does_not_end_is_killed_after_the_grace(self):
        self.start_ready("--worker_flags=--stubborn", "--grace=100ms")
        code, _, err = self.finish(signal.SIGTERM)
        self.assertEqual(code, 0)
        self.assertIn("prefill-0 did not end by itself: killed", err)
        self.assertTrue(all(gone(p["pid"]) for p in self.processes.values()))

    def test_the_children_go_with_it_when_it_is_killed(self):
        self.start_ready("--worker_flags=--stubborn")
        self.finish(signal.SIGKILL)
        await_condition(lambda: all(gone(p["pid"]) for p in self.processes.values()), "the children's end")

    def test_usage_and_missing_programs(self):
        def run(*arguments):
            done = subprocess.run([BATON, "local", *arguments], stderr=subprocess.PIPE, text=True, check=False)
            return done.returncode, done.stderr
        self.assertEqual(run("up", "--model=none")[0], 2)
        self.assertEqual(run("down", "--model=model")[0], 2)
        self.assertEqual(run("up")[0], 2)
        self.assertIn("baton local up", run()[1])
        for pool in ("--prefill=2", "--decode=1"):
            code, err = run("up", "--model=model", "--unified", pool)
            self.assertEqual(code, 2)
            self.assertIn("contradicts", err)
        code, err = run("up", "--model=model", "--decode_ep=6", "--decode_processes=4")
        self.assertEqual(code, 2)
        self.assertIn("decode_processes: 4 does not divide --decode_ep=6", err)
        code, err = run("up", "--model=model", "--bin_dir=nowhere")
        self.assertEqual(code, 1)
        self.assertIn("batond is not in nowhere", err)

    def test_a_ready_file_that_cannot_be_written_is_said_before_anything_starts(self):
        missing = "there is no folder %s/none" % os.getcwd()
        for path, complaint in (("bin", "/bin is a folder"), ("none/ready", missing)):
            done = subprocess.run([BATON, "local", "up", "--model=model", "--bin_dir=bin", "--ready_file=" + path],
                                  capture_output=True, text=True, timeout=DEADLINE, check=False)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn("ready_file: ", done.stderr)
            self.assertIn(complaint, done.stderr)
        self.assertFalse(os.path.exists("events"))
        self.assertTrue(os.path.isdir("bin"))


if __name__ == "__main__":
    unittest.main()
