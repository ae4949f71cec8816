"""How rate, latency, memory and instructions of an RPC grow with one thing at a time: the sweeps of scripts/bench --scale."""
import collections
import json
import os
import select
import shlex
import statistics
import tempfile

from tern_doctor import groups

# sweep    what grows, and a row's table
# series   curve of the sweep
# x        value of what grows
# command  program under microbench/, or instructions_per_rpc, and its flags
# metrics  of the program's JSON line, by the names that results have
Point = collections.namedtuple('Point', 'sweep series x command metrics')

RATE = {'rate_mrps': 'rate_mrps', 'p50_us': 'p50_us', 'p99_us': 'p99_us'}
TRIP = {'p50_us': 'p50_us', 'p99_us': 'p99_us'}
INSTRUCTIONS = {'instructions': 'total'}

SIZES = (0, 32, 256, 1024, 4096, 16384, 65536, 262144, 1 << 20, 8 << 20, 64 << 20)
BULK_FROM = 65536  # smaller requests are small_rpc_rate's
WINDOWS = (1, 3, 6, 12, 30, 60, 120, 240, 480)
SESSIONS = (20, 200, 2000, 20000, 200000, 1000000)
THREADS = (2, 4, 8, 16, 32, 64)
NODES = (2, 10, 50, 100, 200)
HANDLER_US = (0, 1, 3, 10, 30, 100)

# Of what callgrind counts: it is a hundred times as slow as the program.
COUNTED_SIZES = (32, 256, 1024, 4096, 16384)
COUNTED_WINDOWS = (1, 6, 60)
COUNTED_SESSIONS = (8, 64, 512)

PEAK_MB = 'peak_mb'  # of memory, of the program with both sides in it
SLOW = 'session_scale --sessions=1000000'  # opens sessions for a minute
RUN_SECONDS_MAX = 600  # and ten times --seconds: that minute is longer on a busy machine, and callgrind is slow


def points():
    """All of them."""
    found = []
    for transport in ('shm', 'udp'):
        def add(sweep, x, command, metrics, series=transport, flag=f'--transport={transport}'):
            found.append(Point(sweep, series, x, f'{command} {flag}', metrics))

        for size in SIZES:
            add('size', size, f'latency --size={size}', TRIP)
            if size >= BULK_FROM:
                add('size', size, f'large_rpc_bandwidth --size={size}', {'bandwidth_gbps': 'bandwidth_gbps'})
            else:
                add('size', size, f'small_rpc_rate --pattern=client_server --size={size}', {'rate_mrps': 'rate_mrps'})
        for window in WINDOWS:
            add('window', window, f'small_rpc_rate --pattern=client_server --batch=1 --session_window=64 --window={window}',
                RATE)
        for sessions in SESSIONS:
            add('sessions', sessions, f'session_scale --sessions={sessions}',
                {'rate_mrps': 'rate_mrps', 'bytes_per_session': 'bytes_per_session', 'open_us': 'connect_us_per_session'})
        # More endpoints than CPUs: one that spins would keep others from running.
        for threads in THREADS:
            add('endpoints', threads, f'small_rpc_rate --threads={threads} --sessions=1 --wait=adaptive', RATE)
        for handler_us in HANDLER_US:
            # The worker thread may need the CPU on which its event loop would spin.
            for mode, wait in (('dispatch', 'poll'), ('worker', 'adaptive')):
                flags = f'--handler_us={handler_us}' + (' --worker' if mode == 'worker' else '')
                add('handler_us', handler_us, f'small_rpc_rate --pattern=client_server --wait={wait} {flags}', RATE,
                    series=f'{transport} {mode}')
        for flag, values, sweep in (('size', COUNTED_SIZES, 'size'), ('window', COUNTED_WINDOWS, 'window'),
                                    ('sessions', COUNTED_SESSIONS, 'sessions')):
            for value in values:
                add(sweep, value, f'instructions_per_rpc --rpcs=5000 --{flag}={value}', INSTRUCTIONS)
    for nodes in NODES:
        found.append(Point('peers', 'simulated hosts', nodes,
                           f'session_scale --transport=sim --threads=2 --seconds=0.002 --nodes={nodes}',
                           {'rate_mrps': 'rate_mrps_per_node', 'p50_us': 'p50_us', 'p99_us': 'p99_us'}))
    return found


class Failure(Exception):
    """Of one point: one sentence."""


def wait_for(process, seconds):
    """The process's use of resources, or None if it has not ended within these seconds."""
    handle = os.pidfd_open(process.pid)
    try:
        if not select.select([handle], [], [], seconds)[0]:
            return None
    finally:
        os.close(handle)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)  # for Popen, which has not waited itself
    return usage


def run(build_dir, point, seconds, cpus):
    """The metrics of one run."""
    program, *flags = shlex.split(point.command)
    is_counted = program == 'instructions_per_rpc'
    if is_counted:
        words = [os.path.join(os.path.dirname(__file__), '..', program), *flags, f'--build-dir={os.path.abspath(build_dir)}']
    else:
        words = [os.path.join(build_dir, 'microbench', program), *flags, '--json']
        if '--transport=sim' not in flags:  # one thread, in virtual time
            words += [f'--cpus={cpus}', f'--seconds={seconds:g}']
    timeout = RUN_SECONDS_MAX + 10 * seconds
    with tempfile.TemporaryFile('w+') as out, tempfile.TemporaryFile('w+') as errors:
        try:
            with groups.started(words, stdout=out, stderr=errors) as process:
                usage = wait_for(process, timeout)
                if usage is None:
                    raise Failure(f'{point.command} did not end within {timeout:g} s')
        except OSError as error:
            raise Failure(f'{words[0]} cannot be run: {error.strerror}') from None
        out.seek(0)
        errors.seek(0)
        if process.returncode != 0:
            said = errors.read().strip().splitlines() or ['it said nothing']
            raise Failure(f'{point.command} ended with {process.returncode}: {said[-1]}')
        try:
            line = json.loads(out.read())
            metrics = {name: line['metrics'][theirs] for name, theirs in point.metrics.items()}
        except (ValueError, KeyError, TypeError):
            raise Failure(f'{point.command} printed no JSON object with {", ".join(point.metrics.values())}') from None
    if not is_counted:
        metrics[PEAK_MB] = usage.ru_maxrss / 1024
    return metrics


def measure(options, fail, show):
    """Result lines of all points: several commands of one point are one line. Each run of a round comes before the next
    round's, so that a moment in which the machine is busy spoils one run of many points, which the medians leave out.
    """
    chosen = [point for point in points() if options.sweep in (None, point.sweep)]
    runs = collections.OrderedDict(((point.sweep, point.series, point.x), collections.defaultdict(list))
                                   for point in chosen)
    failed = set()
    for number in range(options.rounds):
        for place, point in enumerate(chosen):
            # A count does not differ from run to run; what takes minutes is run once.
            if point.command in failed or (number > 0 and (point.metrics is INSTRUCTIONS or point.command.startswith(SLOW))):
                continue
            show(f'round {number + 1} of {options.rounds}, {place + 1} of {len(chosen)}: {point.command}')
            try:
                for name, value in run(options.build_dir, point, options.seconds, options.cpus).items():
                    runs[point.sweep, point.series, point.x][name].append(value)
            except Failure as failure:
                failed.add(point.command)
                fail(failure)
    lines = []
    for (sweep, series, x), metrics in runs.items():
        if not metrics:
            continue
        # A point's programs differ in the memory that they need.
        medians = {name: max(values) if name == PEAK_MB else statistics.median(values) for name, values in metrics.items()}
        lines.append({'bench': 'scale', 'sweep': sweep, 'series': series, 'x': x, 'metrics': medians,
                      'lowest': {name: min(values) for name, values in metrics.items()},
                      'highest': {name: max(values) for name, values in metrics.items()}})
    return lines


def print_tables(lines, figure):
    """One table a sweep."""
    for sweep in dict.fromkeys(line['sweep'] for line in lines):
        own = [line for line in lines if line['sweep'] == sweep]
        names = list(dict.fromkeys(name for line in own for name in line['metrics']))
        table = [['series', sweep, *names]]
        for line in own:
            table.append([line['series'], str(line['x']),
                          *(figure(line['metrics'][name]) if name in line['metrics'] else '' for name in names)])
        widths = [max(map(len, column)) for column in zip(*table)]
        for row in table:
            cells = [f'{cell:<{width}}' if i == 0 else f'{cell:>{width}}' for i, (cell, width) in enumerate(zip(row, widths))]
            print('  '.join(cells).rstrip())
        print()
