//! Counts a process's CUDA and NCCL calls, for the ledger file that is written at exit.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex};

/// The emulation's ledger: the counts of the program's CUDA and NCCL calls, over all devices and streams.
#[derive(Debug, Default)]
pub struct Ledger {
    /// The number of calls that wait for a CUDA stream or event, by the name of the calling host thread. This includes
    /// calls whose work was already finished.
    pub waits: BTreeMap<String, u64>,
    /// The number of these calls that blocked their host thread, because the awaited work was not finished yet.
    pub held_up: u64,
    /// The number of copies from the host to emulated devices, and their total number of bytes.
    pub to_device: [u64; 2],
    /// The number of copies from emulated devices to the host, and their total number of bytes.
    pub to_host: [u64; 2],
    /// The number of launches, by kernel and emulated device.
    pub launches: BTreeMap<(String, i32), u64>,
    /// The total number of kernel launches on all emulated devices.
    pub launched: u64,
    /// The bytes of device memory that each kernel has accessed, if the emulation runs kernels. Each launch counts
    /// every sector of 32 bytes once, as on a device with an unlimited cache.
    pub accessed: Arc<Mutex<BTreeMap<String, u64>>>,
    /// All kernel launches in order, if the emulation's settings ask for this list.
    pub order: Vec<String>,
    /// The names of the loaded kernels in the order of loading; the first kernel has the number 1.
    pub kernels: Vec<String>,
    /// The current and the peak number of bytes of emulated device memory in use, by device.
    pub memory: BTreeMap<i32, [u64; 2]>,
    /// The number of allocations of emulated device memory.
    pub allocations: u64,
    /// Each emulated device's sends and receives in the order of the calls. Each is a string `from>to`, with the
    /// numbers of the sending and the receiving device.
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

    /// Returns the ledger (the counts of all calls), and the races found on device memory, as JSON.
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
        let _ = writeln!(text, " \"accessed\": {},", object(&*self.accessed.lock().expect("no thread panics with it")));
        let _ = writeln!(text, " \"peaks\": {},", object(peaks));
        let _ =
            writeln!(text, " \"races\": {}, \"first_races\": {},", races.len(), list(&races[..races.len().min(20)]));
        let _ = writeln!(text, " \"transfers\": {}\n}}", object(transfers));
        text
    }
}

/// Formats a JSON object with the given keys and values. Keys are kernel names, thread names or numbers, which need no
/// escaping; values are already JSON.
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
    fn the_ledger_has_the_peak_of_memory() {
        let mut ledger = Ledger::default();
        ledger.allocate(1, 10);
        ledger.allocate(1, 20);
        ledger.free(1, 10);
        ledger.allocate(1, 5);
        assert_eq!((ledger.used(1), ledger.used(0)), (25, 0));
        assert!(ledger.text(&[]).contains("\"peaks\": {\"1\": 30}"), "{}", ledger.text(&[]));
    }
}
