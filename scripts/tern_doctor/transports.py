"""The transports between processes, and the parts of tern that are built or installed here."""
import collections
import glob
import os
import re
import shutil
import subprocess

LIST_SECONDS_MAX = 60  # DPDK's start takes seconds if it prepares hugepages

# debian  packages of scripts/setup NAME, as in src/transport/NAME/CMakeLists.txt
# option  the CMake option
Transport = collections.namedtuple('Transport', 'name what debian option', defaults=('', (), None))

TRANSPORTS = (
    Transport('shm', 'shared memory of one host'),
    Transport('udp', 'the kernel\'s UDP sockets'),
    Transport('xdp', 'AF_XDP sockets of any NIC', ('libxdp-dev', 'libbpf-dev', 'libmnl-dev'), 'TERN_XDP'),
    Transport('dpdk', 'NICs with a driver of DPDK', ('libdpdk-dev', 'libmnl-dev'), 'TERN_DPDK'),
    Transport('verbs', 'RDMA NICs', ('libibverbs-dev',), 'TERN_VERBS'),
    Transport('mlx5', 'Mellanox NICs, as Ethernet frames', ('libibverbs-dev', 'libmnl-dev'), 'TERN_MLX5'),
)
DEBIAN_PACKAGES = sorted({package for transport in TRANSPORTS for package in transport.debian})


def build_folders(build_dir, here):
    if build_dir:
        return [build_dir]
    base = os.path.join(here, '..', 'build')
    return [os.path.join(base, 'release'), *sorted(glob.glob(os.path.join(base, '*')))]


def find_program(build_dir, here):
    """microbench/latency of a build directory, or the program installed beside this script or in PATH; None: neither
    exists."""
    for folder in build_folders(build_dir, here):
        path = os.path.normpath(os.path.join(folder, 'microbench', 'latency'))
        if os.access(path, os.X_OK):
            return path
    if build_dir:
        return None
    beside = os.path.join(here, 'tern-latency')
    return beside if os.access(beside, os.X_OK) else shutil.which('tern-latency')


def built_without_program(build_dir, here):
    """Names of the transports that have libraries here: in a build directory, or installed beside this script; None:
    there are no libraries."""
    for folder in build_folders(build_dir, here):
        try:
            with open(os.path.join(folder, 'generated', 'transports'), encoding='utf-8') as file:
                return sorted(line.split()[0] for line in file if line.split()[-1:] == ['real'])
        except OSError:
            continue
    prefix = os.path.join(here, '..')
    names = {re.fullmatch(r'tern-(\w+)\.pc', os.path.basename(path)).group(1)
             for pattern in ('lib*/pkgconfig/tern-*.pc', 'lib/*/pkgconfig/tern-*.pc')
             for path in glob.glob(os.path.join(prefix, pattern))}
    return sorted(names - {'sim', 'device', 'faults'}) or None


def installation(build_dir, here):
    """The parts of tern that are here. 'program': path or None; 'problem': why it does not start, or ''; 'built':
    names, or None if unknown; 'needs': name to the packages that CMake did not find; 'refused': name to why it does not
    run here.
    """
    found = {'program': find_program(build_dir, here), 'problem': '', 'built': None, 'needs': {}, 'refused': {}}
    if not found['program']:
        found['built'] = built_without_program(build_dir, here)
        return found
    try:
        done = subprocess.run([found['program'], '--list_transports'], stdin=subprocess.DEVNULL, capture_output=True,
                              text=True, errors='replace', timeout=LIST_SECONDS_MAX, check=False)
    except subprocess.TimeoutExpired:
        found['problem'] = f'--list_transports did not end in {LIST_SECONDS_MAX} s'
        return found
    except OSError as error:
        found['problem'] = error.strerror
        return found
    if done.returncode != 0:
        found['problem'] = (done.stderr.strip().splitlines() or [f'it ended with {done.returncode}'])[-1]
        return found
    found['built'] = [line.split('\t')[0] for line in done.stdout.splitlines()]
    for line in done.stderr.splitlines():
        refused = re.fullmatch(r'(\w+) does not run here: (?:\1: )?(.*)', line)
        missing = re.fullmatch(r'(\w+) is not built: it needs (.*)', line)
        if refused:
            found['refused'][refused.group(1)] = refused.group(2)
            found['built'].append(refused.group(1))
        elif missing:
            found['needs'][missing.group(1)] = missing.group(2)
    return found


def known_transports(found):
    """TRANSPORTS, and those that a program has but this script does not know."""
    known = {transport.name for transport in TRANSPORTS}
    more = [name for name in [*(found['built'] or ()), *found['needs']] if name not in known]
    return [*TRANSPORTS, *(Transport(name, option=f'TERN_{name.upper()}') for name in more)]
