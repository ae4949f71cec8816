#!/usr/bin/env python3
"""scripts/instructions_per_rpc with a stand-in for valgrind, whose profile has 150.5 instructions of the client, 10 of its
ticks and 100 of the server for each RPC."""
import json
import os
import stat
import subprocess
import tempfile
import unittest

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

VALGRIND = '''#!/usr/bin/env bash
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
    def test_numbers_have_a_point_in_every_locale(self):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in (('bin/valgrind', VALGRIND), ('microbench/instructions_driver', '#!/bin/sh\n')):
                path = os.path.join(folder, name)
                os.makedirs(os.path.dirname(path))
                with open(path, 'w', encoding='utf-8') as file:
                    file.write(text)
                os.chmod(path, stat.S_IRWXU)
            environment = {**os.environ, 'PATH': os.path.join(folder, 'bin') + ':' + os.environ['PATH'], 'NOTES': folder,
                           'LC_ALL': 'de_DE.UTF-8'}
            done = subprocess.run([os.path.join(ROOT, 'scripts', 'instructions_per_rpc'), f'--build-dir={folder}'],
                                  env=environment, capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(done.stdout)['metrics'], {'client': 150.5, 'server': 100, 'total': 250.5, 'ticks': 10})
            with open(os.path.join(folder, 'locale'), encoding='utf-8') as file:
                self.assertEqual(file.read(), 'C\n')


if __name__ == '__main__':
    unittest.main()
