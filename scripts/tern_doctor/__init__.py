"""The doctor: looking (look.py, machine.py, network.py, transports.py), judging (rules.py and *_rules.py, firewall.py),
trying (proof.py, path.py) and printing (report.py). Python's standard library only.
"""
