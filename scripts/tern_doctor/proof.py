"""Verifies the rules by a trial: a second of RPCs over a transport, between two processes of this host."""
import contextlib
import json
import os
import re
import select
import shlex
import shutil
import subprocess
import time

from . import groups

START_SECONDS_MAX = 30  # sessions that do not open report that after 5 s
NAMESPACES = 'tern-doctor-'  # followed by the pid, so that namespaces that a killed run has left can be recognized
CABLE = 'tern-cable'


def figures_of(output):
    """The values of the program's line of JSON, with our names; None: it is not such a line."""
    try:
        line = json.loads(output)
        metrics = line['metrics']
        figures = {'p50_us': float(metrics['p50_us']), 'p99_us': float(metrics['p99_us']),
                   'rpcs_per_second': float(metrics['rate_mrps']) * 1e6,
                   'retransmissions': int(metrics['retransmissions']),
                   'sessions_paired': int(metrics.get('sessions_paired', 0))}
        return {**figures, 'placements_ns': [line[key] for key in ('placement_ns_min', 'placement_ns') if key in line]}
    except (ValueError, KeyError, TypeError):
        return None


# Messages of a program about a silent peer. On a very busy machine this may be chance.
SILENCE = re.compile('no answer from|nothing was answered|no call was answered|do not: its MTU')


def run(words, seconds):
    """Like run_once(), but silence of the peer counts only if it happens twice."""
    result = run_once(words, seconds)
    return run_once(words, seconds) if SILENCE.search(result.get('why', '')) else result


def run_once(words, seconds):
    """{'is_proven': True, figures...}, or {'is_proven': False, 'why': a sentence}; and 'command', which repeats the
    trial."""
    result = {'is_proven': False, 'command': shlex.join(words)}
    try:
        with groups.started(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                            errors='replace') as process:
            output, errors = process.communicate(timeout=seconds + START_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        return {**result, 'why': f'it did not end within {seconds + START_SECONDS_MAX:g} s'}
    except OSError as error:
        return {**result, 'why': f'it cannot be run: {error.strerror}'}
    figures = figures_of(output) if process.returncode == 0 else None
    if figures is None:
        said = errors.strip().splitlines() or [f'it ended with {process.returncode} and said nothing']
        return {**result, 'why': re.sub(r'^\S*latency: ', '', said[-1])}
    return {**result, 'is_proven': True, 'seconds': seconds, **figures}


def common_words(program, name, seconds, options, server_options):
    """The words for both sides. They spin for a while and then block, so that one CPU is enough."""
    words = [program, f'--transport={name}', f'--seconds={seconds:g}', '--wait=adaptive', '--json']
    return words + [f'--{flag}={value}' for flag, value in (('transport_options', options),
                                                            ('server_transport_options', server_options)) if value]


def prove(program, name, seconds, options='', server_options=''):
    """A trial between two processes, with the differences between transports: dpdk has no default device, and its
    software cable has both ends in one process; frames of xdp to this host do not come back, so xdp gets its own
    cable."""
    if name == 'dpdk' and not options:
        socket = f'tern-doctor-{os.getpid()}'
        words = common_words(program, name, seconds,
                             f'device=net_memif1;role=client;socket={socket},address=10.91.0.2/24',
                             f'device=net_memif0;role=server;socket={socket},address=10.91.0.1/24')
        if len(os.sched_getaffinity(0)) > 1:
            words.append('--wait=poll')  # without interrupts of the driver a waiting side sleeps for 100 us
        return {**run(words, seconds), 'over': 'a cable in memory (net_memif); a NIC is named by --transport_options'}
    if name == 'xdp' and not options:
        return prove_on_cable(program, name, seconds, f'interface={CABLE}')
    return {**run([*common_words(program, name, seconds, options, server_options), '--processes'], seconds),
            'over': 'this host'}


# --- Between two namespaces ------------------------------------------------------------------------------------------

def prove_on_cable(program, name, seconds, options):
    """A trial like one between two hosts, with a veth pair between two namespaces. It needs root."""
    over = 'a veth pair that was made for it; the NIC is tried by --to HOST'
    if os.geteuid() != 0 or shutil.which('ip') is None:
        return {'is_proven': False, 'is_untried': True, 'over': over, 'command': f'sudo tern-doctor --transport={name}',
                'why': 'two network namespaces with a cable need root, and ip of the package iproute2'}
    try:
        with two_namespaces() as (server_namespace, client_namespace):
            words = common_words(program, name, seconds, options, '')
            with server(['ip', 'netns', 'exec', server_namespace, *words, '--role=server',
                         '--server=10.92.0.1:0']) as (address, why):
                if address is None:
                    return {'is_proven': False, 'over': over, 'why': why, 'command': shlex.join(words)}
                client = ['ip', 'netns', 'exec', client_namespace, *words, '--role=client', f'--server={address}']
                return {**run(client, seconds), 'over': over}
    except subprocess.CalledProcessError as error:  # for example as root in a container
        said = error.stderr.decode(errors='replace').strip().splitlines() or [f'it ended with {error.returncode}']
        return {'is_proven': False, 'is_untried': True, 'over': over, 'command': shlex.join(error.cmd),
                'why': f'two network namespaces with a cable need CAP_SYS_ADMIN; here: {said[-1]}'}


@contextlib.contextmanager
def two_namespaces():
    def ip(*words):
        subprocess.run(['ip', *words], stdin=subprocess.DEVNULL, capture_output=True, check=True)

    def remove(name):
        subprocess.run(['ip', 'netns', 'del', name], stdin=subprocess.DEVNULL, capture_output=True, check=False)

    with contextlib.suppress(OSError):
        for name in os.listdir('/run/netns'):
            pid = re.match(NAMESPACES + r'(\d+)-', name)
            if pid and not os.path.exists(f'/proc/{pid.group(1)}'):
                remove(name)
    names = [f'{NAMESPACES}{os.getpid()}-{side}' for side in 'ab']
    try:
        for name in names:
            ip('netns', 'add', name)
        ip('-n', names[0], 'link', 'add', CABLE, 'type', 'veth', 'peer', 'name', CABLE, 'netns', names[1])
        for number, name in enumerate(names, 1):
            ip('-n', name, 'address', 'add', f'10.92.0.{number}/24', 'dev', CABLE)
            for device in ('lo', CABLE):
                ip('-n', name, 'link', 'set', device, 'up')
        yield names
    finally:
        with groups.signals_held():
            for name in names:
                remove(name)


def lines_until(pipe, end):
    """Lines of a pipe without a Python buffer, because select() would not see data in that buffer."""
    text = b''
    while select.select([pipe], [], [], max(end - time.monotonic(), 0))[0]:
        read = pipe.read(4096)
        *lines, text = (text + read).split(b'\n')
        yield from (line.decode(errors='replace') for line in lines)
        if not read:
            break
    if text:
        yield text.decode(errors='replace')


@contextlib.contextmanager
def server(words):
    """Yields (HOST:PORT at which it serves, ''), or (None, the reason)."""
    with groups.started(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, bufsize=0) as process:
        try:
            said = ''
            for line in lines_until(process.stderr, time.monotonic() + START_SECONDS_MAX):
                found = re.search(r'serving over \w+ at tern://(\S+)$', line.strip())
                if found:
                    yield found.group(1), ''
                    return
                said = line
            yield None, re.sub(r'^\S*latency: ', '', said.strip()) or 'the server has ended and said nothing'
        finally:
            groups.end(process)
