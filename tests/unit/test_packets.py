"""The assembly of packets and awaits, instruction by instruction: what `overlap.sim` says they do is what their text does."""

import random
import re

import pytest

from overlap.language.awaits import await_assembly, barrier_assembly
from overlap.language.packets import MARKS, SENDERS, receive_assembly, send_assembly

LIMIT, MARK = 0x10, 7
LINES = [0x1000, 0x2000, 0x3000, 0x4000]
LOW = 2**32 - 1


def instructions(text):
    """(label or guard, operation, operands) of every instruction, and where labels are."""
    assert text.startswith("{") and text.endswith("}")
    found, labels = [], {}
    for part in re.split(r";|(?<=:)\n", text[1:-1]):
        part = part.strip()
        if not part or part.startswith(".reg"):
            continue
        if part.endswith(":"):
            labels[part[:-1]] = len(found)
            continue
        guard = re.match(r"@(\w+)\s+", part)
        operation, _, rest = part[guard.end() if guard else 0 :].partition(" ")
        found.append((guard and guard[1], operation, re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", rest)))
    return found, labels


class Machine:
    """One thread: registers by name, memory of 64-bit words by address, and ``turn``, called ahead of every load."""

    def __init__(self, text, operands, memory, turn=lambda machine: None):
        self.code, self.labels = instructions(text)
        self.registers = {f"${i}": value for i, value in operands.items()}
        self.memory, self.turn = memory, turn
        self.loads, self.order = 0, []

    def value(self, operand):
        if operand.startswith("{"):
            low, high = map(self.value, operand[1:-1].split(","))
            return low & LOW | (high & LOW) << 32
        operand = operand.strip()
        return int(operand) if re.fullmatch(r"-?\d+", operand) else self.registers[operand]

    def put(self, operand, value):
        if operand.startswith("{"):
            for name, part in zip(operand[1:-1].split(","), (value & LOW, value >> 32 & LOW), strict=True):
                self.registers[name.strip()] = part
        else:
            self.registers[operand] = value

    def run(self, most=10_000):
        at = 0
        for _ in range(most):
            if at == len(self.code):
                return self.registers
            guard, operation, operands = self.code[at]
            at += 1
            if guard is not None and not self.registers[guard]:
                continue
            if operation == "bra":
                at = self.labels[operands[0]]
            else:
                self.step(operation, operands)
        raise AssertionError("it goes on and on")

    def step(self, operation, operands):
        name, *kinds = operation.split(".")
        if name == "mov":
            self.put(operands[0], self.value(operands[1]))
        elif name == "add":
            self.put(operands[0], self.value(operands[1]) + self.value(operands[2]))
        elif name == "and":
            self.put(operands[0], self.value(operands[1]) & self.value(operands[2]) & LOW)
        elif name == "selp":
            self.put(operands[0], self.value(operands[1 if self.registers[operands[3]] else 2]))
        elif name == "bar":
            assert kinds == ["red", "or", "pred"] and operands[1] == "0"
            self.put(operands[0], self.value(operands[2]))  # no other thread's is true
        elif name == "setp":
            one, two = self.value(operands[1]), self.value(operands[2])
            if kinds[-1] == "b32":
                one, two = one & LOW, two & LOW
            found = {"eq": one == two, "ne": one != two, "lt": one < two, "ge": one >= two}[kinds[0]]
            assert kinds[1:-1] in ([], ["and"])
            self.put(operands[0], found and (not kinds[1:-1] or self.value(operands[3])))
        elif name == "ld":
            self.turn(self)
            self.loads += 1
            address = self.value(operands[1][1:-1])
            if "v2" in kinds:
                for register, place in zip(operands[0][1:-1].split(","), (address, address + 8), strict=True):
                    self.put(register.strip(), self.memory[place])
            else:
                self.put(operands[0], self.memory[address])
        else:
            assert name == "st", operation
            address = self.value(operands[0][1:-1])
            if "v2" in kinds:
                for register, place in zip(operands[1][1:-1].split(","), (address, address + 8), strict=True):
                    self.memory[place] = self.value(register.strip())
            else:
                self.memory[address] = self.value(operands[1])


def line(data, mark=MARK):
    """The two words of a line."""
    return [half & LOW | mark << 32 for half in (data, data >> 32)]


def receiving(senders, wanted, memory, turn=lambda machine: None, mark=MARK):
    operands = {senders + 2 + k: LINES[k] for k in range(senders)}
    operands |= {2 * senders + 2: mark, 2 * senders + 3: wanted, 2 * senders + 4: LIMIT}
    machine = Machine(receive_assembly(senders), operands, memory, turn)
    made = machine.run()
    return [made[f"${k}"] for k in range(senders)], made[f"${senders}"], made[f"${senders + 1}"], machine


@pytest.mark.parametrize("there", [0, 1])
@pytest.mark.parametrize("mark", [1, MARK, MARKS])
def test_a_line_is_sent_whole_or_not_at_all(there, mark):
    memory = {}
    Machine(send_assembly(), {1: LINES[0], 2: 0x1122334455667788, 3: mark, 4: there}, memory).run()
    one, two = line(0x1122334455667788, mark)
    assert memory == ({LINES[0]: one, LINES[0] + 8: two} if there else {})


@pytest.mark.parametrize("senders", SENDERS)
def test_lines_that_are_there_are_taken_at_once(senders):
    data = [random.Random(k).getrandbits(64) for k in range(senders)]
    for wanted in range(1 << senders):
        memory = {LIMIT: 0}
        for k in range(senders):
            if wanted >> k & 1:  # what is not wanted is no memory at all
                memory[LINES[k]], memory[LINES[k] + 8] = line(data[k])
        found, left, _, machine = receiving(senders, wanted, memory)
        assert found == [data[k] if wanted >> k & 1 else 0 for k in range(senders)] and left == 0
        assert machine.loads == wanted.bit_count() + 1


@pytest.mark.parametrize("senders", SENDERS)
@pytest.mark.parametrize("seed", range(10))
def test_words_that_come_one_by_one_are_waited_for(senders, seed):
    """In any order, on top of words of another call: data are taken when both marks of a line are there, never before."""
    draw = random.Random(seed)
    data, memory, coming = [draw.getrandbits(64) for _ in range(senders)], {LIMIT: 0}, []
    for k in range(senders):
        for half, word in enumerate(line(data[k])):
            memory[LINES[k] + 8 * half] = draw.choice((0, 2**64 - 1, line(draw.getrandbits(64), MARK - 2)[0]))
            coming.append((LINES[k] + 8 * half, word))
    draw.shuffle(coming)

    def turn(machine):
        if coming and draw.random() < 0.3:
            place, word = coming.pop()
            machine.memory[place] = word

    found, left, _, _ = receiving(senders, (1 << senders) - 1, memory, turn)
    assert found == data and left == 0 and memory[LIMIT] == 0


@pytest.mark.parametrize("senders", SENDERS)
def test_the_limit_ends_a_wait_in_vain_and_the_next_one_soon(senders):
    last = senders - 1
    memory = {LIMIT: 5}
    for k in range(senders):
        memory[LINES[k]], memory[LINES[k] + 8] = line(k)
    memory[LINES[last] + 8] = line(last, MARK - 2)[1]
    memory[LINES[last]] = line(last, MARK - 2)[0]
    found, left, seen, machine = receiving(senders, (1 << senders) - 1, memory)
    assert found == list(range(last)) + [0]
    assert left == 1 << last and seen == MARK - 2
    assert memory[LIMIT] == 1 and machine.loads == senders + 1 + 4 * 2
    _, left, _, machine = receiving(senders, 1 << last, memory)
    assert left == 1 << last and machine.loads == 2


@pytest.mark.parametrize("late", [0, 8])
def test_half_a_line_is_none(late):
    memory = {LIMIT: 2}
    memory[LINES[0]], memory[LINES[0] + 8] = line(0x123456789ABCDEF0)
    memory[LINES[0] + late] = 0
    found, left, _, _ = receiving(1, 1, memory)
    assert (found, left) == ([0], 1)


def awaiting(there, memory, turn=lambda machine: None, wanted=7):
    machine = Machine(await_assembly(), {1: LINES[0], 2: wanted, 3: there, 4: LIMIT}, memory, turn)
    return machine.run()["$0"], machine


@pytest.mark.parametrize("value", [7, 8, 2**40])
def test_a_flag_that_is_up_is_seen_at_once(value):
    seen, machine = awaiting(1, {LINES[0]: value, LIMIT: 3})
    assert (seen, machine.loads, machine.memory[LIMIT]) == (value, 2, 3)


def test_where_there_is_no_flag_nothing_is_looked_at():
    seen, machine = awaiting(0, {})
    assert (seen, machine.loads) == (7, 0)


def test_a_flag_is_looked_at_until_it_is_up():
    """Without a limit, and acquired each time: a release behind its data is what it waits for."""

    def turn(machine):
        if machine.loads == 20:
            machine.memory[LINES[0]] = 9

    seen, machine = awaiting(1, {LINES[0]: 6, LIMIT: 0}, turn)
    assert (seen, machine.loads, machine.memory[LIMIT]) == (9, 22, 0)
    loads = [operation for _, operation, _ in machine.code if operation.startswith("ld.")]
    assert loads == ["ld.relaxed.gpu.global.b64", "ld.acquire.sys.global.b64"]


def test_the_limit_ends_a_wait_for_a_flag_and_the_next_one_soon():
    memory = {LINES[0]: 6, LIMIT: 5}
    seen, machine = awaiting(1, memory)
    assert (seen, machine.loads, memory[LIMIT]) == (6, 10, 1)
    seen, machine = awaiting(1, memory)
    assert (seen, machine.loads) == (6, 2)


@pytest.mark.parametrize("number", [0, 1, 4, 2**31 - 1, -1])
def test_a_number_behind_a_barrier_is_what_it_was(number):
    assert Machine(barrier_assembly(), {1: number}, {}).run()["$0"] == number
