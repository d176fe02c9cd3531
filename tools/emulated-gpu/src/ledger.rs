//! What was asked.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Of all devices and streams.
#[derive(Debug, Default)]
pub struct Ledger {
    /// Times that a host waited for a stream or an event, by the thread's name.
    pub waits: BTreeMap<String, u64>,
    /// Of those, times that there was something to wait for.
    pub held_up: u64,
    /// Copies to devices: how many, and of how many bytes.
    pub to_device: [u64; 2],
    /// Copies to the host: how many, and of how many bytes.
    pub to_host: [u64; 2],
    /// Launches, by kernel and device.
    pub launches: BTreeMap<(String, i32), u64>,
    /// Of all launches so far.
    pub launched: u64,
    /// Each of them in its order, where that is asked for.
    pub order: Vec<String>,
    /// The kernels that were loaded, in their order: the first is number 1.
    pub kernels: Vec<String>,
    /// Of each device, in use and at most, in bytes.
    pub memory: BTreeMap<i32, [u64; 2]>,
    /// How often memory was asked for.
    pub allocations: u64,
    /// Sends and receives, in the order in which each device was asked for them, as `from>to`.
    pub transfers: BTreeMap<i32, Vec<String>>,
}

impl Ledger {
    pub fn allocate(&mut self, device: i32, bytes: u64) {
        self.allocations += 1;
        let [used, peak] = self.memory.entry(device).or_default();
        *used += bytes;
        *peak = (*peak).max(*used);
    }

    pub fn free(&mut self, device: i32, bytes: u64) {
        self.memory.entry(device).or_default()[0] -= bytes;
    }

    pub fn used(&self, device: i32) -> u64 {
        self.memory.get(&device).map_or(0, |[used, _]| *used)
    }

    /// As JSON, with uses of memory that are in no order.
    pub fn text(&self, races: &[String]) -> String {
        let mut launches = BTreeMap::<&str, u64>::new();
        let mut by_device = BTreeMap::<i32, u64>::new();
        for ((kernel, device), count) in &self.launches {
            *launches.entry(kernel).or_default() += count;
            *by_device.entry(*device).or_default() += count;
        }
        let peaks = self.memory.iter().map(|(device, [_, peak])| (device, peak));
        let transfers = self.transfers.iter().map(|(device, sends)| (device, list(sends)));
        let mut text = String::from("{\n");
        let _ = writeln!(text, " \"waits\": {},", object(&self.waits));
        let _ = writeln!(text, " \"held_up\": {},", self.held_up);
        let _ = writeln!(text, " \"to_device\": {:?},\n \"to_host\": {:?},", self.to_device, self.to_host);
        let _ = writeln!(text, " \"kernels\": {},\n \"allocations\": {},", list(&self.kernels), self.allocations);
        let _ = writeln!(text, " \"launched\": {},", object(by_device));
        let _ = writeln!(text, " \"launches\": {},", object(launches));
        let _ = writeln!(text, " \"peaks\": {},", object(peaks));
        let _ =
            writeln!(text, " \"races\": {}, \"first_races\": {},", races.len(), list(&races[..races.len().min(20)]));
        let _ = writeln!(text, " \"transfers\": {}\n}}", object(transfers));
        text
    }
}

/// Names here are kernels', threads' and numbers: nothing that JSON would have escaped.
fn object<K: std::fmt::Display, V: std::fmt::Display>(entries: impl IntoIterator<Item = (K, V)>) -> String {
    let entries: Vec<_> = entries.into_iter().map(|(key, value)| format!("\"{key}\": {value}")).collect();
    format!("{{{}}}", entries.join(", "))
}

fn list(entries: &[String]) -> String {
    format!("[{}]", entries.iter().map(|entry| format!("\"{entry}\"")).collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_has_its_peak() {
        let mut ledger = Ledger::default();
        ledger.allocate(1, 10);
        ledger.allocate(1, 20);
        ledger.free(1, 10);
        ledger.allocate(1, 5);
        assert_eq!((ledger.used(1), ledger.used(0)), (25, 0));
        assert!(ledger.text(&[]).contains("\"peaks\": {\"1\": 30}"), "{}", ledger.text(&[]));
    }
}
