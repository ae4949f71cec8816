#!/usr/bin/env python3
"""What scripts/bench names is there: every program of its pairs runs with its flags and reports the metrics.
Usage: bench_pairs_test.py BUILD_DIR
"""
import importlib.machinery
import importlib.util
import os
import sys
import unittest

SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'scripts', 'bench')
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader('bench', SCRIPT)
bench = importlib.util.module_from_spec(importlib.util.spec_from_loader('bench', loader))
loader.exec_module(bench)

build_dir = None


class Pairs(unittest.TestCase):
    def test_programs_of_all_transports_are_there(self):
        for pair in bench.pairs_of(build_dir):
            for command in filter(None, (pair.bench, pair.limit)):
                for path in bench.paths_of(build_dir, command):
                    self.assertTrue(os.access(path, os.X_OK), path)

    def test_programs_and_metrics(self):
        cpus = sorted(os.sched_getaffinity(0))[:2]
        if len(cpus) < 2:
            print('skipped: two CPUs are needed')
            sys.exit(77)
        runner = bench.Runner(0.5, ','.join(map(str, cpus)))
        wanted = {}
        for pair in bench.PAIRS:
            wanted.setdefault(pair.bench, set()).add(pair.metric)
            if pair.limit or pair.limit_metric:
                wanted.setdefault(pair.limit or pair.bench, set()).add(pair.limit_metric or pair.metric)
        for command, metrics in wanted.items():
            with self.subTest(command=command):
                line = runner.run(build_dir, command)
                for metric in metrics:
                    self.assertGreater(bench.metric_of(line, metric, command), 0)
                if command.startswith(bench.FRESH_CLIENT):
                    continue  # its processes are whole programs, which measure no placement
                for key in ('placement_ns', 'placement_ns_min'):
                    self.assertGreater(line.get(key, 0), 0)


if __name__ == '__main__':
    build_dir = os.path.abspath(sys.argv.pop(1))
    unittest.main()
