#!/usr/bin/env python3
"""A build without fault points has no trace of them, and refuses to be told of them."""

import os
import re
import subprocess
import unittest

BINARIES = ["deploy/bin/" + name for name in ("batond", "baton-router", "baton")]
with open("base/fault_point.cc", encoding="utf-8") as source:
    NAMES = re.findall(r'"((?:kv|vote|tokens|drain)[a-z_]*)"', source.read())


class ReleaseTest(unittest.TestCase):
    def test_the_source_names_the_points(self):
        self.assertIn("kv_export_opened", NAMES)
        self.assertIn("vote_post", NAMES)

    def test_no_binary_has_their_names(self):
        for binary in BINARIES:
            with open(binary, "rb") as f:
                code = f.read()
            # A name that is also an English word may be there by itself.
            for name in ["fault_points", "FaultPoint", "fault point "] + [n for n in NAMES if "_" in n]:
                self.assertNotIn(name.encode(), code, binary)

    def test_there_is_no_such_flag(self):
        for arguments, environment in ((["--fault_points=drain:kill"], {}),
                                       ([], {"BATON_FAULT_POINTS": "drain:kill"})):
            ended = subprocess.run([BINARIES[0], "--model=models/tiny-deepseek-v3", "--check", *arguments],
                                   env={**os.environ, **environment}, capture_output=True, text=True, check=False)
            self.assertNotEqual(ended.returncode, 0)
            self.assertIn("fault_points", ended.stderr.lower())


if __name__ == "__main__":
    unittest.main()
