"""Facts about the machine except its network: kernel, permissions, memory, CPUs, packages."""
import fcntl
import gzip
import os
import platform
import re

from .look import list_of

# Bits of linux/capability.h.
CAPABILITIES = {'CAP_NET_ADMIN': 12, 'CAP_NET_RAW': 13, 'CAP_IPC_LOCK': 14, 'CAP_SYS_ADMIN': 21, 'CAP_BPF': 39}

KERNEL_OPTIONS = ('CONFIG_XDP_SOCKETS', 'CONFIG_BPF_SYSCALL', 'CONFIG_VFIO_PCI', 'CONFIG_INFINIBAND',
                  'CONFIG_MLX5_INFINIBAND')


def kernel(look):
    """'release' as (major, minor), and 'options': CONFIG_NAME to y, m or n; None if the kernel does not publish
    them."""
    release = look.text('/proc/sys/kernel/osrelease') or (platform.release() if look.is_live else '')
    version = re.match(r'(\d+)\.(\d+)', release)
    facts = {'release': release, 'version': [int(part) for part in version.groups()] if version else None,
             'options': None, 'options_from': None}
    for path in ('/proc/config.gz', f'/boot/config-{release}', f'/lib/modules/{release}/config'):
        content = look.bytes(path)
        if content is None:
            continue
        try:
            text = (gzip.decompress(content) if path.endswith('.gz') else content).decode(errors='replace')
        except (OSError, EOFError):
            continue
        chosen = dict(re.findall(r'^(CONFIG_\w+)=(.+)$', text, re.M))
        facts['options'] = {name: chosen.get(name, 'n') for name in KERNEL_OPTIONS}
        facts['options_from'] = path
        return facts
    look.note_unseen('the kernel\'s options: there is neither /proc/config.gz nor /boot/config-*')
    return facts


def user(look):
    """The user of this process, and the capabilities and limits that a started program would have."""
    status = look.text('/proc/self/status') or ''
    uid = re.search(r'^Uid:\s+\d+\s+(\d+)', status, re.M)
    effective = re.search(r'^CapEff:\s+([0-9a-f]+)', status, re.M)
    bits = int(effective.group(1), 16) if effective else 0
    limits = look.text('/proc/self/limits') or ''
    return {'uid': int(uid.group(1)) if uid else None,
            'capabilities': sorted(name for name, bit in CAPABILITIES.items() if bits >> bit & 1),
            'memlock_bytes': soft_limit(limits, 'Max locked memory'),
            'files_max': soft_limit(limits, 'Max open files')}


def soft_limit(limits, name):
    """A limit in /proc/self/limits. None: unlimited, or unknown."""
    found = re.search(rf'^{name}\s+(\d+)', limits, re.M)
    return int(found.group(1)) if found else None


def capabilities_of_file(path):
    """The capabilities that the program gets by setcap: the permitted set of its attribute, if it becomes effective."""
    try:
        attribute = os.getxattr(path, 'security.capability')
    except OSError:
        return []
    words = [int.from_bytes(attribute[at:at + 4], 'little') for at in range(0, len(attribute) - 3, 4)]
    if len(words) < 5 or not words[0] & 1:
        return []
    bits = words[1] | words[3] << 32
    return sorted(name for name, bit in CAPABILITIES.items() if bits >> bit & 1)


def sealed_memory(look):
    """Why no memory file can be sealed against future writes, as shm needs it; '' if it can."""
    if not look.is_live:
        return ''
    seal_future_write = 0x10  # linux/fcntl.h; Python 3.11 has no name for it
    try:
        fd = os.memfd_create('tern-doctor', os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    except (OSError, AttributeError) as error:
        return f'memfd_create: {getattr(error, "strerror", None) or error}'
    try:
        os.ftruncate(fd, 4096)
        fcntl.fcntl(fd, 1033, seal_future_write)  # F_ADD_SEALS
    except OSError as error:
        return f'F_SEAL_FUTURE_WRITE: {error.strerror}'
    finally:
        os.close(fd)
    return ''


def hugepages(look):
    """For each NUMA node: page size in kB to [reserved, free]."""
    nodes = [name for name in look.names('/sys/devices/system/node') if re.fullmatch(r'node\d+', name)]
    folders = {int(name[4:]): f'/sys/devices/system/node/{name}/hugepages' for name in nodes}
    folders = {node: folder for node, folder in folders.items() if look.has(folder)} or {0: '/sys/kernel/mm/hugepages'}
    found = {}
    for node, folder in folders.items():
        sizes = [re.fullmatch(r'hugepages-(\d+)kB', name) for name in look.names(folder)]
        found[str(node)] = {size.group(1): [look.number(f'{folder}/{size.group(0)}/nr_hugepages') or 0,
                                            look.number(f'{folder}/{size.group(0)}/free_hugepages') or 0]
                            for size in sizes if size}
    return found


def cpus(look):
    status = look.text('/proc/self/status') or ''
    allowed = re.search(r'^Cpus_allowed_list:\s*(\S+)', status, re.M)
    base = '/sys/devices/system/cpu'
    online = list_of(look.text(f'{base}/online'))
    governors = {}
    for cpu in online:
        governor = look.text(f'{base}/cpu{cpu}/cpufreq/scaling_governor')
        if governor:
            governors[str(cpu)] = governor
    nodes = {}
    for name in look.names('/sys/devices/system/node'):
        if re.fullmatch(r'node\d+', name):
            nodes.update({str(cpu): int(name[4:])
                          for cpu in list_of(look.text(f'/sys/devices/system/node/{name}/cpulist'))})
    flags = re.search(r'^flags\s*:(.*)$', look.text('/proc/cpuinfo') or '', re.M)
    return {'online': online, 'allowed': list_of(allowed.group(1)) if allowed else online,
            'isolated': list_of(look.text(f'{base}/isolated')), 'governors': governors, 'nodes': nodes,
            'is_virtual': bool(flags and 'hypervisor' in flags.group(1).split())}


def cpu_ticks(look):
    """(all, stolen by the hypervisor) ticks of all CPUs since the start, or None."""
    found = re.search(r'^cpu ((?: +\d+)+)', look.text('/proc/stat') or '', re.M)
    ticks = [int(word) for word in found.group(1).split()] if found else []
    return (sum(ticks[:8]), ticks[7]) if len(ticks) >= 8 else None


def packages(look, names):
    """Whether Debian packages are installed, by name; None if this is not a Debian system."""
    status = look.text('/var/lib/dpkg/status')
    if status is None:
        return None
    installed = set(re.findall(r'^Package: (\S+)\nStatus: \S+ \S+ installed$', status, re.M))
    return {name: name in installed for name in names}


def dpdk_drivers(look):
    """Names of DPDK's installed drivers for network devices, such as af_packet."""
    found = set()
    for folder in ('/usr/lib', *(f'/usr/lib/{name}' for name in look.names('/usr/lib') if name.endswith('-gnu')),
                   '/usr/lib64', '/usr/local/lib', '/usr/local/lib64'):
        for version in look.names(f'{folder}/dpdk'):
            found |= {match.group(1) for match in (re.match(r'librte_net_(\w+)\.so', name)
                                                   for name in look.names(f'{folder}/dpdk/{version}')) if match}
    return sorted(found)


def facts_of(look, wanted_packages):
    return {'kernel': kernel(look), 'user': user(look), 'sealed_memory': sealed_memory(look),
            'hugepages': hugepages(look), 'cpus': cpus(look), 'packages': packages(look, wanted_packages),
            'dpdk_drivers': dpdk_drivers(look)}
