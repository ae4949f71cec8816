#!/usr/bin/env python3
"""Bad use of the benchmarks: one sentence on standard error, nothing on standard output, an exit code that is not zero,
and all that soon. Every program under microbench/ of the build directory, with every flag that it says it has.
Usage: bad_use_test.py BUILD_DIR [--at_most=N]
  --at_most  for a sanitized build: runs some N programs of each test, evenly spread among all
"""
import concurrent.futures
import functools
import glob
import os
import re
import resource
import socket
import subprocess
import sys
import unittest
import xml.etree.ElementTree

sys.dont_write_bytecode = True
from refusals import SECONDS_MAX, RefusalTest, become_nobody, run, shortly  # noqa: E402

build_dir = None
at_most = None


def programs():
    paths = [path for pattern in ('*', 'limits/*') for path in glob.glob(os.path.join(build_dir, 'microbench', pattern))]
    return sorted(path for path in paths if os.path.isfile(path) and os.access(path, os.X_OK))


@functools.cache
def flags_of(program):
    """Names and types of the flags that the program defines itself."""
    if os.path.basename(program) == 'fresh_client':
        return {}
    help_text = subprocess.run([program, '--helpxml'], capture_output=True, text=True, timeout=SECONDS_MAX).stdout
    flags = xml.etree.ElementTree.fromstring(help_text).iter('flag')
    return {flag.findtext('name'): flag.findtext('type') for flag in flags
            if '/microbench/' in flag.findtext('file') or '/apps/' in flag.findtext('file')}


@functools.cache
def transports_of(program):
    """Names of the transports that the program runs over."""
    done = subprocess.run([program, '--list_transports'], capture_output=True, text=True, timeout=SECONDS_MAX, check=True)
    return [line.split('\t')[0] for line in done.stdout.splitlines()]


def between_processes():
    """Names of the transports that need no simulation."""
    with open(os.path.join(build_dir, 'generated', 'transports'), encoding='utf-8') as file:
        return [line.split()[0] for line in file if line.split()[-1] == 'real']


def programs_with(flag):
    return [program for program in programs() if flag in flags_of(program)]


def programs_and_apps():
    return programs_with('transport') + [os.path.join(build_dir, 'apps', name) for name in ('hello', 'kv')]


WRONG_OF_TYPE = {
    'bool': ['maybe'],
    'double': ['fast', '-1', 'nan', 'inf'],
    'int32': ['many', '3000000000'],
    'int64': ['many', '10000000000000000000000'],
    'uint32': ['many', '-1', '1.5', '4294967295', '10000000000000000000000'],
    'uint64': ['many', '-1', '1.5', '18446744073709551615', '10000000000000000000000'],
}
ANY_VALUE = {('seed', '18446744073709551615')}
WRONG_OF_NAME = {
    'batch': ['0', '7'],
    'cells': ['0', '100'],
    'cc': ['magic'],
    'cpus': ['x', '0,', ',1', '0,999', '0 1', '0,-1', '0;1'],
    'drop': ['1', '2'],
    'dup': ['1'],
    'hosts_file': ['/no/such'],
    'launcher': ['pbs', '', 'slurm', 'openmpi', 'kubernetes', 'hosts'],  # none of which has started it
    'listen': ['nowhere', '127.0.0.1:99999', '203.0.113.1:0'],
    'pattern': ['round'],
    'role': ['king'],
    'rpcs': ['0'],
    'service': ['tern'],
    'scenario': ['storm'],
    'seconds': ['0', '1e9'],
    'segments': ['0', '1000'],
    'server': ['nowhere', '127.0.0.1', ':', '127.0.0.1:99999', '127.0.0.1:x', '203.0.113.1:0', 'a b:1'],
    'server_transport_options': ['no_such=1', '='],
    'session_window': ['0', '65'],
    'sessions': ['0'],
    'size': ['1073741825'],
    'threads': ['0', '1000'],
    'transport': ['pigeon', '', 'SHM'],
    'transport_options': ['no_such=1', '=', ',', 'no_such'],
    'wait': ['long'],
    'window': ['0', '1000000'],
}


class BadUse(RefusalTest):
    def assert_all_refused(self, commands):
        """Eight at a time: those without an answer wait for it."""
        commands = list(commands)
        self.assertTrue(commands)
        if at_most:
            commands = commands[::-(-len(commands) // at_most)]
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            for command, done in zip(commands, pool.map(run, commands)):
                with self.subTest(program=os.path.basename(command[0]), flags=command[1:]):
                    self.assert_refused(done)

    def test_every_program_is_listed(self):
        names = {os.path.relpath(program, build_dir) for program in programs()}
        self.assertLessEqual({'microbench/latency', 'microbench/small_rpc_rate'}, names)
        if not at_most:  # sanitized builds leave these out
            self.assertLessEqual({'microbench/instructions_driver', 'microbench/limits/ring_pingpong',
                                  'microbench/limits/udp_pingpong'}, names)

    def test_unknown_flags_and_stray_words_are_refused(self):
        self.assert_all_refused([program, argument] for program in programs()
                            for argument in ('--no_such_flag', '--no_such_flag=3', 'word', '-', '--flagfile=/no/such'))

    def test_wrong_values_are_refused(self):
        self.assert_all_refused([program, f'--{name}={value}'] for program in programs()
                            for name, kind in flags_of(program).items()
                            if name != 'ready_fd'  # between the processes of a program
                            for value in WRONG_OF_TYPE.get(kind, []) + WRONG_OF_NAME.get(name, [])
                            if (name, value) not in ANY_VALUE)

    def test_contradictory_flags_are_refused(self):
        self.assert_all_refused([os.path.join(build_dir, 'microbench', program), *flags] for program, *flags in (
            ('small_rpc_rate', '--threads=1'), ('small_rpc_rate', '--threads=3'),
            ('small_rpc_rate', '--pattern=client_server', '--threads=8'),
            ('session_scale', '--threads=3', '--sessions=59'), ('session_scale', '--threads=65'),
            ('incast', '--transport=udp', '--degree=0'), ('incast', '--transport=udp', '--degree=0', '--background'),
            ('incast', '--transport=udp', '--scenario=join'), ('incast', '--transport=udp', '--hosts=9'),
            ('incast', '--transport=udp', '--flows=2'), ('incast', '--transport=udp', '--role=server', '--flows=2'),
            ('incast', '--transport=udp', '--role=client', '--degree=2', '--flows=3'), ('incast', '--flows=2'),
            ('small_rpc_rate', '--launcher=hosts', '--rank=0', '--pattern=client_server'), ('small_rpc_rate', '--rank=1'),
            ('session_scale', '--launcher=hosts', '--rank=0', '--sessions=40'), ('session_scale', '--port=31850'),
            ('session_scale', '--launcher=hosts', '--rank=0', '--transport=sim'), ('incast', '--launcher=hosts', '--degree=2'),
            ('large_rpc_bandwidth', '--launcher=hosts', '--rank=0', '--role=server'),
            ('large_rpc_bandwidth', '--launcher=hosts', '--rank=0', '--hosts_file=/dev/null'),
            ('incast', '--role=server'), ('incast', '--transport=shm', '--frame_bytes=2000'),
            ('incast', '--transport=udp', '--role=client', '--processes')))
        if not at_most:  # sanitized builds leave it out
            driver = os.path.join(build_dir, 'microbench/instructions_driver')
            self.assert_all_refused([[driver, '--seconds=2'], [driver, '--drop=0.1']])

    def test_erpc_driver_refuses_flags_without_effect(self):
        def run_erpc(flag):
            return subprocess.run([os.path.join(build_dir, 'microbench', 'erpc_driver'), flag, '--rpcs=10'],
                                  capture_output=True, text=True, timeout=60)
        for flag in ('--transport=udp', '--cc=swift', '--cc=default', '--json', '--log', '--drop=0.1', '--seed=1',
                     '--role=both', '--seconds=2'):
            with self.subTest(flag=flag):
                self.assert_refused(run_erpc(flag), [flag.split('=')[0]])
        done = run_erpc('--transport=shm')
        self.assertEqual((done.returncode, done.stdout), (0, '10 RPCs completed\n'))

    def test_missing_transports_are_refused(self):
        self.assert_all_refused([program, '--transport=rdma', *more] for program in programs_with('transport')
                            for more in ([], ['--processes']))

    def test_every_program_lists_its_transports(self):
        for program in programs_with('transport') + programs_and_apps():
            with self.subTest(program=os.path.basename(program)):
                names = transports_of(program)
                self.assertEqual(len(set(names)), len(names))
                self.assertTrue(names)

    def test_unknown_transport_options_are_refused(self):
        def wrong_options(text):
            yield 'no_such=1'
            for option in re.search(r'\((.*)\)$', text).group(1).split(','):
                name, value = option.split('=', 1)
                yield name  # without a value
                if value in ('true', 'false'):
                    yield f'{name}=1'
                elif value.isdigit():
                    yield from (f'{name}=many', f'{name}=-1', f'{name}=18446744073709551616')

        def commands():
            for program in programs_with('transport_options'):
                done = subprocess.run([program, '--list_transports'], capture_output=True, text=True, check=True)
                for line in done.stdout.splitlines():
                    for option in wrong_options(line):
                        yield [program, f'--transport={line.split()[0]}', f'--transport_options={option}']
        self.assert_all_refused(commands())

    def test_silent_peers_are_named(self):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as silent:
            silent.bind(('127.0.0.1', 0))
            self.assert_all_refused([program, f'--transport={transport}', '--role=client', f'--server=127.0.0.1:{port}']
                                for program in programs_with('server') for transport in transports_of(program)
                                for port in (1, silent.getsockname()[1]))

    def test_taken_server_address_is_named(self):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
            taken.bind(('127.0.0.1', 0))
            address = f'--server=127.0.0.1:{taken.getsockname()[1]}'
            self.assert_all_refused([program, address, *more] for program in programs_with('server')
                                for more in ([], ['--role=server'], ['--processes']))

    def assert_refused_with(self, limits, commands):
        """Under these limits, and as nobody: root has as many threads as it likes."""
        def restrict():
            if os.getuid() == 0:
                become_nobody()
            for limit, value in limits.items():
                resource.setrlimit(limit, (value, value))

        # The leak checker of sanitized builds wants a thread of its own.
        environment = dict(os.environ, ASAN_OPTIONS=os.environ.get('ASAN_OPTIONS', '') + ':detect_leaks=0')
        for command in commands:
            with self.subTest(program=os.path.basename(command[0]), flags=command[1:]):
                try:
                    done = subprocess.run([*command, shortly(command[0])], stdin=subprocess.DEVNULL, capture_output=True,
                                          text=True, timeout=SECONDS_MAX, preexec_fn=restrict, env=environment)
                except PermissionError:
                    self.skipTest('nobody may not run what was built here')
                self.assertEqual(done.returncode, 1, f'{done.stdout}{done.stderr}')
                self.assertRegex(done.stderr, r'\A[^\n]+\n\Z')

    def test_no_threads(self):
        self.assert_refused_with({resource.RLIMIT_NPROC: 0},
                                 ([program, f'--transport={transport}'] for program in programs_and_apps()
                                  for transport in transports_of(program) if transport in between_processes()))

    def test_no_memory_for_keys(self):
        if at_most:  # sanitizers need more address space
            return
        self.assert_refused_with({resource.RLIMIT_AS: 1500 << 20},
                                 [[os.path.join(build_dir, 'apps', 'kv'), '--transport=udp', '--memory_mb=32',
                                   f'--keys={1 << 26}', '--client_threads=2']])

    def test_output_that_cannot_be_written(self):
        for program, *flags in (['microbench/latency', '--json'], ['microbench/latency'], ['microbench/loss'], ['apps/hello'],
                                ['apps/hello', '--list_transports'], ['apps/kv', '--json'],
                                ['microbench/limits/udp_pingpong', '--json'], ['microbench/instructions_driver']):
            path = os.path.join(build_dir, program)
            if not os.path.exists(path):  # sanitized builds and those without lmdb leave some out
                continue
            with self.subTest(program=program, flags=flags), open('/dev/full', 'w', encoding='utf-8') as full:
                done = subprocess.run([path, shortly(path), *flags], stdin=subprocess.DEVNULL, stdout=full,
                                      stderr=subprocess.PIPE, text=True, timeout=SECONDS_MAX, check=False)
                self.assertEqual(done.returncode, 1, done.stderr)
                self.assertIn('the result could not be written: No space left on device', done.stderr)

    def test_no_large_files(self):
        self.assert_refused_with({resource.RLIMIT_FSIZE: 4096},
                                 ([program, '--transport=shm'] for program in programs_and_apps()))


if __name__ == '__main__':
    build_dir = os.path.abspath(sys.argv.pop(1))
    if len(sys.argv) > 1 and sys.argv[1].startswith('--at_most='):
        at_most = int(sys.argv.pop(1).split('=')[1])
    unittest.main()
