#!/usr/bin/env python3
"""Tests of scripts/doctor without a machine: what it reads from a folder that looks like /proc and /sys, what its rules
say of facts. doctor_firewall_test.py has the rules of firewalls, tests/e2e/doctor_test.py the real network.
"""
import copy
import gzip
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..')
SCRIPTS = os.path.join(ROOT, 'scripts')
sys.path.insert(0, SCRIPTS)
sys.dont_write_bytecode = True
from tern_doctor import firewall, machine, machine_rules, network, path, path_rules  # noqa: E402
from tern_doctor import proof, rules, transport_rules, transports  # noqa: E402
from tern_doctor.look import Look, list_of  # noqa: E402

# A machine with two NUMA nodes, an Ethernet NIC at node 1, an mlx5 NIC and an isolated CPU.
MACHINE = {
    'proc/sys/kernel/osrelease': '6.1.0-18-amd64',
    'boot/config-6.1.0-18-amd64': 'CONFIG_XDP_SOCKETS=y\nCONFIG_BPF_SYSCALL=y\n# CONFIG_MLX5_INFINIBAND is not '
                                  'set\nCONFIG_VFIO_PCI=m\n',
    'proc/self/status': 'Uid:\t1000\t1000\t1000\t1000\nCapEff:\t0000000000003000\nCpus_allowed_list:\t0-3\n',
    'proc/self/limits': 'Limit Soft Limit Hard Limit Units\nMax locked memory         65536                65536    '
                        '            bytes\n'
                        'Max open files            1024                 524288               files\n',
    'proc/cpuinfo': 'processor\t: 0\nflags\t\t: fpu vme hypervisor\n',
    'proc/stat': 'cpu  100 0 50 800 10 0 5 35 0 0\ncpu0 1 2 3\n',
    'proc/net/dev': 'Inter-|   Receive\n face |bytes\n    lo: 1 2\nens3: 3 4\n',
    'proc/net/if_inet6': 'fe80000000000000504400fffe000001 02 40 20 80 ens3\n',
    'proc/sys/net/core/rmem_max': '212992', 'proc/sys/net/core/wmem_max': '8388608',
    'proc/irq/40/effective_affinity_list': '2',
    'sys/devices/system/cpu/online': '0-3', 'sys/devices/system/cpu/isolated': '2-3',
    'sys/devices/system/cpu/cpu0/cpufreq/scaling_governor': 'powersave',
    'sys/devices/system/node/node0/cpulist': '0-1', 'sys/devices/system/node/node1/cpulist': '2-3',
    'sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages': '16',
    'sys/devices/system/node/node0/hugepages/hugepages-2048kB/free_hugepages': '0',
    'sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages': '0',
    'sys/devices/system/node/node1/hugepages/hugepages-2048kB/free_hugepages': '0',
    'sys/class/net/lo/flags': '0x9', 'sys/class/net/lo/mtu': '65536',
    'sys/class/net/ens3/flags': '0x1003', 'sys/class/net/ens3/mtu': '9000', 'sys/class/net/ens3/carrier': '1',
    'sys/class/net/ens3/queues/rx-0/x': '', 'sys/class/net/ens3/queues/rx-1/x': '',
    'sys/class/net/ens3/queues/tx-0/x': '',
    'sys/class/net/ens3/device/numa_node': '1', 'sys/class/net/ens3/device/driver': '-> ice',
    'sys/class/net/ens3/device/msi_irqs/40': '',
    'sys/bus/pci/devices/0000:03:00.0/class': '0x020000', 'sys/bus/pci/devices/0000:03:00.0/driver': '-> ice',
    'sys/bus/pci/devices/0000:03:00.0/net/ens3/x': '', 'sys/bus/pci/devices/0000:03:00.0/numa_node': '1',
    'sys/bus/pci/devices/0000:04:00.0/class': '0x030000',
    'sys/class/infiniband/mlx5_0/ports/1/state': '1: DOWN',
    'sys/class/infiniband/mlx5_0/ports/1/link_layer': 'InfiniBand',
    'sys/class/infiniband/mlx5_0/device/driver': '-> mlx5_core', 'sys/class/infiniband/mlx5_0/device/net/ens4/x': '',
    'dev/infiniband/uverbs0': '',
    'var/lib/dpkg/status': 'Package: libibverbs-dev\nStatus: install ok installed\n\nPackage: libmnl-dev\n'
                           'Status: deinstall ok config-files\n',
    'usr/lib/x86_64-linux-gnu/dpdk/pmds-23.0/librte_net_memif.so.23': '',
}


def make(folder, files):
    for name, content in files.items():
        place = os.path.join(folder, name)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if isinstance(content, str) and content.startswith('-> '):
            os.symlink('/drivers/' + content[3:], place)
        else:
            with open(place, 'wb') as file:
                file.write(content if isinstance(content, bytes) else content.encode())


def facts_of(files):
    """What is looked at under a folder with these files, and what was not seen."""
    with tempfile.TemporaryDirectory() as folder:
        make(folder, files)
        look = Look(folder)
        facts = {**machine.facts_of(look, transports.DEBIAN_PACKAGES), **network.facts_of(look),
                 'firewall': firewall.facts_of(look),
                 'ports': [31850], 'build': {'program': None, 'problem': '', 'built': None, 'needs': {}, 'refused': {}}}
        return facts, look.unseen


def texts(facts, about, level=None):
    return [one.text for one in rules.judge(facts) if one.about == about and level in (None, one.level)]


def is_running(pid):
    """False also for a process that has ended, and that nobody has reaped."""
    try:
        with open(f'/proc/{pid}/stat', encoding='utf-8') as file:
            return file.read().rpartition(')')[2].split()[0] != 'Z'
    except FileNotFoundError:
        return False


class Looking(unittest.TestCase):
    def test_facts_of_a_machine_are_read(self):
        facts, unseen = facts_of(MACHINE)
        self.assertEqual(facts['kernel']['version'], [6, 1])
        self.assertEqual({name: facts['kernel']['options'][name]
                          for name in ('CONFIG_XDP_SOCKETS', 'CONFIG_VFIO_PCI', 'CONFIG_MLX5_INFINIBAND')},
                         {'CONFIG_XDP_SOCKETS': 'y', 'CONFIG_VFIO_PCI': 'm', 'CONFIG_MLX5_INFINIBAND': 'n'})
        self.assertEqual(facts['user'], {'uid': 1000, 'capabilities': ['CAP_NET_ADMIN', 'CAP_NET_RAW'],
                                         'memlock_bytes': 65536,
                                         'files_max': 1024})
        self.assertEqual(facts['hugepages'], {'0': {'2048': [16, 0]}, '1': {'2048': [0, 0]}})
        self.assertEqual((facts['cpus']['isolated'], facts['cpus']['nodes']),
                         ([2, 3], {'0': 0, '1': 0, '2': 1, '3': 1}))
        ens3 = facts['interfaces'][0]
        self.assertEqual((ens3['name'], ens3['mtu'], ens3['receive_queues'], ens3['driver'], ens3['numa_node'],
                          ens3['interrupt_cpus'], ens3['addresses']),
                         ('ens3', 9000, 2, 'ice', 1, [2], ['fe80::5044:ff:fe00:1']))
        self.assertEqual(facts['pci'], [{'address': '0000:03:00.0', 'driver': 'ice', 'interfaces': ['ens3'],
                                         'numa_node': 1}])
        self.assertEqual(facts['socket_buffers'], {'receive_bytes': 212992, 'send_bytes': 4194304})
        self.assertEqual(facts['packages']['libibverbs-dev'], True)
        self.assertEqual(facts['packages']['libmnl-dev'], False)
        self.assertEqual(facts['dpdk_drivers'], ['memif'])
        self.assertEqual(unseen, [])

    def test_an_empty_machine_raises_nothing_and_is_said_to_be_unseen(self):
        facts, unseen = facts_of({})
        rules.judge(facts)
        self.assertEqual(unseen, ['the kernel\'s options: there is neither /proc/config.gz nor /boot/config-*'])
        self.assertIsNone(facts['packages'])

    def test_kernel_options_come_from_proc_or_boot(self):
        facts, _ = facts_of({**MACHINE, 'proc/config.gz': gzip.compress(b'CONFIG_XDP_SOCKETS=n\n')})
        self.assertEqual((facts['kernel']['options_from'], facts['kernel']['options']['CONFIG_XDP_SOCKETS']),
                         ('/proc/config.gz', 'n'))
        facts, _ = facts_of({**MACHINE, 'proc/config.gz': b'no gzip'})
        self.assertEqual(facts['kernel']['options_from'], '/boot/config-6.1.0-18-amd64')

    def test_lists_of_numbers_are_read(self):
        self.assertEqual(list_of('0,2-4\n'), [0, 2, 3, 4])
        self.assertEqual((list_of(''), list_of(None), list_of('x')), ([], [], []))

    def test_stolen_time_is_read(self):
        with tempfile.TemporaryDirectory() as folder:
            make(folder, MACHINE)
            self.assertEqual(machine.cpu_ticks(Look(folder)), (1000, 35))

    def test_the_whole_script_over_a_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            make(folder, MACHINE)
            done = subprocess.run([os.path.join(SCRIPTS, 'doctor'), f'--root={folder}', '--json'], capture_output=True,
                                  text=True, check=False)
        found = json.loads(done.stdout)
        self.assertEqual((done.returncode, done.stderr, found['runs']), (0, '', True))
        self.assertEqual([one['name'] for one in found['transports']], ['shm', 'udp', 'xdp', 'dpdk', 'verbs', 'mlx5'])
        self.assertEqual(found['transports'][5]['verdict'], 'does not run')


class Rules(unittest.TestCase):
    def setUp(self):
        self.facts, _ = facts_of(MACHINE)

    def test_every_finding_is_a_sentence_and_a_command(self):
        bad = copy.deepcopy(self.facts)
        bad.update(sealed_memory='memfd_create: refused', rdma=[], interfaces=[], dpdk_drivers=[], pci=[],
                   placements_ns=[60, 480],
                   steal_share=0.2, socket_buffers={'receive_bytes': 1 << 16, 'send_bytes': 1 << 16})
        bad['user'].update(files_max=10, capabilities=[])
        bad['build'].update(problem='it has no face', program='p', built=['shm'],
                            needs={'verbs': 'libibverbs (Debian: libibverbs-dev)'})
        empty, _ = facts_of({})
        commands = []
        for facts in (self.facts, bad, empty):
            for one in rules.judge(facts):
                commands.append(one.command)
                with self.subTest(finding=one):
                    self.assertRegex(one.text, r'\A[A-Za-z].*[^.]\.\Z')
                    self.assertNotIn('\n', one.text + one.command)
                    self.assertTrue(shlex.split(one.command, comments=True))
        self.assertGreater(len(commands), 30)
        done = subprocess.run(['bash', '-n'], input='\n'.join(commands), text=True, check=False)
        self.assertEqual(done.returncode, 0)

    def test_faults_of_the_machine_are_found(self):
        self.assertEqual(texts(self.facts, 'machine'), [
            'All 16 hugepages of 2 MB at NUMA node 0 are in use.',
            'No hugepage of 2 MB is reserved at NUMA node 1, so message memory is in ordinary pages there.',
            'The frequency of 1 CPUs follows the load (governor powersave).',
            'Interrupts of ens3 go to the isolated CPU 2.',
            'ens3 is at NUMA node 1, and this process may use CPUs of other nodes, too.'])

    def test_machine_is_described_in_words(self):
        self.assertEqual(machine_rules.describe(self.facts), (
            'Linux 6.1.0-18-amd64; 4 of 4 CPUs, virtual, 2 isolated, governor powersave; hugepages of 2 MB: node 0: '
            '0 of 16 free, node 1: 0 of 0 free; locked memory: 64 kB; user: 1000'))
        self.assertEqual(transport_rules.describe(self.facts['interfaces'][0]),
                         'ens3 (ice, MTU 9000, 2 receive queues, NUMA node 1, interrupts on CPU 2)')
        machine_rules.describe(facts_of({})[0])

    def test_missing_hugepages_are_found(self):
        facts, _ = facts_of({'sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages': '0',
                             'sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages': '0'})
        finding = next(one for one in rules.judge(facts) if one.about == 'machine')
        self.assertEqual((finding.text, finding.command), (
            'No hugepage of 2 MB is reserved, so message memory is in ordinary pages there.',
            'sysctl -w vm.nr_hugepages=512'))
        self.assertIn('No hugepage is free, so DPDK runs in ordinary pages, which NICs without an IOMMU cannot use.',
                      texts(facts, 'dpdk'))

    def test_small_socket_buffers_are_found(self):
        finding = next(one for one in rules.judge(self.facts) if one.about == 'udp')
        self.assertEqual((finding.text, finding.command), (
            'The kernel gives a UDP socket 208 kB for receiving, and tern asks for 4 MB.',
            'sysctl -w net.core.rmem_max=4194304'))

    def test_faults_of_rdma_devices_are_found(self):
        self.assertEqual(texts(self.facts, 'verbs', rules.STOP), [
            'No port of an RDMA device is active (mlx5_0: DOWN).',
            'This user may lock 64 kB of memory, and an endpoint over verbs takes up to 64 MB.'])
        self.assertEqual(texts(self.facts, 'mlx5', rules.STOP), [
            'The port of mlx5_0 is in InfiniBand mode, and mlx5 sends Ethernet frames.',
            'This user may lock 64 kB of memory, and an endpoint over mlx5 takes up to 16 MB.'])
        self.facts['rdma'][0]['ports']['1'] = {'state': 'ACTIVE', 'link_layer': 'Ethernet'}
        self.facts['user'].update(memlock_bytes=None)
        self.assertEqual((texts(self.facts, 'verbs', rules.STOP), texts(self.facts, 'mlx5', rules.STOP)), ([], []))
        self.facts['uverbs'] = {'uverbs0': False}
        self.assertEqual(texts(self.facts, 'verbs', rules.STOP), ['This user may not open /dev/infiniband/uverbs0.'])
        self.facts.update(rdma=[])
        self.facts['kernel']['options']['CONFIG_INFINIBAND'] = 'm'
        self.assertIn('This machine has no RDMA device.', texts(self.facts, 'verbs', rules.STOP))

    def test_locked_memory_is_no_matter_with_the_capability(self):
        self.facts['user']['capabilities'].append('CAP_IPC_LOCK')
        self.assertFalse([text for name in ('verbs', 'mlx5', 'xdp') for text in texts(self.facts, name)
                          if 'lock' in text])

    def test_obstacles_to_xdp_are_found(self):
        self.assertEqual(texts(self.facts, 'xdp', rules.STOP), [
            'This user may not attach XDP programs and open AF_XDP sockets (CAP_BPF).',
            'This user may lock 64 kB of memory, and an endpoint over xdp takes up to 9 MB.'])
        self.assertIn('The MTU of ens3 is 9000, and XDP in the driver takes 3498 at most.', texts(self.facts, 'xdp'))
        for mode, kind in (('1', 'xdp'), ('2', 'xdpgeneric')):
            self.facts['interfaces'][0]['xdp'] = mode
            found = [one for one in rules.judge(self.facts) if 'An XDP program is on ens3' in one.text]
            self.assertIn(f'ip link set dev ens3 {kind} off removes', found[0].command)
        self.facts['build']['capabilities'] = ['CAP_BPF', 'CAP_IPC_LOCK']  # by setcap
        self.assertEqual(texts(self.facts, 'xdp', rules.STOP), [])
        self.facts['kernel']['options']['CONFIG_XDP_SOCKETS'] = 'n'
        self.assertEqual(texts(self.facts, 'xdp', rules.STOP), [
            'The kernel has no AF_XDP (CONFIG_XDP_SOCKETS is not set in /boot/config-6.1.0-18-amd64).'])

    def test_obstacles_to_dpdk_are_found(self):
        self.assertIn('The kernel has the NIC 0000:03:00.0 (ens3, ice), so DPDK has its software devices only.',
                      texts(self.facts, 'dpdk'))
        self.assertIn('The IOMMU is off, and vfio-pci needs it.', texts(self.facts, 'dpdk'))
        self.assertEqual(transport_rules.devices(self.facts, 'dpdk'), ['software devices (memif)'])
        self.facts['pci'][0].update(driver='vfio-pci', interfaces=[])
        self.assertEqual(transport_rules.devices(self.facts, 'dpdk'),
                         ['0000:03:00.0 (vfio-pci)', 'software devices (memif)'])
        self.facts.update(dpdk_drivers=[])
        self.assertEqual(texts(self.facts, 'dpdk', rules.STOP), ['No driver of DPDK is installed.'])

    def test_moving_virtual_cpus_are_found(self):
        self.facts['placements_ns'] = [101, 480, 110]
        self.facts['steal_share'] = 0.031
        self.assertIn('A cache line took 101 to 480 ns between two CPUs and back: the hypervisor, or other load, '
                      'moves them.',
                      texts(self.facts, 'machine'))
        self.assertIn('The hypervisor gave 3% of the CPUs\' time to others while this ran.',
                      texts(self.facts, 'machine'))
        self.facts.update(placements_ns=[101, 140], steal_share=0.001)
        self.assertFalse([text for text in texts(self.facts, 'machine') if 'hypervisor' in text])

    def test_missing_builds_are_found(self):
        self.facts['build'].update(program='p', built=['shm', 'udp'], needs={
            'verbs': 'libibverbs (Debian: libibverbs-dev)',
            'mlx5': 'libmlx5 and libibverbs and libmnl (Debian: libibverbs-dev libmnl-dev)',
            'dpdk': 'the CMake option TERN_DPDK=AUTO'})
        found = {one.about: one for one in rules.judge(self.facts) if 'not built' in one.text}
        self.assertEqual(found['mlx5'].text, 'mlx5 is not built: the Debian package libmnl-dev is missing.')
        self.assertEqual(found['mlx5'].command,
                         'apt-get install libmnl-dev && cmake --preset release -DTERN_MLX5=ON && '
                                                'cmake --build --preset release')
        self.assertEqual(found['dpdk'].text, 'dpdk is not built: TERN_DPDK is OFF.')
        self.assertEqual(found['verbs'].text,
                         'verbs is not built: CMake has not found libibverbs (Debian: libibverbs-dev).')
        self.assertIn('xdp is unknown to this version of tern.', texts(self.facts, 'xdp', rules.STOP))

    def test_packages_of_other_systems_than_debian_are_unknown(self):
        facts, _ = facts_of({name: content for name, content in MACHINE.items() if 'dpkg' not in name})
        self.assertIsNone(facts['packages'])
        names = 'libibverbs-dev libmnl-dev'
        self.assertIn(('mlx5 is built with packages that Debian calls libibverbs-dev and libmnl-dev.',
                       f'PACKAGE_MANAGER install {names}  # by their names in Debian'),
                      [(one.text, one.command) for one in rules.judge(facts)])
        facts['build'].update(program='p', built=['shm', 'udp'], needs={
            'mlx5': 'libmlx5 and libmnl (Debian: libibverbs-dev libmnl-dev)'})
        found = next(one for one in rules.judge(facts) if one.about == 'mlx5' and 'not built' in one.text)
        self.assertEqual((found.text, found.command), (
            'mlx5 is not built: CMake has not found libmlx5 and libmnl (Debian: libibverbs-dev libmnl-dev).',
            f'PACKAGE_MANAGER install {names} && cmake --preset release -DTERN_MLX5=ON && '
            'cmake --build --preset release  # by their names in Debian'))
        facts['build'].update(program=None, built=['shm', 'udp'], needs={})  # libraries without programs
        self.assertIn('mlx5 is not built: TERN_MLX5 was OFF, or its packages were missing, when tern was built.',
                      texts(facts, 'mlx5', rules.STOP))

    def test_terns_own_result_overrides_the_rules(self):
        self.facts['build'].update(program='p', built=['mlx5', 'verbs'])
        self.assertEqual(texts(self.facts, 'mlx5', rules.STOP), [])  # it has opened an endpoint
        self.facts['build'].update(built=['mlx5', 'verbs', 'udp'],
                                   refused={'udp': 'no descriptors are left: ulimit -n 9'})
        self.assertIn(rules.Finding('udp', rules.STOP, 'tern says: no descriptors are left.', 'ulimit -n 9'),
                      rules.judge(self.facts))

    def test_paths_of_programs_in_commands_are_quoted(self):
        self.facts['build'].update(program='/my build/latency', built=['udp'], refused={'udp': 'no descriptors are left'})
        self.assertIn("'/my build/latency' --list_transports", [one.command for one in rules.judge(self.facts)])
        self.facts['build'].update(problem='it ended with 3', built=None, refused={})
        self.assertIn(rules.Finding('machine', rules.HINT, '/my build/latency does not start (it ended with 3).',
                                    "'/my build/latency' --list_transports"), rules.judge(self.facts))

    def test_the_table_of_transports_is_that_of_the_tree(self):
        for transport in transports.TRANSPORTS:
            lists = os.path.join(ROOT, 'src', 'transport', transport.name, 'CMakeLists.txt')
            if not os.path.exists(lists):
                continue
            with open(lists, encoding='utf-8') as file:
                text = file.read()
            debian = re.search(r'^ *DEBIAN ([^)\n]*)', text, re.M)
            self.assertEqual(set(transport.debian), set(debian.group(1).split()) if debian else set(), transport.name)
            self.assertEqual(transport.option, f'TERN_{transport.name.upper()}' if 'OPTIONAL' in text else None,
                             transport.name)

    def test_numbers_are_those_of_the_sources(self):
        def number(file, pattern):
            with open(os.path.join(ROOT, file), encoding='utf-8') as source:
                return re.search(pattern, source.read()).group(1)
        header = 'src/transport/udp/include/tern/transport/udp.h'
        self.assertEqual(number(header, r'socket_buffer_bytes = ([^;]+);'), '4u << 20')
        self.assertEqual(network.SOCKET_BUFFER_BYTES, 4 << 20)
        self.assertEqual(int(number(header, r'datagram_bytes = (\d+);')) + 28, transport_rules.UDP_FRAME_BYTES)


DROP_ALL = [{'chain': {'family': 'inet', 'table': 'filter', 'name': 'input', 'type': 'filter', 'hook': 'input',
                       'policy': 'drop'}}]


class FirewallFinding(unittest.TestCase):
    def test_firewall_finding_has_a_sentence_and_a_command(self):
        facts, _ = facts_of(MACHINE)
        facts['firewall']['nft'] = DROP_ALL
        finding = next(one for one in rules.judge(facts) if 'firewall' in one.text)
        self.assertEqual((finding.text, finding.command), (
            'This host\'s firewall (inet filter input) drops what others send to UDP port 31850, where servers are '
            'found.',
            'nft insert rule inet filter input udp dport 31850 accept'))


class Paths(unittest.TestCase):
    def test_hosts_and_ports_are_parsed(self):
        for text, host, port in (('a', 'a', 31850), ('a:1', 'a', 1), ('tern://10.0.0.1:7/3', '10.0.0.1', 7),
                                 ('fd00::1', 'fd00::1', 31850),
                                 ('[fd00::1]:9', 'fd00::1', 9), ('[fd00::1]', 'fd00::1', 31850)):
            self.assertEqual(path.parse_host(text), (host, port))
        for text in ('', ':1', 'a:', 'a:x', 'a:0', 'a:65536', '[fd00::1', '[fd00::1]9'):
            with self.assertRaises(ValueError):
                path.parse_host(text)

    def test_address_is_the_one_that_tern_tries_first(self):
        def resolved(*found):
            with mock.patch.object(path.socket, 'getaddrinfo', return_value=[
                    (family, socket.SOCK_DGRAM, 17, '', (address, 0)) for family, address in found]):
                return path.resolve('h')
        first, second, third = (socket.AF_INET, '192.0.2.7'), (socket.AF_INET, '10.0.0.5'), (socket.AF_INET6, 'fd00::1')
        self.assertEqual(resolved(first, second), first)
        self.assertEqual(resolved(third, second, first), second)
        self.assertEqual(resolved(third), third)
        self.assertIsNone(resolved())

    def test_advice_of_shorter_datagrams_fits_the_path(self):
        why = 'short packets pass the data path, but packets of 8000 bytes do not'
        for family, datagram_bytes in (('ip', 1372), ('ip6', 1352)):
            way = {'host': 'h', 'port': 1, 'address': 'a', 'family': family, 'echo': {'mtu': 1400}}
            _, command = path_rules.mended(way, 'udp', why)
            self.assertIn(f'datagram_bytes={datagram_bytes} ', command)

    def test_advice_about_servers_fits_the_family(self):
        for family, address in (('ip', '0.0.0.0'), ('ip6', '[::]')):
            way = {'host': 'h', 'port': 31850, 'address': 'a', 'family': family, 'echo': None, 'exchanges': {},
                   'route': {}, 'knock': 'refused'}
            facts = {'firewall': {'nft': None}}
            server = f'tern-latency --role=server --transport=udp --server={address}:31850'
            self.assertEqual(path_rules.judge(way, facts)[0].command, f'{server}  # on h')
            self.assertEqual(path_rules.mended(way, 'udp', 'nothing listens at')[1], f'{server}  # on h')
            why = 'no answer came on the data path: packets to UDP port 40000'
            self.assertTrue(path_rules.mended(way, 'udp', why)[1].startswith(
                f'{server} --transport_options=bind={address}:31851  # there'))

    def test_checksum_makes_the_sum_zero(self):
        # RFC 1071: a packet with its checksum in it sums to zero.
        for data in (b'\x08\x00\x00\x00\x12\x34\x00\x01', b'\x08\x00\x00\x00\xff\xff\xff\xffabc', bytes(range(256))):
            value = path.checksum(data)
            self.assertEqual(path.checksum(data[:2] + value.to_bytes(2, 'big') + data[4:]) if data[2:4] == b'\0\0'
                             else 0, 0)

    def test_largest_packet_is_found_by_halving(self):
        class Way:
            """Passes packets of up to `mtu` bytes, and loses each first one of a size."""
            def __init__(self, mtu):
                self.mtu, self.seen = mtu, set()

            def ask(self, size, _):
                is_first = size not in self.seen
                self.seen.add(size)
                return None if is_first or size > self.mtu else 0.001
        for mtu in (1500, 1499, 1000, 577, 576):
            self.assertEqual(path.path_mtu(Way(mtu), 1500, 0), mtu)
        self.assertIsNone(path.path_mtu(Way(500), 1500, 0))

    def test_client_messages_match_the_sources(self):
        """The patterns are of texts of the sources."""
        sources = ''
        for file in ('nexus/management_connect.cc', 'rpc/client_opening.cc'):
            with open(os.path.join(ROOT, 'src', file), encoding='utf-8') as source:
                sources += re.sub(r'"\s*"', '', source.read())
        for pattern, _, _ in path_rules.SENTENCES:
            head = re.split(r'\.\*|\(', pattern)[0].strip().replace('\\', '')
            self.assertIn(head, sources)
        way = {'host': 'h', 'port': 1, 'address': 'a', 'family': 'ip', 'echo': None}
        self.assertEqual(path_rules.mended(way, 'udp', 'a call: something new'),
                         ('Over udp, the client says: a call: something new.', None))
        text, _ = path_rules.mended(way, 'udp', 'no answer from a:1 within SessionOptions::connect_timeout: a firewall')
        self.assertEqual(text,
                         'Nothing comes back from h, neither to ping nor from UDP port 1: it is down, or a firewall '
                         'drops both.')

    def test_silence_counts_if_it_comes_twice(self):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, 'latency')
            with open(program, 'w', encoding='utf-8') as file:
                file.write('#!/bin/sh\necho x >>"$0.log"\n'
                           'echo "latency: a call to h: no answer from h within a time" >&2\nexit 1\n')
            os.chmod(program, 0o755)
            self.assertEqual(proof.run([program], 1)['why'], 'a call to h: no answer from h within a time')
            with open(program + '.log', encoding='utf-8') as log:
                self.assertEqual(log.read(), 'x\nx\n')

    def test_program_that_does_not_end_is_ended_with_what_it_started(self):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, 'latency')
            with open(program, 'w', encoding='utf-8') as file:
                file.write('#!/bin/sh\nsleep 100 &\necho $! >"$0.pid"\nwait\n')
            os.chmod(program, 0o755)
            with mock.patch.object(proof, 'START_SECONDS_MAX', 4):  # in which it starts on a busy machine
                self.assertEqual(proof.run([program], 1)['why'], 'it did not end within 5 s')
            with open(program + '.pid', encoding='utf-8') as file:
                pid = int(file.read())
        deadline = time.monotonic() + 30  # its parent has ended, and init may reap it late or never
        while is_running(pid) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertFalse(is_running(pid))

    def test_machine_without_namespaces__is_untried(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, lines in (('ip', 'echo "Failed to unshare: Operation not permitted" >&2\nexit 1'),
                                ('latency', 'exit 3')):
                with open(os.path.join(folder, name), 'w', encoding='utf-8') as file:
                    file.write(f'#!/bin/sh\n{lines}\n')
                os.chmod(os.path.join(folder, name), 0o755)
            with mock.patch.dict(os.environ, PATH=f'{folder}:{os.environ["PATH"]}'), \
                    mock.patch('os.geteuid', return_value=0):
                result = proof.prove(os.path.join(folder, 'latency'), 'xdp', 1)
        self.assertEqual((result['is_proven'], result['is_untried']), (False, True))
        self.assertIn('CAP_SYS_ADMIN; here: Failed to unshare: Operation not permitted', result['why'])
        self.assertTrue(result['command'].startswith('ip netns add '), result['command'])

    def test_all_lines_of_a_server_are_read(self):
        with tempfile.TemporaryDirectory() as folder:
            program = os.path.join(folder, 'latency')
            with open(program, 'w', encoding='utf-8') as file:  # both lines by one write()
                file.write('#!/bin/sh\nprintf "a warning\\nserving over xdp at tern://10.92.0.1:7\\n" >&2\n'
                           'exec sleep 100\n')
            os.chmod(program, 0o755)
            with mock.patch.object(proof, 'START_SECONDS_MAX', 10), proof.server([program]) as found:
                self.assertEqual(found, ('10.92.0.1:7', ''))
            with open(program, 'w', encoding='utf-8') as file:
                file.write('#!/bin/sh\nprintf "a warning\\nlatency: no way" >&2\n')
            with proof.server([program]) as found:
                self.assertEqual(found, (None, 'no way'))

    def test_figures_are_read_from_program_output(self):
        metrics = {'p50_us': 1.5, 'p99_us': 2, 'rate_mrps': 0.25, 'retransmissions': 3}
        figures = proof.figures_of(json.dumps({'metrics': metrics, 'placement_ns': 120.0, 'placement_ns_min': 100.0}))
        self.assertEqual(figures, {'p50_us': 1.5, 'p99_us': 2, 'rpcs_per_second': 250000, 'retransmissions': 3,
                                   'sessions_paired': 0,
                                   'placements_ns': [100, 120]})
        for output in ('', 'x', '{}', '[]', '{"metrics": {"p50_us": null}}'):
            self.assertIsNone(proof.figures_of(output))


if __name__ == '__main__':
    unittest.main()
