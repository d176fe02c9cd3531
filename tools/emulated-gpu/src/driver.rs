//! The emulated CUDA driver: the state that all CUDA and NCCL calls of a process share, and how host threads wait.

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

/// The CUDA error that calls return after a kernel has failed on their device: `CUDA_ERROR_ILLEGAL_ADDRESS`.
const ILLEGAL_ADDRESS: c_int = 700;

/// The exit status of a process whose emulated devices are deadlocked.
pub const DEADLOCK: c_int = 86;

/// The emulated CUDA driver: the settings and the state that all CUDA and NCCL calls of a process share.
pub struct Driver {
    pub settings: Settings,
    state: Mutex<State>,
    changed: Condvar,
}

/// The state of the emulated devices, which CUDA and NCCL calls change.
#[derive(Default)]
pub struct State {
    pub machine: Machine,
    pub ledger: Ledger,
    /// The device and the size in bytes of each allocation of emulated device memory, by its address.
    pub allocations: HashMap<u64, (i32, u64)>,
    /// The address and length in bytes of each block of pinned host memory, which devices may read after the call that
    /// queues a copy.
    pub pinned: Vec<(u64, u64)>,
    /// The end address of the last allocation of emulated device memory. It is used only if the emulation runs no
    /// kernels: the addresses are then just ascending numbers, without memory behind them.
    pub address: u64,
    /// The kernels that the program has loaded. The kernel number n, counted from 1, is at index n - 1.
    pub functions: Vec<Function>,
    /// The device of every rank that has joined an NCCL communicator, by communicator and rank.
    pub groups: BTreeMap<u64, BTreeMap<i32, i32>>,
    /// The device that has failed, and its CUDA error number; `None` if no device has failed. All later launches,
    /// copies and waits on that device return this error.
    pub failed: Option<(i32, i32)>,
    /// The numbers of NCCL send calls and of receive calls so far, for each pair of ranks, communicator and transfer
    /// size.
    pub posted: HashMap<Ends, [u64; 2]>,
}

impl State {
    /// Returns the CUDA error number of `device` if it has failed, and otherwise `None`.
    pub fn error_of(&self, device: Option<i32>) -> Option<i32> {
        self.failed.filter(|(failed, _)| Some(*failed) == device).map(|(_, error)| error)
    }
}

/// A loaded GPU kernel: its decoded instructions, and which of its parameters are buffers.
pub struct Function {
    pub name: String,
    /// The kernel's decoded program, or the reason why it cannot run; `None` if the emulation runs no kernels.
    pub program: Option<Arc<Result<Program, String>>>,
    /// For each kernel parameter, whether the kernel writes to the parameter's buffer; `None` for a parameter that is
    /// not a buffer.
    pub buffers: Vec<Option<bool>>,
}

thread_local! {
    /// The device of the CUDA context that is current on this thread.
    pub static CURRENT: Cell<i32> = const { Cell::new(0) };
}

/// Returns the process's emulated CUDA driver, which the first call creates.
pub fn driver() -> &'static Driver {
    static DRIVER: OnceLock<Driver> = OnceLock::new();
    DRIVER.get_or_init(|| {
        let text = std::env::var("STAGELINE_EMULATED_GPU").unwrap_or_default();
        let settings = Settings::read(&text).unwrap_or_else(|error| {
            eprintln!("STAGELINE_EMULATED_GPU: {error}");
            std::process::exit(2)
        });
        // SAFETY: `write_reports` is a function of this library, which is never unloaded.
        unsafe { atexit(write_reports) };
        let mut state = State::default();
        state.machine.has_contents = settings.computes;
        Driver { settings, state: Mutex::new(state), changed: Condvar::new() }
    })
}

extern "C" fn write_reports() {
    let driver = driver();
    let state = driver.locked();
    let ledger = || state.ledger.text(&state.machine.race_detector.races);
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

    /// Calls `change` with the locked state of the emulated driver. Then wakes the host threads that wait for a change
    /// of the state.
    pub fn with<R>(&self, change: impl FnOnce(&mut State) -> R) -> R {
        let mut state = self.locked();
        let result = change(&mut state);
        if let Some((device, fault)) = state.machine.fault.take() {
            eprintln!("device {device}: {fault}");
            state.failed.get_or_insert((device, ILLEGAL_ADDRESS));
        }
        drop(state);
        self.changed.notify_all();
        result
    }

    /// Blocks the calling host thread until `done` holds or the emulated device has failed. Then calls `observe`, which
    /// records what the host now knows. Returns the device's CUDA error number, or 0.
    pub fn wait_for_device(
        &self,
        call: &str,
        device: Option<i32>,
        done: impl Fn(&State) -> bool,
        observe: impl FnOnce(&mut Machine),
    ) -> i32 {
        let mut state = self.locked();
        *state.ledger.waits.entry(thread_name()).or_default() += 1;
        if !done(&state) {
            state.ledger.held_up += 1;
        }
        let mut state = self.wait(state, call, |state| state.error_of(device).is_some() || done(state));
        observe(&mut state.machine);
        state.error_of(device).unwrap_or(0)
    }

    /// Blocks the calling host thread until CUDA or NCCL calls of other host threads make `done` true.
    pub fn wait_for_hosts(&self, call: &str, done: impl Fn(&State) -> bool) {
        drop(self.wait(self.locked(), call, done));
    }

    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        call: &str,
        done: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        const POLL: Duration = Duration::from_millis(100);
        let (mut seen, mut since) = (state.machine.completed, Instant::now());
        while !done(&state) {
            state = self.changed.wait_timeout(state, POLL).unwrap_or_else(PoisonError::into_inner).0;
            if state.machine.completed != seen {
                (seen, since) = (state.machine.completed, Instant::now());
            } else if since.elapsed() > self.settings.patience {
                eprintln!("the devices are deadlocked: thread `{}` waits in {call}\n{}", thread_name(), state.machine);
                // SAFETY: the call uses no memory of ours. Exit handlers do not run, because they would wait for the
                // same devices.
                unsafe { _exit(DEADLOCK) }
            }
        }
        state
    }
}

fn thread_name() -> String {
    let mut name: [c_char; 16] = [0; 16];
    // SAFETY: the buffer has the given length, and a name has at most 15 bytes and a 0.
    unsafe { pthread_getname_np(pthread_self(), name.as_mut_ptr(), name.len()) };
    // SAFETY: a name is shorter than the buffer, whose bytes were 0, so the text ends with a 0.
    unsafe { CStr::from_ptr(name.as_ptr()) }.to_string_lossy().replace(['"', '\\'], "_")
}
