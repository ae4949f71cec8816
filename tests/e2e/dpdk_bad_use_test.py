#!/usr/bin/env python3
"""Bad use of the transport dpdk through a program: one sentence on standard error that says what to do, and nothing on
standard output, where EAL and drivers print. Good use says nothing but its result.
Usage: on_cable --hosts dpdk_bad_use_test.py BUILD_DIR
"""
import concurrent.futures
import json
import os
import subprocess
import sys
import tempfile
import unittest

sys.dont_write_bytecode = True
import refusals  # noqa: E402

AT_TERN0 = 'device=net_af_packet0;iface=tern0'
NO_HUGE = 'eal=--no-huge -m 128 --no-shconf --no-pci --no-telemetry'

build_dir = None


def run(options, **more):
    return refusals.run([os.path.join(build_dir, 'microbench', 'latency'), '--wait=adaptive', '--transport=dpdk',
                         f'--transport_options={options}'], **more)


class DpdkBadUse(refusals.RefusalTest):
    def assert_all_refused(self, cases):
        """Of options, and words that the sentence has."""
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            for (options, words), done in zip(cases, pool.map(run, (options for options, _ in cases))):
                with self.subTest(options=options):
                    self.assert_refused(done, words)

    def test_eal(self):
        self.assert_all_refused([
            ('eal=--in-memory --no-pci -m 1000000,' + AT_TERN0, ['hugepages', 'nr_hugepages', '--no-huge']),
            ('eal=--no-such-argument,' + AT_TERN0, ['--no-such-argument', 'Dpdk::Options::eal']),
            ('eal=--no-huge --in-memory,' + AT_TERN0, ['--no-huge --in-memory', 'Dpdk::Options::eal']),
            ('eal=--help,' + AT_TERN0, ['--help', 'leave it out'])])

    def test_devices(self):
        self.assert_all_refused([
            ('', ['device']),
            ('device=net_nothing0', ['net_nothing0']),
            ('device=0000:ff:1f.7', ['0000:ff:1f.7']),
            ('device=eth;0', ['eth']),
            ('device=tern0', ['tern0', 'interface of the kernel', 'net_af_packet0;iface=tern0']),
            ('device=net_af_packet0;iface=tern7', ['net_af_packet0', 'Dpdk::Options::device']),
            ('device=net_af_packet0', ['net_af_packet0']),
            ('device=net_vhost0;iface=/nowhere/socket,address=10.9.0.1/24', ['net_vhost0'])])

    def test_addresses(self):
        self.assert_all_refused([
            ('device=net_null0', ['net_null0', 'Dpdk::Options::address']),
            ('device=net_null0,address=10.9.0.1', ['address', '10.9.0.1 ', '10.0.0.1/24']),
            ('device=net_null0,address=10.9.0.1/33', ['address', '10.9.0.1/33']),
            ('device=net_null0,address=10.9.0.1/24,gateway=10.8.0.1', ['gateway', '10.8.0.1', '10.9.0.1/24']),
            ('device=net_null0,address=10.9.0.1/24,gateway=fd00::1', ['gateway', 'fd00::1']),
            ('device=net_null0,address=10.9.0.1/24,bind=10.9.0.2', ['10.9.0.2', '10.9.0.1']),
            (AT_TERN0 + ',bind=192.0.2.1', ['192.0.2.1', 'tern0']),
            (AT_TERN0 + ',bind=nonsense', ['Dpdk::Options::bind'])])

    def test_packets_that_are_too_large(self):
        self.assert_all_refused([
            (AT_TERN0 + ',datagram_bytes=8000', ['1500', '8000']),
            (AT_TERN0 + ',mtu=9000', ['9000'])])

    def test_interface_without_link_or_address(self):
        def ip(*words):
            subprocess.run(['ip', *words], check=True)
        ip('link', 'add', 'bare0', 'type', 'veth', 'peer', 'name', 'bare1')
        try:
            self.assert_all_refused([('device=net_af_packet0;iface=bare0', ['bare0', 'down'])])
            for interface in ('bare0', 'bare1'):
                ip('link', 'set', interface, 'addrgenmode', 'none', 'up')
            self.assert_all_refused([('device=net_af_packet0;iface=bare0', ['bare0', 'address'])])
        finally:
            ip('link', 'del', 'bare0')

    def test_nobody(self):
        """A user without the right to raw packets."""
        try:
            done = run(f'{AT_TERN0},{NO_HUGE}', preexec_fn=refusals.become_nobody)
        except PermissionError:
            self.skipTest('nobody may not run what was built here')
        self.assert_refused(done, ['net_af_packet0'])

    def test_good_use_prints_its_result_only(self):
        at_tern0_by_xdp = 'device=net_af_xdp0;iface=tern0'  # whose library prints when the device is opened and closed
        for options in (AT_TERN0, f'{AT_TERN0},{NO_HUGE}', at_tern0_by_xdp, 'device=net_null0,address=10.9.0.1/24'):
            with self.subTest(options=options):
                # libxdp 1.3 loses 80 bytes of each interface that it has opened, which AddressSanitizer tells.
                with tempfile.NamedTemporaryFile('w', suffix='.lsan') as known:
                    known.write('leak:xsk_umem__create\n')
                    known.flush()
                    lsan = f'suppressions={known.name}:print_suppressions=0'
                    done = run(options, env=dict(os.environ, LSAN_OPTIONS=lsan))
                self.assertEqual((done.returncode, done.stderr), (0, ''))
                self.assertEqual(json.loads(done.stdout)['transport'], 'dpdk')


if __name__ == '__main__':
    build_dir = os.path.abspath(sys.argv.pop(1))
    unittest.main()
