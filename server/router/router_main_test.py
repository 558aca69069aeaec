#!/usr/bin/env python3
"""router_main_test.py BATON_ROUTER: the router as its operator meets it before it serves."""

import signal
import subprocess
import sys
import unittest

ROUTER = sys.argv.pop(1)
FLAGS = ["--model=models/tiny-deepseek-v3", "--unified=127.0.0.1:1"]  # Nothing listens there.
DEADLINE = 60


class RouterMainTest(unittest.TestCase):
    def test_a_signal_ends_the_wait_for_workers(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            process = subprocess.Popen([ROUTER, *FLAGS, "--metrics_listen=127.0.0.1:0"], stderr=subprocess.PIPE, text=True)
            self.assertTrue(any("waiting for workers" in line for line in process.stderr))
            process.send_signal(number)
            process.communicate(timeout=DEADLINE)
            self.assertEqual(process.returncode, 0)

    def test_a_bad_address_is_refused_by_name(self):
        for flag in ("--listen", "--metrics_listen"):
            ended = subprocess.run([ROUTER, *FLAGS, flag + "=127.0.0.1:99999", "--check"], capture_output=True,
                                   text=True, check=False)
            self.assertEqual(ended.returncode, 2)
            self.assertIn(flag + ":", ended.stderr)


if __name__ == "__main__":
    unittest.main()
