"""Facts about the network: interfaces, PCI and RDMA devices, socket buffers."""
import fcntl
import ipaddress
import json
import os
import re
import socket
import struct

from .look import list_of

SOCKET_BUFFER_BYTES = 4 << 20  # Udp::Options::socket_buffer_bytes
IFF_UP, IFF_LOOPBACK = 1, 8
SIOCGIFADDR, SIOCGIFMTU, SIOCGIFFLAGS = 0x8915, 0x8921, 0x8913


def ask_interface(request, name):
    """The kernel's answer about an interface of this network namespace: 16 bytes, or None."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        try:
            return fcntl.ioctl(asking, request, struct.pack('16s24x', name.encode()[:15]))[16:32]
        except OSError:
            return None


def addresses_of(look, name, ipv6):
    addresses = []
    if look.is_live:
        answer = ask_interface(SIOCGIFADDR, name)
        if answer:
            addresses.append(socket.inet_ntoa(answer[4:8]))
    return addresses + [address for address, of in ipv6 if of == name]


def interrupts_of(look, device):
    """CPUs that get the interrupts of a device. Interrupts of a virtio device belong to its parent PCI device."""
    found = set()
    real = os.path.realpath(look.path(device))
    for folder in (real, os.path.dirname(real)):
        try:
            numbers = os.listdir(os.path.join(folder, 'msi_irqs'))
        except OSError:
            continue
        for number in numbers:
            folder = f'/proc/irq/{number}'
            found |= set(list_of(look.text(f'{folder}/effective_affinity_list')
                                 or look.text(f'{folder}/smp_affinity_list')))
        break
    return sorted(found)


def xdp_programs(look):
    """Interface to the mode of the XDP program on it; None if the mode cannot be read."""
    done = look.run('ip', '-json', 'link', 'show')
    try:
        links = json.loads(done[1]) if done and done[0] == 0 else None
    except ValueError:
        links = None
    if links is None:
        return None
    return {link['ifname']: str(link['xdp'].get('mode', '')) for link in links if link.get('xdp')}


def interfaces(look):
    """Interfaces of this network namespace; first those that are up and have an address."""
    names = re.findall(r'^\s*([^\s:|]+):', look.text('/proc/net/dev') or '', re.M)
    ipv6 = []
    for line in (look.text('/proc/net/if_inet6') or '').splitlines():
        words = line.split()
        if len(words) == 6:
            ipv6.append((str(ipaddress.IPv6Address(int(words[0], 16))), words[5]))
    programs = xdp_programs(look)
    found = []
    for name in names:
        folder = f'/sys/class/net/{name}'
        in_sysfs = look.has(folder)
        if look.is_live and in_sysfs:  # the interface is of another namespace if /sys was not mounted again
            try:
                in_sysfs = look.number(f'{folder}/ifindex') == socket.if_nametoindex(name)
            except OSError:
                in_sysfs = False
        if not in_sysfs:
            look.note_unseen(f'queues and driver of the interface {name}: /sys shows another network namespace')
        if look.is_live:
            flags, mtu = ask_interface(SIOCGIFFLAGS, name), ask_interface(SIOCGIFMTU, name)
            flags = struct.unpack('<H', flags[:2])[0] if flags else 0
            mtu = struct.unpack('<i', mtu[:4])[0] if mtu else None
        else:
            flags, mtu = look.number(f'{folder}/flags') or 0, look.number(f'{folder}/mtu')
        queues = look.names(f'{folder}/queues') if in_sysfs else []
        device = f'{folder}/device'
        has_device = in_sysfs and look.has(device)
        node = look.number(f'{device}/numa_node') if has_device else None
        found.append({
            'name': name, 'is_up': bool(flags & IFF_UP), 'is_loopback': bool(flags & IFF_LOOPBACK), 'mtu': mtu,
            'addresses': addresses_of(look, name, ipv6),
            'receive_queues': sum(queue.startswith('rx-') for queue in queues) or None,
            'driver': look.link(f'{device}/driver') if has_device else None,
            'numa_node': node if node is not None and node >= 0 else None,
            'interrupt_cpus': interrupts_of(look, device) if has_device else [],
            'xdp': None if programs is None else programs.get(name)})
    if programs is None and look.is_live:
        look.note_unseen('XDP programs of interfaces: ip (package iproute2) is not installed')
    return sorted(found, key=lambda one: (one['is_loopback'], not one['is_up'], not one['addresses'], one['name']))


def pci_network_devices(look):
    found = []
    for address in look.names('/sys/bus/pci/devices'):
        folder = f'/sys/bus/pci/devices/{address}'
        if (look.text(f'{folder}/class') or '').startswith('0x02'):
            node = look.number(f'{folder}/numa_node')
            names = look.names(f'{folder}/net')
            for child in look.names(folder):
                if child.startswith('virtio'):
                    names += look.names(f'{folder}/{child}/net')
            found.append({'address': address, 'driver': look.link(f'{folder}/driver'), 'interfaces': names,
                          'numa_node': node if node is not None and node >= 0 else None})
    return found


def rdma_devices(look):
    found = []
    for name in look.names('/sys/class/infiniband'):
        folder = f'/sys/class/infiniband/{name}'
        ports = {}
        for port in look.names(f'{folder}/ports'):
            state = look.text(f'{folder}/ports/{port}/state') or ''
            ports[port] = {'state': state.partition(': ')[2] or state,
                           'link_layer': look.text(f'{folder}/ports/{port}/link_layer') or ''}
        parent = look.text(f'{folder}/parent')  # set for software devices
        node = look.number(f'{folder}/device/numa_node')
        found.append({'name': name, 'driver': look.link(f'{folder}/device/driver') or ('software' if parent else None),
                      'interfaces': look.names(f'{folder}/device/net') + ([parent] if parent else []), 'ports': ports,
                      'numa_node': node if node is not None and node >= 0 else None})
    return found


def uverbs(look):
    """Device files of verbs, and whether this user may read and write them."""
    return {name: os.access(look.path(f'/dev/infiniband/{name}'), os.R_OK | os.W_OK)
            for name in look.names('/dev/infiniband') if name.startswith('uverbs')}


def socket_buffers(look):
    """Buffer bytes that a UDP socket gets when tern asks for SOCKET_BUFFER_BYTES; None: unknown."""
    granted = {}
    for name, option, limit in (('receive_bytes', socket.SO_RCVBUF, 'rmem_max'),
                                ('send_bytes', socket.SO_SNDBUF, 'wmem_max')):
        granted[name] = None
        if look.is_live:
            try:
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as trying:
                    trying.setsockopt(socket.SOL_SOCKET, option, SOCKET_BUFFER_BYTES)
                    granted[name] = trying.getsockopt(socket.SOL_SOCKET, option) // 2  # the kernel doubles it
            except OSError:
                pass
        else:
            value = look.number(f'/proc/sys/net/core/{limit}')
            granted[name] = None if value is None else min(value, SOCKET_BUFFER_BYTES)
    return granted


def facts_of(look):
    return {'interfaces': interfaces(look), 'pci': pci_network_devices(look), 'rdma': rdma_devices(look),
            'uverbs': uverbs(look), 'socket_buffers': socket_buffers(look),
            'has_iommu': bool(look.names('/sys/class/iommu') or look.names('/sys/kernel/iommu_groups'))}
