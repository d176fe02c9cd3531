//! What comes before what: vector clocks (Fidge, 1988; Mattern, 1989), and accesses to memory that are in no order.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;

use crate::machine::StreamId;

/// How far each stream was, as far as it is known.
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

/// What uses memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The kernel of that number.
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

/// A use of memory by something on a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Access {
    pub address: u64,
    /// How much of it, where that is known; kernels are only known to begin there.
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

/// The last uses of memory, by where they begin.
#[derive(Debug, Default)]
pub struct Uncertain {
    uses: BTreeMap<u64, Uses>,
    /// The last whose extent is known.
    extents: VecDeque<Seen>,
    /// What has been found.
    pub races: Vec<String>,
}

/// How many extents are looked at.
const EXTENTS: usize = 512;

impl Uncertain {
    /// Notes a use, and finds others that are neither before it nor behind.
    pub fn note(&mut self, access: Access, stream: StreamId, time: u64, clock: &Clock, by: By) {
        let Access { address, bytes, writes } = access;
        let seen = Seen { stream, time, begin: address, end: address + bytes.max(1), writes, by };
        let there = self.uses.range(address..seen.end).flat_map(|(_, uses)| uses.write.iter().chain(&uses.reads));
        let around = self.extents.iter().filter(|other| other.begin < address && address < other.end);
        let races =
            there.chain(around).filter(|other| (writes || other.writes) && !clock.has_seen(other)).map(|other| {
                format!(
                    "{by} on stream {stream} and {} on stream {} use {address:#x} in no order",
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

    /// Memory that is given back.
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
    fn uses_that_nothing_orders_are_found() {
        let mut uncertain = Uncertain::default();
        let [mut one, mut other] = [Clock::default(), Clock::default()];
        let time = one.tick(1);
        uncertain.note(access(64, true), 1, time, &one, By::Kernel(1));
        let mut told = other.clone();
        told.join(&one);
        let time = told.tick(2);
        uncertain.note(access(64, false), 2, time, &told, By::Send);
        assert_eq!(uncertain.races.len(), 0, "it was told of the first");
        let time = one.tick(1);
        uncertain.note(access(68, true), 1, time, &one, By::Kernel(1));
        assert_eq!(uncertain.races.len(), 1, "{:?}", uncertain.races);
        assert!(uncertain.races[0].contains("a send"), "the first was not told of the second");
        let time = other.tick(3);
        uncertain.note(access(4096, true), 3, time, &other, By::Kernel(1));
        assert_eq!(uncertain.races.len(), 1, "other memory");
    }
}
