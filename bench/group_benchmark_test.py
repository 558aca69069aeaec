#!/usr/bin/env python3
"""The benchmark of groups runs, over several processes that move experts."""

import subprocess
import sys
import unittest

BENCHMARK = sys.argv.pop(1)


class GroupBenchmarkTest(unittest.TestCase):
    def test_each_table_has_its_row(self):
        output = subprocess.run(
            [BENCHMARK, "--model=models/tiny-deepseek-v3", "--ep_size=4", "--processes=2", "--transport=tcp",
             "--num_redundant_experts=4", "--max_tokens=200", "--rounds=1", "--eplb_interval=40",
             "--eplb_window=32"],
            check=True, stdout=subprocess.PIPE, universal_newlines=True).stdout
        rows = [line for line in output.splitlines() if line.startswith("| 4 | 2 | tcp | 1 |")]
        # Whether a rebalance is over before the tokens are is the machine's matter.
        self.assertEqual(len(rows) + output.count("no rebalance moved anything"), 3, output)


if __name__ == "__main__":
    unittest.main()
