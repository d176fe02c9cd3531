//! Streams, events and communicators.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;

use crate::clocks::{Access, By, Clock, Uncertain};
use crate::memory;

/// By its number; 0 is none.
pub type StreamId = u64;
/// By its number; 0 is none.
pub type EventId = u64;

/// What something does to memory that is there; or why it cannot.
pub type Effect = Box<dyn FnOnce() -> Result<(), String> + Send>;

/// Something that a stream is to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Work {
    /// The kernel of that number, for which a stream's time goes on by one.
    Launch(usize, Vec<Access>),
    /// A copy, which takes no time.
    Copy(Vec<Access>),
    /// An event's so many-th record.
    Record(EventId, u64),
    /// Nothing behind it before that record is done.
    Wait(EventId, u64),
    /// Done together with a receive of the same ends; from that address.
    Send(Ends, u64),
    /// Done together with a send of the same ends; to that address.
    Receive(Ends, u64),
}

/// Who sends to whom in which communicator, as devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ends {
    /// The communicator.
    pub group: u64,
    /// Its rank that sends.
    pub from: i32,
    /// Its rank that receives.
    pub to: i32,
    /// What is sent, in bytes.
    pub bytes: u64,
}

/// How many records of an event are remembered.
const RECORDS: u64 = 64;

/// What a stream has yet to do.
struct Asked {
    work: Work,
    effect: Option<Effect>,
    /// What its host knew when it asked for that.
    host: Clock,
}

struct Stream {
    device: i32,
    work: VecDeque<Asked>,
    /// How many kernels it has run.
    kernels: u64,
    clock: Clock,
}

#[derive(Debug, Default)]
struct Event {
    /// That of the stream on which it was last recorded.
    device: Option<i32>,
    asked: u64,
    done: u64,
    /// How many kernels its stream had run, when it was done,
    at: Option<u64>,
    /// and what it knew at each of the last records.
    clocks: BTreeMap<u64, Clock>,
}

/// The devices' streams.
#[derive(Default)]
pub struct Machine {
    streams: BTreeMap<StreamId, Stream>,
    events: HashMap<EventId, Event>,
    last: u64,
    /// What hosts know, of which one tells the others.
    host: Clock,
    pub uncertain: Uncertain,
    /// How much was ever done.
    pub moved: u64,
    /// Whether memory is there, so that what is sent arrives.
    pub carries: bool,
    /// The device on which something could not be done, and why.
    pub fault: Option<(i32, String)>,
}

impl Machine {
    fn number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    pub fn stream(&mut self, device: i32) -> StreamId {
        let id = self.number();
        self.streams.insert(id, Stream { device, work: VecDeque::new(), kernels: 0, clock: Clock::default() });
        id
    }

    pub fn event(&mut self) -> EventId {
        let id = self.number();
        self.events.insert(id, Event::default());
        id
    }

    /// What waits for it still does.
    pub fn forget_event(&mut self, event: EventId) {
        let mut works = self.streams.values().flat_map(|stream| &stream.work);
        if !works.any(|asked| matches!(&asked.work, Work::Wait(of, _) | Work::Record(of, _) if *of == event)) {
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
            stream.work.push_back(Asked { work, effect, host: self.host.clone() });
            self.advance();
        }
    }

    pub fn record(&mut self, event: EventId, stream: StreamId) {
        let device = self.device_of(stream);
        if let Some(found) = self.events.get_mut(&event) {
            found.device = device;
            found.asked += 1;
            let record = Work::Record(event, found.asked);
            self.add(stream, record);
        }
    }

    /// The stream waits for what was last recorded.
    pub fn wait(&mut self, stream: StreamId, event: EventId) {
        if let Some(found) = self.events.get(&event) {
            let wait = Work::Wait(event, found.asked);
            self.add(stream, wait);
        }
    }

    pub fn is_idle(&self, stream: StreamId) -> bool {
        self.streams.get(&stream).is_none_or(|stream| stream.work.is_empty())
    }

    pub fn is_done(&self, event: EventId) -> bool {
        self.events.get(&event).is_none_or(|event| event.done == event.asked)
    }

    /// A host has seen that a stream is idle.
    pub fn saw_idle(&mut self, stream: StreamId) {
        self.streams.get(&stream).iter().for_each(|stream| self.host.join(&stream.clock));
    }

    /// A host has seen that an event is done.
    pub fn saw_done(&mut self, event: EventId) {
        let last = self.events.get(&event).and_then(|event| event.clocks.get(&event.done));
        last.iter().for_each(|clock| self.host.join(clock));
    }

    /// How many kernels ran between two records that are done.
    pub fn elapsed(&self, from: EventId, to: EventId) -> Option<u64> {
        let [from, to] = [from, to].map(|event| self.events.get(&event)?.at);
        Some(to?.saturating_sub(from?))
    }

    /// Does all that can be done.
    fn advance(&mut self) {
        loop {
            let before = self.moved;
            for id in self.streams.keys().copied().collect::<Vec<_>>() {
                while self.advance_one(id) {
                    self.moved += 1;
                }
            }
            if self.moved == before {
                return;
            }
        }
    }

    fn head(&self, stream: StreamId) -> Option<&Work> {
        self.streams[&stream].work.front().map(|asked| &asked.work)
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

    /// A transfer is done when both its operations are at the heads of their streams; behind it each knows what the other does.
    fn meet(&mut self, stream: StreamId, is_other: impl Fn(&Work) -> bool) -> bool {
        let Some(peer) = self.streams.keys().copied().find(|id| self.head(*id).is_some_and(&is_other)) else {
            return false;
        };
        if self.carries {
            self.carry([stream, peer]);
        }
        [stream, peer].into_iter().for_each(|stream| self.run(stream));
        let clocks = [stream, peer].map(|stream| self.streams[&stream].clock.clone());
        for stream in [stream, peer] {
            let known = &mut self.streams.get_mut(&stream).expect("a stream that has run").clock;
            clocks.iter().for_each(|clock| known.join(clock));
        }
        true
    }

    /// What is sent arrives.
    fn carry(&self, streams: [StreamId; 2]) {
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

    /// Does what is at the head of a stream.
    fn run(&mut self, id: StreamId) {
        let stream = self.streams.get_mut(&id).expect("a stream that has a head");
        let Asked { work, effect, host } = stream.work.pop_front().expect("a head");
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
            self.uncertain.note(access, id, time, &stream.clock, by);
        }
    }
}

impl fmt::Display for Machine {
    /// What is yet to be done, and what the streams wait for.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (id, stream) in self.streams.iter().filter(|(_, stream)| !stream.work.is_empty()) {
            writeln!(
                f,
                "stream {id} of device {}: {} to do, the first {:?}",
                stream.device,
                stream.work.len(),
                stream.work[0].work
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
    fn opposite_transfers_in_different_orders_never_meet_and_in_one_order_do() {
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
    fn an_event_that_is_recorded_again_is_waited_for_as_it_was() {
        let mut machine = Machine::default();
        let [one, other] = [0, 0].map(|device| machine.stream(device));
        let event = machine.event();
        machine.record(event, one);
        machine.wait(other, event);
        machine.add(one, Work::Receive(ends(1, 0), 0));
        machine.record(event, one);
        assert!(machine.is_idle(other) && !machine.is_done(event));
    }

    /// A kernel writes memory, which is then sent; and another kernel writes it again, told of the send or not.
    #[test]
    fn memory_that_is_written_before_it_was_sent_is_found() {
        for (told, races) in [(true, 0), (false, 1)] {
            let mut machine = Machine::default();
            let [compute, sends, receives] = [0, 0, 1].map(|device| machine.stream(device));
            let write = || Work::Launch(1, vec![Access { address: 64, bytes: 1, writes: true }]);
            let (ready, sent) = (machine.event(), machine.event());
            machine.add(compute, write());
            machine.record(ready, compute);
            machine.wait(sends, ready);
            machine.add(sends, Work::Send(ends(0, 1), 64));
            machine.add(receives, Work::Receive(ends(0, 1), 4096));
            if told {
                machine.record(sent, sends);
                machine.wait(compute, sent);
            }
            machine.add(compute, write());
            assert_eq!(machine.uncertain.races.len(), races, "{:?}", machine.uncertain.races);
        }
    }
}
