#!/usr/bin/env python3
"""router_main_test.py BATON_ROUTER: the router as its operator meets it before it serves."""

import os
import signal
import subprocess
import sys
import tempfile
import unittest

ROUTER = sys.argv.pop(1)
MODEL = "--model=models/tiny-deepseek-v3"
FLAGS = [MODEL, "--unified=127.0.0.1:1"]  # Nothing listens there.
DEADLINE = 60


class RouterMainTest(unittest.TestCase):
    def test_a_signal_ends_the_wait_for_workers(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            process = subprocess.Popen([ROUTER, *FLAGS, "--metrics_listen=127.0.0.1:0"], stderr=subprocess.PIPE, text=True)
            self.assertTrue(any("waiting for workers" in line for line in process.stderr))
            process.send_signal(number)
            process.communicate(timeout=DEADLINE)
            self.assertEqual(process.returncode, 0)

    def check(self, *flags):
        ended = subprocess.run([ROUTER, MODEL, "--check", *flags], capture_output=True, text=True, check=False,
                               timeout=DEADLINE)
        return ended.returncode, ended.stderr

    def test_a_list_of_workers_is_checked_by_flag(self):
        for flag, good, bad, problem in (
                ("--unified", "host:1,dns:name:2", "host", "'host' is not host:port"),
                ("--unified", "[::1]:7", "host:0", "'host:0' is not host:port"),
                ("--unified", "dns:a.b:1", "a:1,dns:b", "'dns:b' is not dns:NAME:PORT"),
                ("--unified", "a:1", ",".join(["a:1"] * 513), "more than 512 workers with those before")):
            self.assertEqual(self.check(flag + "=" + good)[0], 0)
            code, err = self.check(flag + "=" + bad)
            self.assertEqual(code, 2)
            self.assertIn("%s: %s" % (flag.lstrip("-"), problem), err)
        code, err = self.check()
        self.assertEqual(code, 2)
        self.assertIn("--workers_file", err)
        self.assertEqual(self.check("--unified=a:1", "--discovery_interval=0s")[0], 2)

    def test_a_file_of_workers_is_checked_by_line(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "workers")
            code, err = self.check("--workers_file=" + path)
            self.assertEqual(code, 1)
            self.assertIn(path + ": cannot be read", err)
            with open(path, "w", encoding="utf-8") as f:
                f.write("# none yet\n")
            self.assertEqual(self.check("--workers_file=" + path)[0], 0)
            self.assertEqual(self.check("--workers_file=" + path, "--prefill=a:1")[0], 0)
            code, err = self.check("--workers_file=" + path, "--admin_token_file=" + path + ".not")
            self.assertEqual(code, 2)
            self.assertIn("admin_token_file: ", err)
            with open(path, "a", encoding="utf-8") as f:
                f.write("decode a:1\ndecode b\n")
            code, err = self.check("--workers_file=" + path)
            self.assertEqual(code, 1)
            self.assertIn(path + ":3: 'b' is not host:port", err)
            ended = subprocess.run([ROUTER, MODEL, "--workers_file=" + path, "--metrics_listen=127.0.0.1:0"],
                                   capture_output=True, text=True, check=False, timeout=DEADLINE)
            self.assertEqual(ended.returncode, 1)
            self.assertIn(path + ":3: 'b' is not host:port", ended.stderr)

    def test_the_addresses_of_a_name_are_workers(self):
        process = subprocess.Popen([ROUTER, MODEL, "--unified=dns:127.0.0.1:1", "--metrics_listen=127.0.0.1:0"],
                                   stderr=subprocess.PIPE, text=True)
        self.assertTrue(any("worker 127.0.0.1:1 joined" in line for line in process.stderr))
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=DEADLINE)
        self.assertEqual(process.returncode, 0)

    def test_a_worker_that_the_file_gains_is_looked_for(self):
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "workers")
            with open(path, "w", encoding="utf-8") as f:
                f.write("")
            process = subprocess.Popen([ROUTER, MODEL, "--workers_file=" + path, "--metrics_listen=127.0.0.1:0"],
                                       stderr=subprocess.PIPE, text=True)
            self.assertTrue(any("waiting for workers" in line for line in process.stderr))
            for text, expected in (("unified 127.0.0.1:1\n", "worker 127.0.0.1:1 joined"),
                                   ("unified\n", path + ":1: is not a role and an address"),
                                   ("", path + ": is empty; the workers listed before are kept"),
                                   ("# nobody\n", "worker 127.0.0.1:1 left")):
                with open(path, "w", encoding="utf-8") as f:
                    f.write(text)
                self.assertTrue(any(expected in line for line in process.stderr), expected)
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=DEADLINE)
            self.assertEqual(process.returncode, 0)

    def test_a_model_that_cannot_be_read_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            ended = subprocess.run([ROUTER, "--model=" + folder, "--unified=a:1", "--check"], capture_output=True,
                                   text=True, check=False, timeout=DEADLINE)
            self.assertEqual(ended.returncode, 1)
            self.assertIn(folder + "/config.json", ended.stderr)

    def test_a_bad_address_is_refused_by_name(self):
        for flag in ("--listen", "--metrics_listen"):
            ended = subprocess.run([ROUTER, *FLAGS, flag + "=127.0.0.1:99999", "--check"], capture_output=True,
                                   text=True, check=False)
            self.assertEqual(ended.returncode, 2)
            self.assertIn(flag + ":", ended.stderr)


if __name__ == "__main__":
    unittest.main()
