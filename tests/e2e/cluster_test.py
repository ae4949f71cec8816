#!/usr/bin/python3
"""The benchmarks as many processes, one in each of five network namespaces, over the kernel's UDP: under mpirun, by the command
of the manifest for Kubernetes, by those of the batch script for Slurm, and from a hosts file with what can go wrong.
No name service is asked: names are in the hosts files of the namespaces. Debian's Python, which has yaml.
Usage: cluster_test.py BUILD_DIR [unittest's arguments...]
"""
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.dont_write_bytecode = True
import network

HOSTS = 5
SECONDS_MAX = 120
ROOT = os.path.abspath(os.path.join(os.path.dirname(__file__), '..', '..'))
TABLE = os.path.join(ROOT, 'scripts', 'cluster_table')
PORT = 31850
# Processes share the machine's CPUs with each other and with other tests: none of them spins for long.
COMMON = ['--transport=udp', '--seconds=0.3', '--wait=adaptive']

build_dir = None
hosts = None

# Program, its flags, metrics of every process
PROGRAMS = [
    ('small_rpc_rate', ['--threads=2', '--sessions=2'], {'rate_mrps', 'p50_us', 'p99_us', 'p999_us', 'retransmissions'}),
    ('session_scale', ['--threads=2'],
     {'rate_mrps', 'p50_us', 'p99_us', 'p999_us', 'p9999_us', 'sessions', 'connect_us_per_session', 'bytes_per_session_end',
      'retransmissions'}),
    ('large_rpc_bandwidth', ['--size=100000'],
     {'bandwidth_gbps', 'rate_rps', 'p50_us', 'p99_us', 'p999_us', 'retransmissions'}),
]
INCAST_METRICS = {'total_gbps', 'client_gbps', 'p50_us', 'p99_us', 'p999_us', 'retransmissions'}
BACKGROUND_METRICS = {'background_p50_us', 'background_p99_us', 'background_rpcs'}
# Left out by a process that has measured none of them
OPTIONAL_METRICS = {'p50_us', 'p99_us', 'p999_us', 'p9999_us', 'total_gbps', 'background_p50_us', 'background_p99_us'}


def path_of(program):
    return os.path.join(build_dir, 'microbench', program)


class Hosts:
    """Namespaces with the addresses 10.67.0.1 to .5 at a bridge in one more, each with a hosts file of its own."""

    def __enter__(self):
        network.remove_stale()
        self.names = [network.name_of(number) for number in range(HOSTS)]
        self.switch = network.name_of('switch')
        self.etc = [network.files_of(name) for name in self.names]
        for path in self.etc:
            os.makedirs(path)
            with open(os.path.join(path, 'hosts'), 'w', encoding='utf-8') as file:
                file.write('127.0.0.1 localhost\n')  # what a case adds later is seen: it is the same file
        network.ip('netns', 'add', self.switch)
        network.ip('-n', self.switch, 'link', 'add', 'bridge', 'type', 'bridge')
        network.ip('-n', self.switch, 'link', 'set', 'bridge', 'up')
        for number, name in enumerate(self.names):
            network.ip('netns', 'add', name)
            port = f'port{number}'
            network.ip('-n', name, 'link', 'add', 'cable', 'type', 'veth', 'peer', 'name', port, 'netns', self.switch)
            network.ip('-n', name, 'address', 'add', f'{self.address(number)}/24', 'dev', 'cable')
            for device in ('lo', 'cable'):
                network.ip('-n', name, 'link', 'set', device, 'up')
            network.ip('-n', self.switch, 'link', 'set', port, 'master', 'bridge', 'up')
        return self

    def __exit__(self, *_):
        for name in [*self.names, self.switch]:
            network.remove(name)
        for name in self.names:
            network.remove_files(name)

    @staticmethod
    def address(number):
        return f'10.67.0.{number + 1}'

    def inside(self, number):
        return ['ip', 'netns', 'exec', self.names[number]]

    def write_names(self, name_of_host):
        """The names of all hosts, for all hosts."""
        text = '127.0.0.1 localhost\n' + ''.join(f'{self.address(number)} {name_of_host(number)}\n'
                                                 for number in range(HOSTS))
        for path in self.etc:
            with open(os.path.join(path, 'hosts'), 'w', encoding='utf-8') as file:
                file.write(text)

    def shape(self, number, mbit):
        """What the switch sends to this host leaves at a limited rate."""
        subprocess.run(['ip', 'netns', 'exec', self.switch, 'tc', 'qdisc', 'replace', 'dev', f'port{number}', 'root', 'tbf',
                        'rate', f'{mbit}mbit', 'burst', '16kb', 'limit', '100kb'], check=True, capture_output=True)

    def do_not_shape(self, number):
        subprocess.run(['ip', 'netns', 'exec', self.switch, 'tc', 'qdisc', 'del', 'dev', f'port{number}', 'root'], check=True,
                       capture_output=True)


class Case(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.directory = directory.name
        self.processes = []
        self.addCleanup(self.kill_all)

    def kill_all(self):
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def write(self, name, text, mode=0o644):
        path = os.path.join(self.directory, name)
        with open(path, 'w', encoding='utf-8') as file:
            file.write(text)
        os.chmod(path, mode)
        return path

    def start(self, words, environment=None):
        own = {**os.environ, **(environment or {})}
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                   env=own, start_new_session=True)
        self.processes.append(process)
        return process

    def ended(self, process):
        """Exit code, standard output and standard error."""
        try:
            out, err = process.communicate(timeout=SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill_all()
            self.fail(f'{shlex.join(process.args)} did not end in {SECONDS_MAX} s')
        return process.returncode, out, err

    def table_of(self, out, *flags):
        done = subprocess.run([TABLE, *flags], input=out, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
        self.assertEqual((done.returncode, done.stderr), (0, ''), out)
        return done.stdout

    def assert_is_job(self, out, program, launcher, ranks=HOSTS):
        """One line for each process, in the form of a single one; one table. Returns the lines."""
        lines = [json.loads(line) for line in out.splitlines()]
        self.assertEqual([line['params']['rank'] for line in lines], list(range(ranks)))
        for line in lines:
            self.assertEqual(set(line), {'bench', 'transport', 'params', 'metrics'})
            self.assertEqual((line['bench'], line['transport'], line['params']['launcher'], line['params']['ranks']),
                             (program, 'udp', launcher, ranks))
        table = self.table_of(out).splitlines()
        self.assertEqual(len(table), 1 + 1 + ranks + 1 + 4)  # flags, heading, processes, a rule, summary
        self.assertEqual([row.split()[0] for row in table[2:2 + ranks]], [str(rank) for rank in range(ranks)])
        of_all = json.loads(self.table_of(out, '--json'))
        self.assertEqual(of_all['processes'], lines)
        return lines

    def assert_have_metrics(self, lines, metrics):
        """Each process has all, but for those that it has had no time to measure."""
        found = [set(line['metrics']) - {'percentiles_us'} for line in lines]
        self.assertIn(metrics, found)
        for of_line in found:
            self.assertEqual(of_line | (OPTIONAL_METRICS & metrics), metrics)


class Mpirun(Case):
    """Each namespace is a host of its own for Open MPI, which reaches it by the agent in place of ssh."""

    def run_job(self, program, *flags):
        """Standard output."""
        for tool in ('mpirun', 'ip'):
            self.assertTrue(shutil.which(tool), f'there is no {tool}')
        hosts_file = self.write('hosts', ''.join(f'{hosts.address(number)} slots=1\n' for number in range(HOSTS)))
        # mpirun calls it with the host and the words of a shell command. All namespaces share a host name, by which Open MPI
        # tells hosts apart, so each gets one.
        agent = self.write('agent', f'''#!/bin/sh
number=$((${{1##*.}} - 1))
shift
exec ip netns exec {network.name_of('')}$number unshare --uts sh -c "hostname host$number; $*"
''', 0o755)
        words = ['mpirun', '--allow-run-as-root', '--hostfile', hosts_file, '--mca', 'plm_rsh_agent', agent, '--mca',
                 'plm_rsh_no_tree_spawn', '1', '--bind-to', 'none', '-np', str(HOSTS), path_of(program),
                 '--launcher=openmpi', f'--hosts_file={hosts_file}', *COMMON, '--json', *flags]
        command = f'hostname host0; exec {shlex.join(words)}'
        code, out, err = self.ended(self.start([*hosts.inside(0), 'unshare', '--uts', 'sh', '-c', command],
                                               {'TMPDIR': self.directory}))
        self.assertEqual(code, 0, f'{out}{err}')
        self.assertNotIn(f'{program}: ', err)  # mpirun itself may warn: "plm:rsh: Warning: setpgid"
        return out

    def test_every_process_with_every_other_one(self):
        for program, flags, metrics in PROGRAMS:
            with self.subTest(program=program):
                lines = self.assert_is_job(self.run_job(program, *flags), program, 'openmpi')
                self.assert_have_metrics(lines, metrics)
                for line in lines:
                    self.assertEqual(line['params']['host'], f'{hosts.address(line["params"]["rank"])}:{PORT}')
                    if program == 'session_scale':  # two threads, each with a session to the nine others
                        self.assertEqual(line['metrics']['sessions'], 18)

    def test_incast_through_a_shaped_port(self):
        mbit = 100
        hosts.shape(0, mbit)
        self.addCleanup(hosts.do_not_shape, 0)
        size = 20000
        out = self.run_job('incast', f'--size={size}', '--flows=2', '--background', '--seconds=1')
        victim, *clients = self.assert_is_job(out, 'incast', 'openmpi')
        self.assertEqual((victim['params']['role'], set(victim['metrics'])), ('server', {'total_gbps'}))
        # No more payload than the port lets through, and what lay in its bucket or had arrived before as a part of a request.
        requests_before = 2 * len(clients)
        gbps_max = mbit / 1000 + (16384 + requests_before * size) * 8 / 1e9
        self.assert_have_metrics(clients, INCAST_METRICS | BACKGROUND_METRICS)
        for line in clients:
            self.assertEqual((line['params']['role'], line['params']['degree']), ('client', 8))
            # Of a moment when this client asked, not of 1 s
            self.assertLess(line['metrics'].get('total_gbps', 0), 2 * gbps_max)
        self.assertGreater(victim['metrics']['total_gbps'], 0)
        self.assertLess(victim['metrics']['total_gbps'], gbps_max)


class ExamplesOfLaunchers(Case):
    """What examples/cluster has, as far as it runs without these launchers: the commands are theirs, word for word, and the
    environment is made here as the launcher makes it."""

    def test_the_manifest_for_kubernetes(self):
        import yaml
        with open(os.path.join(ROOT, 'examples', 'cluster', 'kubernetes.yaml'), encoding='utf-8') as file:
            service, job = yaml.safe_load_all(file)
        self.assertEqual((service['apiVersion'], service['kind'], service['spec']['clusterIP']), ('v1', 'Service', 'None'))
        self.assertEqual((job['apiVersion'], job['kind']), ('batch/v1', 'Job'))
        spec, pod = job['spec'], job['spec']['template']['spec']
        self.assertEqual(spec['completionMode'], 'Indexed')
        self.assertEqual(spec['completions'], spec['parallelism'])
        self.assertEqual(spec['completions'], HOSTS)
        self.assertEqual(service['spec']['selector'], {'job-name': job['metadata']['name']})
        self.assertEqual(pod['subdomain'], service['metadata']['name'])
        self.assertIn(pod['restartPolicy'], ('Never', 'OnFailure'))  # those that a Job allows
        container, = pod['containers']
        self.assertEqual([port['port'] for port in service['spec']['ports']], [PORT])
        self.assertEqual([port['containerPort'] for port in container['ports']], [PORT])

        name = job['metadata']['name']
        hosts.write_names(lambda number: f'{name}-{number}.{pod["subdomain"]}')
        program, *flags = container['command']
        self.assertIn(f'--ranks={spec["completions"]}', flags)
        processes = [self.start([*hosts.inside(number), path_of(program), *flags, *COMMON, '--size=100000'],
                                {'JOB_COMPLETION_INDEX': str(number), 'HOSTNAME': f'{name}-{number}'})
                     for number in range(HOSTS)]
        outs = []
        for process in processes:
            code, out, err = self.ended(process)
            self.assertEqual((code, err), (0, ''))
            outs.append(out)
        lines = self.assert_is_job(outs[0], program, 'kubernetes')
        self.assertEqual(outs[1:], [''] * (HOSTS - 1))  # rank 0 prints for all
        self.assertEqual(lines[3]['params']['host'], f'{name}-3.{pod["subdomain"]}:{PORT}')

    def test_the_batch_script_for_slurm(self):
        script = os.path.join(ROOT, 'examples', 'cluster', 'slurm.sh')
        subprocess.run(['bash', '-n', script], check=True, timeout=SECONDS_MAX)
        # In place of srun: starts the program as Slurm's does, with one process on each host.
        srun = ['#!/bin/bash', 'while [[ $1 == --* ]]; do shift; done']
        for number in range(HOSTS):
            srun.append(f'SLURM_PROCID={number} SLURM_LOCALID=0 SLURM_NODEID={number} SLURM_STEP_NUM_TASKS={HOSTS} '
                        f'SLURM_STEP_NODELIST="node[01-0{HOSTS}]" SLURM_STEP_TASKS_PER_NODE="1(x{HOSTS})" '
                        f'{shlex.join(hosts.inside(number))} "$@" & pids+=($!)')
        srun.append('for pid in "${pids[@]}"; do wait "$pid" || exit 1; done')
        self.write('srun', '\n'.join(srun) + '\n', 0o755)
        hosts.write_names(lambda number: f'node{number + 1:02}')
        environment = {'PATH': f'{self.directory}:{os.environ["PATH"]}', 'TERN_PROGRAMS': os.path.join(build_dir, 'microbench'),
                       'SLURM_CPUS_PER_TASK': '2'}
        words = ['sh', '-c', f'cd {shlex.quote(ROOT)} && exec "$@"', 'sh', script, *COMMON, '--size=1000']
        code, out, err = self.ended(self.start(words, environment))
        self.assertEqual((code, err), (0, ''), out)
        for program in ('small_rpc_rate', 'session_scale', 'incast', 'large_rpc_bandwidth'):
            self.assertIn(f'{program} over udp: ', out)
        self.assertEqual(out.count(f'node0{HOSTS}:{PORT} '), 4)


class Misfits(Case):
    """Processes of one host, from a hosts file: those that do not fit together, and those that go."""

    def start_ranks(self, where, ranks, *flags, flags_of=None):
        """All of them in one namespace, where no other case has ports. `flags_of`: what some ranks have in place of --rank."""
        hosts_file = self.write(f'hosts{where}', f'# all here\n127.0.0.1 slots={ranks}\n')
        return [self.start([*hosts.inside(where), path_of('small_rpc_rate'), '--launcher=hosts', f'--hosts_file={hosts_file}',
                            *COMMON, *flags, '--json', *(flags_of or {}).get(rank, [f'--rank={rank}'])])
                for rank in range(ranks)]

    def assert_one_sentence(self, process, *parts):
        code, out, err = self.ended(process)
        self.assertEqual((code, out), (1, ''), err)
        self.assertRegex(err, r'\A[^\n]+\n\Z')
        for part in parts:
            self.assertIn(part, err)

    def test_processes_of_one_host_have_ports_in_turn(self):
        first, *others = self.start_ranks(0, 3)
        code, out, err = self.ended(first)
        self.assertEqual((code, err), (0, ''))
        lines = self.assert_is_job(out, 'small_rpc_rate', 'hosts', ranks=3)
        self.assertEqual([line['params']['host'] for line in lines], [f'127.0.0.1:{PORT + rank}' for rank in range(3)])
        for process in others:
            self.assertEqual(self.ended(process), (0, '', ''))

    def test_processes_log_and_publish_their_counters(self):
        processes = self.start_ranks(0, 2, '--log', '--page=shm', '--seconds=5')  # until both pages are seen
        top = os.path.join(build_dir, 'apps', 'top', 'tern-top')
        started, shown = {process.pid for process in processes}, set()
        while shown != started:
            self.assertIsNone(processes[0].poll(), 'it has ended')
            done = subprocess.run([top, '--once', '--json'], capture_output=True, text=True, check=True)
            shown |= started & {page['pid'] for page in json.loads(done.stdout)['pages'] if page['endpoints']}
        for process in processes:
            code, _, err = self.ended(process)
            self.assertEqual(code, 0, err)
            self.assertIn('"log":"session_opened"', err)
        for process in self.start_ranks(0, 2, '--page=/no/such/folder/page'):
            self.assert_one_sentence(process, 'several processes')

    def test_processes_that_do_not_fit_together(self):
        """At the same time, because they wait."""
        other_flags = self.start_ranks(1, 2, '--start_seconds=3', flags_of={1: ['--rank=1', '--size=33']})
        too_few = self.start_ranks(2, 3, '--start_seconds=3', flags_of={2: ['--rank=9']})
        without_first = self.start_ranks(3, 2, '--start_seconds=3', flags_of={0: ['--rank=0', '--port=0']})
        same_rank = self.start_ranks(4, 3, '--start_seconds=3', flags_of={2: ['--rank=1', '--listen=127.0.0.1:31900']})

        with self.subTest('other flags'):
            self.assert_one_sentence(other_flags[1], 'rank 0 at 127.0.0.1', 'other flags')
            self.assert_one_sentence(other_flags[0], 'rank 1 at 127.0.0.1:31851 has not arrived')
        with self.subTest('a process that never comes'):
            self.assert_one_sentence(too_few[2], 'rank 9 is not one of the 3 processes')
            self.assert_one_sentence(too_few[0], 'rank 2 at 127.0.0.1:31852 has not arrived')
            self.assert_one_sentence(too_few[1], 'rank 0')
        with self.subTest('the first process never comes'):
            self.assert_one_sentence(without_first[0], '--port')
            self.assert_one_sentence(without_first[1], 'rank 0 at 127.0.0.1:31850')
        with self.subTest('the same rank twice'):
            self.assert_one_sentence(same_rank[0], 'rank 2 at 127.0.0.1:31852 has not arrived')
            said = [self.ended(process)[2] for process in same_rank[1:]]
            self.assertEqual(sum("another process has this one's rank" in sentence for sentence in said), 1, said)
        with self.subTest('a process that dies'):
            dying = self.start_ranks(0, 3, '--seconds=1000')  # not before: it needs both CPUs
            time.sleep(1)  # they measure by then, or still begin: it must not matter
            dying[1].send_signal(signal.SIGKILL)
            for process in (dying[0], dying[2]):
                self.assert_one_sentence(process)


def main(arguments):
    global hosts
    missing = [tool for tool in ('mpirun', 'ip', 'tc') if not shutil.which(tool)]
    if os.geteuid() != 0 or missing:
        print('SKIPPED: ' + ('network namespaces need root' if os.geteuid() != 0 else
                             f'there is no {missing[0]} here (scripts/setup test)'))
        return 77
    with Hosts() as hosts:
        done = unittest.main(argv=[sys.argv[0], *arguments], exit=False)
    return 0 if done.result.wasSuccessful() else 1


if __name__ == '__main__':
    build_dir = os.path.abspath(sys.argv[1])
    sys.exit(main(sys.argv[2:]))
