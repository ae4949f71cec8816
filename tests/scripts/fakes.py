"""Fake programs for tests of scripts."""
import os
import shlex


def write_program(path, outputs, error, exit_code=0):
    """Makes a program that prints outputs[i] when it runs for the i-th time, and again from the first after the last. It ends
    with `exit_code`, and says `error` unless that is 0."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    cases = '\n'.join(f'{turn}) printf %s {shlex.quote(text)} ;;' for turn, text in enumerate(outputs))
    with open(path + '.turn', 'w', encoding='utf-8') as file:
        file.write('0\n')
    with open(path, 'w', encoding='utf-8') as file:
        file.write(f'''#!/bin/sh
read -r turn <"$0.turn"
echo $((turn + 1)) >"$0.turn"
case $((turn % {len(outputs)})) in
{cases}
esac
[ {exit_code} = 0 ] || echo {shlex.quote(error)} >&2
exit {exit_code}
''')
    os.chmod(path, 0o755)
