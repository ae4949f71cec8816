#!/usr/bin/env python3
"""The benchmarks that run in simulated clusters, small ones: what they report adds up, and repeats from a seed.
Usage: simulated_test.py BUILD_DIR
"""
import json
import os
import subprocess
import sys
import unittest

build_dir = None

SIDE_NOTES = {'wall_seconds', 'memory_bytes', 'bytes_per_endpoint', 'bytes_per_session_end', 'bytes_per_session_end_open'}
LINE_GBPS = 25 * (1024 - 42 - 24) / (1024 + 24)  # payload of full frames


def run(program, *flags):
    words = [os.path.join(build_dir, 'microbench', program), '--json', *flags]
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode != 0 or done.stderr:
        raise AssertionError(f'{" ".join(words)}: exit code {done.returncode}, {done.stderr}')
    line = json.loads(done.stdout)
    assert (line['bench'], line['transport']) == (program, 'sim'), done.stdout
    return line


def metrics(program, *flags):
    return run(program, *flags)['metrics']


class Simulated(unittest.TestCase):
    def assert_repeats(self, program, *flags):
        def of(seed):
            return {name: value for name, value in metrics(program, *flags, f'--seed={seed}').items()
                    if name not in SIDE_NOTES}
        first = of(1)
        self.assertEqual(first, of(1))
        self.assertNotEqual(first['trace_hash'], of(2)['trace_hash'])

    def test_incast_fills_the_victims_link(self):
        got = metrics('incast', '--cc=none', '--credits=32', '--degree=8', '--hosts=9', '--seconds=0.01')
        self.assertAlmostEqual(got['total_gbps'], LINE_GBPS, delta=0.05)
        # A packet waits for all of the others: 8 flows of 32 packets, one frame's time each.
        self.assertAlmostEqual(got['p50_rtt_us'], 8 * 32 * 1048 * 8 / 25e3, delta=3)
        self.assertGreater(got['jain_fairness'], 0.99)
        self.assertEqual((got['drops'], got['retransmissions']), (0, 0))
        self.assertAlmostEqual(got['rtt_samples'], 0.01 / (1048 * 8 / 25e9), delta=300)

    def test_incast_counts_what_a_small_buffer_loses(self):
        got = metrics('incast', '--cc=none', '--credits=32', '--degree=8', '--hosts=9', '--seconds=0.01',
                      '--alpha=0.01')
        self.assertGreater(got['drops'], 0)
        self.assertGreater(got['retransmissions'], 0.9 * got['drops'])  # the last ones were lost just now
        self.assertLess(got['queue_bytes_max'], 0.01 * (12 << 20))

    def test_more_flows_than_hosts(self):
        line = run('incast', '--degree=5', '--hosts=3', '--seconds=0.01')
        self.assertEqual(line['params']['clients_per_host_max'], 3)
        self.assertGreater(line['metrics']['total_gbps'], 0.8 * LINE_GBPS)

    def test_background(self):
        flags = ('--hosts=9', '--background', '--seconds=0.005')
        alone = metrics('incast', '--degree=0', *flags)
        self.assertNotIn('total_gbps', alone)
        # 64 kB there and 64 kB back take 2 x 22 us of a link at least.
        self.assertGreater(alone['background_p50_us'], 44)
        self.assertGreater(alone['background_rpcs'], 8 * 10)
        both = metrics('incast', '--degree=8', *flags)
        self.assertGreater(both['total_gbps'], 0.5 * LINE_GBPS)
        self.assertGreater(both['background_p99_us'], 0)

    def test_flows_come_and_go(self):
        join = metrics('incast', '--degree=4', '--hosts=9', '--scenario=join', '--seconds=0.005')
        self.assertLess(join['join_ms'], 20)
        self.assertGreater(join['join_share_after_2ms'], 0.5)
        self.assertGreater(join['jain_fairness'], 0.99)  # of the four flows before the fifth
        leave = metrics('incast', '--degree=4', '--hosts=9', '--scenario=leave', '--seconds=0.005')
        self.assertLess(leave['leave_ms'], 20)
        before, after = leave['rate_by_ms'][0], leave['rate_by_ms'][-1]
        self.assertLess(before[0], 0)
        self.assertLess(before[1], 0.5 * LINE_GBPS)
        self.assertGreater(after[1], 0.8 * LINE_GBPS)
        self.assertAlmostEqual(leave['line_gbps'], LINE_GBPS, delta=0.01)

    def test_loss(self):
        got = metrics('loss', '--drop=1e-2', '--seconds=0.01')
        self.assertGreater(got['lossless_gbps'], 50)
        self.assertAlmostEqual(got['share'], got['bandwidth_gbps'] / got['lossless_gbps'])
        self.assertAlmostEqual(got['drops'] / got['packets'], 1e-2, delta=1e-3)
        self.assertGreater(got['retransmissions'], 0)
        self.assertNotIn('share', metrics('loss', '--seconds=0.01'))

    def test_loss_of_requests_that_take_longer_than_a_tenth_of_a_second(self):
        got = metrics('loss', '--drop=1e-5', f'--size={1 << 30}', '--frame_bytes=9018', '--seconds=0.4')
        self.assertGreater(got['share'], 0.5)

    def test_mesh(self):
        got = metrics('session_scale', '--transport=sim', '--nodes=6', '--threads=2', '--seconds=0.001')
        self.assertEqual((got['sessions_per_node'], got['session_ends']), (2 * 11, 2 * 12 * 11))
        self.assertAlmostEqual(got['rate_mrps_per_node'], got['calls'] / 6 / 1000, delta=0.01)
        # 60 in flight a thread, so that rate and latency belong together.
        mean_us = 2 * 60 / got['rate_mrps_per_node']
        self.assertLess(got['p50_us'], 2 * mean_us)
        self.assertGreater(got['p9999_us'], mean_us)
        self.assertGreater(got['bytes_per_session_end'], 100)

    def test_no_figure_where_nothing_was_measured(self):
        mesh = metrics('session_scale', '--transport=sim', '--nodes=2', '--seconds=1e-10')
        self.assertEqual(mesh['calls'], 0)
        self.assertEqual({'rate_mrps_per_node', 'p50_us', 'percentiles_us'} & set(mesh), set())

    def test_trunk(self):
        if not os.path.exists(os.path.join(build_dir, 'microbench', 'trunk')):
            self.skipTest('sanitized builds have no trunk')
        self.assertGreater(metrics('trunk', '--size=100', '--seconds=0.001')['total_gbps'], 0)
        self.assertNotIn('smallest_share_20ms', metrics('trunk', '--seconds=0.019'))
        self.assertLess(metrics('trunk', '--seconds=0.02')['smallest_share_20ms'], 1)
        self.assertGreater(metrics('trunk', '--delay_ns=50000000', '--seconds=0.001')['base_rtt_us'], 300_000)

    def test_the_same_seed_gives_the_same_figures(self):
        self.assert_repeats('incast', '--degree=4', '--hosts=9', '--background', '--seconds=0.002')
        self.assert_repeats('loss', '--drop=1e-3', '--seconds=0.005')
        self.assert_repeats('session_scale', '--transport=sim', '--nodes=5', '--threads=2', '--seconds=0.0005')

    def test_flags_that_mean_nothing_here(self):
        for program, flags in (('incast', ['--role=server']), ('loss', ['--delay=0.1']),
                               ('loss', ['--log']), ('incast', ['--page=shm']),
                               ('incast', ['--degree=0']), ('incast', ['--degree=1', '--scenario=join']),
                               ('session_scale', ['--transport=sim', '--sessions=30']), ('session_scale', ['--nodes=4']),
                               ('session_scale', ['--transport=sim', '--nodes=1']), ('loss', ['--frame_bytes=577']),
                               ('loss', ['--cpus=0'])):
            with self.subTest(program=program, flags=flags):
                done = subprocess.run([os.path.join(build_dir, 'microbench', program), *flags], capture_output=True,
                                      text=True, timeout=60, check=False)
                self.assertEqual((done.returncode, done.stdout), (1, ''))
                self.assertRegex(done.stderr, r'\A[^\n]+\n\Z')


if __name__ == '__main__':
    build_dir = os.path.abspath(sys.argv.pop(1))
    unittest.main()
