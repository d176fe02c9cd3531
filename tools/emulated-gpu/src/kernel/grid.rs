//! Runs all blocks of a kernel launch, on all of the host's processors.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use super::program::Program;
use super::warp::{Block, Warp};
use crate::memory::{Ranges, UNSET};

/// A kernel launch's arguments: the sizes of the grid and of a block, the additional shared memory, and the kernel's
/// parameters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Launch {
    pub grid: [u32; 3],
    pub block: [u32; 3],
    /// The dynamic shared memory, in bytes, that the launch adds to each block.
    pub shared: usize,
    /// The bytes of the kernel's parameters, at the offsets that the kernel's program gives.
    pub parameters: Vec<u8>,
}

/// Runs all blocks of a kernel launch, on one host thread per processor.
///
/// # Errors
/// Returns an error that names the kernel, the instruction and the reason if an instruction fails, or an error if the
/// block size is wrong.
pub fn run(program: &Program, launch: &Launch, global: &Ranges) -> Result<(), String> {
    if let Some(threads) = program.threads.filter(|threads| *threads != launch.block) {
        let (name, block) = (&program.name, launch.block);
        return Err(format!("{name}: launched with blocks of {block:?} threads, but compiled for {threads:?}"));
    }
    let blocks: u64 = launch.grid.iter().copied().map(u64::from).product();
    let (next, failed) = (AtomicU64::new(0), Mutex::new(None));
    let work = || {
        let threads: u32 = launch.block.iter().product();
        let mut shared = vec![UNSET; program.shared + launch.shared];
        let mut warps: Vec<Warp> = (0..threads.div_ceil(32)).map(|_| Warp::new(program)).collect();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= blocks {
                return;
            }
            shared.fill(UNSET);
            let block = Block { shared: &mut shared, parameters: &launch.parameters, global };
            if let Err(error) = run_block(program, launch, number, block, &mut warps) {
                next.store(blocks, Ordering::Relaxed);
                *failed.lock().expect("no thread panics with it") = Some(error);
            }
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(blocks as usize);
    std::thread::scope(|scope| {
        (1..threads).for_each(|_| drop(scope.spawn(work)));
        work();
    });
    failed.into_inner().expect("no thread panics with it").map_or(Ok(()), Err)
}

fn run_block(
    program: &Program,
    launch: &Launch,
    number: u64,
    mut block: Block<'_>,
    warps: &mut [Warp],
) -> Result<(), String> {
    let [x, y, _] = launch.grid.map(u64::from);
    let at = [number % x, number / x % y, number / x / y].map(|at| at as u32);
    for (index, warp) in warps.iter_mut().enumerate() {
        warp.start(program, launch, at, index as u32);
    }
    while warps.iter().any(|warp| !warp.is_done()) {
        for warp in &mut *warps {
            warp.run(program, &mut block)?;
        }
        // At this point, every warp of the block has reached a barrier or its end.
        warps.iter_mut().for_each(Warp::release);
    }
    Ok(())
}
