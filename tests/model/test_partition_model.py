"""A partition beside a plain list: whatever is done to it, it holds what the list holds.

Several clients append, crash, retry after lost answers, truncate, read and tail, while another engine
compacts files and deletes rows, checkpoints are written and old commits are cleaned. The oracle is a
list of values and a log start.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time

import pyarrow as pa
from deltalake import DeltaTable
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from streamlog.clock import Runtime
from streamlog.log.cleaner import Cleaner
from streamlog.log.partition import PartitionLog, ProducerMark
from streamlog.log.reader import PartitionReader
from streamlog.log.versions import LOG_FLOOR_SECONDS
from streamlog.storage.delta import write_checkpoint
from streamlog.storage.open import open_objects
from tests.fakes import FakeClock, fake_runtime
from tests.fault.faulty import AFTER, BEFORE, CONFLICT, Fault, FaultyObjects, Rule, Script, commits
from tests.partitions import T0, Meanwhile, Partition, columns, read_all

WRITERS = 3
READERS = 2
VALUES = st.lists(st.binary(max_size=6), min_size=1, max_size=5)
writers = st.integers(0, WRITERS - 1)
readers = st.integers(0, READERS - 1)


def in_partition(path: str) -> bool:
    return path.startswith("topics/t/") and commits(path)


class PartitionMachine(RuleBasedStateMachine):
    """The machine; `self.oracle` is offset -> value of what must be there."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.mkdtemp(prefix="streamlog-model-")
        # Delta drops producers' marks after seven days by the real clock, so this one starts there.
        self.clock = FakeClock(time_ms=time.time_ns() // 1_000_000)
        self.objects = open_objects(f"{self.folder}/root", None, Runtime())
        self.partition = Partition(self.objects, fake_runtime(100, self.clock))
        self.oracle: dict[int, bytes] = {}
        self.times: dict[int, int] = {}
        self.ticks = 0
        self.end = 0
        self.start = 0
        self.seed = 0
        self.sequences = [0] * WRITERS
        self.epochs = [1] * WRITERS

    def teardown(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    @initialize()
    def open(self) -> None:
        self.logs = [self.client() for _ in range(WRITERS)]
        self.readers: list[PartitionReader] = [self.partition.reader() for _ in range(READERS)]
        self.positions = [0] * READERS
        self.tailed: list[list[int]] = [[] for _ in range(READERS)]

    def client(self, *rules: Rule) -> PartitionLog:
        self.seed += 1
        store = FaultyObjects(self.objects, Script(*rules), self.clock)
        return self.partition.over(store, fake_runtime(self.seed, self.clock)).log()

    # writing

    def stamp(self, values: list[bytes]) -> list[int]:
        """Times that rise with every batch made, whichever of them is written first."""
        self.ticks += len(values)
        return [T0 + self.ticks - len(values) + index for index in range(len(values))]

    def append(self, writer: int, values: list[bytes], log: PartitionLog | None = None) -> None:
        self.sequences[writer] += len(values)
        times = self.stamp(values)
        appended = (log or self.logs[writer]).append(
            columns(*values, timestamps=times),
            durable=False,
            compression="none",
            producer=ProducerMark(f"w{writer}", self.epochs[writer], self.sequences[writer]),
        )
        assert appended.base_offset in (self.end, None)
        self.wrote(values, times)

    def wrote(self, values: list[bytes], times: list[int]) -> None:
        self.oracle.update(enumerate(values, self.end))
        self.times.update(enumerate(times, self.end))
        self.end += len(values)

    @rule(writer=writers, values=VALUES)
    def append_plainly(self, writer: int, values: list[bytes]) -> None:
        self.append(writer, values)

    @rule(writer=writers, values=VALUES, fault=st.sampled_from([BEFORE, AFTER, CONFLICT]))
    def append_with_a_fault(self, writer: int, values: list[bytes], fault: Fault) -> None:
        self.logs[writer] = self.client(Rule("put_if_absent", fault, in_partition))
        self.append(writer, values)

    @rule(writer=writers, values=VALUES, others=VALUES)
    def append_and_lose_the_race(
        self, writer: int, values: list[bytes], others: list[bytes]
    ) -> None:
        other = (writer + 1) % WRITERS
        race = Meanwhile("put_if_absent", in_partition, lambda: self.append(other, others))
        self.seed += 1
        store = FaultyObjects(self.objects, race, self.clock)
        log = self.partition.over(store, fake_runtime(self.seed, self.clock)).log()
        if self.end == 0:
            log.refresh()
            self.logs[other].refresh()
            race.happened = False
        self.append(writer, values, log)
        self.logs[writer] = log

    @rule(writer=writers, values=VALUES, after=st.booleans())
    def crash_in_the_commit(self, writer: int, values: list[bytes], after: bool) -> None:
        """The process dies before or after its commit took effect; its successor fences it."""

        class Dead(BaseException):
            pass

        def die() -> None:
            raise Dead

        self.logs[writer].refresh()
        operation = "get" if after else "put_if_absent"
        plan: Script | Meanwhile
        plan = Meanwhile(operation, in_partition, die)
        store = FaultyObjects(self.objects, Script(), self.clock)
        self.seed += 1
        log = self.partition.over(store, fake_runtime(self.seed, self.clock)).log()
        log.refresh()
        if after:
            # The put takes effect, its answer is lost, and the process dies looking it up.
            both = Script(Rule("put_if_absent", AFTER, in_partition))
            store.plan = _Both(both, plan)
        else:
            store.plan = plan
        sequence = self.sequences[writer] + len(values)
        mark = ProducerMark(f"w{writer}", self.epochs[writer], sequence)
        times = self.stamp(values)
        try:
            log.append(
                columns(*values, timestamps=times),
                durable=False,
                compression="none",
                producer=mark,
            )
            raise AssertionError("it should have died")
        except Dead:
            pass
        if after:
            self.wrote(values, times)
        self.logs[writer] = self.client()
        self.epochs[writer] += 1
        state = self.logs[writer].producer_state(f"w{writer}")
        found = state[1] if state is not None else 0
        assert found == (sequence if after else self.sequences[writer]), "the mark tells what is in"
        self.sequences[writer] = found
        self.logs[writer].fence(ProducerMark(f"w{writer}", self.epochs[writer], found))

    @precondition(lambda self: self.end > self.start)
    @rule(writer=writers, part=st.floats(0, 1))
    def truncate(self, writer: int, part: float) -> None:
        before = self.start + int(part * (self.end - self.start))
        assert self.logs[writer].truncate(before) == max(before, self.start)
        self.start = max(before, self.start)
        self.oracle = {o: v for o, v in self.oracle.items() if o >= self.start}

    # others at work

    @precondition(lambda self: self.end > 0)
    @rule()
    def foreign_optimize(self) -> None:
        DeltaTable(f"{self.objects.uri}/{self.partition.table}").optimize.compact()

    @precondition(lambda self: bool(self.oracle))
    @rule(data=st.data())
    def foreign_delete(self, data: st.DataObject) -> None:
        victim = data.draw(st.sampled_from(sorted(self.oracle)))
        DeltaTable(f"{self.objects.uri}/{self.partition.table}").delete(f"offset = {victim}")
        del self.oracle[victim]

    @precondition(lambda self: self.end > 0)
    @rule()
    def checkpoint(self) -> None:
        reader = self.partition.reader()
        write_checkpoint(self.objects, self.partition.table, reader.version)

    @precondition(lambda self: self.end > 0)
    @rule()
    def clean_while_everybody_sleeps(self) -> None:
        for info in list(self.objects.list("topics")):
            old = info.modified - 2 * LOG_FLOOR_SECONDS
            os.utime(f"{self.objects.uri}/{info.path}", (old, old))
        self.clock.advance(2 * LOG_FLOOR_SECONDS)
        cleaner = Cleaner(self.objects, Runtime(), keep=0)
        cleaner.clean_log(self.partition.table)
        cleaner.vacuum(self.partition.table)

    # reading

    @rule(reader=readers)
    def tail(self, reader: int) -> None:
        """What a follower gets is in order, never twice, and nothing of it was never written."""
        follower = self.readers[reader]
        follower.refresh()
        assert (follower.start, follower.end) == (self.start, self.end)
        position = max(self.positions[reader], self.start)
        found = read_all(follower, position)
        assert found == [(o, v) for o, v in sorted(self.oracle.items()) if o >= position]
        self.tailed[reader] += [offset for offset, _ in found]
        assert self.tailed[reader] == sorted(set(self.tailed[reader]))
        self.positions[reader] = self.end

    @rule(part=st.floats(0, 1))
    def seek(self, part: float) -> None:
        reader = self.partition.reader()
        offset = self.start + int(part * (self.end - self.start))
        assert read_all(reader, offset) == [
            (o, v) for o, v in sorted(self.oracle.items()) if o >= offset
        ]
        moment = T0 + int(part * self.ticks)
        later = [o for o in sorted(self.oracle) if self.times[o] >= moment]
        wanted = (later[0], self.times[later[0]]) if later else None
        assert reader.offset_for_time(moment) == wanted

    @invariant()
    def a_fresh_reader_and_delta_agree_with_the_list(self) -> None:
        if self.end == 0:
            return
        reader = self.partition.reader()
        assert (reader.start, reader.end) == (self.start, self.end)
        assert read_all(reader) == sorted(self.oracle.items())
        table = DeltaTable(f"{self.objects.uri}/{self.partition.table}").to_pyarrow_table()
        rows = table.sort_by("offset").filter(pa.compute.field("offset") >= self.start)
        assert rows["offset"].to_pylist() == sorted(self.oracle)


class _Both:
    """Two plans, the first that answers decides."""

    def __init__(self, *plans: Script | Meanwhile) -> None:
        self._plans = plans

    def next(self, operation: str, path: str) -> Fault | None:
        for plan in self._plans:
            fault = plan.next(operation, path)
            if fault is not None:
                return fault
        return None


TestPartition = PartitionMachine.TestCase
TestPartition.settings = settings(
    max_examples=25,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
