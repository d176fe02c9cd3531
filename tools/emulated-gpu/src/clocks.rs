//! Finds data races on device memory with vector clocks (Fidge, 1988; Mattern, 1989).
//!
//! Two accesses race if at least one of them writes, and no order of streams and events puts the earlier access before
//! the later one.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use crate::machine::StreamId;

/// A vector clock of the race detector: for each stream, the latest time that the clock's owner (a stream, an event or
/// the host) knows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Clock(BTreeMap<StreamId, u64>);

impl Clock {
    pub fn tick(&mut self, stream: StreamId) -> u64 {
        let time = self.0.entry(stream).or_default();
        *time += 1;
        *time
    }

    pub fn join(&mut self, other: &Self) {
        for (stream, time) in &other.0 {
            let known = self.0.entry(*stream).or_default();
            *known = (*known).max(*time);
        }
    }

    fn has_seen(&self, access: &Seen) -> bool {
        self.0.get(&access.stream).is_some_and(|time| *time >= access.time)
    }
}

/// The kind of operation that accesses emulated device memory: a kernel, a copy, a send or a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// A kernel launch. The value is the kernel's number, which the emulation assigned when the program loaded the
    /// kernel.
    Kernel(usize),
    Copy,
    Send,
    Receive,
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel(number) => write!(f, "kernel {number:04}"),
            Self::Copy => write!(f, "a copy"),
            Self::Send => write!(f, "a send"),
            Self::Receive => write!(f, "a receive"),
        }
    }
}

/// An access to device memory by a kernel, a copy or a transfer: its address, its length, and whether it writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub address: u64,
    /// The length of the access in bytes; 1 for kernels, because only the start addresses of their buffers are known.
    pub bytes: u64,
    pub writes: bool,
}

#[derive(Clone, Copy, Debug)]
struct Seen {
    stream: StreamId,
    time: u64,
    begin: u64,
    end: u64,
    writes: bool,
    by: By,
}

#[derive(Debug, Default)]
struct Uses {
    write: Option<Seen>,
    reads: Vec<Seen>,
}

/// The race detector: keeps recent accesses to device memory, and compares each new access with them.
#[derive(Debug, Default)]
pub struct RaceDetector {
    /// The last accesses that start at each address of device memory: the last write, and each stream's last read after
    /// that write.
    uses: BTreeMap<u64, Uses>,
    /// The most recent accesses to device memory by copies and transfers. Kernels are not in this list, because the
    /// lengths of their accesses are unknown.
    extents: VecDeque<Seen>,
    /// The races found so far, each as a message for the user.
    pub races: Vec<String>,
}

/// The maximum length of `extents`, the race detector's list of recent accesses by copies and transfers.
const EXTENTS: usize = 512;

impl RaceDetector {
    /// Records an access to device memory. Adds a message to the list of races for each earlier access that races with
    /// it. `time` is the access's time in the clock of its stream.
    pub fn note(&mut self, access: Access, stream: StreamId, time: u64, clock: &Clock, by: By) {
        let Access { address, bytes, writes } = access;
        let seen = Seen { stream, time, begin: address, end: address + bytes.max(1), writes, by };
        let there = self.uses.range(address..seen.end).flat_map(|(_, uses)| uses.write.iter().chain(&uses.reads));
        let around = self.extents.iter().filter(|other| other.begin < address && address < other.end);
        let races =
            there.chain(around).filter(|other| (writes || other.writes) && !clock.has_seen(other)).map(|other| {
                format!(
                    "{by} on stream {stream} and {} on stream {} access {address:#x} without an order",
                    other.by, other.stream
                )
            });
        self.races.extend(races);
        if bytes > 1 {
            self.extents.push_back(seen);
            if self.extents.len() > EXTENTS {
                self.extents.pop_front();
            }
        }
        let uses = self.uses.entry(address).or_default();
        if writes {
            *uses = Uses { write: Some(seen), reads: Vec::new() };
        } else {
            uses.reads.retain(|read| read.stream != stream);
            uses.reads.push(seen);
        }
    }

    /// Forgets the recorded accesses to a range of device memory, because the range is freed.
    pub fn forget(&mut self, address: u64, bytes: u64) {
        let gone: Vec<_> = self.uses.range(address..address + bytes).map(|(address, _)| *address).collect();
        gone.iter().for_each(|address| drop(self.uses.remove(address)));
        self.extents.retain(|seen| seen.end <= address || address + bytes <= seen.begin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn access(address: u64, writes: bool) -> Access {
        Access { address, bytes: 8, writes }
    }

    #[test]
    fn accesses_without_an_order_are_races() {
        let mut detector = RaceDetector::default();
        let [mut one, mut other] = [Clock::default(), Clock::default()];
        let time = one.tick(1);
        detector.note(access(64, true), 1, time, &one, By::Kernel(1));
        let mut informed = other.clone();
        informed.join(&one);
        let time = informed.tick(2);
        detector.note(access(64, false), 2, time, &informed, By::Send);
        assert_eq!(detector.races.len(), 0, "the second stream knew of the first access");
        let time = one.tick(1);
        detector.note(access(68, true), 1, time, &one, By::Kernel(1));
        assert_eq!(detector.races.len(), 1, "{:?}", detector.races);
        assert!(detector.races[0].contains("a send"), "the first stream did not know of the send");
        let time = other.tick(3);
        detector.note(access(4096, true), 3, time, &other, By::Kernel(1));
        assert_eq!(detector.races.len(), 1, "an access to other memory is no race");
    }
}
