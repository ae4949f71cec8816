#!/usr/bin/env python3
"""tests/lint/check can fail: it finds the faults in a small tree of two sources, which are one batch."""
import json
import pathlib
import shutil
import subprocess
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent

GOOD = '#include <utility>\n#include <vector>\n\nnamespace tern {\nint good() { return 1; }\n}  // namespace tern\n'


class Check(unittest.TestCase):
    def check(self, *sources):
        """The exit code and the output for a tree that has these sources."""
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder).resolve()
            for name in ('tests/lint', 'src', 'build'):
                (root / name).mkdir(parents=True)
            shutil.copy(HERE / 'check', root / 'tests/lint')
            shutil.copy(HERE.parent.parent / '.clang-tidy', root)
            files = [root / 'src' / f'source_{number}.cc' for number in range(len(sources))]
            for file, text in zip(files, sources):
                file.write_text(text, encoding='utf-8')
            (root / 'build/compile_commands.json').write_text(json.dumps(
                [{'directory': str(root), 'file': str(file), 'command': f'clang++-14 -std=c++20 -Wall -c {file}'}
                 for file in files]), encoding='utf-8')
            done = subprocess.run([root / 'tests/lint/check', root / 'build'], capture_output=True, text=True,
                                  check=False)
            return done.returncode, done.stdout

    def assert_found(self, text, finding):
        code, output = self.check(GOOD, text)
        self.assertEqual(code, 1, output)
        self.assertIn('source_1.cc', output)
        self.assertIn(finding, output)
        self.assertNotIn('source_0.cc', output)

    def test_clean_tree_passes(self):
        code, output = self.check(GOOD, GOOD.replace('good', 'as_good'))
        self.assertEqual((code, output), (0, '2 sources in 1 batches, 0 with findings\n'))

    def test_findings_are_printed_and_fail(self):
        self.assert_found(GOOD.replace('good', 'BadName'), 'readability-identifier-naming')
        self.assert_found('#include <utility>\n#include <vector>\n\nsize_t lost(std::vector<int> values) {\n'
                          '  const auto other = std::move(values);\n  return values.size() + other.size();\n}\n',
                          'bugprone-use-after-move')
        self.assert_found('#include <vector>\nusing std::vector;\n', 'vector is not used')

    def test_name_in_two_sources_of_a_batch_is_no_finding(self):
        text = 'namespace {\nconstexpr int kName = 1;\n}\nint NAME() { return kName; }\n'
        code, output = self.check(text.replace('NAME()', 'one()'), text.replace('NAME()', 'two()'))
        self.assertEqual(code, 0, output)
        self.assertIn("each source alone is: ", output)
        self.assertIn("redefinition of 'kName'", output)


if __name__ == '__main__':
    unittest.main()
