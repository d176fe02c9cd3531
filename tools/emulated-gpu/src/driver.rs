//! The one machine of the process, and how hosts wait for it.

use std::cell::Cell;
use std::collections::{BTreeMap, HashMap};
use std::ffi::{CStr, c_char, c_int, c_ulong};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use crate::kernel::Program;
use crate::ledger::Ledger;
use crate::machine::{Ends, Machine};
use crate::settings::Settings;

unsafe extern "C" {
    fn atexit(function: extern "C" fn()) -> c_int;
    fn _exit(status: c_int) -> !;
    fn pthread_self() -> c_ulong;
    fn pthread_getname_np(thread: c_ulong, name: *mut c_char, length: usize) -> c_int;
}

/// What a device answers on which a kernel could not go on.
const ILLEGAL_ADDRESS: c_int = 700;

/// How a process ends whose devices can go on no more.
pub const DEADLOCK: c_int = 86;

/// All that the calls of a process share.
pub struct Driver {
    pub settings: Settings,
    state: Mutex<State>,
    moved: Condvar,
}

/// What changes.
#[derive(Default)]
pub struct State {
    pub machine: Machine,
    pub ledger: Ledger,
    /// Device and size of what is allocated, by its address.
    pub allocations: HashMap<u64, (i32, u64)>,
    /// Hosts' memory that devices may read late: beginnings and lengths.
    pub pinned: Vec<(u64, u64)>,
    /// Where the next one begins.
    pub address: u64,
    /// The kernels that were loaded: that of number n is at n - 1.
    pub functions: Vec<Function>,
    /// The device of every rank that has joined, by communicator.
    pub groups: BTreeMap<u64, BTreeMap<i32, i32>>,
    /// The device that has failed, and with what: what launches kernels, copies or waits there gets that from then on.
    pub failed: Option<(i32, i32)>,
    /// How many sends and receives of the same ends were posted.
    pub posted: HashMap<Ends, [u64; 2]>,
}

impl State {
    /// What a device answers, if it has failed.
    pub fn error_of(&self, device: Option<i32>) -> Option<i32> {
        self.failed.filter(|(failed, _)| Some(*failed) == device).map(|(_, error)| error)
    }
}

/// A kernel that was loaded.
pub struct Function {
    pub name: String,
    /// If it is to be run: as it is run, or why it cannot be.
    pub program: Option<Arc<Result<Program, String>>>,
    /// Of each parameter, whether it is a buffer, and then whether it is written.
    pub buffers: Vec<Option<bool>>,
}

thread_local! {
    /// The device of this thread's current context.
    pub static CURRENT: Cell<i32> = const { Cell::new(0) };
}

/// The driver, from when it is first asked something.
pub fn driver() -> &'static Driver {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    DRIVER.get_or_init(|| {
        let text = std::env::var("STAGELINE_EMULATED_GPU").unwrap_or_default();
        let settings = Settings::read(&text).unwrap_or_else(|error| {
            eprintln!("STAGELINE_EMULATED_GPU: {error}");
            std::process::exit(2)
        });
        // SAFETY: `write_down` is a function of this library, which is never unloaded.
        unsafe { atexit(write_down) };
        let mut state = State::default();
        state.machine.carries = settings.computes;
        Driver { settings, state: Mutex::new(state), moved: Condvar::new() }
    })
}

extern "C" fn write_down() {
    let driver = driver();
    let state = driver.locked();
    let ledger = || state.ledger.text(&state.machine.uncertain.races);
    write(driver.settings.ledger.as_deref(), ledger);
    write(driver.settings.launches.as_deref(), || state.ledger.order.join("\n"));
}

fn write(path: Option<&Path>, text: impl FnOnce() -> String) {
    let Some(path) = path else { return };
    if let Err(error) = std::fs::write(path, text()) {
        eprintln!("{}: {error}", path.display());
    }
}

impl Driver {
    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the state, and wakes who waits for it.
    pub fn with<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.locked();
        let result = change(&mut state);
        if let Some((device, fault)) = state.machine.fault.take() {
            eprintln!("device {device}: {fault}");
            state.failed.get_or_insert((device, ILLEGAL_ADDRESS));
        }
        drop(state);
        self.moved.notify_all();
        result
    }

    /// A host waits for its device; what comes of that.
    pub fn wait_for_device(
        &self,
        what: &str,
        device: Option<i32>,
        done: impl Fn(&State) -> bool,
        saw: impl FnOnce(&mut Machine),
    ) -> i32 {
        let mut state = self.locked();
        *state.ledger.waits.entry(thread_name()).or_default() += 1;
        if !done(&state) {
            state.ledger.held_up += 1;
        }
        let mut state = self.wait(state, what, |state| state.error_of(device).is_some() || done(state));
        saw(&mut state.machine);
        state.error_of(device).unwrap_or(0)
    }

    /// A host waits for other hosts.
    pub fn wait_for_hosts(&self, what: &str, done: impl Fn(&State) -> bool) {
        drop(self.wait(self.locked(), what, done));
    }

    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        what: &str,
        done: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        const LOOK: Duration = Duration::from_millis(100);
        let (mut seen, mut since) = (state.machine.moved, Instant::now());
        while !done(&state) {
            state = self.moved.wait_timeout(state, LOOK).unwrap_or_else(PoisonError::into_inner).0;
            if state.machine.moved != seen {
                (seen, since) = (state.machine.moved, Instant::now());
            } else if since.elapsed() > self.settings.patience {
                eprintln!("the devices stand still: `{}` waits in {what}\n{}", thread_name(), state.machine);
                // SAFETY: it takes no memory of ours; handlers of exit would wait for the same devices.
                unsafe { _exit(DEADLOCK) }
            }
        }
        state
    }
}

fn thread_name() -> String {
    let mut name: [c_char; 16] = [0; 16];
    // SAFETY: the buffer is as long as is said, and a name is at most 15 bytes and their end.
    unsafe { pthread_getname_np(pthread_self(), name.as_mut_ptr(), name.len()) };
    // SAFETY: the last byte is 0, whatever was written.
    unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().replace(['"', '\\'], "_")
}
