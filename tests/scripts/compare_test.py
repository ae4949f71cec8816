#!/usr/bin/env python3
"""Tests of scripts/compare: its verdicts, what it says of a busy machine and of peers that are missing, over fake programs;
and of the peers' programs and a short run of it for real, if TERN_BUILD_DIR names a build directory.
"""
import contextlib
import importlib.machinery
import importlib.util
import io
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

SCRIPTS = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'scripts')
sys.dont_write_bytecode = True
from fakes import write_program  # noqa: E402
loader = importlib.machinery.SourceFileLoader('compare', os.path.join(SCRIPTS, 'compare'))
compare = importlib.util.module_from_spec(importlib.util.spec_from_loader('compare', loader))
loader.exec_module(compare)
BUILD = os.environ.get('TERN_BUILD_DIR')

# p50 in us as of limits/ring_pingpong, made up: on an idle machine, and where eight other programs ran.
STEADY = [0.151, 0.149, 0.153, 0.148, 0.152]
UNSTEADY = [0.149, 3.2, 0.152, 4011.0, 17.9]


def run_compare(*flags):
    """Exit code, standard output and standard error."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = compare.main(list(flags))
    return code, out.getvalue(), err.getvalue()


class Verdicts(unittest.TestCase):
    def test_above_one_tern_is_ahead(self):
        self.assertEqual(compare.ratio_of('p50_us', 2, 6), 3)
        self.assertEqual(compare.ratio_of('rate_mrps', 6, 2), 3)

    def test_ahead_behind_even_or_too_few(self):
        low, high = [1, 1.01, 0.99, 1.02, 0.98, 1, 1], [2, 2.1, 1.9, 2.2, 1.8, 2, 2]
        self.assertEqual(compare.verdict_of('p50_us', low, high), 'tern ahead')
        self.assertEqual(compare.verdict_of('p50_us', high, low), 'tern behind')
        self.assertEqual(compare.verdict_of('rate_mrps', low, high), 'tern behind')
        self.assertEqual(compare.verdict_of('p50_us', low, low), 'even')
        self.assertEqual(compare.verdict_of('p50_us', [1, 9, 2, 8, 3, 9, 1], [2, 8, 3, 9, 4, 8, 2]), 'even')  # all noise
        self.assertIn('too few rounds', compare.verdict_of('p50_us', low[:6], high[:6]))

    def test_rounds_are_compared_each_with_itself(self):
        tern = [1, 5, 1, 5, 1, 5, 1]  # the CPUs were moved between rounds
        self.assertEqual(compare.verdict_of('p50_us', tern, [1.2 * value for value in tern]), 'tern ahead')
        self.assertEqual(compare.p_value([2] * 7), 2 / 2**7)
        self.assertEqual(compare.p_value([2] * 6 + [0.5]), 16 / 2**7)
        self.assertEqual(compare.p_value([1] * 7), 1)

    def test_a_steady_machine_gives_a_verdict(self):
        for load in ('quiet', 'busy'):
            self.assertIsNone(compare.why_no_verdict(load, 0.02, STEADY))

    def test_others_on_the_cpus(self):
        self.assertEqual(compare.why_no_verdict('quiet', 0.37, STEADY), 'too busy: others had 37% of the two CPUs')

    def test_a_limit_that_differs_between_rounds(self):
        for load in ('quiet', 'busy'):
            self.assertIn('too busy: the bare limit differed', compare.why_no_verdict(load, 0, UNSTEADY))
        twice = [1, 2, 1, 2, 1.5]
        self.assertIn('too busy', compare.why_no_verdict('quiet', 0, twice))
        self.assertIsNone(compare.why_no_verdict('busy', 0, twice))

    def test_one_outlier_is_no_busy_machine(self):
        self.assertIsNone(compare.why_no_verdict('quiet', 0, [*STEADY, 40]))

    def test_a_limit_without_rounds(self):
        self.assertIn('too few rounds', compare.why_no_verdict('quiet', 0, [1]))


class Limits(unittest.TestCase):
    def test_the_network_carries_datagrams_as_long_as_terns(self):
        limits = {pair.name: pair.limit for pair in compare.bench.PAIRS}
        subject, = (subject for subject in compare.SUBJECTS if subject.name == 'network.bandwidth')
        self.assertEqual(subject.limit, limits['udp.bandwidth.probed'])


class OthersShare(unittest.TestCase):
    """On the CPUs of this process, which others use too: so its own programs must not count, and foreign ones must."""

    def test_own_programs_do_not_count_and_foreign_ones_do(self):
        readings = {'used': 100.0, 'own': 10.0}
        with (mock.patch.object(compare, 'used_seconds', lambda cpus: readings['used']),
              mock.patch.object(compare, 'own_seconds', lambda busy: readings['own']),
              mock.patch.object(compare.time, 'monotonic', lambda: readings['used'] / 2)):
            others = compare.OthersShare([0, 1], [])  # 2 CPUs, both in use all the time
            readings.update(used=120.0, own=30.0)
            self.assertAlmostEqual(others.so_far(), 0)
            readings.update(used=120.0, own=20.0)
            self.assertAlmostEqual(others.so_far(), 0.5)

    def test_the_kernel_counts_what_runs(self):
        cpu = min(os.sched_getaffinity(0))
        own = compare.own_seconds([])
        with compare.busy_processes('busy', [cpu]) as busy:
            while os.sched_getaffinity(busy[0].pid) != {cpu}:
                self.assertIsNone(busy[0].poll())
                time.sleep(0.01)
            used, own_before = compare.used_seconds([cpu]), compare.own_seconds(busy)
            while compare.own_seconds(busy) - own_before < 0.5:
                self.assertIsNone(busy[0].poll())
                time.sleep(0.05)
        self.assertGreater(compare.used_seconds([cpu]) - used, 0.3)  # it was on that CPU
        self.assertGreater(compare.own_seconds([]) - own, 0.4)  # and is still counted when it has ended
        self.assertIsNotNone(busy[0].returncode)

    def test_busy_process_whose_parent_ended_before_it_began_ends(self):
        cpu = min(os.sched_getaffinity(0))
        subprocess.run([sys.executable, '-c', compare.BUSY, str(cpu), '0'], timeout=60, check=True)


class Runs(unittest.TestCase):
    """Over fakes that print prepared figures, one a run, again and again."""

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        self.share = 0.0
        patch = mock.patch.object(compare.OthersShare, 'so_far', lambda _: self.share)
        patch.start()
        self.addCleanup(patch.stop)
        self.fake('limits/ring_pingpong', *STEADY)
        self.fake('latency', 0.30, 0.31, 0.29, 0.30, 0.32)
        self.fake('peers/ucx', 0.60, 0.62, 0.58, 0.60, 0.64)

    def fake(self, program, *p50s, placement=100, exit_code=0):
        path = os.path.join(self.directory, 'microbench', program)
        placements = placement if isinstance(placement, list) else [placement] * len(p50s)
        lines = [json.dumps({'metrics': {'p50_us': p50, 'p99_us': 2 * p50}, 'placement_ns': placement_ns,
                             'placement_ns_min': placement_ns}) for p50, placement_ns in zip(p50s, placements)]
        write_program(path, [line + '\n' for line in lines], 'fake: no such thing', exit_code)

    def run_it(self, *flags):
        return run_compare(f'--build-dir={self.directory}', '--filter=shm.latency', '--load=quiet', '--rounds=7',
                           '--seconds=0.1', *flags)

    def rows(self, *flags, code=0):
        done, out, err = self.run_it('--json', *flags)
        self.assertEqual(done, code, err)
        head, *lines = (json.loads(text) for text in out.splitlines())
        self.assertEqual(head['bench'], 'compare_run')
        return head, {(line['who'], line['metric']): line for line in lines}

    def test_medians_ratios_and_verdicts(self):
        _, rows = self.rows()
        self.assertEqual(sorted({who for who, _ in rows}), ['bare limit', 'tern', 'ucx shm'])
        ucx = rows['ucx shm', 'p50_us']
        self.assertEqual((ucx['median'], ucx['verdict'], ucx['placements']), (0.6, 'tern ahead', ['near']))
        self.assertAlmostEqual(ucx['ratio'], 2)
        self.assertEqual(rows['bare limit', 'p99_us']['verdict'], 'tern behind')
        self.assertEqual((rows['tern', 'p50_us']['ratio'], rows['tern', 'p50_us']['values']),
                         (None, [0.30, 0.31, 0.29, 0.30, 0.32, 0.30, 0.31]))

    def test_a_missing_peer_is_named(self):
        head, _ = self.rows()
        self.assertEqual(head['missing'], ['sockets', 'libfabric', 'grpc', 'thrift', 'capnproto', 'zeromq', 'nng'])
        _, out, err = self.run_it()
        for text in (out, err):
            self.assertIn('zeromq is missing: its program is not built (Debian: libzmq3-dev; scripts/setup peers)', text)
            self.assertIn('(Debian: libthrift-dev thrift-compiler; scripts/setup peers)', text)
            self.assertNotIn('ucx is missing', text)

    def test_the_table_names_machine_date_and_command(self):
        code, out, _ = self.run_it()
        self.assertEqual(code, 0)
        head = out.splitlines()[0]
        self.assertIn(compare.machine(), head)
        self.assertRegex(head, r'\d{4}-\d\d-\d\d')
        self.assertIn('scripts/compare --build-dir', head)
        self.assertIn('Steady enough for a verdict in all 1 measurements.', out)

    def test_without_git_the_commit_is_unknown(self):
        with mock.patch.dict(os.environ, PATH=self.directory):
            code, out, err = self.run_it()
        self.assertEqual((code, err.count('Error')), (0, 0), err)
        self.assertIn('; commit unknown; ', out.splitlines()[0])

    def test_a_busy_machine_gets_figures_and_no_ratio(self):
        self.fake('limits/ring_pingpong', *UNSTEADY)
        self.fake('latency', 0.3, 4000, 12, 0.3, 8000)
        _, rows = self.rows()
        for row in rows.values():
            self.assertEqual((row['ratio'], row['ratio_max'], row['verdict']), (None, None, None))
            self.assertIn('too busy: the bare limit differed', row['no_verdict'])
        _, out, _ = self.run_it()
        self.assertIn('The machine was too busy for any verdict', out)
        self.assertNotRegex(out, r'\d x\b')

    def test_others_on_the_cpus_get_no_verdict_either(self):
        self.share = 0.5
        _, out, _ = self.run_it()
        self.assertIn('too busy: others had 50% of the two CPUs', out)
        self.assertNotIn('tern ahead', out)

    def test_rounds_in_which_the_cpus_moved_are_dropped(self):
        self.fake('peers/ucx', 0.6, placement=500)
        code, out, err = self.run_it('--json')
        self.assertEqual(code, 1)
        self.assertIn('shm.latency, ucx shm: the CPUs moved during each of 14 rounds', err)
        self.assertNotIn('"ucx shm"', out)

    def test_dropped_rounds_are_run_again(self):
        self.fake('peers/ucx', *[0.6] * 9, placement=[100, 500, 500, 500, 100, 100, 100, 100, 100])
        _, rows = self.rows()
        ucx = rows['ucx shm', 'p50_us']
        self.assertEqual((len(ucx['values']), ucx['dropped'], ucx['verdict']), (7, 3, 'tern ahead'))
        self.assertEqual((len(rows['tern', 'p50_us']['values']), rows['tern', 'p50_us']['dropped']), (10, 0))

    def test_each_round_begins_with_another_program(self):
        order = []
        run = compare.bench.Runner.run
        with mock.patch.object(compare.bench.Runner, 'run',
                               lambda runner, *words: order.append(words[1].split()[0]) or run(runner, *words)):
            self.rows('--rounds=3')
        tern, limit, ucx = 'latency', 'limits/ring_pingpong', 'peers/ucx'
        self.assertEqual(order, [tern, limit, ucx, limit, ucx, tern, ucx, tern, limit])

    def test_a_peer_that_fails_costs_the_others_nothing(self):
        self.fake('peers/zeromq', 1, exit_code=3)
        code, out, err = self.run_it()
        self.assertEqual(code, 1)
        self.assertEqual(err.count('ended with 3: fake: no such thing'), 1, err)
        self.assertIn('ucx shm', out)
        self.assertNotIn('zeromq ipc', out)

    def test_tern_that_fails(self):
        self.fake('latency', 1, exit_code=3)
        code, out, err = self.run_it()
        self.assertEqual((code, out), (1, ''))
        self.assertIn('ended with 3: fake: no such thing\n', err)
        self.share = 0.5
        self.assertIn('no such thing; too busy: others had 50% of the two CPUs\n', self.run_it()[2])

    def test_busy_load_has_terns_ways_to_wait(self):
        _, out, _ = self.run_it('--load=busy', '--list')
        for who in ('tern: ', 'tern, --wait=poll: ', 'tern, --wait=block: ', 'ucx shm: '):
            self.assertIn(who, out)
        self.assertIn('--wait=adaptive', out)

    def test_peers_spin_on_a_quiet_machine_and_sleep_on_a_busy_one_where_they_can(self):
        for name in ('sockets', 'grpc', 'thrift', 'capnproto'):
            self.fake(f'peers/{name}', 1)
        for load, wait in (('quiet', 'poll'), ('busy', 'block')):
            out = self.run_it(f'--load={load}', '--list')[1]
            for peer in ('sockets', 'grpc', 'thrift', 'capnproto'):
                self.assertIn(f'peers/{peer} --transport=unix --measure=latency --wait={wait}\n', out)
            self.assertIn('peers/ucx --transport=shm --measure=latency --wait=poll\n', out)

    def test_terminated_run_ends_its_program(self):
        path = os.path.join(self.directory, 'microbench', 'latency')
        with open(path, 'w', encoding='utf-8') as file:
            file.write('#!/bin/sh\necho $$ >"$0.new"\nmv "$0.new" "$0.pid"\nexec sleep 60\n')
        words = [os.path.join(SCRIPTS, 'compare'), f'--build-dir={self.directory}', '--filter=shm.latency', '--load=busy']
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            while not os.path.exists(path + '.pid'):
                self.assertIsNone(process.poll())
                time.sleep(0.01)
            process.terminate()
            self.assertEqual(process.wait(timeout=30), 128 + signal.SIGTERM)
        with open(path + '.pid', encoding='utf-8') as file:
            self.assertFalse(os.path.exists(f'/proc/{file.read().strip()}'))

    def test_wrong_flags(self):
        for sentence, flag in (('matches nothing', '--filter=no such thing'), ('not a regular expression', '--filter=('),
                               ('not a regular expression', '--peers=('), ('--rounds', '--rounds=0'),
                               ('--seconds', '--seconds=nan'), ('two different CPUs', '--cpus=0,0'),
                               ('two different CPUs', '--cpus=0'), ('may not use', '--cpus=0,99999')):
            code, out, err = self.run_it(flag)
            self.assertEqual((code, out, err.count('\n')), (1, '', 1), err)
            self.assertIn(sentence, err)

    def test_programs_that_are_not_built(self):
        os.remove(os.path.join(self.directory, 'microbench', 'latency'))
        self.assertIn('latency is not built: cmake', self.run_it()[2])


class Peers(unittest.TestCase):
    def test_every_program_of_peers_is_run(self):
        folder = os.path.join(SCRIPTS, '..', 'microbench', 'peers')
        programs = {name.removesuffix('.cc') for name in os.listdir(folder) if name.endswith('.cc')}
        self.assertEqual({peer.name for peer in compare.PEERS}, programs)

    def test_setup_installs_what_they_need(self):
        def packages_of(group):
            done = subprocess.run([os.path.join(SCRIPTS, 'setup'), '--list', group], capture_output=True, text=True,
                                  check=True)
            return set(done.stdout.split())
        needed = {package for peer in compare.PEERS if peer.needs for package in peer.needs.split()}
        self.assertEqual(needed, packages_of('peers'))
        self.assertIn('python3', packages_of('programs'))  # runs scripts/compare


def serving_child_of(process):
    """The child process, once its CPU time shows that it serves. It spins meanwhile."""
    while process.poll() is None:
        with open(f'/proc/{process.pid}/task/{process.pid}/children', encoding='utf-8') as file:
            children = file.read().split()
        for child in children:
            with contextlib.suppress(FileNotFoundError), open(f'/proc/{child}/stat', encoding='utf-8') as file:
                ticks = file.read().rpartition(')')[2].split()[11:13]
                if sum(map(int, ticks)) > 0.3 * os.sysconf('SC_CLK_TCK'):
                    return int(child)
        time.sleep(0.01)
    raise AssertionError(f'it has ended: {process.communicate()}')


@unittest.skipUnless(BUILD, 'TERN_BUILD_DIR names no build directory')
class Built(unittest.TestCase):
    """The programs that are built. Of their figures only that there are some."""

    def program(self, peer):
        return os.path.join(BUILD, 'microbench', 'peers', peer.name)

    def built(self):
        return [peer for peer in compare.PEERS if os.access(self.program(peer), os.X_OK)]

    def run_peer(self, peer, *flags):
        return subprocess.run([self.program(peer), '--seconds=0.02', '--json', *flags], capture_output=True, text=True,
                              check=False, timeout=60)

    def test_each_peer_measures_over_each_transport(self):
        built = self.built()
        self.assertIn('sockets', [peer.name for peer in built])  # it needs no package
        measures = (('latency', 'p50_us'), ('rate', 'rate_mrps'), ('bandwidth', 'bandwidth_gbps'))
        for peer, (measure, metric) in itertools.product(built, measures):
            for transport, wait in itertools.product((peer.shm, peer.network), sorted({peer.quiet, peer.busy})):
                with self.subTest(peer=peer.name, transport=transport, measure=measure, wait=wait):
                    done = self.run_peer(peer, f'--transport={transport}', f'--measure={measure}', f'--wait={wait}')
                    self.assertEqual((done.returncode, done.stderr), (0, ''))
                    line = json.loads(done.stdout)
                    self.assertGreater(line['metrics'][metric], 0)
                    self.assertGreater(line['placement_ns'], 0)
                    self.assertEqual((line['transport'], *(line['params'][name] for name in ('peer', 'window', 'wait'))),
                                     (transport, peer.name, 60 if measure == 'rate' else 1, wait))

    def test_libfabric_leaves_no_shared_memory(self):
        def left_behind():  # libfabric's names begin with the process, which has ended
            names = [name for name in os.listdir('/dev/shm') if re.fullmatch(r'\d+:\d+:\d+', name)]
            return {name for name in names if not os.path.exists(f'/proc/{name.partition(":")[0]}')}
        peer = next(peer for peer in compare.PEERS if peer.name == 'libfabric')
        if not os.access(self.program(peer), os.X_OK):
            self.skipTest('libfabric is not installed')
        before = left_behind()
        self.assertEqual(self.run_peer(peer, '--transport=shm').returncode, 0)
        self.assertLessEqual(left_behind(), before)

    def test_a_peer_ends_with_its_server(self):
        for peer in self.built():
            words = [self.program(peer), f'--transport={peer.shm}', f'--wait={peer.quiet}', '--seconds=1000']
            with self.subTest(peer=peer.name), \
                 subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
                try:
                    os.kill(serving_child_of(process), signal.SIGKILL)
                    out, errors = process.communicate(timeout=60)
                finally:
                    process.kill()
                self.assertEqual((process.returncode, out), (1, ''))
                self.assertRegex(errors, r'\A[^\n]+\n')

    def test_odd_sizes(self):
        first = compare.PEERS[0]
        for peer, size in [*((first, size) for size in (47, 48, 49)), *((peer, 100_001) for peer in self.built())]:
            with self.subTest(peer=peer.name, size=size):
                done = self.run_peer(peer, f'--size={size}', '--window=7')
                self.assertEqual((done.returncode, done.stderr), (0, ''))

    def test_flags_that_a_peer_refuses(self):
        for flag in ('--transport=pigeon', '--measure=weight', '--wait=sleep', '--size=31', '--size=9999999999',
                     '--window=1025', '--cpus=0,0'):
            done = self.run_peer(compare.PEERS[0], flag)
            self.assertEqual((done.returncode, done.stdout, done.stderr.count('\n')), (1, '', 1), done.stderr)

    @unittest.skipIf(len(os.sched_getaffinity(0)) < 2, 'wants two CPUs')
    def test_a_short_run_of_all_of_them(self):
        done = subprocess.run([os.path.join(SCRIPTS, 'compare'), f'--build-dir={BUILD}', '--filter=shm.latency',
                               '--load=busy', '--rounds=1', '--seconds=1.5', '--json'], capture_output=True, text=True,
                              check=False, timeout=400)
        self.assertEqual(done.returncode, 0, done.stderr)
        head, *lines = (json.loads(text) for text in done.stdout.splitlines())
        shown = {line['who'] for line in lines}
        for peer in compare.PEERS:
            self.assertEqual(peer.name in head['missing'], f'{peer.name} {peer.shm}' not in shown)
        self.assertLessEqual({'tern', 'bare limit', 'tern, --wait=poll', 'tern, --wait=block'}, shown)
        for line in lines:
            self.assertGreater(line['median'], 0)
            self.assertIsNone(line['ratio'])  # of one round nothing follows


if __name__ == '__main__':
    unittest.main()
