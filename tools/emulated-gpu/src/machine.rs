//! The devices' streams and events, as a state machine that executes operations as soon as their order allows.
//!
//! The machine has no threads and no clock. It reports every memory access to the race detector.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;

use crate::clocks::{Access, By, Clock, RaceDetector};
use crate::memory;

/// The number of an emulated CUDA stream, counted from 1.
pub type StreamId = u64;
/// The number of an emulated CUDA event, counted from 1.
pub type EventId = u64;

/// The function that applies a CUDA stream's operation to the contents of device memory. It returns the reason if the
/// operation fails.
pub type Effect = Box<dyn FnOnce() -> Result<(), String> + Send>;

/// An operation in a CUDA stream's queue: a kernel launch, a copy, an event record, a wait for an event, a send or a
/// receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// A kernel launch, with the kernel's number and its memory accesses. Every launch adds the same time to the
    /// emulated time between two CUDA events.
    Launch(usize, Vec<Access>),
    /// A copy, with its accesses to device memory. It adds nothing to the emulated time between two CUDA events.
    Copy(Vec<Access>),
    /// A record of a CUDA event, which is a marker in a stream: the event is done once the stream reaches the marker.
    /// The values are the event's number and the record's number, because an event can be recorded several times.
    Record(EventId, u64),
    /// A wait until another stream has reached a certain record (marker) of an event. The values are the event's number
    /// and the record's number.
    Wait(EventId, u64),
    /// An NCCL send that reads a tensor at an address in device memory. It completes together with the matching
    /// receive, which has the same ranks, communicator and size.
    Send(Ends, u64),
    /// An NCCL receive that writes to an address in device memory. It completes together with the matching send, which
    /// has the same ranks, communicator and size.
    Receive(Ends, u64),
}

/// The two ranks of a transfer between devices, its NCCL communicator and its size in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ends {
    /// The NCCL communicator of the transfer.
    pub group: u64,
    /// The sending rank in the communicator.
    pub from: i32,
    /// The receiving rank in the communicator.
    pub to: i32,
    /// The size of the transferred tensor, in bytes.
    pub bytes: u64,
}

/// The maximum number of vector clocks that the machine keeps for each CUDA event: one for each of the event's latest
/// records (markers in a stream).
const RECORDS: u64 = 64;

/// An operation in a CUDA stream's queue, with the function that applies it to device memory.
struct Queued {
    work: Work,
    effect: Option<Effect>,
    /// The host's vector clock when the operation was queued: for each stream, the latest time that the host knew.
    host: Clock,
}

struct Stream {
    device: i32,
    queue: VecDeque<Queued>,
    /// The number of kernels that the stream has executed.
    kernels: u64,
    clock: Clock,
}

#[derive(Debug, Default)]
struct Event {
    /// The device of the stream on which the event was last recorded.
    device: Option<i32>,
    /// The number of records of the event that were queued so far. A record is a marker for the event in a stream.
    queued: u64,
    /// The number of the latest record (marker) that its stream has reached.
    done: u64,
    /// The number of kernels that the stream had executed when it reached the event's latest record (marker); `None` if
    /// no record was reached yet.
    at: Option<u64>,
    /// The stream's vector clock at each of the event's latest records (markers), by record number.
    clocks: BTreeMap<u64, Clock>,
}

/// The emulated machine: the streams and events of all devices, with their queued operations.
#[derive(Default)]
pub struct Machine {
    streams: BTreeMap<StreamId, Stream>,
    events: HashMap<EventId, Event>,
    last: u64,
    /// The vector clock that all host threads share: for each stream, the latest time that the host knows.
    host: Clock,
    pub race_detector: RaceDetector,
    /// The total number of operations that all streams have executed.
    pub completed: u64,
    /// Whether the emulation stores the contents of device memory, so that transfers must copy them.
    pub has_contents: bool,
    /// The device on which the first failed operation ran, and the reason; `None` if no operation failed.
    pub fault: Option<(i32, String)>,
}

impl Machine {
    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub fn stream(&mut self, device: i32) -> StreamId {
        let id = self.number();
        self.streams.insert(id, Stream { device, queue: VecDeque::new(), kernels: 0, clock: Clock::default() });
        id
    }

    pub fn event(&mut self) -> EventId {
        let id = self.number();
        self.events.insert(id, Event::default());
        id
    }

    /// Removes a CUDA event, unless a queued operation still needs it.
    pub fn forget_event(&mut self, event: EventId) {
        let mut queued = self.streams.values().flat_map(|stream| &stream.queue);
        if !queued.any(|queued| matches!(&queued.work, Work::Wait(of, _) | Work::Record(of, _) if *of == event)) {
            self.events.remove(&event);
        }
    }

    pub fn device_of(&self, stream: StreamId) -> Option<i32> {
        Some(self.streams.get(&stream)?.device)
    }

    pub fn device_of_event(&self, event: EventId) -> Option<i32> {
        self.events.get(&event)?.device
    }

    pub fn add(&mut self, stream: StreamId, work: Work) {
        self.add_with(stream, work, None);
    }

    pub fn add_with(&mut self, stream: StreamId, work: Work, effect: Option<Effect>) {
        if let Some(stream) = self.streams.get_mut(&stream) {
            stream.queue.push_back(Queued { work, effect, host: self.host.clone() });
            self.advance();
        }
    }

    pub fn record(&mut self, event: EventId, stream: StreamId) {
        let device = self.device_of(stream);
        if let Some(found) = self.events.get_mut(&event) {
            found.device = device;
            found.queued += 1;
            let record = Work::Record(event, found.queued);
            self.add(stream, record);
        }
    }

    /// Makes a CUDA stream wait until the event's last queued record (a marker in a stream) is reached.
    pub fn wait(&mut self, stream: StreamId, event: EventId) {
        if let Some(found) = self.events.get(&event) {
            let wait = Work::Wait(event, found.queued);
            self.add(stream, wait);
        }
    }

    pub fn is_idle(&self, stream: StreamId) -> bool {
        self.streams.get(&stream).is_none_or(|stream| stream.queue.is_empty())
    }

    pub fn is_done(&self, event: EventId) -> bool {
        self.events.get(&event).is_none_or(|event| event.done == event.queued)
    }

    /// Records that the host has waited until a CUDA stream was idle. All of the stream's operations are then ordered
    /// before the host's later calls, so they cannot race with these calls.
    pub fn saw_idle(&mut self, stream: StreamId) {
        self.streams.get(&stream).iter().for_each(|stream| self.host.join(&stream.clock));
    }

    /// Records that the host has waited for a CUDA event. All operations before the event in its stream are then
    /// ordered before the host's later calls, so they cannot race with these calls.
    pub fn saw_done(&mut self, event: EventId) {
        let last = self.events.get(&event).and_then(|event| event.clocks.get(&event.done));
        last.iter().for_each(|clock| self.host.join(clock));
    }

    /// Returns the number of kernels that ran between two CUDA events; `None` if one of them was not reached yet.
    pub fn elapsed(&self, from: EventId, to: EventId) -> Option<u64> {
        let [from, to] = [from, to].map(|event| self.events.get(&event)?.at);
        Some(to?.saturating_sub(from?))
    }

    /// Executes all queued operations that the order of streams, events and transfers allows.
    fn advance(&mut self) {
        loop {
            let before = self.completed;
            for id in self.streams.keys().copied().collect::<Vec<_>>() {
                while self.advance_one(id) {
                    self.completed += 1;
                }
            }
            if self.completed == before {
                return;
            }
        }
    }

    fn head(&self, stream: StreamId) -> Option<&Work> {
        self.streams[&stream].queue.front().map(|queued| &queued.work)
    }

    fn advance_one(&mut self, stream: StreamId) -> bool {
        let Some(head) = self.head(stream) else { return false };
        match *head {
            Work::Wait(event, record) if self.events.get(&event).is_some_and(|event| event.done < record) => false,
            Work::Send(ends, _) => self.meet(stream, |work| matches!(work, Work::Receive(other, _) if *other == ends)),
            Work::Receive(ends, _) => self.meet(stream, |work| matches!(work, Work::Send(other, _) if *other == ends)),
            _ => {
                self.run(stream);
                true
            }
        }
    }

    /// Executes a transfer between two devices if its send and its receive are both at the heads of their streams. Then
    /// joins the vector clocks of the two streams.
    fn meet(&mut self, stream: StreamId, is_other: impl Fn(&Work) -> bool) -> bool {
        let Some(peer) = self.streams.keys().copied().find(|id| self.head(*id).is_some_and(&is_other)) else {
            return false;
        };
        if self.has_contents {
            self.copy_contents([stream, peer]);
        }
        [stream, peer].into_iter().for_each(|stream| self.run(stream));
        let clocks = [stream, peer].map(|stream| self.streams[&stream].clock.clone());
        for stream in [stream, peer] {
            let known = &mut self.streams.get_mut(&stream).expect("a stream that has run").clock;
            clocks.iter().for_each(|clock| known.join(clock));
        }
        true
    }

    /// Copies a transfer's bytes from the sending device's memory to the receiving device's memory.
    fn copy_contents(&self, streams: [StreamId; 2]) {
        let [mut from, mut to, mut length] = [0; 3];
        for stream in streams {
            match self.head(stream) {
                Some(Work::Send(ends, address)) => (from, length) = (*address, ends.bytes),
                Some(Work::Receive(_, address)) => to = *address,
                _ => {}
            }
        }
        memory::copy(to, from, length as usize);
    }

    /// Executes the operation at the head of a CUDA stream's queue.
    fn run(&mut self, id: StreamId) {
        let stream = self.streams.get_mut(&id).expect("a stream that has a head");
        let Queued { work, effect, host } = stream.queue.pop_front().expect("a head");
        if let Some(Err(fault)) = effect.map(|effect| effect()) {
            self.fault.get_or_insert((stream.device, fault));
        }
        stream.clock.join(&host);
        let (accesses, by) = match work {
            Work::Launch(number, accesses) => {
                stream.kernels += 1;
                (accesses, By::Kernel(number))
            }
            Work::Copy(accesses) => (accesses, By::Copy),
            Work::Send(ends, address) => (vec![Access { address, bytes: ends.bytes, writes: false }], By::Send),
            Work::Receive(ends, address) => (vec![Access { address, bytes: ends.bytes, writes: true }], By::Receive),
            Work::Record(event, record) => {
                if let Some(event) = self.events.get_mut(&event) {
                    event.done = event.done.max(record);
                    event.at = Some(stream.kernels);
                    event.clocks.insert(record, stream.clock.clone());
                    event.clocks.retain(|known, _| known + RECORDS > record);
                }
                return;
            }
            Work::Wait(event, record) => {
                let known = self.events.get(&event).and_then(|event| event.clocks.get(&record));
                known.iter().for_each(|clock| stream.clock.join(clock));
                return;
            }
        };
        let time = stream.clock.tick(id);
        for access in accesses {
            self.race_detector.note(access, id, time, &stream.clock, by);
        }
    }
}

impl fmt::Display for Machine {
    /// Prints a line for each CUDA stream with queued operations: their number, and the first of them, at which the
    /// stream waits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (id, stream) in self.streams.iter().filter(|(_, stream)| !stream.queue.is_empty()) {
            writeln!(
                f,
                "stream {id} of device {}: {} operations queued, the first is {:?}",
                stream.device,
                stream.queue.len(),
                stream.queue[0].work
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(from: i32, to: i32) -> Ends {
        Ends { group: 1, from, to, bytes: 4 }
    }

    #[test]
    fn a_stream_waits_for_an_event_and_for_nothing_else() {
        let mut machine = Machine::default();
        let [one, other, third] = [0, 0, 1].map(|device| machine.stream(device));
        let event = machine.event();
        machine.add(one, Work::Receive(ends(1, 0), 0));
        machine.record(event, one);
        machine.wait(other, event);
        machine.add(other, Work::Launch(1, Vec::new()));
        assert!(!machine.is_done(event) && !machine.is_idle(one) && !machine.is_idle(other));
        machine.add(third, Work::Launch(1, Vec::new()));
        assert!(machine.is_idle(third));
        machine.add(third, Work::Send(ends(1, 0), 0));
        assert!(machine.is_done(event) && [one, other, third].iter().all(|stream| machine.is_idle(*stream)));
    }

    #[test]
    fn opposite_transfers_complete_in_one_order_and_deadlock_in_different_orders() {
        let orders = |flipped: bool| {
            let mut machine = Machine::default();
            let [one, other] = [0, 1].map(|device| machine.stream(device));
            machine.add(one, Work::Send(ends(0, 1), 0));
            machine.add(one, Work::Receive(ends(1, 0), 0));
            let mut works = [Work::Receive(ends(0, 1), 0), Work::Send(ends(1, 0), 0)];
            if flipped {
                works.reverse();
            }
            works.into_iter().for_each(|work| machine.add(other, work));
            machine.is_idle(one) && machine.is_idle(other)
        };
        assert!(orders(false));
        assert!(!orders(true));
    }

    #[test]
    fn a_wait_is_for_the_record_before_it_and_not_for_a_later_one() {
        let mut machine = Machine::default();
        let [one, other] = [0, 0].map(|device| machine.stream(device));
        let event = machine.event();
        machine.record(event, one);
        machine.wait(other, event);
        machine.add(one, Work::Receive(ends(1, 0), 0));
        machine.record(event, one);
        assert!(machine.is_idle(other) && !machine.is_done(event));
    }

    /// Tests a kernel that writes to memory which is still being sent: the write is a race unless the kernel waits for
    /// the send.
    #[test]
    fn a_write_to_memory_that_is_still_being_sent_is_a_race() {
        for (waits, races) in [(true, 0), (false, 1)] {
            let mut machine = Machine::default();
            let [compute, sends, receives] = [0, 0, 1].map(|device| machine.stream(device));
            let write = || Work::Launch(1, vec![Access { address: 64, bytes: 1, writes: true }]);
            let (ready, sent) = (machine.event(), machine.event());
            machine.add(compute, write());
            machine.record(ready, compute);
            machine.wait(sends, ready);
            machine.add(sends, Work::Send(ends(0, 1), 64));
            machine.add(receives, Work::Receive(ends(0, 1), 4096));
            if waits {
                machine.record(sent, sends);
                machine.wait(compute, sent);
            }
            machine.add(compute, write());
            assert_eq!(machine.race_detector.races.len(), races, "{:?}", machine.race_detector.races);
        }
    }
}
