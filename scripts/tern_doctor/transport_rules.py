"""Rules about transports: which are built, what each needs, and on which devices it would run."""
from .network import SOCKET_BUFFER_BYTES
from .rules import HINT, STOP, in_bytes, may, rule, usable_interfaces
from .transports import TRANSPORTS

DEBIAN_KERNEL = 'apt-get install linux-image-$(dpkg --print-architecture)'
DPDK_DRIVERS = ('vfio-pci', 'uio_pci_generic', 'igb_uio')  # the same list as in src/transport/dpdk/dpdk_device.cc
SHARING_DRIVERS = ('mlx5_core', 'mlx4_core', 'mana')
XDP_ATTACHED_SKB = '2'  # ip's number of the mode
XDP_NATIVE_MTU_MAX = 3498  # for most drivers: a frame and the kernel's data about it share a page
MLX5_MTU_MAX = 8170  # the size of a stride
UDP_FRAME_BYTES = 1232 + 28  # Udp::Options::datagram_bytes and the headers of UDP and IPv4
LIFT_LIMIT = ('printf \'* soft memlock unlimited\\n* hard memlock unlimited\\n\' > /etc/security/limits.d/tern.conf  '
              '# then log in again')
# About the memory that an endpoint locks: as in docs/transports.md for verbs and mlx5; for xdp a queue with an MTU of
# 1500.
LOCKED_BYTES = {'verbs': 64 << 20, 'mlx5': 16 << 20, 'xdp': 9 << 20}


def is_root(facts):
    return facts['user']['uid'] == 0


def bound_to_dpdk(facts):
    return [one for one in facts['pci'] if one['driver'] in DPDK_DRIVERS or one['driver'] in SHARING_DRIVERS]


def mlx5_devices(facts):
    return [one for one in facts['rdma'] if (one['driver'] or '').startswith('mlx5')]


def free_hugepages(facts):
    return sum(free for sizes in facts['hugepages'].values() for _, free in sizes.values())


def idle_interface(facts):
    names = [one['name'] for one in facts['interfaces'] if not one['is_loopback']]
    return names[0] if names else 'DEV'


def option(facts, name):
    """y, m, n; None: the kernel does not publish its options."""
    return (facts['kernel']['options'] or {}).get(name)


# --- What is built ---------------------------------------------------------------------------------------------------

@rule(*(transport.name for transport in TRANSPORTS))
def is_built(facts):
    build = facts['build']
    transport = next(one for one in TRANSPORTS if one.name == facts['about'])
    needs = build['needs'].get(transport.name)
    is_debian = facts['packages'] is not None  # otherwise it is not known which packages are installed
    missing = [package for package in transport.debian if not (facts['packages'] or {}).get(package)]
    install = f'{"apt-get" if is_debian else "PACKAGE_MANAGER"} install {" ".join(missing)}'
    note = '  # by their names in Debian' if missing and not is_debian else ''
    if build['built'] is None and missing:
        yield HINT, (f'The packages that {transport.name} is built with are not installed ({" ".join(missing)}).'
                     if is_debian else
                     f'{transport.name} is built with packages that Debian calls {" and ".join(missing)}.'), install + note
    if build['built'] is None or facts['about'] in build['built']:
        return
    if build['program'] and not build['problem'] and not needs:
        yield STOP, f'{transport.name} is unknown to this version of tern.', \
            'git pull && cmake --preset release && cmake --build --preset release'
        return
    if needs and needs.startswith('the CMake option'):
        why = f'{transport.option} is OFF'
    elif missing and is_debian:
        why = f'{"the Debian packages" if len(missing) > 1 else "the Debian package"} {" and ".join(missing)} ' \
              f'{"are" if len(missing) > 1 else "is"} missing'
    elif needs:
        why = f'CMake has not found {needs}'
    else:
        why = f'{transport.option} was OFF, or its packages were missing, when tern was built'
    yield STOP, f'{transport.name} is not built: {why}.', (f'{install} && ' if missing else '') + \
        f'cmake --preset release -D{transport.option}=ON && cmake --build --preset release{note}'


# --- shm -------------------------------------------------------------------------------------------------------------

@rule('shm')
def sealed_memory(facts):
    if facts['sealed_memory']:
        yield STOP, f'The kernel refuses sealed memory files ({facts["sealed_memory"]}), in which the rings are.', \
            'uname -r  # Linux 5.1 or newer; in a container, allow memfd_create'
    elif facts['kernel']['version'] and facts['kernel']['version'] < [5, 1]:
        yield STOP, f'The kernel {facts["kernel"]["release"]} is older than 5.1, the first that shm can use.', \
            DEBIAN_KERNEL


@rule('shm', 'udp')
def file_descriptors(facts):
    files = facts['user']['files_max']
    if files is not None and files < 256:
        yield HINT, f'A process may have {files} open files, and each peer needs some.', 'ulimit -n 65536'


# --- udp -------------------------------------------------------------------------------------------------------------

@rule('udp')
def udp_interfaces(facts):
    if not any(one['is_up'] and one['addresses'] for one in facts['interfaces']):
        yield STOP, 'No network interface is up with an address, not even lo.', 'ip link set lo up'
    elif not usable_interfaces(facts):
        yield HINT, 'No network interface but lo is up with an address, so that no other host can be reached.', \
            f'ip link set {idle_interface(facts)} up && ip address add ADDRESS/24 dev {idle_interface(facts)}'


@rule('udp')
def udp_mtu(facts):
    for one in usable_interfaces(facts):
        if one['mtu'] is not None and one['mtu'] < UDP_FRAME_BYTES:
            shorter = max(one['mtu'] - 28, 576)
            yield HINT, (f'The MTU of {one["name"]} is {one["mtu"]}, and tern\'s datagrams take {UDP_FRAME_BYTES} '
                         'by default.'), \
                f'ip link set {one["name"]} mtu 1500  # or --transport_options=datagram_bytes={shorter}'


@rule('udp')
def udp_buffers(facts):
    for key, limit, what in (('receive_bytes', 'rmem_max', 'receiving'), ('send_bytes', 'wmem_max', 'sending')):
        granted = facts['socket_buffers'][key]
        if granted is not None and granted < SOCKET_BUFFER_BYTES:
            yield HINT, (f'The kernel gives a UDP socket {in_bytes(granted)} for {what}, and tern asks for '
                         f'{in_bytes(SOCKET_BUFFER_BYTES)}.'), f'sysctl -w net.core.{limit}={SOCKET_BUFFER_BYTES}'


# --- xdp -------------------------------------------------------------------------------------------------------------

@rule('xdp')
def xdp_kernel(facts):
    missing = [name for name in ('CONFIG_BPF_SYSCALL', 'CONFIG_XDP_SOCKETS') if option(facts, name) == 'n']
    if missing:
        yield STOP, f'The kernel has no AF_XDP ({missing[0]} is not set in {facts["kernel"]["options_from"]}).', \
            f'{DEBIAN_KERNEL}  # Debian\'s kernel has it'


@rule('xdp')
def xdp_kernel_version(facts):
    if facts['kernel']['version'] and facts['kernel']['version'] < [5, 9]:
        yield HINT, (f'The kernel {facts["kernel"]["release"]} is older than 5.9, and leaves XDP programs behind at '
                     'interfaces.'), DEBIAN_KERNEL


@rule('xdp')
def xdp_permission(facts):
    missing = [name for name in ('CAP_NET_ADMIN', 'CAP_NET_RAW') if not may(facts, name)]
    if not may(facts, 'CAP_BPF') and not may(facts, 'CAP_SYS_ADMIN'):
        missing.append('CAP_BPF')
    if missing:
        yield STOP, f'This user may not attach XDP programs and open AF_XDP sockets ({", ".join(missing)}).', \
            'setcap cap_net_admin,cap_net_raw,cap_bpf+ep PROGRAM  # or run it as root'


@rule('xdp')
def xdp_interfaces(facts):
    usable = usable_interfaces(facts)
    if not usable:
        yield STOP, 'No network interface but lo is up with an address.', \
            f'ip link set {idle_interface(facts)} up && ip address add ADDRESS/24 dev {idle_interface(facts)}'
    for one in usable:
        if one['mtu'] is not None and one['mtu'] > XDP_NATIVE_MTU_MAX:
            yield HINT, (f'The MTU of {one["name"]} is {one["mtu"]}, and XDP in the driver takes '
                         f'{XDP_NATIVE_MTU_MAX} at most.'), f'ip link set {one["name"]} mtu {XDP_NATIVE_MTU_MAX}'
        if one['receive_queues'] == 1:
            yield HINT, f'{one["name"]} has one receive queue, which one process can own.', \
                f'ethtool -L {one["name"]} combined 4  # if the NIC has more'
        if one['xdp'] is not None:
            kind = 'xdpgeneric' if one['xdp'] == XDP_ATTACHED_SKB else 'xdp'
            yield HINT, f'An XDP program is on {one["name"]}, tern\'s or another\'s, and an interface takes one.', \
                f'ip -details link show dev {one["name"]}  # ip link set dev {one["name"]} {kind} off removes it'


# --- dpdk ------------------------------------------------------------------------------------------------------------

@rule('dpdk')
def dpdk_drivers(facts):
    if not facts['dpdk_drivers']:
        yield STOP, 'No driver of DPDK is installed.', 'apt-get install librte-net-memif23 librte-net-af-packet23'


@rule('dpdk')
def dpdk_devices(facts):
    if bound_to_dpdk(facts):
        return
    if not facts['pci']:
        yield HINT, 'This machine has no PCI network device, so DPDK has its software devices only.', 'lspci -nn'
    for one in facts['pci']:
        names = ', '.join(one['interfaces']) or 'no interface'
        yield HINT, (f'The kernel has the NIC {one["address"]} ({names}, {one["driver"] or "no driver"}), so DPDK '
                     'has its software devices only.'), \
            f'dpdk-devbind.py --bind=vfio-pci {one["address"]}  # takes it from the kernel'


@rule('dpdk')
def dpdk_vfio(facts):
    wants_vfio = [one for one in facts['pci'] if one['driver'] not in SHARING_DRIVERS]
    if not wants_vfio:
        return
    if option(facts, 'CONFIG_VFIO_PCI') == 'n':
        yield HINT, (f'The kernel has no vfio-pci (CONFIG_VFIO_PCI is not set in {facts["kernel"]["options_from"]}), '
                     'which gives NICs to DPDK.'), f'{DEBIAN_KERNEL}  # Debian\'s kernel has it'
    elif not facts['has_iommu']:
        yield HINT, 'The IOMMU is off, and vfio-pci needs it.', \
            'sed -i \'s/^GRUB_CMDLINE_LINUX="/&intel_iommu=on iommu=pt /\' /etc/default/grub && update-grub && reboot'


@rule('dpdk')
def dpdk_hugepages(facts):
    if not free_hugepages(facts):
        yield HINT, 'No hugepage is free, so DPDK runs in ordinary pages, which NICs without an IOMMU cannot use.', \
            'sysctl -w vm.nr_hugepages=512'


@rule('dpdk')
def dpdk_user(facts):
    if not is_root(facts):
        yield HINT, 'Most devices of DPDK are for root only; memif and virtio-user are not.', 'sudo PROGRAM'


# --- verbs and mlx5 --------------------------------------------------------------------------------------------------

@rule('verbs')
def verbs_devices(facts):
    if not facts['rdma']:
        command = f'modprobe rdma_rxe && rdma link add rxe0 type rxe netdev {idle_interface(facts)}  # in software'
        yield from no_rdma(facts, 'CONFIG_INFINIBAND', command)
        return
    ports = [port for device in facts['rdma'] for port in device['ports'].values()]
    if not any(port['state'] == 'ACTIVE' for port in ports):
        name = facts['rdma'][0]['name']
        states = ', '.join(sorted({port['state'] for port in ports})) or 'no port'
        yield STOP, f'No port of an RDMA device is active ({name}: {states}).', \
            f'ip link set {(facts["rdma"][0]["interfaces"] or ["DEV"])[0]} up  # on InfiniBand: opensm'


def no_rdma(facts, wanted, command):
    if option(facts, wanted) == 'n':
        what = 'RDMA' if facts['about'] == 'verbs' else 'RDMA driver of Mellanox NICs'
        yield STOP, f'The kernel has no {what} ({wanted} is not set in {facts["kernel"]["options_from"]}).', \
            f'{DEBIAN_KERNEL}  # Debian\'s kernel has it'
    else:
        yield STOP, f'This machine has no {"RDMA" if facts["about"] == "verbs" else "mlx5"} device.', command


@rule('verbs', 'mlx5')
def verbs_files(facts):
    closed = [name for name, is_open in facts['uverbs'].items() if not is_open]
    if closed and len(closed) == len(facts['uverbs']):
        yield STOP, f'This user may not open /dev/infiniband/{closed[0]}.', f'chmod a+rw /dev/infiniband/{closed[0]}'
    elif facts['rdma'] and not facts['uverbs']:
        yield STOP, 'There is no /dev/infiniband/uverbs*.', 'modprobe ib_uverbs'


@rule('mlx5')
def mlx5_device(facts):
    devices = mlx5_devices(facts)
    if not devices:
        yield from no_rdma(facts, 'CONFIG_MLX5_INFINIBAND',
                           'modprobe mlx5_ib  # it needs a Mellanox NIC, ConnectX-4 or newer')
        return
    if not any(port['link_layer'] == 'Ethernet' for device in devices for port in device['ports'].values()):
        yield STOP, f'The port of {devices[0]["name"]} is in InfiniBand mode, and mlx5 sends Ethernet frames.', \
            'mlxconfig -d DEV set LINK_TYPE_P1=2'
    by_name = {one['name']: one for one in facts['interfaces']}
    names = [name for device in devices for name in device['interfaces'] if name in by_name]
    if names and not any(by_name[name]['addresses'] for name in names):
        yield STOP, f'The interface {names[0]} of the NIC has no address.', \
            f'ip link set {names[0]} up && ip address add ADDRESS/24 dev {names[0]}'
    for name in names:
        if (by_name[name]['mtu'] or 0) > MLX5_MTU_MAX:
            yield STOP, f'The MTU of {name} is {by_name[name]["mtu"]}, and mlx5 takes {MLX5_MTU_MAX} at most.', \
                f'ip link set {name} mtu {MLX5_MTU_MAX}'


@rule('mlx5')
def mlx5_permission(facts):
    if not may(facts, 'CAP_NET_RAW'):
        yield STOP, 'This user may not send raw packets (CAP_NET_RAW).', \
            'setcap cap_net_raw+ep PROGRAM  # or run it as root'


@rule('verbs', 'mlx5', 'xdp')
def locked_memory(facts):
    """Devices and AF_XDP charge locked memory to the process, unless the process may lock memory without limit."""
    limit, wanted = facts['user']['memlock_bytes'], LOCKED_BYTES[facts['about']]
    if limit is not None and limit < wanted and not may(facts, 'CAP_IPC_LOCK'):
        yield STOP, (f'This user may lock {in_bytes(limit)} of memory, and an endpoint over {facts["about"]} takes up '
                     f'to {in_bytes(wanted)}.'), LIFT_LIMIT


# --- Devices ---------------------------------------------------------------------------------------------------------

def cpus_in_words(cpus):
    return f'{len(cpus)} CPUs' if len(cpus) > 4 else ('CPU ' if len(cpus) == 1 else 'CPUs ') + ', '.join(map(str, cpus))


def describe(one):
    words = [one['driver'] or '', f'MTU {one["mtu"]}' if one['mtu'] else '',
             f'{one["receive_queues"]} receive queues' if (one['receive_queues'] or 0) > 1 else
             '1 receive queue' if one['receive_queues'] else '',
             f'NUMA node {one["numa_node"]}' if one['numa_node'] is not None else '',
             f'interrupts on {cpus_in_words(one["interrupt_cpus"])}' if one['interrupt_cpus'] else '']
    return f'{one["name"]} ({", ".join(word for word in words if word)})'


def devices(facts, name):
    """The devices that a transport would run on, best first."""
    if name == 'shm':
        return ['memory of this host']
    if name == 'udp':
        return [describe(one) for one in facts['interfaces'] if one['is_up'] and one['addresses']]
    if name == 'xdp':
        return [describe(one) for one in usable_interfaces(facts)]
    if name == 'dpdk':
        software = [driver for driver in ('memif', 'af_packet', 'af_xdp', 'tap', 'vhost', 'virtio')
                    if driver in facts['dpdk_drivers']]
        return [f'{one["address"]} ({one["driver"]})' for one in bound_to_dpdk(facts)] + \
            ([f'software devices ({", ".join(software)})'] if software else [])
    return [f'{one["name"]} ({one["driver"] or "no driver"}, ' +
            ', '.join(f'port {number} {port["state"]} {port["link_layer"]}'.rstrip()
                      for number, port in one['ports'].items()) + ')'
            for one in (mlx5_devices(facts) if name == 'mlx5' else facts['rdma'] if name == 'verbs' else [])]
