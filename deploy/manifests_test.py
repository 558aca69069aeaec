#!/usr/bin/env python3
"""The manifests: what they tell the programs is valid, and the times fit together."""

import os
import subprocess
import unittest

import yaml

MODEL = "models/tiny-deepseek-v3"
MANIFESTS = ["deploy/leader_worker_set.yaml", "deploy/prefill_decode.yaml"]
GROUP = {"LWS_LEADER_ADDRESS": "decode-0.decode", "LWS_GROUP_SIZE": "4", "LWS_WORKER_INDEX": "1"}


def run(*command, **environment):
    return subprocess.run(["deploy/bin/" + command[0], *command[1:]], capture_output=True, text=True, timeout=60,
                          check=False, env=dict(os.environ, **environment))


def documents(path):
    with open(path, encoding="utf-8") as file:
        return list(yaml.safe_load_all(file))


def pod_specs(document):
    """Those anywhere in a document."""
    if isinstance(document, dict):
        if "containers" in document:
            yield document
        for value in document.values():
            yield from pod_specs(value)


class ManifestsTest(unittest.TestCase):
    def flags_of(self, path, container):
        """What the container's program is told, with files of its ConfigMap written out."""
        program, *flags = container.get("command", [container["name"]]) + container.get("args", [])
        for document in documents(path):
            for name, text in (document.get("data") or {}).items():
                with open(os.path.join(os.environ["TEST_TMPDIR"], name), "w", encoding="utf-8") as file:
                    file.write(text)
        return program, [flag.replace("/config/", os.environ["TEST_TMPDIR"] + "/") for flag in flags
                         if not flag.startswith("--model=")] + ["--model=" + MODEL]

    def containers(self):
        for path in MANIFESTS:
            for document in documents(path):
                for spec in pod_specs(document):
                    for container in spec["containers"]:
                        with self.subTest(path=path, container=container["name"]):
                            yield path, spec, container

    def test_every_container_finds_its_flags_valid(self):
        count = 0
        for path, _, container in self.containers():
            program, flags = self.flags_of(path, container)
            group = GROUP if "leader_worker_set" in path else {}
            done = run(program, *flags, "--check", **group)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            count += 1
        self.assertEqual(count, 4)

    def test_a_pod_has_longer_to_end_than_the_drain_takes(self):
        for path, spec, container in self.containers():
            program, flags = self.flags_of(path, container)
            printed = yaml.safe_load(run(program, *flags, "--print_config",
                                         **(GROUP if "leader_worker_set" in path else {})).stdout)
            self.assertRegex(printed["drain_grace"], r"^\d+s$")
            self.assertGreater(spec["terminationGracePeriodSeconds"], int(printed["drain_grace"][:-1]) + 2)
            self.assertFalse(spec["enableServiceLinks"])

    def test_probes_and_pre_stop_ask_the_ports_that_are_listened_at(self):
        for path, _, container in self.containers():
            program, flags = self.flags_of(path, container)
            printed = yaml.safe_load(run(program, *flags, "--print_config",
                                         **(GROUP if "leader_worker_set" in path else {})).stdout)
            ports = {port["name"]: str(port["containerPort"]) for port in container["ports"]}
            self.assertTrue(printed["listen"].endswith(":" + ports["grpc"]))
            self.assertTrue(printed["metrics_listen"].endswith(":" + ports["metrics"]))
            self.assertEqual(container["livenessProbe"]["httpGet"], {"path": "/healthz", "port": "metrics"})
            self.assertEqual(container["readinessProbe"]["httpGet"], {"path": "/readyz", "port": "metrics"})
            drain = container["lifecycle"]["preStop"]["exec"]["command"]
            self.assertEqual(drain[:2], ["baton", "drain"])
            self.assertEqual(drain[2], "127.0.0.1:" + ports["grpc"])
            self.assertEqual(run(*drain, "--check").returncode, 0)


if __name__ == "__main__":
    unittest.main()
