#!/usr/bin/python3
"""Tests of scripts/paper over paper_sample.jsonl, a recorded results.jsonl of --quick, and with fakes in place of the
programs. Debian's Python, as the script."""
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import time
import unittest

try:
    import matplotlib
    from matplotlib import image
except ImportError:
    print('skipped: there is no matplotlib here (scripts/setup test)')
    sys.exit(77)

matplotlib.use('Agg')
HERE = os.path.dirname(os.path.abspath(__file__))
PAPER = os.path.join(HERE, '..', '..', 'scripts', 'paper')
FONTS = tempfile.TemporaryDirectory()  # matplotlib's cache of fonts, which takes seconds to make
SAMPLE = os.path.join(HERE, 'paper_sample.jsonl')
sys.dont_write_bytecode = True
loader = importlib.machinery.SourceFileLoader('paper', PAPER)
paper = importlib.util.module_from_spec(importlib.util.spec_from_loader('paper', loader))
loader.exec_module(paper)


def line(experiment, metrics, seed=1, cc='swift', **params):
    return {'experiment': experiment, 'seed': seed, 'command': 'x', 'params': {'cc': cc, **params}, 'metrics': metrics}


def rows_of(number, *lines):
    return list(paper.ROWS[number](paper.Results(list(lines))))


def row_of(number, what, *lines):
    found = [row for row in rows_of(number, *lines) if what in row.what]
    assert len(found) == 1, found
    return found[0]


def options_of(*words):
    return paper.parse_arguments(list(words))


class Rows(unittest.TestCase):
    def test_calibration_is_within_a_tenth_of_the_paper(self):
        for us, is_met in ((182, True), (222, True), (181, False), (223, False)):
            row = row_of(1, 'p50 RTT', line(1, {'p50_rtt_us': us, 'total_gbps': 23}, cc='none', degree=20))
            self.assertEqual((row.paper, paper.is_met(row)), (202, is_met), us)

    def test_every_seed_has_to_meet_the_target(self):
        runs = [line(2, {'p99_rtt_us': us}, seed, credits=0, degree=250) for seed, us in enumerate((90, 95, 101), 1)]
        row = row_of(2, 'p99 RTT', *runs)
        self.assertEqual((row.values, paper.is_met(row)), ([90, 95, 101], False))
        self.assertTrue(paper.is_met(row_of(2, 'p99 RTT', *runs[:2])))

    def test_controllers_and_degrees_have_rows_of_their_own(self):
        runs = [line(2, {'drops': degree}, cc=cc, credits=0, degree=degree) for cc in ('swift', 'timely') for degree in (0, 20)]
        self.assertEqual([(row.what, row.values) for row in rows_of(2, *runs) if 'lost' in row.what],
                         [(f'{degree}-way, {cc}: packets lost', [degree]) for cc in ('swift', 'timely')
                          for degree in (0, 20)])

    def test_controllers_alone_have_no_target(self):
        runs = [line(2, {'p99_rtt_us': 500 - credits}, credits=credits, degree=20) for credits in (0, 32)]
        rows = [row for row in rows_of(2, *runs) if 'p99' in row.what]
        self.assertEqual([(row.what, row.values, paper.is_met(row)) for row in rows],
                         [('20-way, swift: p99 RTT', [500], False), ('20-way, swift alone: p99 RTT', [468], None)])

    def test_background_is_compared_with_that_of_the_same_seed(self):
        runs = [line(3, {'background_p99_us': us}, seed, degree=degree)
                for degree, values in ((0, (100, 200)), (100, (110, 210))) for seed, us in enumerate(values, 1)]
        row = row_of(3, 'against alone', *runs)
        self.assertEqual((row.values, paper.is_met(row)), ([1.1, 1.05], True))
        self.assertEqual(row_of(3, 'during an incast, swift: p99', *runs).values, [110, 210])
        self.assertEqual(row_of(3, 'against alone', *runs[2:]).values, [])

    def test_loss_targets_and_the_papers_shares(self):
        row = row_of(4, 'share', line(4, {'share': 0.979}, drop=1e-3))
        self.assertEqual((row.at_least, paper.is_met(row)), (0.98, False))
        self.assertAlmostEqual(row.paper, 0.034, 3)
        self.assertIsNone(row_of(4, 'share', line(4, {'share': 1}, drop=1e-2)).paper)

    def test_cost_is_against_none(self):
        runs = [line(6, {'total': 600}, cc='none'), line(6, {'total': 636})]
        row = row_of(6, 'against none', *runs)
        self.assertEqual((row.values, paper.is_met(row)), ([1.06], False))

    def test_missing_result_is_a_miss(self):
        rows = paper.table(paper.Results([line(7, {'join_share_after_2ms': 1}, scenario='join')]), [7])
        text = paper.markdown(rows)
        self.assertIn('| 7 | a flow comes, swift: until its fair share, ms | <= 2 | never |  | NO |', text)
        self.assertIn('| 7 | a flow comes, swift: what it has of its share from then on | >= 0.9 | 1 |  | yes |', text)

    def test_run_that_never_got_there_is_a_miss(self):
        joins = [line(7, metrics, seed, scenario='join')
                 for seed, metrics in enumerate(({'join_ms': 1, 'join_share_after_2ms': 1}, {'join_share_after_2ms': 1}, {}), 1)]
        leaves = [line(7, metrics, seed, scenario='leave') for seed, metrics in enumerate(({'leave_ms': 0.5}, {}), 1)]
        for what, lines in (('until its fair share', joins), ('share from then on', joins), ('of the line', leaves)):
            row = row_of(7, what, *lines)
            self.assertEqual((len(row.values), paper.is_met(row)), (len(lines), False), what)
        self.assertTrue(paper.is_met(row_of(7, 'until its fair share', joins[0])))
        text = paper.markdown([row_of(7, 'until its fair share', *joins)])
        self.assertIn('| <= 2 | never (1 to never) |  | NO |', text)

    def test_runs_of_one_seed_may_differ_in_wall_time_only(self):
        for trace, is_met in (('a', True), ('b', False)):
            row = row_of(8, 'differ', line(8, {'trace_hash': 'a', 'wall_seconds': 1}),
                         line(8, {'trace_hash': trace, 'wall_seconds': 2}))
            self.assertEqual(paper.is_met(row), is_met)

    def test_shortcuts_are_compared_with_all_and_with_the_step_before(self):
        def own(metrics, without, transport='shm', **flags):
            return {**line(9, metrics, without=without, **{**paper.CALLS, **flags}), 'transport': transport}

        runs = [own({'rate_mrps': 4}, 'none'), own({'total': 600}, 'none'), own({'rate_mrps': 1}, 'none', 'udp'),
                own({'rate_mrps': 3}, 'batched_timestamps'), own({'total': 750}, 'batched_timestamps'),
                own({'rate_mrps': 3.8}, 'controller_bypass'), own({'rate_mrps': 1.5}, 'up_to_controller_bypass'),
                own({'rate_mrps': 2}, 'none', sessions=20_000), own({'rate_mrps': 1}, 'look_ahead', sessions=20_000)]
        found = {row.what: row for row in rows_of(9, *runs) if row.values}
        self.assertEqual(found['shm, without batched timestamps: share of the rate'].values, [0.75])
        self.assertEqual(found['shm, without batched timestamps: more instructions'].values, [150])
        self.assertEqual(found['shm, without controller bypass: share of the rate'].values, [0.95])
        row = found['shm, one after another, controller bypass, too: share of the rate before']
        self.assertEqual((row.values, round(row.paper, 3)), ([0.5], 0.934))
        self.assertEqual(found['shm, 20000 sessions, without look ahead: share of the rate'].values, [0.5])
        self.assertEqual(len(found), 10)

    def test_shortcuts_are_run_over_the_transports_that_have_them(self):
        commands = paper.runs_of(9, options_of('--only=9'))
        self.assertEqual(sum('--without=none' in words for words in commands), 6 * 5)
        for name, transports in (('look_ahead', ['shm']), ('receive_in_place', ['udp']), ('rest_at_once', ['shm', 'udp']),
                                 ('up_to_answer_at_once', ['shm']), ('up_to_common_case', ['shm', 'udp'])):
            found = {words.split('--transport=')[1].split()[0] for words in commands if f'--without={name} ' in words}
            self.assertEqual(sorted(found), transports)

    def test_a_row_of_the_table(self):
        runs = [line(2, {'total_gbps': gbps}, seed, credits=0, degree=50) for seed, gbps in enumerate((22.5, 22.71, 22.6), 1)]
        text = paper.markdown([row_of(2, 'bandwidth', *runs)])
        self.assertEqual(text.splitlines()[-1],
                         '| 2 | 50-way, swift: bandwidth, Gbit/s | >= 22.4 | 22.6 (22.5 to 22.7) | 18.4 | yes |')


class Runs(unittest.TestCase):
    def commands(self, *words):
        options = options_of(*words)
        return [' '.join(paper.words_of(run, options)) for run in paper.all_runs(options)]

    def test_seeds_and_controllers_multiply_what_depends_on_them(self):
        self.assertEqual(len(self.commands('--only=2')), 4)
        self.assertEqual(len(self.commands('--only=2', '--seeds=3', '--cc=swift,timely')), 24)
        self.assertEqual(len(self.commands('--only=1', '--seeds=3', '--cc=swift,timely')), 9)
        self.assertEqual(len(self.commands('--only=2', '--alone')), 8)
        self.assertEqual(len(self.commands('--only=5')), 10)

    def test_each_command_says_all_that_it_depends_on(self):
        for words in self.commands():
            self.assertIn('--cc=', words)
            if 'instructions_per_rpc' not in words:
                self.assertRegex(words, r'/microbench/(shortcuts_driver.*|.*--seed=1) --json$')
        self.assertTrue(all('--cc=none' in words and '--credits=32' in words for words in self.commands('--only=1')))
        self.assertEqual(sum('--cc=none' in words for words in self.commands('--only=6')), 1)

    def test_wrong_flags_are_refused(self):
        for words in ('--only=11', '--only=x', '--only=', '--seeds=0', '--jobs=0'):
            with self.assertRaises(paper.Failure):
                options_of(words)


class Program(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        self.out = os.path.join(self.directory, 'a', 'b')

    def paper(self, *arguments, **environment):
        return subprocess.run([PAPER, *arguments, '--out', self.out], capture_output=True, text=True, check=False,
                              env={**os.environ, 'MPLCONFIGDIR': FONTS.name, **environment})

    def write(self, name, text):
        path = os.path.join(self.directory, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, 'w', encoding='utf-8') as file:
            file.write(text)
        return path

    def build_dir(self, script):
        """With one fake program."""
        path = self.write('build/microbench/incast', f'#!/bin/sh\n{script}\n')
        os.chmod(path, os.stat(path).st_mode | stat.S_IXUSR)
        return f'--build-dir={os.path.join(self.directory, "build")}'

    def assert_refuses(self, sentence, done):
        self.assertEqual((done.returncode, done.stdout), (1, ''), done.stderr)
        self.assertRegex(done.stderr, r'\A[^\n]+\n\Z')
        self.assertIn(sentence, done.stderr)
        self.assertFalse(os.path.exists(self.out))

    def test_a_picture_of_each_experiment_and_the_table(self):
        done = self.paper('--draw', SAMPLE)
        self.assertEqual((done.returncode, done.stderr), (0, ''))
        names = [*(f'{name}.png' for name, _ in paper.PICTURES.values()), 'paper.md']
        self.assertEqual(done.stdout.splitlines()[:-1], [os.path.join(self.out, name) for name in names])
        self.assertRegex(done.stdout.splitlines()[-1], r'\A\d+ of \d+ targets are met\Z')
        for name, _ in paper.PICTURES.values():
            pixels = image.imread(os.path.join(self.out, f'{name}.png'))[:, :, :3]
            coloured = pixels.max(axis=2) - pixels.min(axis=2) > 0.3  # ours; frames, words and the paper are grey
            self.assertGreater(coloured.sum(), 200, name)
        with open(os.path.join(self.out, 'paper.md'), encoding='utf-8') as file:
            table = file.read().splitlines()
        self.assertEqual({row.split('|')[1].strip() for row in table[2:]}, {str(number) for number in range(1, 11)})
        self.assertEqual({row.count('|') for row in table}, {7})

    def test_no_bars_on_a_logarithmic_axis_and_controllers_by_name(self):
        from matplotlib import pyplot as plt
        with open(SAMPLE, encoding='utf-8') as file:
            results = paper.Results([json.loads(text) for text in file])
        scales, labels = set(), []
        for _, draw in paper.PICTURES.values():
            for axes in draw(plt, results).axes:
                scale = 'log' if 'log' in (axes.get_xscale(), axes.get_yscale()) else 'linear'
                if scale == 'log':
                    self.assertEqual(len(axes.containers), 0, axes.get_ylabel())
                    self.assertTrue(axes.lines, axes.get_ylabel())
                scales.add((scale, bool(axes.containers)))
                labels += [text.get_text() for text in axes.get_legend().get_texts()] if axes.get_legend() else []
            plt.close('all')
        self.assertEqual(scales, {('log', False), ('linear', True), ('linear', False)})
        self.assertIn('swift (default)', labels)
        self.assertFalse([label for label in labels if label.startswith('default')])

    def test_pictures_follow_the_data(self):
        pictures = []
        for factor in (1, 2):
            with open(SAMPLE, encoding='utf-8') as file:
                lines = [json.loads(text) for text in file]
            for one in lines:
                one['metrics'] = {name: value * factor if isinstance(value, float) else value
                                  for name, value in one['metrics'].items()}
                one['metrics'].pop('rate_by_ms', None)
            path = self.write('lines', ''.join(json.dumps(one) + '\n' for one in lines))
            self.paper('--draw', path, '--only=1,2,3,4,5,6,9')
            pictures.append({name: image.imread(os.path.join(self.out, f'{name}.png'))
                             for number, (name, _) in paper.PICTURES.items() if number != 7})
        for name, picture in pictures[0].items():
            other = pictures[1][name]
            self.assertTrue(picture.shape != other.shape or (picture != other).any(), name)

    def test_runs_programs_and_keeps_what_they_print(self):
        build = self.build_dir('case "$*" in *degree=50*) rtt=50;; *) rtt=20;; esac\n'
                               'echo "{\\"bench\\":\\"incast\\",\\"params\\":{\\"cc\\":\\"none\\",\\"degree\\":$rtt},'
                               '\\"metrics\\":{\\"p50_rtt_us\\":$rtt,\\"total_gbps\\":1}}"')
        done = self.paper('--only=1', '--quick', '--jobs=2', '--seeds=2', build)
        self.assertEqual((done.returncode, done.stderr), (0, ''))
        with open(os.path.join(self.out, 'results.jsonl'), encoding='utf-8') as file:
            lines = [json.loads(text) for text in file]
        self.assertEqual([(one['seed'], one['metrics']['p50_rtt_us']) for one in lines],
                         [(1, 20), (2, 20), (1, 50), (2, 50), (1, 20), (2, 20)])
        self.assertEqual(sorted(os.listdir(self.out)), ['calibration.png', 'paper.md', 'results.jsonl'])
        self.assertIn('0 of 2 targets are met', done.stdout)

    def test_one_job_is_one_program_at_a_time(self):
        alone = os.path.join(self.directory, 'alone')
        build = self.build_dir(f'mkdir {alone} || exit 1\nsleep 0.05\nrmdir {alone}\necho "{{}}"')
        shutil.copy(os.path.join(self.directory, 'build/microbench/incast'),
                    os.path.join(self.directory, 'build/microbench/session_scale'))
        options = options_of('--only=1,5', '--quick', '--jobs=1', '--seeds=3', build, f'--out={self.out}')
        self.assertEqual(len(paper.run_all(paper.all_runs(options), options)), 15)

    def test_failing_programs_are_named(self):
        self.assert_refuses('incast --degree=20 --seconds=0.02 --cc=none --credits=32 --seed=1: no memory',
                            self.paper('--only=1', '--quick', '--jobs=1', self.build_dir('echo no memory >&2; exit 1')))
        self.assert_refuses('has not printed one JSON object', self.paper('--only=1', self.build_dir('echo hello')))
        self.assert_refuses('loss is not built', self.paper('--only=4', self.build_dir('true')))

    def test_a_program_that_fails_ends_the_others(self):
        build = self.build_dir('case "$*" in *degree=20*) touch "$0.runs"; sleep 60; touch "$0.over";; esac\n'
                               'until [ -f "$0.runs" ]; do sleep 0.01; done\nexit 1')
        self.assert_refuses('incast --degree=50', self.paper('--only=1', '--quick', '--jobs=3', '--seeds=1', build))
        self.assertFalse(os.path.exists(f'{self.directory}/build/microbench/incast.over'))

    def test_what_counts_instructions_is_looked_for_before_the_first_run(self):
        build = self.build_dir('touch "$0.ran"')
        self.assert_refuses('instructions_driver is not built', self.paper('--only=1,6', build))
        shutil.copy(f'{self.directory}/build/microbench/incast', f'{self.directory}/build/microbench/instructions_driver')
        os.symlink(sys.executable, self.directory + '/python3')
        self.assert_refuses('valgrind is not installed: scripts/setup bench',
                            self.paper('--only=1,6', build, PATH=self.directory))
        self.assertFalse(os.path.exists(f'{self.directory}/build/microbench/incast.ran'))

    def test_the_build_folder_may_be_relative(self):
        options = options_of('--only=6', '--build-dir=some/where')
        for run in paper.all_runs(options):
            self.assertIn(f'--build-dir={os.getcwd()}/some/where', paper.words_of(run, options))

    def test_signals_end_the_programs(self):
        build = self.build_dir('echo $$ >"$0.new"\nmv "$0.new" "$0.pid"\nsleep 60\necho "{}"')
        pid = f'{self.directory}/build/microbench/incast.pid'
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
        for number, code in ((signal.SIGTERM, 128 + signal.SIGTERM), (signal.SIGINT, 130)):
            with subprocess.Popen([PAPER, '--only=1', '--jobs=1', build, '--out', self.out], stderr=subprocess.DEVNULL,
                                  env={**os.environ, 'MPLCONFIGDIR': FONTS.name}) as process:
                while not os.path.exists(pid):
                    self.assertIsNone(process.poll())
                    time.sleep(0.01)
                process.send_signal(number)
                self.assertEqual(process.wait(timeout=30), code)
            with open(pid, encoding='utf-8') as file:
                self.assertFalse(os.path.exists(f'/proc/{file.read().strip()}'))
            os.remove(pid)

    def test_files_without_results_are_refused(self):
        self.assert_refuses('cannot be read', self.paper('--draw', '/no/such/file'))
        self.assert_refuses('is not a line of results.jsonl', self.paper('--draw', self.write('lines', 'p50 3 us\n')))
        self.assert_refuses('a field is missing', self.paper('--draw', self.write('lines', '{"experiment": 1}\n')))
        binary = os.path.join(self.directory, 'binary')
        with open(binary, 'wb') as file:
            file.write(b'\x89PNG\xff\n')
        self.assert_refuses('is not a line of results.jsonl', self.paper('--draw', binary))

    def test_missing_matplotlib_is_named(self):
        self.write('modules/matplotlib.py', 'raise ImportError\n')
        self.assert_refuses('matplotlib is not installed: scripts/setup bench',
                            self.paper('--draw', SAMPLE, PYTHONPATH=os.path.join(self.directory, 'modules')))

    def test_the_list_is_what_would_run(self):
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            self.assertEqual(paper.main(['--list', '--only=4', '--cc=swift']), 0)
        self.assertEqual(len(out.getvalue().splitlines()), 4)
        self.assertIn('microbench/loss --cc=swift --drop=1e-05 --seconds=2 --seed=1 --json', out.getvalue())


if __name__ == '__main__':
    unittest.main()
