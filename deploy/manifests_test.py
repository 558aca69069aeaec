#!/usr/bin/env python3
"""The manifests: what they tell the programs is valid, and the times fit together."""

import os
import subprocess
import unittest

import yaml

MODEL = "models/tiny-deepseek-v3"
MANIFESTS = ["deploy/leader_worker_set.yaml", "deploy/prefill_decode.yaml"]
GROUP = {"LWS_LEADER_ADDRESS": "decode-group-0.decode-group", "LWS_GROUP_SIZE": "4", "LWS_WORKER_INDEX": "1"}


def run(*command, **environment):
    return subprocess.run(["deploy/bin/" + command[0], *command[1:]], capture_output=True, text=True, timeout=60,
                          check=False, env=dict(os.environ, **environment))


def documents(path):
    with open(path, encoding="utf-8") as file:
        return list(yaml.safe_load_all(file))


def pods(document):
    """The templates of pods anywhere in a document."""
    if isinstance(document, dict):
        if "containers" in document.get("spec", {}):
            yield document
        for value in document.values():
            yield from pods(value)


def all_documents():
    return [document for path in MANIFESTS for document in documents(path)]


def of_kind(kind):
    return {document["metadata"]["name"]: document for document in all_documents() if document["kind"] == kind}


def num_bytes(quantity):
    number, unit = quantity[:-2], quantity[-2:]
    return int(number) << {"Mi": 20, "Gi": 30}[unit]


class ManifestsTest(unittest.TestCase):
    def flags_of(self, path, container):
        """What the container's program is told, with files of its ConfigMap written out."""
        program, *flags = container["command"]
        self.assertNotIn("args", container)
        for document in documents(path):
            for name, text in (document.get("data") or {}).items():
                with open(os.path.join(os.environ["TEST_TMPDIR"], name), "w", encoding="utf-8") as file:
                    file.write(text)
        return program, [flag.replace("/config/", os.environ["TEST_TMPDIR"] + "/") for flag in flags
                         if not flag.startswith("--model=")] + ["--model=" + MODEL]

    def containers(self):
        for path in MANIFESTS:
            for document in documents(path):
                for pod in pods(document):
                    for container in pod["spec"]["containers"]:
                        with self.subTest(path=path, container=container["name"]):
                            yield path, pod, container

    def test_every_container_finds_its_flags_valid(self):
        count = 0
        for path, _, container in self.containers():
            program, flags = self.flags_of(path, container)
            group = GROUP if "leader_worker_set" in path else {}
            done = run(program, *flags, "--check", **group)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            count += 1
        self.assertEqual(count, 4)

    def printed(self, path, container):
        """The values in force."""
        program, flags = self.flags_of(path, container)
        group = GROUP if "leader_worker_set" in path else {}
        return yaml.safe_load(run(program, *flags, "--print_config", **group).stdout)

    def test_a_pod_waits_for_services_and_has_longer_to_end_than_that_and_the_drain_take(self):
        for path, pod, container in self.containers():
            program, seconds = container["lifecycle"]["preStop"]["exec"]["command"]
            self.assertEqual(program, "sleep")
            self.assertGreaterEqual(int(seconds), 5)
            grace = self.printed(path, container)["drain_grace"]
            self.assertRegex(grace, r"^\d+s$")
            self.assertGreater(pod["spec"]["terminationGracePeriodSeconds"], int(seconds) + int(grace[:-1]) + 2)
            self.assertFalse(pod["spec"]["enableServiceLinks"])

    def test_probes_and_scrapes_ask_the_ports_that_are_listened_at(self):
        for path, pod, container in self.containers():
            printed = self.printed(path, container)
            ports = {port["name"]: str(port["containerPort"]) for port in container["ports"]}
            self.assertTrue(printed["listen"].endswith(":" + ports["grpc"]))
            self.assertTrue(printed["metrics_listen"].endswith(":" + ports["metrics"]))
            self.assertEqual(container["livenessProbe"]["httpGet"], {"path": "/healthz", "port": "metrics"})
            self.assertEqual(container["readinessProbe"]["httpGet"], {"path": "/readyz", "port": "metrics"})
            # A router has started when it lives: it is ready once workers are, which may load for long.
            started = "/healthz" if container["command"][0] == "baton-router" else "/readyz"
            self.assertEqual(container["startupProbe"]["httpGet"], {"path": started, "port": "metrics"})
            self.assertEqual(pod["metadata"]["annotations"],
                             {"prometheus.io/scrape": "true", "prometheus.io/port": ports["metrics"]})

    def test_a_containers_memory_holds_what_it_takes_at_the_start_and_streams_may(self):
        for path, _, container in self.containers():
            printed, memory = self.printed(path, container), container["resources"]["limits"]["memory"]
            known = [printed[key] for key in ("kv_cache_bytes", "max_stream_bytes") if key in printed]
            known = sum(num_bytes(size.replace("iB", "i")) for size in known)
            self.assertLess(known, 0.95 * num_bytes(memory))
            self.assertLess(num_bytes(memory), 8 * known)
            self.assertLessEqual(num_bytes(container["resources"]["requests"]["memory"]), num_bytes(memory))

    def test_the_config_map_holds_what_the_examples_show(self):
        for name, text in of_kind("ConfigMap")["baton"]["data"].items():
            with open("deploy/config/" + name, encoding="utf-8") as file:
                self.assertEqual(yaml.safe_load(text), yaml.safe_load(file), name)

    def test_the_routers_names_are_headless_services_of_each_pool(self):
        config = yaml.safe_load(of_kind("ConfigMap")["baton"]["data"]["router.yaml"])
        for pool in ("prefill", "decode"):
            service = of_kind("Service")[pool]["spec"]
            self.assertEqual(config[pool], "dns:%s:%d" % (pool, service["ports"][0]["port"]))
            self.assertEqual((service["clusterIP"], service["publishNotReadyAddresses"]), ("None", True))
            self.assertEqual(of_kind("StatefulSet")[pool]["spec"]["serviceName"], pool)
            template = of_kind("StatefulSet")[pool]["spec"]["template"]
            self.assertEqual(service["selector"], template["metadata"]["labels"])

    def test_each_pool_has_a_budget_and_a_name_of_its_own(self):
        labels = []
        for document in all_documents():
            for pod in pods(document):
                labels.append(pod["metadata"]["labels"])
                self.assertEqual(labels[-1], {"app": document["metadata"]["name"]})
        self.assertEqual(len(labels), 4)
        budgets = of_kind("PodDisruptionBudget").values()
        self.assertCountEqual([budget["spec"]["selector"]["matchLabels"] for budget in budgets], labels)
        self.assertEqual(len({label["app"] for label in labels}), 4)

    def test_the_claim_is_one_that_all_nodes_may_read(self):
        claims = of_kind("PersistentVolumeClaim")
        self.assertEqual(claims["models"]["spec"]["accessModes"], ["ReadOnlyMany"])
        for _, pod, container in self.containers():
            volumes = [volume["persistentVolumeClaim"] for volume in pod["spec"]["volumes"]
                       if "persistentVolumeClaim" in volume]
            self.assertEqual(volumes, [{"claimName": "models", "readOnly": True}])
            self.assertIn({"name": "models", "mountPath": "/models", "readOnly": True}, container["volumeMounts"])


if __name__ == "__main__":
    unittest.main()
