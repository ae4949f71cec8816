#!/usr/bin/env python3
"""Tests of scripts/trace over files that are made here, whole and damaged. e2e/trace_test.py has those of programs."""
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import sys
import tempfile
import unittest

SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'scripts')
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader('trace_script', os.path.join(SCRIPTS, 'trace'))
trace = importlib.util.module_from_spec(importlib.util.spec_from_loader('trace_script', loader))
loader.exec_module(trace)
NAMES = b'kind 1 enqueued\npacket 0 request\n'


def content(names=NAMES, requests=(64,)):
    """A trace with one ring, which has one record for each request."""
    records = b''.join(trace.RECORD.pack(number, 5, 7, request, 0, 0, 0, 1, 0) for number, request in enumerate(requests))
    return (trace.FILE.pack(b'TERNTRCE', 1, trace.RECORD.size, 42, 0, 0, 1, len(names)) + names
            + trace.RING.pack(b'127.0.0.1:31850', b'udp', 0, 0)
            + len(requests).to_bytes(4, sys.byteorder) + records + bytes(4))


class Damaged(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name

    def file(self, name, data):
        path = os.path.join(self.folder, name)
        with open(path, 'wb') as file:
            file.write(data)
        return path

    def run_trace(self, *arguments):
        """Exit code, printed lines and standard error."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = trace.main(list(arguments))
        return code, [json.loads(line) for line in out.getvalue().splitlines()], err.getvalue()

    def test_a_whole_file_is_shown(self):
        code, lines, errors = self.run_trace(self.file('good', content(requests=(64, 65))))
        self.assertEqual((code, errors), (0, ''))
        self.assertEqual([(line['trace'], line['request']) for line in lines], [('enqueued', 64), ('enqueued', 65)])

    def test_damaged_names_are_one_sentence(self):
        for names in (b'kind 1 \xff\n', b'kind x name\n', b'table 1 name\n', b'kind 1\n', b'kind 1 two words\n'):
            with self.subTest(names):
                path = self.file('damaged', content(names))
                self.assertEqual(self.run_trace(path), (1, [], f'scripts/trace: {path} is damaged\n'))

    def test_a_bad_file_does_not_hide_the_others(self):
        bad = {'damaged': content(b'kind'), 'short': content()[:-20], 'other': b'text', 'empty': b''}
        for name, data in bad.items():
            with self.subTest(name):
                path = self.file(name, data)
                code, lines, errors = self.run_trace(path, self.file('good', content()))
                self.assertEqual((code, len(lines)), (1, 1))
                self.assertRegex(errors, f'^scripts/trace: {path} [a-z ]+\n$')
        missing = os.path.join(self.folder, 'missing')
        code, lines, errors = self.run_trace(self.file('good', content()), missing)
        self.assertEqual((code, len(lines)), (1, 1))
        self.assertIn('cannot be read', errors)

    def test_any_changed_byte_is_no_traceback(self):
        good = content()
        for at in range(len(good)):
            for value in (0, 1, 0x20, 0x7f, 0xff):
                self.run_trace(self.file('changed', good[:at] + bytes([value]) + good[at + 1:]))


if __name__ == '__main__':
    unittest.main()
