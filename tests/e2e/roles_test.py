#!/usr/bin/env python3
"""The benchmarks that run between hosts: a server and its clients, each started by itself with --role and --server, as
two processes of one host and in two network namespaces. Usage: roles_test.py BUILD_DIR [TRANSPORT that is left out...]
"""
import concurrent.futures
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
import network

SECONDS_MAX = 60

build_dir = None
left_out = []

# Program, flags of both sides, metrics that are above zero
PROGRAMS = [
    ('latency', [], ['rate_mrps', 'p50_us', 'p99_us', 'p999_us']),
    ('small_rpc_rate', ['--threads=2', '--sessions=2'], ['rate_mrps', 'p50_us', 'p99_us']),
    ('small_rpc_rate', ['--threads=4', '--sessions=2'], ['rate_mrps', 'p50_us', 'p99_us']),
    ('small_rpc_rate', ['--pattern=client_server'], ['rate_mrps', 'p50_us', 'p99_us']),
    ('large_rpc_bandwidth', ['--size=100000'], ['bandwidth_gbps', 'rate_rps', 'p50_us']),
    ('session_scale', ['--sessions=200'], ['rate_mrps', 'rate_mrps_20_sessions', 'connect_us_per_session']),
    ('session_scale', ['--sessions=200', '--threads=2'], ['rate_mrps', 'rate_mrps_20_sessions', 'connect_us_per_session']),
    ('incast', ['--degree=4', '--size=100000'], ['total_gbps', 'client_gbps', 'p50_us', 'p99_us']),
]
# Sides of one host share its CPUs with each other and with other tests: none of them spins for long.
COMMON = ['--seconds=0.3', '--wait=adaptive']


def path_of(program):
    return os.path.join(build_dir, 'microbench', program)


def names_of_transports():
    """The built transports between processes."""
    with open(os.path.join(build_dir, 'generated', 'transports'), encoding='utf-8') as file:
        return [line.split()[0] for line in file if line.split()[-1] == 'real']


def transports():
    """Those between processes that this machine has the devices for. Each process over dpdk needs one of its own, and over
    xdp a queue of an interface."""
    names = names_of_transports()
    listed = subprocess.run([path_of('latency'), '--list_transports'], capture_output=True, text=True,
                            timeout=SECONDS_MAX, check=True).stdout
    built = [line.split('\t')[0] for line in listed.splitlines()]

    def has_device(name):
        done = subprocess.run([path_of('latency'), *COMMON, f'--transport={name}'], capture_output=True, text=True,
                              timeout=SECONDS_MAX, check=False)
        return 'this machine has no RDMA device' not in done.stderr
    return [name for name in names if name in built and name not in left_out and has_device(name)]


def ended(process):
    try:
        return process.communicate(timeout=SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise AssertionError(f'{" ".join(process.args)} did not end in {SECONDS_MAX} s') from None


class Idle(AssertionError):
    """The machine was too busy: no call was answered while a client measured."""


def patiently(measure):
    """measure(*flags), where both sides were given no time once more, for longer."""
    try:
        return measure()
    except Idle:
        return measure(f'--seconds={SECONDS_MAX / 2:g}')


class Sides(unittest.TestCase):
    """Starts the two sides and checks their output."""

    @contextlib.contextmanager
    def server(self, program, *flags, address, inside=()):
        """Yields its process and the HOST:PORT at which it listens. It serves until it is interrupted."""
        words = [*inside, path_of(program), *COMMON, *flags, '--role=server', f'--server={address}:0']
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True)
        try:
            said = process.stderr.readline()
            found = re.search(r'serving over \w+ at tern://(\S+)$', said)
            self.assertTrue(found, said)
            yield process, found.group(1)
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            out, err = ended(process)
            self.assertEqual((process.returncode, out, err), (0, '', ''))
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate()

    def client(self, program, *flags, server, inside=()):
        """Its JSON line."""
        words = [*inside, path_of(program), *COMMON, *flags, '--json', '--role=client', f'--server={server}']
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True)
        out, err = ended(process)
        if 'no call was answered' in err:
            raise Idle(err)
        self.assertEqual(process.returncode, 0, err)
        lines = out.splitlines()
        self.assertEqual(len(lines), 1, out)
        return json.loads(lines[0])

    def line_of_client(self, program, *flags, address, server_inside=(), client_inside=()):
        """The JSON line of a client of a server of its own."""
        def measure(*seconds):
            with self.server(program, *flags, *seconds, address=address, inside=server_inside) as (_, server):
                return self.client(program, *flags, *seconds, server=server, inside=client_inside)
        return patiently(measure)

    def assert_is_line_of_client(self, line, program, metrics):
        self.assertEqual((line['bench'], line['params']['role']), (program, 'client'))
        for metric in metrics:
            self.assertGreater(line['metrics'][metric], 0, metric)
        # The programs know nothing about the path between the CPUs of two hosts.
        self.assertEqual(set(line), {'bench', 'transport', 'params', 'metrics'})


class Overload(unittest.TestCase):
    def test_calls_that_meet_a_full_queue_count_as_failed(self):
        if not os.path.exists(path_of('overload')):  # as in sanitized builds
            return
        # The server serves one call of 200, and no deadline passes.
        done = subprocess.run([path_of('overload'), '--transport=udp', '--clients=1', '--rate=200000', '--handler_us=1000',
                               '--deadline_ms=60000', '--seconds=1', '--json'], capture_output=True, text=True,
                              timeout=SECONDS_MAX, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(json.loads(done.stdout)['metrics']['failed_rps'], 0)


class Roles(Sides):
    def test_two_processes_measure_over_each_transport(self):
        found = transports()
        expected = {'shm', 'udp'}
        if 'software_verbs' in os.environ.get('LD_LIBRARY_PATH', ''):
            # mlx5 also needs the cable of tests/cable.
            software = {'verbs', 'mlx5'} if 'TERN_PEER_NETNS' in os.environ else {'verbs'}
            expected |= software & set(names_of_transports()) - set(left_out)
        self.assertLessEqual(expected, set(found))
        for transport in found:
            for program, flags, metrics in PROGRAMS:
                with self.subTest(transport=transport, program=program, flags=flags):
                    flags = [*flags, f'--transport={transport}']
                    line = self.line_of_client(program, *flags, address='127.0.0.1')
                    self.assert_is_line_of_client(line, program, metrics)

    def test_one_server_serves_clients_one_after_the_other(self):
        for program, flags in (('latency', []), ('large_rpc_bandwidth', ['--size=100000']),
                               ('session_scale', ['--sessions=40']), ('incast', ['--degree=2', '--size=100000'])):
            with self.subTest(program=program), self.server(program, *flags, '--transport=udp',
                                                            address='127.0.0.1') as (process, server):
                for _ in range(2):
                    line = patiently(lambda *seconds: self.client(program, *flags, '--transport=udp', *seconds,
                                                                  server=server))
                    self.assertIsNone(process.poll())
                    # The server had no other client, so its memory is reported.
                    self.assertEqual('bytes_per_session' in line['metrics'], program == 'session_scale')

    def test_a_symmetric_server_ends_with_its_client(self):
        def measure(*seconds):
            flags = ['--transport=udp', '--sessions=2', *seconds]
            with self.server('small_rpc_rate', *flags, address='127.0.0.1') as (process, server):
                self.client('small_rpc_rate', *flags, server=server)
                process.wait(SECONDS_MAX)
        patiently(measure)

    def test_clients_of_an_incast_wait_for_each_other(self):
        flags = ['--transport=udp', '--degree=3', '--size=100000', '--seconds=3']
        with self.server('incast', *flags, address='127.0.0.1') as (_, server), \
             concurrent.futures.ThreadPoolExecutor(2) as pool:
            lines = list(pool.map(lambda flows: self.client('incast', *flags, f'--flows={flows}', server=server), (1, 2)))
            for line in lines:
                # The victim receives the sum of both, and their measurements are not quite at the same time.
                self.assertGreater(line['metrics']['total_gbps'], line['metrics']['client_gbps'])

    def test_memory_is_not_reported_if_clients_share_the_server(self):
        flags = ['--transport=udp', '--sessions=40']
        with self.server('session_scale', *flags, address='127.0.0.1') as (_, server), \
             concurrent.futures.ThreadPoolExecutor(2) as pool:
            lines = list(pool.map(lambda seconds: self.client('session_scale', *flags, f'--seconds={seconds}',
                                                              server=server), (3, 3)))
            for line in lines:
                self.assertGreater(line['metrics']['rate_mrps'], 0)
                self.assertNotIn('bytes_per_session', line['metrics'])

    def assert_refused(self, words, sentence):
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS_MAX)
        self.assertEqual((done.returncode, done.stdout), (1, ''))
        self.assertRegex(done.stderr, r'\A[^\n]+\n\Z')
        self.assertIn(sentence, done.stderr)

    def test_sides_with_contradictory_flags_are_refused(self):
        for program, of_server, of_client, sentence in (
                ('small_rpc_rate', ['--pattern=client_server'], [], 'another --pattern'),
                ('incast', ['--degree=2', '--size=1000'], ['--degree=2', '--size=2000'], 'the same --size'),
                ('session_scale', [], ['--threads=2', '--sessions=40'], 'the same --threads')):
            with self.subTest(program=program), self.server(program, '--transport=udp', *of_server,
                                                            address='127.0.0.1') as (_, server):
                self.assert_refused([path_of(program), '--transport=udp', *of_client, '--role=client',
                                     f'--server={server}'], sentence)


class Namespaces:
    """Two namespaces with a cable: 10.66.0.1 and 10.66.0.2."""

    def __enter__(self):
        network.remove_stale()
        self.names = [network.name_of(side) for side in 'ab']
        a, b = self.names
        for name in self.names:
            network.ip('netns', 'add', name)
        network.ip('-n', a, 'link', 'add', 'cable', 'type', 'veth', 'peer', 'name', 'cable', 'netns', b)
        for number, name in enumerate(self.names, 1):
            network.ip('-n', name, 'address', 'add', f'10.66.0.{number}/24', 'dev', 'cable')
            for device in ('lo', 'cable'):
                network.ip('-n', name, 'link', 'set', device, 'up')
        return self

    def __exit__(self, *_):
        for name in self.names:
            network.remove(name)

    def inside(self, which):
        return ['ip', 'netns', 'exec', self.names[which]]


class BetweenHosts(Sides):
    """The server is in a namespace of its own: only the cable joins the two."""

    def setUp(self):
        if os.geteuid() != 0:
            self.skipTest('network namespaces need root')

    def test_namespaces_measure_over_udp(self):
        self.run_programs('udp')

    def test_namespaces_measure_over_xdp(self):
        if 'xdp' not in names_of_transports():
            self.skipTest('the transport xdp is not built')
        self.run_programs('xdp')

    def run_programs(self, transport):
        with Namespaces() as namespaces:
            for program, flags, metrics in PROGRAMS:
                with self.subTest(program=program, flags=flags):
                    flags = [*flags, f'--transport={transport}']
                    line = self.line_of_client(program, *flags, address='10.66.0.1',
                                               server_inside=namespaces.inside(0), client_inside=namespaces.inside(1))
                    self.assert_is_line_of_client(line, program, metrics)


if __name__ == '__main__':
    build_dir = os.path.abspath(sys.argv[1])
    left_out = ['dpdk', 'xdp', *sys.argv[2:]]
    unittest.main(argv=sys.argv[:1])
