#!/usr/bin/env python3
"""scripts/doctor with a real network: what runs, and the right sentence for what was broken on purpose between two
network namespaces. The command that it names is run where it can be, and has to mend it.
Usage: doctor_test.py BUILD_DIR [CASE...]
"""
import contextlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

import roles_test

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..')
SCRIPTS = os.path.join(ROOT, 'scripts')
SECONDS_MAX = 60
SECONDS = '--seconds=0.2'  # enough to see that RPCs pass

build_dir = None


def run(*words, inside=()):
    return subprocess.run([*inside, *words], stdin=subprocess.DEVNULL, capture_output=True, text=True,
                          timeout=SECONDS_MAX, check=False)


def doctor(*flags, inside=(), script=None):
    """(exit code, the object)."""
    words = [script] if script else [os.path.join(SCRIPTS, 'doctor'), f'--build-dir={build_dir}']
    done = run(*words, SECONDS, '--json', *flags, inside=inside)
    assert done.returncode in (0, 1) and done.stderr == '', f'{done.returncode} {done.stdout}{done.stderr}'
    return done.returncode, json.loads(done.stdout)


def transport(found, name):
    return next(one for one in found['transports'] if one['name'] == name)


def texts(findings, level=None):
    return [one['text'] for one in findings if level in (None, one['level'])]


def programs_with(mark):
    """The command lines of tern's programs with this in their environment."""
    found = []
    for pid in filter(str.isdigit, os.listdir('/proc')):
        with contextlib.suppress(OSError):
            with open(f'/proc/{pid}/environ', 'rb') as environment, open(f'/proc/{pid}/cmdline', 'rb') as words:
                if mark.encode() in environment.read().split(b'\0'):
                    found.append(words.read().decode().split('\0'))
    return [words for words in found if words[0].endswith('latency')]


class Here(unittest.TestCase):
    def copy(self, *, with_program):
        """The script as it is installed, in a folder that everybody may read."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        os.chmod(folder.name, 0o755)
        for sub in ('bin', 'share/tern'):
            os.makedirs(os.path.join(folder.name, sub))
        script = os.path.join(folder.name, 'bin', 'tern-doctor')
        shutil.copy(os.path.join(SCRIPTS, 'doctor'), script)
        shutil.copytree(os.path.join(SCRIPTS, 'tern_doctor'), os.path.join(folder.name, 'share', 'tern', 'tern_doctor'))
        if with_program:
            shutil.copy(os.path.join(build_dir, 'microbench', 'latency'),
                        os.path.join(folder.name, 'bin', 'tern-latency'))
        return script

    def as_nobody(self):
        if os.geteuid() != 0:
            self.skipTest('only root becomes somebody else')
        return ['setpriv', '--reuid=nobody', '--regid=nogroup', '--clear-groups']

    def test_shm_and_udp_are_proven(self):
        code, found = doctor('--transport=shm,udp')
        self.assertEqual(code, 0)
        for name in ('shm', 'udp'):
            one = transport(found, name)
            self.assertEqual((one['verdict'], texts(one['findings'], 'stop')), ('runs', []))
            self.assertGreater(one['trial']['p50_us'], 0)
            self.assertGreater(one['trial']['rpcs_per_second'], 0)
        # What it did can be done by hand.
        again = run('sh', '-c', transport(found, 'shm')['trial']['command'])
        self.assertGreater(json.loads(again.stdout)['metrics']['rate_mrps'], 0)

    def test_text(self):
        done = run(os.path.join(SCRIPTS, 'doctor'), f'--build-dir={build_dir}', SECONDS, '--transport=shm')
        self.assertEqual((done.returncode, done.stderr), (0, ''))
        self.assertRegex(done.stdout, r'\Ashm +runs: [\d.]+ us there and back \(p99 [\d.]+\), \d+ RPCs/s one at a time')
        self.assertTrue(done.stdout.endswith('\nAt least one transport runs.\n'))

    def is_built(self, name):
        """If it is not, the doctor has to say so."""
        with open(os.path.join(build_dir, 'generated', 'transports'), encoding='utf-8') as file:
            if any(line.split()[0] == name for line in file):
                return True
        _, found = doctor(f'--transport={name}', '--no-trials')
        self.assertEqual(transport(found, name)['verdict'], 'not built')
        return False

    def test_xdp_is_proven_over_a_cable_of_its_own(self):
        if not self.is_built('xdp'):
            return
        if os.geteuid() != 0:
            self.skipTest('network namespaces need root')
        code, found = doctor('--transport=xdp')
        self.assertEqual((code, transport(found, 'xdp')['verdict']), (0, 'runs'), transport(found, 'xdp'))
        self.assertIn('a veth pair', transport(found, 'xdp')['trial']['over'])

    def test_signals_end_the_trial(self):
        for name in ('udp', 'xdp'):
            if name == 'xdp' and (os.geteuid() != 0 or not self.is_built(name)):
                continue
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                with self.subTest(transport=name, signal=number):
                    self.end_trial_by(number, name)

    def end_trial_by(self, number, name):
        signal.signal(number, signal.SIG_DFL)  # nohup ignores SIGHUP
        mark = f'TERN_DOCTOR_TEST={os.getpid()}-{name}-{number}'
        words = ['env', mark, os.path.join(SCRIPTS, 'doctor'), f'--build-dir={build_dir}', f'--transport={name}',
                 '--seconds=50']
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              text=True) as process:
            deadline = time.monotonic() + SECONDS_MAX
            while not any('--role=server' in words for words in programs_with(mark)):
                self.assertIsNone(process.poll())
                self.assertLess(time.monotonic(), deadline)
                time.sleep(0.01)
            process.send_signal(number)
            output, errors = process.communicate(timeout=SECONDS_MAX)
        self.assertEqual((process.returncode, output, errors),
                         (128 + number, '', 'tern-doctor: interrupted\n' if number == signal.SIGINT else ''))
        left = [one for one in os.listdir('/run/netns') if one.startswith(f'tern-doctor-{process.pid}-')] \
            if os.path.isdir('/run/netns') else []
        self.assertEqual(left, [])
        while programs_with(mark):  # a killed process takes a moment to end
            self.assertLess(time.monotonic(), deadline)
            time.sleep(0.01)

    def test_dpdk_is_proven_over_its_cable_in_memory(self):
        if not self.is_built('dpdk'):
            return
        # Drivers of DPDK want the real libibverbs.
        code, found = doctor('--transport=dpdk', inside=['env', '-u', 'LD_LIBRARY_PATH'])
        self.assertEqual((code, transport(found, 'dpdk')['verdict']), (0, 'runs'), transport(found, 'dpdk'))
        self.assertIn('net_memif', transport(found, 'dpdk')['trial']['over'])

    def test_device_that_tern_opens_overrides_missing_files(self):
        """Over the NICs in software of tests/software_verbs, which are not in /sys."""
        if 'software_verbs' not in os.environ.get('LD_LIBRARY_PATH', ''):
            self.skipTest('without the NICs in software')
        code, found = doctor('--transport=verbs')
        self.assertEqual((code, transport(found, 'verbs')['verdict']), (0, 'runs'), transport(found, 'verbs'))
        self.assertEqual(texts(transport(found, 'verbs')['findings'], 'stop'), [])

    def test_without_root(self):
        script = self.copy(with_program=True)
        code, found = doctor('--transport=shm,udp,xdp,mlx5', script=script, inside=self.as_nobody())
        self.assertEqual(code, 0)
        self.assertEqual([transport(found, name)['verdict'] for name in ('shm', 'udp')], ['runs', 'runs'])
        self.assertIn('the rules of the firewall: nft list ruleset needs root', found['unseen'])
        self.assertIn('This user may not send raw packets (CAP_NET_RAW).', texts(transport(found, 'mlx5')['findings']))
        self.assertTrue(any('AF_XDP' in text for text in texts(transport(found, 'xdp')['findings']))
                        or transport(found, 'xdp')['verdict'] == 'not built')

    def test_without_a_build_tree_and_root(self):
        code, found = doctor('--transport=shm,udp', script=self.copy(with_program=False), inside=self.as_nobody())
        if shutil.which('tern-latency'):
            self.skipTest('tern is installed on this machine')
        self.assertEqual(code, 0)
        self.assertEqual({one['verdict'] for one in found['transports']}, {'may run'})
        self.assertTrue(any('neither built nor installed' in what for what in found['unseen']))

    def test_missing_package_of_the_script_is_named(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(os.path.join(SCRIPTS, 'doctor'), folder)
            done = run(os.path.join(folder, 'doctor'))
        self.assertEqual((done.returncode, done.stdout), (1, ''))
        self.assertIn('tern_doctor is missing', done.stderr)

    def test_low_limit_of_locked_memory_is_found(self):
        _, found = doctor('--no-trials', '--transport=verbs', script=self.copy(with_program=False),
                          inside=['prlimit', '--memlock=65536:65536', *self.as_nobody()])
        self.assertIn('This user may lock 64 kB of memory, and an endpoint over verbs takes up to 64 MB.',
                      texts(transport(found, 'verbs')['findings'], 'stop'))

    def test_program_that_does_not_start_is_found(self):
        script = self.copy(with_program=False)
        program = os.path.join(os.path.dirname(script), 'tern-latency')
        with open(program, 'w', encoding='utf-8') as file:
            file.write('#!/bin/sh\necho "$0: error while loading shared libraries: libdoctor.so.1: cannot open" '
                       '>&2\nexit 127\n')
        os.chmod(program, 0o755)
        code, found = doctor('--transport=shm', script=script)
        self.assertEqual((code, transport(found, 'shm')['verdict']), (0, 'may run'))
        finding = next(one for one in found['machine'] if 'does not start' in one['text'])
        self.assertEqual(finding['command'], 'apt-file search libdoctor.so.1  # names the package')

    def test_usage(self):
        for flags, sentence in ((['--to=a b:x'], 'is not HOST or HOST:PORT'),
                                (['--to=:31850'], 'is not HOST or HOST:PORT'),
                                (['--to=1.2.3.4:'], 'is not HOST'), (['--to=1.2.3.4:70000'], 'is not HOST'),
                                (['--transport=pigeon'], 'choose from: shm, udp, xdp, dpdk, verbs, mlx5'),
                                (['--build-dir=/no/such'], 'is not a directory'),
                                (['--root=/no/such'], 'is not a directory'),
                                (['--to=a', '--root=/tmp'], 'not work with --root'),
                                (['--build-dir=/', '--root=/tmp'], '--build-dir does not work with --root'),
                                (['--to=a', '--port=31850'], '--port does not work with --to=HOST:PORT'),
                                (['--to=a', '--transport=udp', '--server_transport_options=a=b'],
                                 '--server_transport_options does not work with --to'),
                                (['--no-trials', '--transport=udp', '--transport_options=a=b'],
                                 '--transport_options does not work with --no-trials'),
                                (['--no-trials', '--transport=udp', '--server_transport_options=a=b'],
                                 '--server_transport_options does not work with --no-trials'),
                                (['--root=/tmp', '--transport=udp', '--transport_options=a=b'],
                                 '--transport_options does not work with --root'),
                                (['--seconds=0'], '--seconds must be'), (['--port=0'], '--port must be'),
                                (['--transport_options=a=b'], '--transport_options works only with a single --transport'),
                                (['--server_transport_options=a=b'],
                                 '--server_transport_options works only with a single --transport'),
                                (['--no-such'], 'unrecognized arguments'),
                                (['word'], 'unrecognized arguments')):
            with self.subTest(flags=flags):
                done = run(os.path.join(SCRIPTS, 'doctor'), *flags)
                self.assertEqual((done.returncode, done.stdout), (2, ''))
                self.assertIn(sentence, done.stderr)


class Between(unittest.TestCase):
    """The server is at 10.66.0.1 in a namespace of its own, the doctor in the one at the other end of the cable."""

    def setUp(self):
        if os.geteuid() != 0:
            self.skipTest('network namespaces need root')
        self.namespaces = roles_test.Namespaces()
        self.namespaces.__enter__()
        self.addCleanup(self.namespaces.__exit__)

    def at(self, which, *words):
        done = run(*words, inside=self.namespaces.inside(which))
        self.assertEqual(done.returncode, 0, done.stderr)

    def nft(self, which, rules):
        subprocess.run([*self.namespaces.inside(which), 'nft', '-f', '-'], input=rules, text=True, check=True)

    def filter(self, which, hook, *rules, policy='accept'):
        """A table as Debian's /etc/nftables.conf has it."""
        self.nft(which, '\n'.join(('table inet filter {', f'chain {hook} {{',
                                   f'type filter hook {hook} priority filter; policy {policy}',
                                   *rules, '}', '}', '')))

    @contextlib.contextmanager
    def server(self, address='10.66.0.1'):
        """tern's server, whose data is at port 31851."""
        words = [*self.namespaces.inside(0), os.path.join(build_dir, 'microbench', 'latency'), '--transport=udp',
                 '--wait=adaptive', '--role=server', f'--server={address}:31850',
                 f'--transport_options=bind={address}:31851']
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
            try:
                self.assertIn('serving over udp', process.stderr.readline())
                yield
            finally:
                process.send_signal(signal.SIGINT)
                process.communicate()

    def doctor_at(self, which, *flags):
        return doctor(*flags, inside=self.namespaces.inside(which))

    def way(self, *flags):
        """(exit code, the way)."""
        code, found = self.doctor_at(1, '--to=10.66.0.1', '--transport=udp', *flags)
        return code, found['path']

    def assert_stopped(self, way, sentence, command):
        code, path = way
        self.assertEqual(code, 1, path)
        finding = next((one for one in path['findings'] if one['level'] == 'stop'), None)
        self.assertIsNotNone(finding, path)
        self.assertEqual(finding['text'], sentence)
        self.assertEqual(finding['command'], command)

    def test_the_way_is_free(self):
        with self.server():
            code, path = self.way()
        self.assertEqual((code, path['findings']), (0, []), path)
        self.assertEqual((path['echo']['lost'], path['echo']['mtu']), (0, 1500))
        self.assertEqual((path['route']['device'], path['route']['source']), ('cable', '10.66.0.2'))
        self.assertGreater(path['exchanges']['udp']['p50_us'], 0)

    def test_no_server(self):
        sentence = 'No tern server listens at UDP port 31850 of 10.66.0.1.'
        command = 'tern-latency --role=server --transport=udp --server=0.0.0.0:31850  # on 10.66.0.1'
        self.assert_stopped(self.way(), sentence, command)
        # A host that has just answered several datagrams to closed ports waits a second with the next answer.
        self.at(1, sys.executable, '-c',
                'import socket\n'
                'for port in range(40000, 40020):\n'
                '    socket.socket(type=socket.SOCK_DGRAM).sendto(b"?", ("10.66.0.1", port))')
        code, path = self.way('--no-trials')
        self.assertEqual((code, texts(path['findings'])), (1, ['Nothing listens at UDP port 31850 of 10.66.0.1.']))

    def test_no_route_and_no_such_host(self):
        code, found = self.doctor_at(1, '--to=203.0.113.1')
        self.assertEqual((code, texts(found['path']['findings'])),
                         (1, ['No route leads to 203.0.113.1 (ENETUNREACH).']))
        code, found = self.doctor_at(1, '--to=no-such-host.invalid')
        self.assertEqual((code, texts(found['path']['findings'])),
                         (1, ['No address is known for no-such-host.invalid.']))

    def test_the_management_port_is_filtered(self):
        self.filter(0, 'input', 'udp dport 31850 drop')
        # The host's own doctor sees the rule.
        _, there = self.doctor_at(0, '--no-trials')
        self.assertIn('This host\'s firewall (inet filter input) drops what others send to UDP port 31850, where '
                      'servers are found.',
                      texts(there['machine']))
        with self.server():
            command = 'nft insert rule inet filter input udp dport 31850 accept  # on 10.66.0.1'
            self.assert_stopped(self.way(),
                                '10.66.0.1 answers to ping, and nothing comes back from its UDP port 31850: '
                                'a firewall drops it.', command)
            self.at(0, 'sh', '-c', command)
            self.assertEqual(self.way()[0], 0)

    def test_the_data_port_is_filtered(self):
        self.filter(0, 'input', 'udp dport 31851 drop')
        with self.server():
            self.assert_stopped(self.way(),
                                'Management reaches 10.66.0.1, but a firewall drops what is sent to the server\'s data '
                                'port, UDP port 31851.',
                                'tern-latency --role=server --transport=udp --server=0.0.0.0:31850 '
                                '--transport_options=bind=0.0.0.0:31851  # there, with: '
                                'nft insert rule inet filter input udp dport 31851 accept')

    def test_ports_are_rejected(self):
        self.filter(0, 'input', 'udp dport 31851 reject')
        with self.server():
            code, path = self.way()
            self.assertEqual((code, texts(path['findings'], 'stop')), (
                1, ['A firewall rejects what is sent to the data port of the server on 10.66.0.1, UDP port 31851.']))

    def test_output_filter_of_this_host_is_found(self):
        self.filter(1, 'output', 'oifname "lo" accept', 'udp dport 31850 accept', 'meta l4proto udp drop')
        with self.server():
            code, path = self.way()
        self.assertEqual(code, 1)
        self.assertIn('A firewall of this host blocks packets to the server\'s data port.',
                      texts(path['findings'], 'stop'))

    def test_filter_that_passes_only_answers_is_found(self):
        self.filter(1, 'input', 'ct state established,related accept', 'icmp type echo-reply accept', policy='drop')
        with self.server():
            code, path = self.way()
        self.assertEqual(code, 0, path)
        self.assertTrue(any('only at the port that the requests came from' in text
                            for text in texts(path['findings'], 'hint')), path)

    def test_packet_loss_is_found(self):
        """Every second echo, and every tenth datagram to the server's data port."""
        self.filter(0, 'input', 'icmp type echo-request numgen inc mod 2 < 1 drop',
                    'udp dport 31851 numgen inc mod 10 < 1 drop')
        with self.server():
            code, path = self.way('--seconds=1')
        self.assertEqual((code, path['echo']['lost']), (0, 10), path)
        found = texts(path['findings'], 'hint')
        self.assertEqual(found[0], '10 of 20 ICMP echoes to 10.66.0.1 were lost.')
        self.assertRegex(found[1], r'^\d+ of \d+ requests to 10\.66\.0\.1 were sent again\.$')

    def test_ipv6(self):
        with self.server('[::1]'):
            done = doctor('--to=::1', '--transport=udp', inside=self.namespaces.inside(0))
        self.assertEqual((done[0], done[1]['path']['findings']), (0, []))
        self.assertEqual(done[1]['path']['echo']['lost'], 0)

    def test_the_way_has_a_small_mtu(self):
        """The far end of the cable takes packets of 1000 bytes, as a switch could, and no ICMP tells of it."""
        self.at(0, 'ip', 'link', 'set', 'cable', 'mtu', '996')  # veth lets four bytes more pass, as for a VLAN tag
        with self.server():
            code, path = self.way()
        self.assertEqual((code, path['echo']['mtu']), (1, 1000))
        self.assertEqual(texts(path['findings'], 'stop'), [
            'Short packets reach 10.66.0.1, and packets of 1232 bytes do not: the smallest MTU on the path is 1000.'])
        self.assertIn('--transport_options=datagram_bytes=972', path['findings'][-1]['command'])

    def test_the_interface_has_a_small_mtu(self):
        self.at(1, 'ip', 'link', 'set', 'cable', 'mtu', '1000')
        _, found = self.doctor_at(1, '--no-trials', '--transport=udp')
        finding = next(one for one in transport(found, 'udp')['findings'] if 'MTU' in one['text'])
        self.assertEqual(finding['text'], 'The MTU of cable is 1000, and tern\'s datagrams take 1260 by default.')
        self.at(1, 'sh', '-c', finding['command'])
        _, found = self.doctor_at(1, '--no-trials', '--transport=udp')
        self.assertEqual(transport(found, 'udp')['findings'], [])

    def test_no_interface(self):
        self.at(1, 'ip', 'link', 'del', 'cable')
        code, found = self.doctor_at(1, '--transport=udp')
        self.assertEqual(code, 0)  # over lo
        self.assertEqual(texts(transport(found, 'udp')['findings']), [
            'No network interface but lo is up with an address, so that no other host can be reached.'])
        self.at(1, 'ip', 'link', 'set', 'lo', 'down')
        self.at(1, 'ip', 'address', 'flush', 'dev', 'lo')
        code, found = self.doctor_at(1, '--transport=udp')
        self.assertEqual((code, transport(found, 'udp')['verdict']), (1, 'does not run'))
        finding = transport(found, 'udp')['findings'][0]
        self.assertEqual((finding['text'], finding['command']),
                         ('No network interface is up with an address, not even lo.', 'ip link set lo up'))
        self.at(1, 'sh', '-c', finding['command'])
        self.assertEqual(self.doctor_at(1, '--transport=udp')[0], 0)

    def test_a_cable_of_its_own(self):
        """The trial of transports whose frames to this host do not come back; here over udp."""
        sys.path.insert(0, SCRIPTS)
        sys.dont_write_bytecode = True
        from tern_doctor import proof  # noqa: E402
        result = proof.prove_on_cable(os.path.join(build_dir, 'microbench', 'latency'), 'udp', 0.2, '')
        self.assertTrue(result['is_proven'], result)
        self.assertGreater(result['p50_us'], 0)
        left = [name for name in os.listdir('/run/netns') if re.fullmatch(rf'{proof.NAMESPACES}{os.getpid()}-.*', name)]
        self.assertEqual(left, [])
        result = proof.prove_on_cable(os.path.join(build_dir, 'microbench', 'latency'), 'udp', 0.2, 'no_such=1')
        self.assertEqual((result['is_proven'], 'no_such' in result['why']), (False, True))


def run_case(name):
    """(name, what went wrong, why it was skipped). In a process of its own, whose pid is in the namespaces' names."""
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromName(name, sys.modules[__name__]).run(result)
    return name, [text for _, text in result.errors + result.failures], [reason for _, reason in result.skipped]


def main(names):
    """Four cases at a time, because they wait for timeouts most of the time."""
    names = names or [f'{suite.__name__}.{case}' for suite in (Between, Here)
                      for case in unittest.defaultTestLoader.getTestCaseNames(suite)]
    code = 0
    with multiprocessing.get_context('fork').Pool(4, maxtasksperchild=1) as pool:
        for name, problems, reasons in pool.imap(run_case, names, chunksize=1):
            word = 'FAILED' if problems else 'SKIPPED' if reasons else 'ok'
            print('\n'.join([f'{word} {name}', *reasons, *problems]))
            code = 1 if problems else code or (77 if reasons else 0)
    return code


if __name__ == '__main__':
    build_dir = os.path.abspath(sys.argv[1])
    sys.exit(main(sys.argv[2:]))
