#!/usr/bin/env python3
"""Tests of scripts/bench: its statistics, the pairs it drops, and what it says when a program misbehaves. The programs
are fakes that print prepared lines one after the other.
"""
import contextlib
import importlib.machinery
import importlib.util
import io
import itertools
import json
import os
import random
import shlex
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock

SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'scripts')
sys.dont_write_bytecode = True
from fakes import write_program  # noqa: E402
loader = importlib.machinery.SourceFileLoader('bench', os.path.join(SCRIPTS, 'bench'))
bench = importlib.util.module_from_spec(importlib.util.spec_from_loader('bench', loader))
loader.exec_module(bench)


def line(metric='p50_us', value=1.0, placement=100, placement_min=None):
    return {'bench': 'fake', 'metrics': {metric: value}, 'placement_ns': placement,
            'placement_ns_min': placement if placement_min is None else placement_min}


class Statistics(unittest.TestCase):
    def test_p_value_is_the_share_of_orders_as_far_apart(self):
        # Of all ways to deal the ranks out, those whose U is as far from the middle as that of the sample at hand.
        for a_size, b_size in ((1, 1), (2, 3), (4, 4), (5, 3)):
            ranks = range(a_size + b_size)
            deals = []
            for chosen in itertools.combinations(ranks, b_size):
                rest = [rank for rank in ranks if rank not in chosen]
                deals.append((rest, list(chosen), sum(y > x for x in rest for y in chosen)))
            for a, b, u in deals:
                far = max(u, a_size * b_size - u)
                expected = min(1, 2 * sum(other >= far for _, _, other in deals) / len(deals))
                self.assertAlmostEqual(bench.p_value(a, b), expected)

    def test_p_value_of_separate_samples(self):
        self.assertAlmostEqual(bench.p_value([1, 2, 3, 4, 5], [6, 7, 8, 9, 10]), 2 / 252)
        self.assertAlmostEqual(bench.p_value([6, 7, 8, 9, 10], [1, 2, 3, 4, 5]), 2 / 252)

    def test_ties_speak_for_no_difference(self):
        self.assertEqual(bench.p_value([1, 1, 1, 1, 1], [1, 1, 1, 1, 1]), 1)
        self.assertGreater(bench.p_value([1, 2, 3, 4, 5], [5, 6, 7, 8, 9]), 2 / 252)

    def test_verdict_of_a_clear_change(self):
        before, after = [1.00, 1.01, 1.02, 0.99, 1.0], [1.2, 1.21, 1.19, 1.22, 1.2]
        self.assertEqual(bench.verdict(before, after), 'faster by 20.0%')
        self.assertEqual(bench.verdict(after, before), 'slower by 16.7%')
        self.assertEqual(bench.verdict(before, after, ('smaller', 'larger')), 'larger by 20.0%')

    def test_verdict_wants_enough_pairs(self):
        self.assertIn('too few pairs', bench.verdict([1, 1.1, 1.2, 1.3], [5, 5.1, 5.2, 5.3]))
        self.assertIn('too few pairs', bench.verdict([1], [5] * 20))

    def test_small_changes_are_noise_however_steady(self):
        before = [1 + i / 1e6 for i in range(10)]
        self.assertEqual(bench.verdict(before, [value * 1.02 for value in before]), bench.NO_DIFFERENCE)

    def test_one_distribution_is_seldom_called_two(self):
        source = random.Random(1)
        sample = lambda: [source.lognormvariate(0, 0.2) for _ in range(7)]
        calls = sum(bench.verdict(sample(), sample()) != bench.NO_DIFFERENCE for _ in range(1000))
        self.assertLessEqual(calls, 20)  # 10 are expected at most, for this seed always the same

    def test_each_pair_has_its_words_for_better_and_worse(self):
        words = {pair.name: bench.words_for(pair) for pair in bench.PAIRS}
        self.assertEqual(words['shm.latency'], ('faster', 'slower'))
        self.assertEqual(words['shm.rate'], ('slower', 'faster'))
        self.assertEqual(words['shm.sessions.bytes'], ('smaller', 'larger'))


class Pairs(unittest.TestCase):
    def test_a_transport_without_limits_has_rows_of_its_own(self):
        with tempfile.TemporaryDirectory() as build_dir:
            self.assertEqual(bench.pairs_of(build_dir), bench.PAIRS)
            os.mkdir(os.path.join(build_dir, 'generated'))
            with open(os.path.join(build_dir, 'generated', 'transports'), 'w', encoding='utf-8') as file:
                file.write('shm tern::Shm h real\npigeon tern::Pigeon h real\ncart tern::Cart h real\n'
                           'sim tern::Sim h simulated\n')
            with self.assertRaisesRegex(bench.Failure, 'microbench/latency is not built'):
                bench.pairs_of(build_dir)
            # A program that says which of them have a device here.
            os.mkdir(os.path.join(build_dir, 'microbench'))
            program = os.path.join(build_dir, 'microbench', 'latency')
            with open(program, 'w', encoding='utf-8') as file:
                file.write('#!/bin/sh\nprintf "shm\\tmemory ()\\npigeon\\tbirds ()\\n"\n')
            os.chmod(program, 0o700)
            names = [pair.name for pair in bench.pairs_of(build_dir)]
        self.assertEqual(len(set(names)), len(names))
        self.assertEqual({name.split('.')[0] for name in names}, {'shm', 'udp', 'pigeon'})
        self.assertLessEqual({'pigeon.latency', 'pigeon.rate', 'pigeon.bandwidth'}, set(names))

    def test_dpdk_has_a_cable_within_the_program(self):
        with tempfile.TemporaryDirectory() as build_dir:
            os.mkdir(os.path.join(build_dir, 'generated'))
            with open(os.path.join(build_dir, 'generated', 'transports'), 'w', encoding='utf-8') as file:
                file.write('shm tern::Shm h real\ndpdk tern::Dpdk h real\n')
            pairs = bench.pairs_of(build_dir)
        self.assertEqual(pairs, bench.PAIRS + bench.PAIRS_DPDK)
        for pair in bench.PAIRS_DPDK:
            words = shlex.split(pair.bench)
            roles = [option for word in words for option in word.split(';') if option.startswith('role=')]
            self.assertEqual(roles, ['role=client', 'role=server'])


class Placement(unittest.TestCase):
    def test_placement_is_named_by_its_round_trip(self):
        for trip, name in ((55, 'smt'), (97, 'near'), (140, 'near'), (480, 'far')):
            self.assertEqual(bench.placement_of([line(placement=trip), line(placement=trip * 1.1)]), name)

    def test_a_change_between_the_two_programs(self):
        self.assertIsNone(bench.placement_of([line(placement=100), line(placement=490)]))
        self.assertIsNone(bench.placement_of([line(placement=150), line(placement=240)]))
        self.assertIsNone(bench.placement_of([line(placement=70), line(placement=95)]))

    def test_a_change_during_one_program(self):
        self.assertIsNone(bench.placement_of([line(placement=490, placement_min=100), line(placement=490)]))

    def test_missing_placements_are_ignored(self):
        silent = line(placement=None)
        self.assertEqual(bench.placement_of([silent]), '-')
        self.assertEqual(bench.placement_of([silent, line(placement=500)]), 'far')


class Runs(unittest.TestCase):
    """scripts/bench from end to end, over fakes."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name

    def fake(self, program, *outputs, exit_code=0, build='build'):
        """Prints outputs[i] when run for the i-th time, and again from the first after the last."""
        path = os.path.join(self.directory, build, 'microbench', program)
        texts = [output if isinstance(output, str) else json.dumps(output) for output in outputs]
        write_program(path, texts, 'fake: there is no such thing', exit_code)

    def run_bench(self, *flags):
        """Exit code, standard output and standard error."""
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = bench.main([f'--build-dir={self.directory}/build', '--seconds=0.1', *flags])
        return code, out.getvalue(), err.getvalue()

    def assert_fails(self, sentence, *flags):
        code, out, err = self.run_bench(*flags)
        self.assertEqual(code, 1)
        self.assertEqual(out, '')
        self.assertEqual(err.count('\n'), 1, err)
        self.assertIn(sentence, err)

    def rows(self, *flags):
        code, out, err = self.run_bench('--json', *flags)
        self.assertEqual((code, err), (0, ''))
        return [json.loads(text) for text in out.splitlines()]

    LATENCY = '--filter=^shm.latency$'

    def test_median_and_spread_of_the_ratios(self):
        self.fake('limits/ring_pingpong', line(value=0.1), line(value=0.2), line(value=0.1))
        self.fake('latency', line(value=0.3), line(value=0.3), line(value=0.2))
        row, = self.rows(self.LATENCY, '--rounds=3')
        self.assertEqual([round(ratio, 9) for ratio in row['ratios']], [3, 1.5, 2])
        self.assertEqual((round(row['ratio'], 9), round(row['ratio_min'], 9), round(row['ratio_max'], 9)), (2, 1.5, 3))
        self.assertEqual((row['placement'], row['dropped'], row['at_most'], row['is_met']), ('near', 0, 1.9, False))
        code, out, _ = self.run_bench(self.LATENCY, '--rounds=3')
        self.assertEqual(code, 0)
        self.assertIn('MISSED', out)

    def test_pairs_whose_placement_changed_are_dropped_and_made_up_for(self):
        self.fake('limits/ring_pingpong', line(value=1, placement=100), line(value=1, placement=100))
        self.fake('latency', line(value=1.5, placement=100), line(value=9, placement=500),
                  line(value=1.5, placement=100), line(value=9, placement=500, placement_min=100))
        row, = self.rows(self.LATENCY, '--rounds=2')
        self.assertEqual((row['ratios'], row['dropped'], row['is_met']), ([1.5, 1.5], 1, True))

    def test_placements_are_rows_of_their_own(self):
        self.fake('limits/ring_pingpong', line(value=1, placement=100), line(value=4, placement=500))
        self.fake('latency', line(value=1.5, placement=100), line(value=4.8, placement=500))
        rows = self.rows(self.LATENCY, '--rounds=4')
        self.assertEqual([(row['placement'], row['ratio']) for row in rows], [('near', 1.5), ('far', 1.2)])

    def test_placement_that_always_changes_is_an_error(self):
        self.fake('limits/ring_pingpong', line(placement=100))
        self.fake('latency', line(placement=500))
        self.assert_fails('the CPUs moved during each of 6 pairs', self.LATENCY, '--rounds=3')

    def test_metrics_of_one_run_are_rows_of_their_own(self):
        metrics = {'rate_mrps': 3, 'rate_mrps_20_sessions': 4, 'bytes_per_session': 3000}
        self.fake('session_scale', {'metrics': metrics, 'placement_ns': None})
        rate, size = self.rows('--filter=sessions', '--rounds=2')
        self.assertEqual((rate['pair'], rate['ratio'], rate['is_met']), ('shm.sessions.rate', 0.75, True))
        self.assertEqual((size['pair'], size['ratio'], size['is_met']), ('shm.sessions.bytes', 3000, True))

    def test_missing_program_is_an_error(self):
        self.fake('latency', line())
        self.assert_fails('limits/ring_pingpong is not built', self.LATENCY)

    def test_failing_program_is_an_error(self):
        self.fake('limits/ring_pingpong', line())
        self.fake('latency', line(), exit_code=3)
        self.assert_fails('latency --transport=shm ended with 3: fake: there is no such thing', self.LATENCY)

    def test_a_pair_that_fails_costs_the_others_nothing(self):
        self.fake('limits/ring_pingpong', line(value=1))
        self.fake('limits/udp_pingpong', line(value=2))
        self.fake('latency', line(value=1.5), '', line(value=1.8))  # of four runs, one of the first two prints nothing
        for flags in ([], ['--json']):
            code, out, err = self.run_bench('--filter=^(shm|udp).latency$', '--rounds=2', *flags)
            self.assertEqual((code, err.count('\n')), (1, 1), err)
            self.assertIn('latency --transport=shm printed no JSON object with metrics', err)
            self.assertIn('udp.latency', out)
            self.assertNotIn('shm.latency', out)

    def test_output_without_metrics_is_an_error(self):
        self.fake('limits/ring_pingpong', line())
        for garbage in ('', 'p50 1.2', '{"metrics": 3}', '[]', '{"metrics": {"p50_us": 1', '{}{}', '{}',
                        '{"metrics": {"p50_us": 1}, "placement_ns": "near"}'):
            self.fake('latency', garbage)
            self.assert_fails('printed no JSON object with metrics', self.LATENCY)

    def test_metrics_that_are_no_numbers_are_an_error(self):
        self.fake('limits/ring_pingpong', line())
        for value in (0, -1, None, 'fast', True, float('nan'), float('inf')):
            self.fake('latency', line(value=value))
            self.assert_fails('which is not a number above zero', self.LATENCY)
        self.fake('latency', line(metric='p51_us'))
        self.assert_fails('gave null as p50_us', self.LATENCY)

    def test_wrong_flags_are_refused(self):
        self.assert_fails('matches nothing', '--filter=no such pair')
        self.assert_fails('not a regular expression', '--filter=(')
        self.assert_fails('--rounds', '--rounds=0')
        self.assert_fails('--seconds', '--seconds=nan')

    def fake_transports(self, *names):
        """The build has these transports between processes."""
        path = os.path.join(self.directory, 'build', 'generated', 'transports')
        os.makedirs(os.path.dirname(path))
        with open(path, 'w', encoding='utf-8') as file:
            file.writelines(f'{name} tern::{name.title()} h real\n' for name in names)

    def test_missing_ip_costs_the_pairs_without_namespaces_nothing(self):
        self.fake_transports('shm', 'xdp')
        for program in ('limits/ring_pingpong', 'limits/xdp_pingpong', 'latency'):
            self.fake(program, line())
        at_exit = []
        with unittest.mock.patch.dict(os.environ, PATH=self.directory), \
             unittest.mock.patch.object(os, 'geteuid', lambda: 0), \
             unittest.mock.patch.object(bench.atexit, 'register', at_exit.append):
            code, out, err = self.run_bench('--filter=^(shm|xdp).latency$', '--rounds=1')
            for function in at_exit:
                function()
        self.assertEqual((code, err), (1, 'scripts/bench: ip cannot be run: No such file or directory\n'))
        self.assertIn('shm.latency', out)

    def test_a_program_that_cannot_list_its_transports_is_an_error(self):
        self.fake_transports('shm', 'pigeon')
        self.fake('latency', '', exit_code=127)
        for flags in ((), ('--list',)):
            self.assert_fails('latency --list_transports ended with 127: fake: there is no such thing', *flags)

    def test_reasons_why_a_transport_does_not_run_are_shown(self):
        self.fake_transports('shm', 'pigeon')
        path = os.path.join(self.directory, 'build', 'microbench', 'latency')
        os.makedirs(os.path.dirname(path))
        with open(path, 'w', encoding='utf-8') as file:
            file.write('#!/bin/sh\nprintf "shm\\tmemory ()\\n"\necho pigeon does not run here >&2\n')
        os.chmod(path, 0o700)
        code, out, err = self.run_bench('--list')
        self.assertEqual((code, err), (0, 'pigeon does not run here\n'))
        self.assertIn('shm.latency', out)

    def scaled(self, sweep, *flags):
        """The fakes need no CPUs of their own, and callgrind none at all."""
        points = [point for point in bench.scale.points() if not point.command.startswith('instructions_per_rpc')]
        with unittest.mock.patch.object(bench.scale, 'points', lambda: points):
            return self.run_bench(f'--scale={sweep}', *flags)

    def test_scale_has_the_median_of_each_point(self):
        runs = [{'metrics': {'rate_mrps': rate, 'p50_us': 1, 'p99_us': 2}} for rate in (3, 1, 2)]
        # Each point's runs: 1, 2 and 3 in some order.
        count = len({(point.series, point.x) for point in bench.scale.points() if point.sweep == 'handler_us'})
        self.fake('small_rpc_rate', *[run for run in runs for _ in range(count)])
        code, out, err = self.scaled('handler_us', '--json', '--rounds=3')
        self.assertEqual((code, err), (0, ''))
        lines = [json.loads(text) for text in out.splitlines()]
        self.assertEqual(len(lines), count)
        for line in lines:
            self.assertEqual((line['bench'], line['sweep']), ('scale', 'handler_us'))
            self.assertEqual((line['lowest']['rate_mrps'], line['metrics']['rate_mrps'], line['highest']['rate_mrps']),
                             (1, 2, 3))
            self.assertGreater(line['metrics']['peak_mb'], 1)

    def test_scale_prints_a_table_of_each_sweep(self):
        self.fake('small_rpc_rate', {'metrics': {'rate_mrps': 12.5, 'p50_us': 1, 'p99_us': 2}})
        code, out, err = self.scaled('endpoints', '--rounds=1')
        self.assertEqual((code, err), (0, ''))
        self.assertRegex(out, r'series +endpoints +rate_mrps')
        self.assertRegex(out, r'(?m)^udp +64 +12[.]5 ')

    def test_scale_goes_on_after_a_point_that_fails(self):
        self.fake('small_rpc_rate', '', exit_code=1)
        self.fake('latency', {'metrics': {'p50_us': 1, 'p99_us': 2}})
        self.fake('large_rpc_bandwidth', '{}')
        code, out, err = self.scaled('size', '--json', '--rounds=2')
        self.assertEqual(code, 1)
        self.assertIn('small_rpc_rate --pattern=client_server --size=32 --transport=shm ended with 1: fake', err)
        self.assertIn('large_rpc_bandwidth --size=65536 --transport=udp printed no JSON object with bandwidth_gbps', err)
        self.assertEqual(err.count('--size=65536 --transport=udp'), 1, 'what fails is not run again')
        self.assertEqual(len(out.splitlines()), 2 * len(bench.scale.SIZES))

    def test_scale_ends_programs_that_hang(self):
        self.fake_idle(('microbench/small_rpc_rate',))
        point = next(point for point in bench.scale.points() if point.command.startswith('small_rpc_rate'))
        begin = time.monotonic()
        with unittest.mock.patch.object(bench.scale, 'RUN_SECONDS_MAX', 0), \
             self.assertRaisesRegex(bench.scale.Failure, 'small_rpc_rate .* did not end within 1 s'):
            bench.scale.run(os.path.join(self.directory, 'build'), point, 0.1, '0,1')
        self.assertLess(time.monotonic() - begin, 30)  # it sleeps for a minute

    def test_scale_has_no_pairs_to_compare(self):
        self.assert_fails('--scale does not work with', '--scale', '--filter=shm')

    def fake_start(self, answer):
        """A server that says where it serves, and a client that prints `answer` after 20 ms."""
        for path, text in (('apps/hello', """import sys, time
sys.stderr.write('hello: serving over shm at tern://127.0.0.1:4321\\n')
sys.stderr.flush()
time.sleep(60)
"""), ('microbench/fresh_client', f"""import sys, time
assert sys.argv[1:] == ['shm', '127.0.0.1:4321']
time.sleep(0.02)
print({answer!r})
""")):
            path = os.path.join(self.directory, 'build', path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, 'w', encoding='utf-8') as file:
                file.write(f'#!{sys.executable}\n{text}')
            os.chmod(path, 0o755)

    def test_a_fresh_client_is_timed_from_its_start_to_its_answer(self):
        self.fake_start('answered')
        with unittest.mock.patch.object(bench, 'FRESH_CLIENTS', 3):
            row, = self.rows('--filter=shm.start', '--rounds=1')
        self.assertGreaterEqual(row['ratio'], 20)
        self.assertEqual(row['is_met'], False)

    def test_a_fresh_client_without_an_answer_is_a_failure(self):
        self.fake_start('no')
        with unittest.mock.patch.object(bench, 'FRESH_CLIENTS', 1):
            _, _, err = self.run_bench('--filter=shm.start', '--rounds=1')
        self.assertIn('fresh_client had no answer: it said nothing', err)

    START = ('apps/hello', 'microbench/fresh_client')  # the programs of shm.start

    def fake_idle(self, programs, on_terminate='SIG_DFL'):
        """Programs that note their process and then do nothing. `on_terminate`: what SIGTERM does to them."""
        for program in programs:
            path = os.path.join(self.directory, 'build', program)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with contextlib.suppress(FileNotFoundError):
                os.remove(path + '.pid')
            with open(path, 'w', encoding='utf-8') as file:
                file.write(f"""#!{sys.executable}
import os, signal, sys, time
signal.signal(signal.SIGTERM, signal.{on_terminate})
if 'hello' in __file__: print('hello: serving over shm at tern://127.0.0.1:4321', file=sys.stderr, flush=True)
with open(__file__ + '.new', 'w') as file: file.write(str(os.getpid()))
os.rename(__file__ + '.new', __file__ + '.pid')
time.sleep(60)
""")
            os.chmod(path, 0o755)

    def running(self, programs):
        """Of each program of fake_idle() whether its process runs; None if it has not started."""
        found = dict.fromkeys(programs)
        for program in programs:
            with contextlib.suppress(FileNotFoundError):
                with open(os.path.join(self.directory, 'build', program + '.pid'), encoding='utf-8') as file:
                    found[program] = os.path.exists(f'/proc/{file.read()}')
        return found

    def test_processes_that_do_not_end_are_killed(self):
        self.fake_idle(self.START, 'SIG_IGN')
        runner = bench.Runner(0.1, '0,1')
        runner.timeout = 8  # in which the fakes start on a busy machine
        begin = time.monotonic()
        with self.assertRaisesRegex(bench.Failure, 'fresh_client had no answer: it said nothing'):
            runner.run(os.path.join(self.directory, 'build'), 'fresh_client shm')
        self.assertLess(time.monotonic() - begin, 30)  # they sleep for a minute
        self.assertEqual(self.running(self.START), dict.fromkeys(self.START, False))

    def test_terminated_run_ends_its_processes(self):
        for number, flag, programs in ((signal.SIGTERM, '--filter=shm.start', self.START),
                                       (signal.SIGHUP, '--filter=shm.start', self.START),
                                       (signal.SIGTERM, '--scale=endpoints', ('microbench/small_rpc_rate',))):
            self.fake_idle(programs)
            signal.signal(number, signal.SIG_DFL)  # nohup ignores SIGHUP
            words = [os.path.join(SCRIPTS, 'bench'), f'--build-dir={self.directory}/build', flag]
            with subprocess.Popen(words, stdout=subprocess.DEVNULL) as process:
                while None in self.running(programs).values():
                    self.assertIsNone(process.poll())
                    time.sleep(0.01)
                process.send_signal(number)
                self.assertEqual(process.wait(timeout=30), 128 + number)  # and not -number: what is registered at exit ran
            self.assertEqual(self.running(programs), dict.fromkeys(programs, False))

    def test_signal_while_a_program_starts_ends_the_program(self):
        numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
        for number in numbers:
            self.addCleanup(signal.signal, number, signal.signal(number, signal.SIG_DFL))
        bench.groups.exit_on_signals()
        self.fake_idle(('microbench/latency', 'apps/hello', 'microbench/fresh_client'))
        build, popen, last = os.path.join(self.directory, 'build'), subprocess.Popen, []
        point = next(point for point in bench.scale.points() if point.command.startswith('latency'))
        runner = bench.Runner(1, '0,1')
        runs = {'latency': (lambda: runner.run(build, 'latency'), lambda: bench.scale.run(build, point, 1, '0,1')),
                'hello': (lambda: runner.run(build, 'fresh_client shm'),),
                'fresh_client': (lambda: runner.run(build, 'fresh_client shm'),)}
        for program, run in ((program, run) for program, its in runs.items() for run in its):
            for number in numbers:
                def start(words, number=number, program=program, **options):
                    last[:] = [popen(words, **options)]
                    if any(word.endswith('/' + program) for word in words):
                        os.kill(os.getpid(), number)
                    return last[0]
                with unittest.mock.patch.object(subprocess, 'Popen', start), \
                     self.assertRaises(KeyboardInterrupt if number == signal.SIGINT else SystemExit):
                    run()
                process, = last
                self.addCleanup(process.kill)
                self.assertIsNotNone(process.poll())

    def test_terminated_scale_ends_valgrind_and_leaves_no_files(self):
        self.fake('small_rpc_rate', {'metrics': {'rate_mrps': 1, 'p50_us': 1, 'p99_us': 2}})
        self.fake('instructions_driver', '')
        valgrind, files = 'bin/valgrind', os.path.join(self.directory, 'files')
        self.fake_idle((valgrind,))
        os.mkdir(files)
        environment = {**os.environ, 'TMPDIR': files, 'PATH': f'{self.directory}/build/bin:{os.environ["PATH"]}'}
        words = [os.path.join(SCRIPTS, 'bench'), f'--build-dir={self.directory}/build', '--scale=window']
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, env=environment) as process:
            while self.running((valgrind,)) == {valgrind: None}:
                self.assertIsNone(process.poll())
                time.sleep(0.01)
            self.assertNotEqual(os.listdir(files), [])
            process.terminate()
            self.assertEqual(process.wait(timeout=30), 128 + signal.SIGTERM)
        self.assertEqual(os.listdir(files), [])
        deadline = time.monotonic() + 30  # the fake sleeps for a minute; its parent has ended, and init may reap it late
        while self.running((valgrind,)) == {valgrind: True} and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertEqual(self.running((valgrind,)), {valgrind: False})

    def test_the_server_of_fresh_clients_is_looked_for_before_the_first_run(self):
        self.fake_start('answered')
        os.remove(os.path.join(self.directory, 'build', 'apps', 'hello'))
        self.assert_fails('build/apps/hello is not built', '--filter=shm.start')

    def test_list_runs_nothing(self):
        code, out, _ = self.run_bench('--list')
        self.assertEqual(code, 0)
        for pair in bench.PAIRS:
            self.assertIn(pair.name, out)

    def test_a_reader_that_leaves_early_is_no_error(self):
        for unbuffered in ('', '1'):
            reader, writer = os.pipe()
            os.close(reader)
            with open(writer, 'wb') as out:
                done = subprocess.run([os.path.join(SCRIPTS, 'bench'), f'--build-dir={self.directory}', '--list'], stdout=out,
                                      stderr=subprocess.PIPE, text=True, check=False, timeout=60,
                                      env={**os.environ, 'PYTHONUNBUFFERED': unbuffered})
            self.assertEqual((done.returncode, done.stderr), (1, ''))

    def baseline(self, *texts):
        path = os.path.join(self.directory, 'baseline')
        with open(path, 'w', encoding='utf-8') as file:
            file.writelines(text + '\n' for text in texts)
        return f'--baseline={path}'

    def test_verdict_is_against_the_baseline(self):
        self.fake('limits/ring_pingpong', line(value=1))
        self.fake('latency', *(line(value=1.5 + i / 100) for i in range(5)))
        flags = (self.LATENCY, '--rounds=5')
        _, before, _ = self.run_bench('--json', *flags)
        row, = self.rows(*flags, self.baseline(before.strip()))
        self.assertEqual(row['verdict'], bench.NO_DIFFERENCE)
        self.fake('latency', *(line(value=1.2 + i / 100) for i in range(5)))
        row, = self.rows(*flags, self.baseline(before.strip()))
        self.assertRegex(row['verdict'], '^faster by 19')
        self.assertIn('faster by 19', self.run_bench(*flags, self.baseline(before.strip()))[1])
        row, = self.rows(*flags, self.baseline(before.replace('near', 'far').strip()))
        self.assertEqual(row['verdict'], 'not in the baseline')

    def test_malformed_baselines_are_refused(self):
        self.fake('limits/ring_pingpong', line())
        self.fake('latency', line())
        self.assert_fails('cannot be read', self.LATENCY, '--baseline=/no/such/file')
        self.assert_fails('is not the output of', self.LATENCY, self.baseline('garbage'))
        self.assert_fails('is not the output of', self.LATENCY, self.baseline('{"bench": "ratio"}'))
        self.assert_fails('holds no ratios', self.LATENCY, self.baseline('{"bench": "latency"}'))

    def test_compare_gives_the_ratio_of_two_builds(self):
        self.fake('latency', *(line(value=1 + i / 100) for i in range(5)))
        self.fake('latency', *(line(value=2 + i / 100) for i in range(5)), build='other')
        row, = self.rows(self.LATENCY, '--rounds=5', '--compare', f'{self.directory}/build', f'{self.directory}/other')
        self.assertEqual((len(row['ratios']), row['is_met']), (5, None))
        self.assertAlmostEqual(row['ratio'], statistics.median((2 + i / 100) / (1 + i / 100) for i in range(5)))
        self.assertRegex(row['verdict'], '^slower by 98')

    def test_compare_names_the_first_of_pairs_with_the_same_benchmark(self):
        for build in ('build', 'other'):
            self.fake('small_rpc_rate', line('rate_mrps'), build=build)
        row, = self.rows('--filter=^shm.rate', '--rounds=1', '--compare', f'{self.directory}/build', f'{self.directory}/other')
        self.assertEqual(row['pair'], 'shm.rate')


if __name__ == '__main__':
    unittest.main()
