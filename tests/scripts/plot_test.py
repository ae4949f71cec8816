#!/usr/bin/python3
"""Tests of scripts/plot over plot_sample.jsonl, which is recorded output of the benchmarks. Debian's Python, as the script."""
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest

CACHE = tempfile.TemporaryDirectory()
os.environ['MPLCONFIGDIR'] = CACHE.name
try:
    from matplotlib import image, pyplot
except ImportError:
    print('skipped: there is no matplotlib here (scripts/setup test)')
    sys.exit(77)

HERE = os.path.dirname(os.path.abspath(__file__))
PLOT = os.path.join(HERE, '..', '..', 'scripts', 'plot')
SAMPLE = os.path.join(HERE, 'plot_sample.jsonl')
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader('plot', PLOT)
plot = importlib.util.module_from_spec(importlib.util.spec_from_loader('plot', loader))
loader.exec_module(plot)


def run_of(transport, us=1.0, **params):
    return {'bench': 'latency', 'transport': transport, 'params': params,
            'metrics': {'percentiles_us': [[0, us], [0.5, us]]}}


class Curves(unittest.TestCase):
    def labels_of(self, *lines):
        return sorted(plot.distributions(list(lines)))

    def test_a_label_has_what_tells_lines_apart_and_nothing_else(self):
        self.assertEqual(self.labels_of(run_of('shm', size=32), run_of('udp', size=32, datagram_bytes=1232)),
                         ['latency shm', 'latency udp'])
        self.assertEqual(self.labels_of(run_of('shm', size=32), run_of('udp', size=2048)),
                         ['latency shm size=32', 'latency udp size=2Ki'])
        self.assertEqual(self.labels_of(run_of('udp'), run_of('udp', drop=0.001, dup=0.0)),
                         ['latency udp', 'latency udp drop=0.001'])

    def test_the_same_run_again_is_the_same_curve(self):
        self.assertEqual(plot.distributions([run_of('shm', us) for us in (1, 5, 2)]), {'latency shm': {0: 2, 0.5: 2}})

    def test_long_sweeps_show_their_first_step(self):
        sweep = [run_of(transport, size=size) for transport in ('shm', 'udp') for size in range(6, 0, -1)]
        self.assertEqual(len(self.labels_of(*sweep[:10])), 10)
        self.assertEqual(self.labels_of(*sweep), ['latency shm size=1', 'latency udp size=1'])


class Timeline(unittest.TestCase):
    STEPS = [('client', 'enqueued', None), ('client', 'started', None), ('client', 'sent', 'request'),
             ('server', 'received', 'request'), ('server', 'handler_begin', None), ('server', 'handler_end', None),
             ('server', 'answered', None), ('server', 'sent', 'response'), ('client', 'received', 'response')]

    def call(self, steps):
        return [{'trace': trace, 'side': side, 'packet_kind': kind, 'time_ns': 1000 + 10 * i, 'session': 'a',
                 'request': 7}
                for i, (side, trace, kind) in enumerate(steps)]

    def test_spans_follow_each_other_through_both_ends(self):
        spans = plot.spans_of(self.call(self.STEPS))
        self.assertEqual([(side, name) for side, name, _, _ in spans],
                         [('client', 'waits for a slot'), ('client', 'waits to leave'), ('network', 'request'),
                          ('server', 'waits for its handler'), ('server', 'handler'),
                          ('server', 'answer waits to leave'), ('network', 'response')])
        self.assertEqual([end - begin for _, _, begin, end in spans], [10] * 7)

    def test_missing_events_have_no_span(self):
        client = [step for step in self.STEPS if step[0] == 'client']
        self.assertEqual([name for _, name, _, _ in plot.spans_of(self.call(client))],
                         ['waits for a slot', 'waits to leave'])


class Plot(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        self.out = os.path.join(self.directory, 'a', 'b')
        self.addCleanup(pyplot.close, 'all')

    def run_script(self, *arguments, **environment):
        return subprocess.run([PLOT, *arguments, '--out', self.out], capture_output=True, text=True, check=False,
                              env={**os.environ, **environment})

    def plot(self, *arguments):
        """The same in this process, which has loaded matplotlib."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = plot.main([*arguments, '--out', self.out])
        return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())

    def file(self, *lines):
        handle, path = tempfile.mkstemp(dir=self.directory)
        with open(handle, 'w', encoding='utf-8') as file:
            file.writelines((line if isinstance(line, str) else json.dumps(line)) + '\n' for line in lines)
        return path

    def assert_refuses(self, sentence, done):
        self.assertEqual((done.returncode, done.stdout), (1, ''), done.stderr)
        self.assertRegex(done.stderr, r'\A[^\n]+\n\Z')
        self.assertIn(sentence, done.stderr)
        self.assertFalse(os.path.exists(self.out))

    def recorded(self, *benches):
        """The recorded lines of these benchmarks, or all."""
        with open(SAMPLE, encoding='utf-8') as file:
            lines = [json.loads(text) for text in file]
        return [line for line in lines if not benches or line.get('bench') in benches]

    def test_no_verdict_is_grey(self):
        for verdict, expected in (({}, False), ({'no_verdict': None}, True)):
            self.plot(self.file(*[{**line, **verdict} for line in self.recorded('compare')]))
            pixels = image.imread(os.path.join(self.out, 'compare.png'))[:, :, :3]
            self.assertEqual((pixels.max(axis=2) - pixels.min(axis=2) > 0.3).any(), expected)

    def test_a_picture_of_each_subject(self):
        # scripts/compare was recorded on a busy machine.
        done = self.run_script(self.file(*[{**line, 'no_verdict': None} if line.get('bench') == 'compare' else line
                                           for line in self.recorded()]))
        self.assertEqual((done.returncode, done.stderr), (0, ''))
        names = ('latency', 'sizes', 'windows', 'sessions', 'raft', 'timeline', 'ratios', 'scale', 'compare')
        self.assertEqual(done.stdout.splitlines(), [os.path.join(self.out, f'{name}.png') for name in names])
        for path in done.stdout.splitlines():
            with open(path, 'rb') as file:
                self.assertEqual(file.read(8), b'\x89PNG\r\n\x1a\n')
            pixels = image.imread(path)[:, :, :3]
            height, width, _ = pixels.shape
            self.assertGreater(height * width, 100_000)
            coloured = pixels.max(axis=2) - pixels.min(axis=2) > 0.3  # curves; frames, grids and words are grey
            self.assertGreater(coloured.sum(), 200, path)
            self.assertGreater(coloured.any(axis=0).sum(), width / 25, path)  # not all in one spot

    def test_pictures_follow_the_data(self):
        line = {'bench': 'latency', 'transport': 'shm', 'params': {},
                'metrics': {'percentiles_us': [[0, 1], [0.5, 2], [0.99, 3]]}}
        self.plot(self.file(line))
        before = image.imread(os.path.join(self.out, 'latency.png'))
        line['metrics']['percentiles_us'][1][1] = 2.9
        self.plot(self.file(line))
        self.assertTrue((before != image.imread(os.path.join(self.out, 'latency.png'))).any())

    def test_only_subjects_of_the_lines_are_drawn(self):
        points = [{'bench': 'small_rpc_rate', 'transport': 'shm', 'params': {'window': window, 'size': 32},
                   'metrics': {'rate_mrps': rate}} for window, rate in ((3, 1), (60, 4))]
        done = self.plot(self.file(*points))
        self.assertEqual((done.returncode, os.listdir(self.out)), (0, ['windows.png']), done.stderr)

    def test_a_sweep_whose_only_point_is_zero_is_drawn(self):
        line = {'bench': 'scale', 'sweep': 'handler_us', 'series': 'shm dispatch', 'x': 0, 'metrics': {'rate_mrps': 3}}
        done = self.plot(self.file(line))
        self.assertEqual((done.returncode, done.stderr, os.listdir(self.out)), (0, '', ['scale.png']))

    def test_several_files_make_one_set(self):
        done = self.plot(self.file(*self.recorded('ratio')), self.file(*self.recorded('raft_sim')))
        self.assertEqual((done.returncode, sorted(os.listdir(self.out))), (0, ['raft.png', 'ratios.png']), done.stderr)

    def test_input_without_curves_is_an_error(self):
        one_point = {'bench': 'x', 'transport': 'shm', 'params': {'window': 3}, 'metrics': {'rate_mrps': 1}}
        for path in (self.file(), self.file({}), self.file(one_point)):
            self.assert_refuses('has nothing to draw', self.plot(path))
            self.assert_refuses('has nothing to draw', self.plot(SAMPLE, path))

    def test_files_without_results_are_refused(self):
        self.assert_refuses('cannot be read', self.plot('/no/such/file'))
        self.assert_refuses('is not a JSON line', self.plot(self.file('p50 3 us')))
        self.assert_refuses('is not a JSON line', self.plot(self.file('[1]')))
        binary = os.path.join(self.directory, 'binary')
        with open(binary, 'wb') as file:
            file.write(b'\x89PNG\xff\n')
        self.assert_refuses('is not a JSON line', self.plot(binary))
        self.assert_refuses('not those of a benchmark', self.plot(self.file({'params': 3, 'metrics': 'x'})))
        self.assert_refuses('not those of a benchmark', self.plot(self.file({'bench': 'ratio', 'ratio_min': 1})))

    def test_missing_matplotlib_is_named(self):
        os.mkdir(os.path.join(self.directory, 'modules'))
        with open(os.path.join(self.directory, 'modules', 'matplotlib.py'), 'w', encoding='utf-8') as file:
            file.write('raise ImportError\n')
        self.assert_refuses('matplotlib is not installed: scripts/setup bench',
                            self.run_script(SAMPLE, PYTHONPATH=os.path.join(self.directory, 'modules')))


if __name__ == '__main__':
    unittest.main()
