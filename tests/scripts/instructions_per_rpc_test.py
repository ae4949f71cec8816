#!/usr/bin/env python3
"""scripts/instructions_per_rpc with a stand-in for valgrind, whose profile has 150.5 instructions of the client, 10 of its
ticks and 100 of the server for each RPC."""
import json
import os
import signal
import stat
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

VALGRIND = '''#!/usr/bin/env bash
if [ "${HANGS-}" ]; then
  echo $$ >"$NOTES/begun"
  exec sleep 60
fi
for argument; do
  case $argument in
    --callgrind-out-file=*) profile=${argument#*=} ;;
    --rpcs=*) rpcs=${argument#*=} ;;
  esac
done
printf '%s\\n' "fn=(1) client_loop" "7 $((1000 + 301 * rpcs / 2))" "cfn=(3) tern::rpc::ClientSessions::run_ticks(unsigned long)" \\
  "calls=1 8" "7 $((10 * rpcs))" "fn=(3)" "8 $((10 * rpcs))" "fn=(2) server_loop" "9 $((100 * rpcs))" >"$profile"
echo "$LC_ALL" >"$NOTES/locale"
'''


class Instructions(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.folder = directory.name
        for name, text in (('bin/valgrind', VALGRIND), ('microbench/instructions_driver', '#!/bin/sh\n'),
                           ('microbench/erpc_driver', '#!/bin/sh\n')):
            path = os.path.join(self.folder, name)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, 'w', encoding='utf-8') as file:
                file.write(text)
            os.chmod(path, stat.S_IRWXU)

    def start_script(self, *flags, build_dir=None, **environment):
        paths = os.path.join(self.folder, 'bin') + ':' + os.environ['PATH']
        return subprocess.Popen([os.path.join(ROOT, 'scripts', 'instructions_per_rpc'),
                                 f'--build-dir={build_dir or self.folder}', *flags], cwd=self.folder,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                env={**os.environ, 'PATH': paths, 'NOTES': self.folder, **environment})

    def run_script(self, *flags, **options):
        script = self.start_script(*flags, **options)
        output, errors = script.communicate()
        return subprocess.CompletedProcess(script.args, script.returncode, output, errors)

    def line_of(self, *flags, **options):
        done = self.run_script(*flags, **options)
        self.assertEqual(done.returncode, 0, done.stderr)
        return json.loads(done.stdout)

    def test_numbers_have_a_point_in_every_locale(self):
        self.assertEqual(self.line_of(LC_ALL='de_DE.UTF-8')['metrics'],
                         {'client': 150.5, 'server': 100, 'total': 250.5, 'ticks': 10})
        with open(os.path.join(self.folder, 'locale'), encoding='utf-8') as file:
            self.assertEqual(file.read(), 'C\n')

    def test_signal_ends_valgrind_and_leaves_no_files(self):
        begun, files = os.path.join(self.folder, 'begun'), os.path.join(self.folder, 'tmp')
        os.mkdir(files)
        os.mkfifo(begun)
        with self.start_script(HANGS='yes', TMPDIR=files) as script:
            with open(begun, encoding='utf-8') as note:
                valgrind = int(note.read())
            script.send_signal(signal.SIGTERM)
            self.assertEqual(script.communicate(), ('', ''))
        self.assertEqual(script.returncode, 128 + signal.SIGTERM)
        with self.assertRaises(ProcessLookupError):
            os.kill(valgrind, 0)
        self.assertEqual(os.listdir(files), [])

    def test_build_dir_is_relative_to_the_current_directory(self):
        for path in ('.', os.path.join('..', os.path.basename(self.folder))):
            self.line_of(build_dir=path)

    def test_congestion_controller_is_the_one_that_is_used(self):
        for flags, expected in (((), 'none'), (('--cc=swift',), 'swift'), (('--transport=erpc',), 'default'),
                                (('--transport=erpc', '--cc=default'), 'default')):
            self.assertEqual(self.line_of(*flags)['params']['cc'], expected)
        done = self.run_script('--transport=erpc', '--cc=none')
        self.assertEqual((done.returncode, done.stdout), (2, ''))
        self.assertEqual(done.stderr, 'instructions_per_rpc: --cc=none does not work with --transport=erpc: '
                                      'its driver has the default\n')


if __name__ == '__main__':
    unittest.main()
