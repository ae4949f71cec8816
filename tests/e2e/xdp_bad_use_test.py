#!/usr/bin/env python3
"""Bad use of the transport xdp through a program: one sentence on standard error that says what to do, and nothing on
standard output, where libbpf and libxdp must not print. Good use says nothing but its result.
Usage: on_cable xdp_bad_use_test.py BUILD_DIR
"""
import contextlib
import ctypes
import json
import os
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import unittest

sys.dont_write_bytecode = True
import refusals  # noqa: E402

XDP_PROGRAM = 6             # BPF_PROG_TYPE_XDP
PASS_ALL = b'\xb7\x00\x00\x00\x02\x00\x00\x00' b'\x95\x00\x00\x00\x00\x00\x00\x00'  # r0 = XDP_PASS; exit
SKB_MODE, DRV_MODE = 2, 4   # XDP_FLAGS_*_MODE
PR_SET_PDEATHSIG = 1

build_dir = None


def words_of(options):
    return [os.path.join(build_dir, 'microbench', 'latency'), '--wait=adaptive', '--transport=xdp',
            f'--transport_options={options}']


def run(options, **more):
    return refusals.run(words_of(options), **more)


def ip(*words):
    subprocess.run(['ip', *words], check=True)


def die_with_parent():
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@contextlib.contextmanager
def pair_with_mtu(mtu):
    """Interfaces xdp0, 10.9.0.1, and xdp1."""
    ip('link', 'add', 'xdp0', 'mtu', str(mtu), 'type', 'veth', 'peer', 'name', 'xdp1', 'mtu', str(mtu))
    try:
        ip('address', 'add', '10.9.0.1/24', 'dev', 'xdp0')
        for interface in ('xdp0', 'xdp1'):
            ip('link', 'set', interface, 'up')
        yield
    finally:
        ip('link', 'del', 'xdp0')


@contextlib.contextmanager
def strangers_program(interface, mode):
    """Somebody's program that passes all frames, attached by netlink."""
    libbpf = ctypes.CDLL('libbpf.so.1', use_errno=True)
    program = libbpf.bpf_prog_load(XDP_PROGRAM, b'somebodys', b'GPL', PASS_ALL, ctypes.c_size_t(len(PASS_ALL) // 8), None)
    index = socket.if_nametoindex(interface)
    if program < 0 or libbpf.bpf_xdp_attach(index, program, mode, None) != 0:
        raise OSError(ctypes.get_errno(), 'the program cannot be attached')
    try:
        yield
    finally:
        libbpf.bpf_xdp_detach(index, mode, None)
        os.close(program)


class XdpBadUse(refusals.RefusalTest):
    def test_options(self):
        for options, words in (
                ('interface=tern7', ['tern7', 'ip link']),
                ('interface=tern0,bind=192.0.2.1', ['192.0.2.1', 'tern0']),
                ('interface=lo', ['lo', 'Ethernet']),
                ('interface=tern0,mode=fast', ['mode', 'generic']),
                ('interface=tern0,bind=nonsense', ['bind'])):
            with self.subTest(options=options):
                self.assert_refused(run(options), words)

    def test_no_permission(self):
        try:
            done = run('interface=tern0', preexec_fn=refusals.become_nobody)
        except PermissionError:
            self.skipTest('nobody may not run what was built here')
        self.assert_refused(done, ['no permission', 'CAP_NET_ADMIN'])

    def test_permission_to_load_but_not_to_open_sockets(self):
        done = run('interface=tern0', before=['setpriv', '--bounding-set=-net_raw', '--inh-caps=-net_raw'])
        self.assert_refused(done, ['CAP_NET_RAW'])

    def test_program_of_somebody_else(self):
        for mode in (SKB_MODE, DRV_MODE):
            with self.subTest(mode=mode), strangers_program('tern0', mode):
                done = run('interface=tern0')
                self.assert_refused(done, ['tern0', 'somebodys'])
                command = re.search(r'ip link set dev tern0 \w+ off', done.stderr)
                self.assertTrue(command, done.stderr)
                subprocess.run(command[0].split(), check=True)
                done = run('interface=tern0')
                self.assertEqual((done.returncode, done.stderr), (0, ''))

    def test_mtu_above_native_mode(self):
        with pair_with_mtu(9000):
            self.assert_refused(run('interface=xdp0,mode=native'), ['xdp0', '9000', 'MTU', 'mode=generic'])

    def test_driver_without_native_mode_or_zero_copy(self):
        ip('link', 'add', 'bridge0', 'type', 'bridge')
        try:
            ip('address', 'add', '10.9.1.1/24', 'dev', 'bridge0')
            ip('link', 'set', 'bridge0', 'up')
            self.assert_refused(run('interface=bridge0,mode=native'), ['bridge0', 'mode=generic'])
        finally:
            ip('link', 'del', 'bridge0')
        self.assert_refused(run('interface=tern0,mode=zero_copy'), ['tern0', 'zero'])

    def test_too_little_locked_memory(self):
        def limit():
            resource.setrlimit(resource.RLIMIT_MEMLOCK, (65536, 65536))
        done = run('interface=tern0', before=['setpriv', '--bounding-set=-ipc_lock', '--inh-caps=-ipc_lock'],
                   preexec_fn=limit)
        self.assert_refused(done, ['tern0', 'locks', 'memory', 'ulimit -l'])

    def test_no_free_queue(self):
        """tern0 has one queue."""
        words = [*words_of('interface=tern0'), '--role=server', '--seconds=1000', '--json',
                 '--listen=tern://10.77.0.1:0']
        server = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  preexec_fn=die_with_parent)
        try:
            self.assertTrue(select.select([server.stdout], [], [], refusals.SECONDS_MAX)[0], 'the server says nothing')
            self.assertTrue(server.stdout.readline())
            self.assert_refused(run('interface=tern0'), ['queue', 'tern0', 'ethtool -L'])
        finally:
            server.kill()
            server.wait()
            server.stdout.close()

    def test_good_use_prints_its_result_only(self):
        for options in ('interface=tern0', 'interface=tern0,mode=native', 'interface=tern0,mode=generic'):
            with self.subTest(options=options):
                done = run(options)
                self.assertEqual((done.returncode, done.stderr), (0, ''))
                self.assertEqual(json.loads(done.stdout)['transport'], 'xdp')


if __name__ == '__main__':
    build_dir = os.path.abspath(sys.argv.pop(1))
    unittest.main()
