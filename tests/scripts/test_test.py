#!/usr/bin/env python3
"""scripts/test: what it counts, and which cases it runs once more. cmake and ctest are stand-ins here: they do nothing but
write the report that a case of this file asks for."""
import os
import shutil
import stat
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

# Writes the next report of $REPORTS, and says how it was called. Fails if a case of it has failed.
CTEST = '''#!/usr/bin/env bash
echo "$*" >>"$REPORTS/calls"
run=$(wc -l <"$REPORTS/calls")
while [ "$1" != --output-junit ]; do shift; done
[ -f "$REPORTS/$run" ] || exit 8
cp "$REPORTS/$run" "$2"
! grep -q '<failure' "$REPORTS/$run"
'''


def case(name, status='run', inside='', output=''):
    return (f'\t<testcase name="{name}" classname="{name}" time="0.1" status="{status}">\n{inside}'
            f'\t\t<system-out>{output}</system-out>\n\t</testcase>\n')


def passed(name):
    return case(name)


def failed(name, output=''):
    return case(name, 'fail', '\t\t<failure message=""/>\n', output)


def skipped(name, output=''):
    return case(name, 'notrun', '\t\t<skipped message="SKIP_REGULAR_EXPRESSION_MATCHED"/>\n', output)


class Counts(unittest.TestCase):
    def run_with(self, *reports, ci=False, hugepages='7', surplus='0'):
        """The exit code and the output of a run whose ctest writes these reports, and how ctest was called. The machine has
        that number of hugepages, of which `surplus` go when their processes end."""
        with tempfile.TemporaryDirectory() as folder:
            for name in ('scripts', 'bin', 'reports'):
                os.mkdir(os.path.join(folder, name))
            shutil.copy(os.path.join(ROOT, 'scripts', 'test'), os.path.join(folder, 'scripts'))
            for name, text in (('cmake', '#!/bin/sh\n'), ('ctest', CTEST)):
                path = os.path.join(folder, 'bin', name)
                with open(path, 'w', encoding='utf-8') as file:
                    file.write(text)
                os.chmod(path, stat.S_IRWXU)
            for number, report in enumerate(reports, 1):
                with open(os.path.join(folder, 'reports', str(number)), 'w', encoding='utf-8') as file:
                    file.write('<testsuite>\n' + ''.join(report) + '</testsuite>\n')
            hugepages_file = os.path.join(folder, 'nr_hugepages')
            with open(hugepages_file, 'w', encoding='utf-8') as file:
                file.write(f'{hugepages}\n')
            with open(os.path.join(folder, 'surplus_hugepages'), 'w', encoding='utf-8') as file:
                file.write(f'{surplus}\n')
            environment = {**os.environ, 'TERN_HUGEPAGES_FILE': hugepages_file,
                           'PATH': os.path.join(folder, 'bin') + ':' + os.environ['PATH'],
                           'REPORTS': os.path.join(folder, 'reports'), 'CI': 'true' if ci else ''}
            done = subprocess.run([os.path.join(folder, 'scripts', 'test'), '--no-setup', '--stage', 'release'],
                                  env=environment, capture_output=True, text=True, check=False)
            with open(os.path.join(folder, 'reports', 'calls'), encoding='utf-8') as file:
                calls = file.read().splitlines()
            with open(hugepages_file, encoding='utf-8') as file:
                is_filled = os.geteuid() == 0 and int(hugepages) < 256
                self.assertEqual(int(file.read()), int(hugepages) - (int(surplus) if is_filled else 0))  # as before the run
            return done.returncode, done.stdout, calls

    def test_all_passed(self):
        code, output, calls = self.run_with([passed('a.b'), passed('c')])
        self.assertEqual((code, output.splitlines()[-1], len(calls)), (0, '3 passed, 0 failed, 0 skipped', 1))  # and a build

    def test_root_reserves_hugepages_for_the_run_where_there_are_few(self):
        for hugepages in ('0', '7', '300'):
            _, output, _ = self.run_with([passed('a')], hugepages=hugepages)
            self.assertEqual(f'there are 256 hugepages of 2 MB until the end of this run, {hugepages} before' in output,
                             hugepages != '300' and os.geteuid() == 0)

    def test_hugepages_that_another_run_leaves_are_not_kept(self):
        self.run_with([passed('a')], hugepages='40', surplus='38')

    def test_each_googletest_case_counts(self):
        whole = case('file', output='Running main()\n[==========] 12 tests from 2 test suites ran. (3 ms total)\n'
                                    '[  PASSED  ] 12 tests.\n')
        one = case('file.one', output='[  PASSED  ] 1 test.\n')
        code, output, calls = self.run_with([whole, one, passed('a')])
        self.assertEqual((code, output.splitlines()[-1]), (0, '15 passed, 0 failed, 0 skipped'))
        self.assertIn('--test-output-truncation head', calls[0])  # the last lines are not cut off
        code, output, _ = self.run_with([passed('a'), failed('file', '[  PASSED  ] 11 tests.\n')], [whole])
        self.assertEqual((code, output.splitlines()[-1]), (0, '14 passed, 0 failed, 0 skipped'))
        self.assertEqual(output.count('unsteady: '), 1)

    def test_skipped_fails_in_ci_only(self):
        for ci in (False, True):
            code, output, _ = self.run_with([passed('a'), skipped('b')], ci=ci)
            self.assertEqual((code, output.splitlines()[-1]), (int(ci), '2 passed, 0 failed, 1 skipped'))

    def test_reason_of_a_skip_is_shown(self):
        _, output, _ = self.run_with([
            skipped('a.b', '[ RUN      ] A.b\ntests/a_test.cc:4: Skipped\nless than 64 &lt;free&gt; pages\n\n'),
            skipped('c', 'test_c (__main__.C) ... skipped &apos;needs root&apos;\n\nOK (skipped=1)\n'),
            skipped('d', 'SKIPPED: no device\n'), skipped('e'), passed('f')])
        self.assertEqual([line for line in output.splitlines() if line.startswith('skipped: ')],
                         ['skipped: release: a.b: less than 64 <free> pages',
                          "skipped: release: c: test_c (__main__.C) ... skipped 'needs root'",
                          'skipped: release: d: SKIPPED: no device', 'skipped: release: e'])

    def test_case_that_passes_alone_is_named(self):
        code, output, calls = self.run_with([passed('a'), failed('b.C.d/shm')], [passed('b.C.d/shm')])
        self.assertEqual((code, output.splitlines()[-1]), (0, '3 passed, 0 failed, 0 skipped'))
        self.assertIn('unsteady: release: b.C.d/shm ', output)
        self.assertIn('-j 1 ', calls[1])
        self.assertTrue(calls[1].endswith(r' -R ^(b\.C\.d/shm)$'), calls[1])

    def test_names_of_typed_cases(self):
        name = 'a.Typed/shm.x&lt;Typed/shm.  # TypeParam = A&lt;int&amp;&gt;&gt;'
        code, output, calls = self.run_with([failed(name)], [passed(name)])
        self.assertEqual((code, output.splitlines()[-1]), (0, '2 passed, 0 failed, 0 skipped'))
        self.assertIn('unsteady: release: a.Typed/shm.x<Typed/shm.  # TypeParam = A<int&>> (', output)
        self.assertTrue(calls[1].endswith(r' -R ^(a\.Typed/shm\.x<Typed/shm\.  # TypeParam = A<int&>>)$'), calls[1])

    def test_case_that_fails_twice_is_a_failure(self):
        code, output, _ = self.run_with([failed('a'), failed('b')], [failed('a'), passed('b')])
        self.assertEqual((code, output.splitlines()[-1]), (1, '2 passed, 1 failed, 0 skipped'))
        self.assertIn('failed: release: a\n', output)
        self.assertIn('unsteady: release: b ', output)

    def test_findings_are_not_run_again(self):
        for text in ('WARNING: ThreadSanitizer: data race', 'ERROR: AddressSanitizer: heap-use-after-free',
                     'ERROR: LeakSanitizer: detected', 'file.cc:1:2: runtime error: shift',
                     'src/a.cc:1: CHECK failed: a == b (1, 2)', 'BROKEN after 1.5 ms: twice\n'):
            code, output, calls = self.run_with([passed('a'), failed('b', text)])
            self.assertEqual((code, output.splitlines()[-1], len(calls)), (1, '2 passed, 1 failed, 0 skipped', 1))

    def test_sanitizer_finding_in_the_second_run_is_a_failure(self):
        code, output, _ = self.run_with([failed('a')], [failed('a', 'WARNING: ThreadSanitizer: data race')])
        self.assertEqual((code, output.splitlines()[-1]), (1, '1 passed, 1 failed, 0 skipped'))

    def test_many_failures_are_not_run_again(self):
        names = [f'case{number}' for number in range(11)]
        code, output, calls = self.run_with([failed(name) for name in names])
        self.assertEqual((code, output.splitlines()[-1], len(calls)), (1, '1 passed, 11 failed, 0 skipped', 1))

    def test_ctest_without_a_report_is_a_failure(self):
        code, output, _ = self.run_with()
        self.assertEqual((code, output.splitlines()[-1]), (1, '1 passed, 1 failed, 0 skipped'))


class Headers(unittest.TestCase):
    def test_stage_headers_runs_all_of_its_folder(self):
        names = {name for name in os.listdir(os.path.join(ROOT, 'tests', 'headers'))
                 if os.access(os.path.join(ROOT, 'tests', 'headers', name), os.X_OK)}
        with tempfile.TemporaryDirectory() as folder:
            os.makedirs(os.path.join(folder, 'tests', 'headers'))
            os.mkdir(os.path.join(folder, 'scripts'))
            shutil.copy(os.path.join(ROOT, 'scripts', 'test'), os.path.join(folder, 'scripts'))
            for name in names:
                path = os.path.join(folder, 'tests', 'headers', name)
                with open(path, 'w', encoding='utf-8') as file:
                    file.write('#!/bin/sh\necho "ran ${0##*/}"\n')
                os.chmod(path, stat.S_IRWXU)
            done = subprocess.run([os.path.join(folder, 'scripts', 'test'), '--no-setup', '--stage', 'headers'],
                                  env={**os.environ, 'TERN_HUGEPAGES_FILE': '/dev/null'}, capture_output=True, text=True,
                                  check=False)
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual({line.removeprefix('ran ') for line in done.stdout.splitlines() if line.startswith('ran ')}, names)


if __name__ == '__main__':
    unittest.main()
