#!/usr/bin/env python3
"""A packed folder: its programs run with the libraries in it and glibc alone."""

import os
import re
import subprocess
import unittest

PROGRAMS = ["baton", "baton-router", "batond"]
GLIBC = re.compile(r"/(ld-linux-x86-64|lib(c|m|dl|rt|pthread|resolv|util|anl))\.so\.\d$")


def pack(out, *programs):
    return subprocess.run(["deploy/pack.sh", out, *programs], capture_output=True, text=True, timeout=60, check=False)


class PackTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.out = os.path.join(os.environ["TEST_TMPDIR"], "packed")
        done = pack(cls.out, *["deploy/bin/" + program for program in PROGRAMS])
        assert (done.returncode, done.stderr) == (0, ""), done

    def test_every_library_is_packed_or_glibcs(self):
        for program in PROGRAMS:
            listed = subprocess.run(["ldd", self.out + "/bin/" + program], capture_output=True, text=True,
                                    timeout=60, check=True).stdout
            paths = [os.path.normpath(path) for path in re.findall(r"=> (\S+)", listed)]
            self.assertGreater(len(paths), 10)
            self.assertEqual([path for path in paths
                              if not path.startswith(self.out + "/lib/") and not GLIBC.search(path)], [])

    def test_a_packed_worker_serves_over_tcp_and_ends_well(self):
        with subprocess.Popen([self.out + "/bin/batond", "--role=prefill", "--model=models/tiny-deepseek-v3",
                               "--transport=tcp", "--listen=127.0.0.1:0", "--metrics_listen=127.0.0.1:0",
                               "--kv_cache_bytes=64MiB", "--threads=1"], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True) as worker:
            line = worker.stdout.readline()
            worker.terminate()
            _, errors = worker.communicate(timeout=60)
        self.assertRegex(line, r"^baton prefill grpc=127", errors)
        self.assertEqual(worker.returncode, 0, errors)

    def test_a_folder_that_is_there_is_left_alone(self):
        done = pack(self.out, "deploy/bin/baton")
        self.assertEqual(done.returncode, 2)
        self.assertIn("usage: deploy/pack.sh", done.stderr)
        self.assertEqual(sorted(os.listdir(self.out + "/bin")), PROGRAMS)

    def test_the_image_has_the_programs_on_its_path(self):
        with open("deploy/Dockerfile", encoding="utf-8") as file:
            lines = file.read().split("\n")
        self.assertIn("FROM debian:12-slim", lines)  # The system that it is built on.
        self.assertIn("COPY . /opt/baton/", lines)
        self.assertTrue(any(line.startswith("ENV PATH=/opt/baton/bin:") for line in lines))


if __name__ == "__main__":
    unittest.main()
