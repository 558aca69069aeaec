#!/usr/bin/env python3
"""The example configurations: each is what YAML reads too, and what its program takes."""

import subprocess
import unittest

import yaml

MODEL = "models/tiny-deepseek-v3"
COMMANDS = {
    "baton": ["baton", "generate", "--prompt=x"],
    "decode": ["batond", "--model=" + MODEL],
    "prefill": ["batond", "--model=" + MODEL],
    "router": ["baton-router", "--model=" + MODEL],
    "unified": ["batond", "--model=" + MODEL],
}


def run(name, *flags):
    path = "deploy/config/%s.yaml" % name
    program, *arguments = COMMANDS[name]
    done = subprocess.run(["deploy/bin/" + program, *arguments, "--config=" + path, *flags],
                          capture_output=True, text=True, timeout=60, check=False)
    return path, done


def as_text(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


class ConfigTest(unittest.TestCase):
    def test_each_program_finds_its_example_valid(self):
        for name in COMMANDS:
            with self.subTest(name):
                _, done = run(name, "--check")
                self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_yaml_reads_the_examples_as_we_do(self):
        for name in COMMANDS:
            with self.subTest(name):
                path, done = run(name, "--print_config")
                self.assertEqual(done.returncode, 0, done.stderr)
                printed = yaml.safe_load(done.stdout)
                with open(path, encoding="utf-8") as file:
                    written = yaml.safe_load(file)
                self.assertGreater(len(written), 2)
                for key, value in written.items():
                    if key != "model":  # The test's own is on the command line.
                        self.assertEqual(as_text(printed[key]), as_text(value), key)
                        self.assertRegex(done.stdout, r"(?m)^%s: .*  # %s:\d+$" % (key, path))

    def test_a_mistake_names_file_line_and_key(self):
        _, done = run("decode", "--role=prefill", "--max_chunk_tokens=1024")
        self.assertEqual(done.returncode, 2)
        self.assertIn("batond: max_chunk_tokens: is more than", done.stderr)
        done = subprocess.run(["deploy/bin/batond", "--config=deploy/config/router.yaml"],
                              capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn("batond: deploy/config/router.yaml:3: model_name: no such key", done.stderr)


if __name__ == "__main__":
    unittest.main()
