//! Counts the CUDA and NCCL calls of a process, for the ledger file that is written at exit.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex};

/// The ledger of the emulation: the counts of the program's CUDA and NCCL calls, over all devices and streams.
#[derive(Debug, Default)]
pub struct Ledger {
    /// The number of calls that wait for a CUDA stream or event, by the name of the calling host thread. Calls whose
    /// work was already finished are counted as well.
    pub waits: BTreeMap<String, u64>,
    /// The number of calls that blocked their host thread, because the work of the awaited CUDA stream or event was not
    /// finished yet.
    pub held_up: u64,
    /// The number of copies from the host to emulated devices, and the total number of bytes of these copies.
    pub to_device: [u64; 2],
    /// The number of copies from emulated devices to the host, and the total number of bytes of these copies.
    pub to_host: [u64; 2],
    /// The number of launches of each kernel on each emulated device.
    pub launches: BTreeMap<(String, i32), u64>,
    /// The number of launches of all kernels on all emulated devices together.
    pub launched: u64,
    /// The bytes of device memory that each kernel has accessed, if the emulation runs kernels. Each launch counts
    /// every sector of 32 bytes once, as a device with an unlimited cache would.
    pub accessed: Arc<Mutex<BTreeMap<String, u64>>>,
    /// The list of all kernel launches in order, if the emulation's settings ask for this list.
    pub order: Vec<String>,
    /// The names of the loaded kernels in the order of loading; the first kernel has number 1.
    pub kernels: Vec<String>,
    /// The bytes of emulated device memory in use, and the peak of this number, by device.
    pub memory: BTreeMap<i32, [u64; 2]>,
    /// The number of allocations of emulated device memory that the program made.
    pub allocations: u64,
    /// The sends and receives of each emulated device in the order of the calls. Each is the text `from>to`, with the
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

    /// Returns the ledger (the counts of all calls) as JSON, with the races on device memory that were found.
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

/// Returns the text of a JSON object with the given keys and values. Keys are names of kernels or threads, or numbers,
/// and need no escapes; values are JSON text.
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
