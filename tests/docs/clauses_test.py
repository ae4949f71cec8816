#!/usr/bin/env python3
"""tests/docs/clauses can fail: it finds the faults in documents of a few clauses, and accepts the good ones."""
import pathlib
import subprocess
import tempfile
import unittest

CLAUSES = pathlib.Path(__file__).resolve().parent / "clauses"
HEAD = '# A protocol\n\nHere "model" is model/session_model_test.\n\n## 1. Words\n\n'


class ClausesTest(unittest.TestCase):
    def run_over(self, clause):
        with tempfile.NamedTemporaryFile("w", suffix=".md") as file:
            file.write(HEAD + clause)
            file.flush()
            done = subprocess.run([CLAUSES, file.name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  check=False)
        return done.returncode, done.stdout

    def expect_error(self, clause, text):
        code, output = self.run_over(clause)
        self.assertEqual((code, output.count("\n")), (1, 1), output)
        self.assertIn(text, output)

    def expect_clean(self, clause):
        code, output = self.run_over(clause)
        self.assertEqual(code, 0, output)

    def test_cited_cases_files_and_suites_pass(self):
        self.expect_clean("1.1 One. *(unit/session/windows_test: NumberWindow, nearest_to_the_reference;\nfuzz/header_fuzz)*\n")
        self.expect_clean("1.1 One. *(model: empty_messages, every world)*\n")
        self.expect_clean("1.1 One. *(static_assert in wire/header.h)*\n")

    def test_untested_clause_that_says_so_passes(self):
        self.expect_clean("1.1 One. *(not tested: a definition)*\n")

    def test_clause_without_a_citation_is_an_error(self):
        self.expect_error("1.1 One. *(model)*\n\n1.1.2 Two.\n\nMore of it.\n", "clause 1.1.2 names no test")

    def test_clause_in_a_list_without_a_citation_is_an_error(self):
        self.expect_error("- **7.5.2a** **Bold.** Text.\n- **7.5.3** Text. *(model)*\n", "clause 7.5.2a names no test")

    def test_citation_below_the_next_heading_does_not_count(self):
        self.expect_error("1.1 One.\n\n## 2. More\n\n*(model)*\n", "clause 1.1 names no test")

    def test_case_that_does_not_exist_is_an_error(self):
        self.expect_error("1.1 One. *(windows_test: like_nothing)*\n", "windows_test has no case like_nothing")

    def test_world_that_does_not_exist_is_an_error(self):
        self.expect_error("1.1 One. *(model: no_such_world)*\n", "has no case no_such_world")

    def test_helper_function_in_place_of_a_case_is_an_error(self):
        self.expect_error("1.1 One. *(server_session_test: prove_path)*\n", "server_session_test has no case prove_path")

    def test_file_that_does_not_exist_is_an_error(self):
        self.expect_error("1.1 One. *(unit/session/none_test)*\n", "no test file unit/session/none_test")

    def test_name_of_two_files_is_an_error(self):
        self.expect_error("1.1 One. *(nat_test: calls_pass_a_nat)*\n", "more than one test file nat_test")

    def test_cited_proof_in_a_file_without_one_is_an_error(self):
        self.expect_error("1.1 One. *(static_assert in session/drop.h)*\n", "no static_assert in src/session/drop.h")


if __name__ == "__main__":
    unittest.main()
