"""Common parts of the tests of bad use: running a program, and checking a refusal."""
import os
import subprocess
import unittest

SECONDS_MAX = 60  # the library gives up a peer after 5 s, and sanitizers are slow on a busy machine


def shortly(program):
    """The flag with which a program, if it does not refuse, measures shortly. Drivers run for a number of calls."""
    return '--rpcs=1000' if program.endswith('_driver') else '--seconds=0.1'


def run(words, *, before=(), **more):
    """Runs a program; `before`: the words of another one that starts it. If it does not refuse, it measures shortly."""
    words = [*before, words[0], shortly(words[0]), '--json', *words[1:]]
    try:
        return subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS_MAX,
                              **more)
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 0, '', f'it did not end in {SECONDS_MAX} s')


def become_nobody():
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)


class RefusalTest(unittest.TestCase):
    def assert_refused(self, done, words=()):
        """Checks that standard error has one sentence with these words, standard output nothing, and the exit code is not 0."""
        self.assertGreater(done.returncode, 0, f'{done.stdout}{done.stderr}')
        self.assertEqual(done.stdout, '')
        self.assertRegex(done.stderr, r'\A[^\n]+\n\Z')
        for word in words:
            self.assertIn(word, done.stderr)
