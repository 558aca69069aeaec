#!/usr/bin/env python3
"""README.md's table has each scenario once. (That the targets it names exist, tests/tidy checks.)"""

import re
import unittest

with open("tests/fault/README.md", encoding="utf-8") as page:
    PAGE = page.read()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")]
        for line in PAGE.splitlines() if re.match(r"\| S\d\d", line)]
EXPECTED = ["S%02d" % n for n in [1, 2, 3, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16, 17, 19, 20, 22, 23, 24, 25,
                                  35, 36, 38, 40, 42, 44, 45, 48]]


class TableTest(unittest.TestCase):
    def test_each_row_is_there_once_in_order(self):
        self.assertEqual([row[0].split()[0] for row in ROWS], EXPECTED)

    def test_each_row_has_its_command_and_its_result(self):
        for row in ROWS:
            self.assertEqual(len(row), 3, row)
            self.assertTrue(row[2], row)

    def test_each_row_names_a_target_or_says_that_there_is_none(self):
        for row in ROWS:
            self.assertTrue("//" in row[1] or row[1].startswith("none"), row)


if __name__ == "__main__":
    unittest.main()
