#!/usr/bin/env python3
"""scripts/cluster_table: what it makes of results of many processes, and what it refuses."""
import json
import os
import subprocess
import tempfile
import unittest

TABLE = os.path.join(os.path.dirname(os.path.abspath(__file__)), '..', '..', 'scripts', 'cluster_table')


def line(rank, ranks=3, bench='session_scale', **metrics):
    return json.dumps({'bench': bench, 'transport': 'udp',
                       'params': {'role': 'both', 'size': 32, 'ranks': ranks, 'rank': rank, 'host': f'node{rank}:31850'},
                       'metrics': {'rate_mrps': 0.5 + rank, 'p99_us': 10.0 * (rank + 1), **metrics}})


class Table(unittest.TestCase):
    def run_table(self, text, *words):
        return subprocess.run([TABLE, *words], input=text, capture_output=True, text=True, timeout=60, check=False)

    def rows_of(self, text):
        done = self.run_table(text)
        self.assertEqual((done.returncode, done.stderr), (0, ''))
        return [row.split() for row in done.stdout.splitlines()]

    def refusal_of(self, text, *words):
        done = self.run_table(text, *words)
        self.assertEqual((done.returncode, done.stdout), (1, ''))
        self.assertRegex(done.stderr, r'\A[^\n]+\n\Z')
        return done.stderr

    def test_rows_are_in_the_order_of_ranks_with_a_summary(self):
        rows = self.rows_of('\n'.join(line(rank) for rank in (2, 0, 1)))
        self.assertEqual(rows[1], ['rank', 'host', 'rate_mrps', 'p99_us'])
        self.assertEqual(rows[2:5], [['0', 'node0:31850', '0.500', '10'], ['1', 'node1:31850', '1.500', '20'],
                                     ['2', 'node2:31850', '2.500', '30']])
        self.assertEqual(rows[6:], [['sum', '4.500'], ['lowest', '0.500', '10'], ['median', '1.500', '20'],
                                    ['highest', '2.500', '30']])

    def test_a_figure_of_all_processes_or_of_a_thread_has_no_sum(self):
        rows = self.rows_of('\n'.join(line(rank, bench='incast', total_gbps=7) for rank in range(3)))
        self.assertEqual(rows[6], ['sum', '4.500'])  # of rate_mrps alone
        rows = self.rows_of('\n'.join(line(rank, bench='small_rpc_rate') for rank in range(3)))
        self.assertEqual(rows[6], ['sum'])

    def test_a_metric_that_some_processes_have(self):
        rows = self.rows_of('\n'.join([line(0), line(1, client_gbps=2), line(2, client_gbps=4)]))
        self.assertEqual(rows[2][-1], '10')
        self.assertEqual(rows[6], ['sum', '4.500', '6'])

    def test_prefixes_and_other_lines_are_ignored(self):
        text = f'srun: step 1\n2: {line(2)}\n[pod/x-0/y] {line(0)}\n[1,1]<stdout>:{line(1)}\nbye\n'
        self.assertEqual([row[0] for row in self.rows_of(text)[2:5]], ['0', '1', '2'])

    def test_files_are_read_like_standard_input(self):
        with tempfile.TemporaryDirectory() as directory:
            paths = []
            for rank in range(3):
                paths.append(os.path.join(directory, str(rank)))
                with open(paths[-1], 'w', encoding='utf-8') as file:
                    file.write(line(rank) + '\n')
            done = self.run_table('', '--json', *paths)
            self.assertEqual(done.returncode, 0, done.stderr)
            made = json.loads(done.stdout)
            self.assertEqual([one['params']['rank'] for one in made['processes']], [0, 1, 2])
            self.assertEqual(made['metrics']['p99_us'], {'lowest': 10, 'median': 20, 'highest': 30})
            self.assertEqual(made['params'], {'size': 32, 'ranks': 3})
            self.assertIn('cannot be read', self.refusal_of('', os.path.join(directory, 'none')))

    def test_bytes_that_are_not_utf_8_are_read_from_both(self):
        text = b'srun: no caf\xe9\n' + '\n'.join(line(rank) for rank in range(3)).encode()
        with tempfile.NamedTemporaryFile() as file:
            file.write(text)
            file.flush()
            for words, given in (([], text), ([file.name], b'')):
                done = subprocess.run([TABLE, *words], input=given, capture_output=True, timeout=60, check=False,
                                      env={**os.environ, 'PYTHONUTF8': '0', 'PYTHONIOENCODING': 'utf-8'})
                self.assertEqual((done.returncode, done.stderr), (0, b''))
                self.assertIn(b'node2:31850', done.stdout)

    def test_a_closed_standard_input_is_refused(self):
        done = subprocess.run(['sh', '-c', 'exec "$0" <&-', TABLE], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((done.returncode, done.stdout), (1, ''))
        self.assertEqual(done.stderr, 'scripts/cluster_table: there is no standard input: name files, or pipe the output '
                                      'of the processes into it\n')

    def test_contradictory_results_are_refused(self):
        self.assertIn('no result', self.refusal_of(''))
        self.assertIn('the first is rank 1', self.refusal_of(line(0) + '\n' + line(2)))
        self.assertIn('rank 1 has printed 2', self.refusal_of('\n'.join(line(rank) for rank in (0, 1, 1, 2))))
        self.assertIn('different jobs', self.refusal_of(line(0, ranks=2) + '\n' + line(1, ranks=3)))
        self.assertIn('incomplete', self.refusal_of(line(0)[:50]))
        self.assertIn('without --launcher', self.refusal_of('{"bench":"latency","params":{},"metrics":{}}'))

    def test_results_with_other_types_are_refused(self):
        for value in (None, 'fast', True, [1]):
            self.assertIn(f'rank 1 has {json.dumps(value)} as p99_us, which is not a number',
                          self.refusal_of('\n'.join([line(0), line(1, p99_us=value), line(2)])))
        rows = self.rows_of(line(0, ranks=1, percentiles_us=[[0.5, 1]]))
        self.assertEqual(rows[1], ['rank', 'host', 'rate_mrps', 'p99_us'])
        for name in ('transport', 'metrics'):
            result = json.loads(line(0, ranks=1))
            del result[name]
            self.assertIn(f'the result of rank 0 has no {name}', self.refusal_of(json.dumps(result)))
        for params in ({'rank': None, 'ranks': 1}, {'rank': 0, 'ranks': '1'}):
            self.assertIn('without --launcher', self.refusal_of(json.dumps({**json.loads(line(0)), 'params': params})))


if __name__ == '__main__':
    unittest.main()
