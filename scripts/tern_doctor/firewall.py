"""What the firewall's rules of this host say of a UDP packet that begins a conversation. Rules that are not understood
make the answer UNKNOWN; nothing is guessed.
"""
import json
import re

ACCEPT, DROP, UNKNOWN = 'accept', 'drop', 'unknown'


def facts_of(look):
    """'nft': the ruleset as a list of objects; 'iptables': lines of the legacy iptables-save. None: not seen."""
    found = {'nft': None, 'iptables': None}
    done = look.run('nft', '--json', 'list', 'ruleset')
    if done and done[0] == 0:
        try:
            found['nft'] = [entry for entry in json.loads(done[1] or '{}').get('nftables', [])
                            if 'metainfo' not in entry]
        except ValueError:
            pass
    legacy = look.run('iptables-legacy-save')
    if legacy and legacy[0] == 0:
        found['iptables'] = legacy[1].splitlines()
    if look.is_live and found['nft'] is None and found['iptables'] is None:
        look.note_unseen('the rules of the firewall: nft list ruleset wants root' if done
                         else 'the rules of the firewall: nft (package nftables) is not here')
    return found


# --- nftables --------------------------------------------------------------------------------------------------------

def is_in(value, right):
    """Whether a value is what an nft expression names; None: the expression is not understood."""
    if isinstance(right, str) and right.startswith('@'):  # a set by name, whose elements are elsewhere
        return None
    if isinstance(right, (int, str)):
        return right == value
    if isinstance(right, list):
        right = {'set': right}
    if isinstance(right, dict) and 'range' in right and isinstance(value, int):
        low, high = right['range']
        return low <= value <= high if isinstance(low, int) and isinstance(high, int) else None
    if isinstance(right, dict) and isinstance(right.get('set'), list):
        answers = [is_in(value, one) for one in right['set']]
        return True if True in answers else None if None in answers else False
    return None


def matches(match, packet):
    """True, False, or None: not understood."""
    left, right = match.get('left'), match.get('right')
    answer = None
    if isinstance(left, dict) and 'payload' in left:
        protocol, field = left['payload'].get('protocol'), left['payload'].get('field')
        if protocol in ('tcp', 'icmp', 'icmpv6', 'sctp'):
            return False
        if protocol in ('udp', 'th') and field == 'dport':
            answer = is_in(packet['port'], right)
    elif isinstance(left, dict) and 'meta' in left:
        key = left['meta'].get('key')
        if key == 'l4proto':
            answer = is_in('udp', right)
        elif key == packet['interface_key'] and packet['interface']:
            answer = is_in(packet['interface'], right)
        elif key in ('iifname', 'oifname', 'iif', 'oif') and right == 'lo':
            answer = False  # the other host is not this one
    elif isinstance(left, dict) and left.get('ct', {}).get('key') == 'state':
        answer = is_in('new', right)
    if answer is not None and match.get('op') == '!=':
        return not answer
    return answer if match.get('op') in ('==', 'in', '!=') else None


def verdict_of_rules(chain, chains, packet, depth=0):
    """(verdict, rule that gives it) of a chain's rules; (None, None): none gives one. A rule that is not understood
    makes the verdict uncertain if it could end the matter."""
    uncertain = None
    for rule in chains.get(chain, {}).get('rules', ()):
        is_sure = True
        for expression in rule:
            kind = next(iter(expression), None)
            verdict, at = None, None
            if kind == 'match':
                answer = matches(expression['match'], packet)
                if answer is False:
                    break
                is_sure = is_sure and answer is True
            elif kind in ('accept', 'drop', 'reject'):
                verdict, at = ACCEPT if kind == 'accept' else DROP, rule
            elif kind in ('jump', 'goto') and depth < 16:
                target = (chain[0], chain[1], expression[kind].get('target'))
                verdict, at = verdict_of_rules(target, chains, packet, depth + 1)
            elif kind == 'return':
                if is_sure:
                    return (UNKNOWN, uncertain) if uncertain else (None, None)
                break
            elif kind not in ('counter', 'log', 'mangle', 'limit', None):
                is_sure = False
            if kind == 'limit':
                is_sure = False
            if verdict and is_sure:
                return (verdict, at) if uncertain is None or verdict == UNKNOWN else (UNKNOWN, uncertain)
            if verdict:
                uncertain = uncertain or rule
                break
    return (UNKNOWN, uncertain) if uncertain else (None, None)


def nft_verdict(ruleset, hook, port, interface=None, family='ip'):
    """(ACCEPT, DROP or UNKNOWN, 'family table chain' that says so or ''). Every base chain of the hook must accept."""
    chains = {}
    for entry in ruleset:
        if 'chain' in entry:
            chain = entry['chain']
            chains[chain['family'], chain['table'], chain['name']] = {**chain, 'rules': []}
    for entry in ruleset:
        if 'rule' in entry:
            rule = entry['rule']
            chains.get((rule['family'], rule['table'], rule['chain']),
                       {'rules': []})['rules'].append(rule.get('expr', []))
    packet = {'port': port, 'interface': interface, 'interface_key': 'iifname' if hook == 'input' else 'oifname'}
    found = (ACCEPT, '')
    for name, chain in chains.items():
        if chain.get('hook') != hook or chain.get('type', 'filter') != 'filter' or name[0] not in ('inet', family):
            continue
        verdict, _ = verdict_of_rules(name, chains, packet)
        verdict = verdict or (DROP if chain.get('policy') == 'drop' else ACCEPT)
        if verdict == DROP:
            return DROP, ' '.join(name)
        if verdict == UNKNOWN:
            found = UNKNOWN, ' '.join(name)
    return found


# --- iptables --------------------------------------------------------------------------------------------------------

def iptables_verdict(lines, hook, port):
    """The same of iptables-save. A rule is understood if it names nothing but protocol, ports, state and target."""
    chain, policy, uncertain = hook.upper(), None, False
    for line in lines:
        head = re.match(rf':{chain} (\w+)', line)
        if head:
            policy = policy or head.group(1)
        if not line.startswith(f'-A {chain} '):
            continue
        target = re.search(r' -j (\w+)', line)
        ports = re.search(r' --dports? (\S+)', line)
        protocol = re.search(r'(! )?-p (\w+)', line)
        state = re.search(r' --(?:ct)?state (\S+)', line)
        if protocol and not protocol.group(1) and protocol.group(2) not in ('udp', 'all'):
            continue
        if state and 'NEW' not in state.group(1).split(','):
            continue
        if ports and not any(int(low) <= port <= int(high or low)
                             for low, high in re.findall(r'(\d+)(?::(\d+))?', ports.group(1))):
            continue
        if ' -i lo ' in line or ' -o lo ' in line:
            continue
        rest = re.sub(r' -j \w+.*| -m \S+| --dports? \S+| -p \w+| --(ct)?state \S+|^-A \w+', '', line).strip()
        if not target or target.group(1) in ('LOG', 'NFLOG'):
            continue
        if rest or target.group(1) not in ('ACCEPT', 'DROP', 'REJECT'):
            uncertain = True
            continue
        if uncertain:
            break
        return (ACCEPT if target.group(1) == 'ACCEPT' else DROP), chain
    if uncertain:
        return UNKNOWN, chain
    return (DROP if policy == 'DROP' else ACCEPT), chain
