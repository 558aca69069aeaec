#!/usr/bin/env python3
"""Weights that change on disk while they are loaded are not served; a folder that nobody may write to is."""

import os
import shutil
import subprocess
import tempfile
import threading
import unittest

MODEL = "models/tiny-deepseek-v3"
DEADLINE = 120  # Seconds; generous, since other work may be on the machine.


class WeightsTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.mkdtemp(dir=os.environ["TEST_TMPDIR"])
        for name in os.listdir(MODEL):
            if os.path.isfile(os.path.join(MODEL, name)):
                shutil.copy(os.path.join(MODEL, name), self.folder)
        self.shards = [os.path.join(self.folder, name) for name in sorted(os.listdir(self.folder))
                       if name.endswith(".safetensors")]
        self.assertTrue(self.shards)

    def start(self):
        return subprocess.Popen(["deploy/bin/batond", "--model=" + self.folder, "--kv_blocks=16", "--listen=127.0.0.1:0",
                                 "--metrics_listen=127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True)

    def test_a_shard_that_is_written_to_meanwhile_is_named(self):
        over = threading.Event()

        def keep_touching():
            while not over.wait(0.001):
                os.utime(self.shards[-1])

        writer = threading.Thread(target=keep_touching)
        writer.start()
        try:
            worker = self.start()
            _, log = worker.communicate(timeout=DEADLINE)
        finally:
            over.set()
            writer.join()
        self.assertEqual(worker.returncode, 1, log)
        self.assertIn(os.path.basename(self.shards[-1]) + ": has changed since it was opened", log)

    def test_a_folder_that_cannot_be_written_to_is_served(self):
        for path in [*self.shards, self.folder]:
            os.chmod(path, os.stat(path).st_mode & ~0o222)
        before = sorted(os.listdir(self.folder))
        worker = self.start()
        self.assertIn("baton unified grpc=", worker.stdout.readline())
        worker.terminate()
        worker.communicate(timeout=DEADLINE)
        self.assertEqual(worker.returncode, 0)
        # Nothing is ever written there, whoever the process runs as.
        self.assertEqual(sorted(os.listdir(self.folder)), before)


if __name__ == "__main__":
    unittest.main()
