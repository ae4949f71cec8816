"""Rules about the machine that hold for every transport: programs, memory, firewall, CPUs."""
import shlex

from . import firewall
from .rules import HINT, in_bytes, may, rule, usable_interfaces


@rule('machine')
def program_starts(facts):
    problem = facts['build']['problem']
    if problem:
        library = problem.partition('shared libraries: ')[2].partition(':')[0]
        yield HINT, f'{facts["build"]["program"]} does not start ({problem}).', \
            f'apt-file search {library}  # names the package' if library else \
            shlex.join([facts['build']['program'], '--list_transports'])


@rule('machine')
def hugepages(facts):
    nodes = {node: sizes.get('2048', [0, 0]) for node, sizes in facts['hugepages'].items()}
    for node, (reserved, free) in sorted(nodes.items()):
        where = f' at NUMA node {node}' if len(nodes) > 1 else ''
        file = f'/sys/devices/system/node/node{node}/hugepages/hugepages-2048kB/nr_hugepages'
        command = f'echo 512 > {file}' if len(nodes) > 1 else 'sysctl -w vm.nr_hugepages=512'
        if not reserved:
            yield HINT, f'No hugepage of 2 MB is reserved{where}, so message memory is in ordinary pages there.', \
                command
        elif not free:
            yield HINT, f'All {reserved} hugepages of 2 MB{where} are in use.', \
                command.replace('512', str(reserved + 512))


@rule('machine')
def firewall_rules(facts):
    """Every transport between hosts uses UDP for management."""
    names = [one['name'] for one in usable_interfaces(facts)]
    seen = facts['firewall']
    for port in facts['ports']:
        verdicts = []
        if seen['nft'] is not None:
            verdicts.append(firewall.nft_verdict(seen['nft'], 'input', port, names[0] if names else None))
        if seen['iptables'] is not None:
            verdicts.append(firewall.iptables_verdict(seen['iptables'], 'input', port))
        for verdict, chain in verdicts:
            command = (f'nft insert rule {chain} udp dport {port} accept' if ' ' in chain
                       else f'iptables -I INPUT -p udp --dport {port} -j ACCEPT')
            if verdict == firewall.DROP:
                yield HINT, (f'This host\'s firewall ({chain}) drops what others send to UDP port {port}, where '
                             'servers are found.'), command
            elif verdict == firewall.UNKNOWN:
                yield HINT, (f'This host\'s firewall ({chain}) may drop what others send to UDP port {port}: it has '
                             'rules that the doctor does not understand.'), \
                    'nft list ruleset' if ' ' in chain else 'iptables-save'


@rule('machine')
def cpu_count(facts):
    allowed = facts['cpus']['allowed']
    if len(allowed) == 1:
        yield HINT, 'This process may use one CPU, on which client and server take turns.', 'taskset -cp 0-1 $$'


@rule('machine')
def governors(facts):
    others = {cpu: governor for cpu, governor in facts['cpus']['governors'].items() if governor != 'performance'}
    if others:
        yield HINT, f'The frequency of {len(others)} CPUs follows the load (governor {sorted(others.values())[0]}).', \
            'cpupower frequency-set -g performance'


@rule('machine')
def isolation(facts):
    online = facts['cpus']['online']
    if len(online) >= 4 and not facts['cpus']['isolated']:
        last = f'{online[-2]},{online[-1]}'
        yield HINT, 'No CPU is kept free of other work (isolcpus), so threads that spin are interrupted.', \
            f'sed -i \'s/^GRUB_CMDLINE_LINUX="/&isolcpus={last} nohz_full={last} /\' /etc/default/grub && ' \
            'update-grub && reboot'


@rule('machine')
def interrupts(facts):
    isolated = set(facts['cpus']['isolated'])
    for one in facts['interfaces']:
        both = sorted(isolated & set(one['interrupt_cpus']))
        if both:
            yield HINT, f'Interrupts of {one["name"]} go to the isolated CPU {both[0]}.', \
                f'grep {one["name"]} /proc/interrupts  # then: echo 0 > /proc/irq/NUMBER/smp_affinity_list'


@rule('machine')
def numa(facts):
    nodes = facts['cpus']['nodes']
    mine = {nodes[str(cpu)] for cpu in facts['cpus']['allowed'] if str(cpu) in nodes}
    if len(set(nodes.values())) < 2:
        return
    for one in [*facts['interfaces'], *facts['rdma']]:
        node = one['numa_node']
        if node is None:
            continue
        if node not in mine:
            yield HINT, f'{one["name"]} is at NUMA node {node}, and this process may use no CPU there.', \
                f'numactl --cpunodebind={node} --membind={node} PROGRAM'
        elif len(mine) > 1:
            yield HINT, f'{one["name"]} is at NUMA node {node}, and this process may use CPUs of other nodes, too.', \
                f'numactl --cpunodebind={node} --membind={node} PROGRAM'


PLACEMENT_CHANGE_MAX = 1.5  # the same value as in scripts/bench
STEAL_SHARE_MAX = 0.01


@rule('machine')
def moved_cpus(facts):
    trips = facts.get('placements_ns') or []
    if trips and max(trips) > PLACEMENT_CHANGE_MAX * min(trips):
        yield HINT, (f'A cache line took {min(trips):.0f} to {max(trips):.0f} ns between two CPUs and back: the '
                     'hypervisor, or other load, moves them.'), \
            'virsh vcpupin DOMAIN VCPU CPU  # on the host; else compare ratios only'


@rule('machine')
def stolen_time(facts):
    share = facts.get('steal_share')
    if share is not None and share > STEAL_SHARE_MAX:
        yield HINT, f'The hypervisor gave {share:.0%} of the CPUs\' time to others while this ran.', \
            'virsh vcpupin DOMAIN VCPU CPU  # on the host'


# --- In one line -----------------------------------------------------------------------------------------------------

def describe(facts):
    """A description of the machine, with good and bad facts."""
    cpus, user, kernel = facts['cpus'], facts['user'], facts['kernel']
    isolated = f'{len(cpus["isolated"])} isolated' if cpus['isolated'] else 'none isolated'
    governors = sorted(set(cpus['governors'].values()))
    trips = facts.get('placements_ns')
    pages = ', '.join(f'{"" if len(facts["hugepages"]) == 1 else f"node {node}: "}{free} of {reserved} free'
                      for node, (reserved, free) in ((node, sizes.get('2048', (0, 0)))
                                                     for node, sizes in sorted(facts['hugepages'].items())))
    has_no_limit = user['memlock_bytes'] is None or may(facts, 'CAP_IPC_LOCK')
    memlock = 'no limit' if has_no_limit else in_bytes(user['memlock_bytes'])
    words = [f'Linux {kernel["release"]}' if kernel['release'] else '',
             f'{len(cpus["allowed"])} of {len(cpus["online"])} CPUs' + (', virtual' if cpus['is_virtual'] else '') +
             f', {isolated}' + (f', governor {", ".join(governors)}' if governors else ''),
             f'{min(trips):.0f} to {max(trips):.0f} ns for a cache line there and back' if trips else '',
             f'{facts["steal_share"]:.1%} of CPU time stolen' if facts.get('steal_share') is not None else '',
             f'hugepages of 2 MB: {pages}', f'locked memory: {memlock}',
             'user: root' if user['uid'] == 0 else f'user: {user["uid"]}']
    return '; '.join(word for word in words if word)
