"""Waits that end: deadlines on the device, and what a wait that gave up leaves behind.

deadline.py   how many polls a second has, and the host memory in which a late wait is recorded
faults.py     the record of a late wait, and how it reads to a user
"""
