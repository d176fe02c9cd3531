//! The functions of `libcuda` that burn's backend calls, as specified by NVIDIA's CUDA Driver API.
#![allow(non_snake_case)]

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;

use crate::clocks::Access;
use crate::driver::{CURRENT, Function, State, driver};
use crate::kernel::{self, Launch, Program};
use crate::machine::{Effect, Work};
use crate::memory::{self, Ranges};
use crate::ptx::{self, Entry};

/// The result of a CUDA Driver API call: 0 for success, or an error number.
pub type Result = c_int;

const SUCCESS: Result = 0;
const INVALID_VALUE: Result = 1;
const OUT_OF_MEMORY: Result = 2;
const INVALID_DEVICE: Result = 101;
const INVALID_HANDLE: Result = 400;

/// The byte pattern that fills the target of a device-to-host copy if the emulation does not store the contents of
/// device memory: 2.0 in f32.
const READ: [u8; 4] = 2.0_f32.to_le_bytes();

/// The time, in ms, that each kernel launch adds to an emulated device's clock. All kernels take equally long, so
/// autotune chooses the variant with the fewest kernels.
const KERNEL_MS: f32 = 0.005;

/// The alignment of emulated device memory allocations in bytes. All devices share one address space, as with NVIDIA's
/// unified addressing.
const ALIGNMENT: u64 = 512;

/// Writes an emulated CUDA call's output to the pointer that the caller gave, and returns success.
unsafe fn give<T>(to: *mut T, value: T) -> Result {
    // SAFETY: the caller's pointer is valid for one value of this type, as the API requires.
    unsafe { to.write(value) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuInit(_flags: c_uint) -> Result {
    driver().settings.init
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDriverGetVersion(version: *mut c_int) -> Result {
    // SAFETY: the pointer is valid for one value, as the API requires.
    unsafe { give(version, driver().settings.version) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetCount(count: *mut c_int) -> Result {
    // SAFETY: the pointer is valid for one value, as the API requires.
    unsafe { give(count, driver().settings.devices) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGet(device: *mut c_int, ordinal: c_int) -> Result {
    if !(0..driver().settings.devices).contains(&ordinal) {
        return INVALID_DEVICE;
    }
    // SAFETY: the pointer is valid for one value, as the API requires.
    unsafe { give(device, ordinal) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetName(name: *mut c_char, length: c_int, _device: c_int) -> Result {
    let text = c"emulated H200";
    let Ok(length) = usize::try_from(length) else { return INVALID_VALUE };
    let bytes = text.to_bytes_with_nul();
    if length < bytes.len() {
        return INVALID_VALUE;
    }
    // SAFETY: the check above leaves room for the bytes.
    unsafe { name.copy_from_nonoverlapping(bytes.as_ptr().cast(), bytes.len()) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetPCIBusId(_id: *mut c_char, _length: c_int, _device: c_int) -> Result {
    INVALID_DEVICE
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) -> Result {
    // SAFETY: the pointer is valid for one value, as the API requires.
    unsafe { give(bytes, driver().settings.memory as usize) }
}

/// Writes an attribute of an emulated device, such as its number of multiprocessors. The values are those of an H200,
/// from NVIDIA's tuning guide for Hopper and the tables for compute capability 9.0.
/// The limits of an H100 or H200 on a launch: blocks of a grid in x, y and z.
const GRID: [c_uint; 3] = [2_147_483_647, 65_535, 65_535];

/// Threads of a block in x, y and z.
const BLOCK: [c_uint; 3] = [1024, 1024, 64];

/// Threads of a block in all three directions.
const MOST_THREADS: c_uint = 1024;

/// Bytes of shared memory that a block can ask for.
const MOST_SHARED: c_uint = 232_448;

/// Whether each size is at least 1 and at most its limit.
fn fits(sizes: [c_uint; 3], limits: [c_uint; 3]) -> bool {
    sizes.iter().zip(limits).all(|(size, limit)| (1..=limit).contains(size))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, _device: c_int) -> Result {
    let known = match attribute {
        1 => MOST_THREADS as c_int,
        2..=4 => BLOCK[attribute as usize - 2] as c_int,
        5..=7 => GRID[attribute as usize - 5] as c_int,
        10 => 32,  // threads of a warp
        16 => 132, // multiprocessors
        75 => 9,   // compute capability
        76 => 0,
        97 => MOST_SHARED as c_int,
        _ => return INVALID_VALUE,
    };
    // SAFETY: the pointer is valid for one value, as the API requires.
    unsafe { give(value, known) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) -> Result {
    // SAFETY: the pointer is valid for one value, as the API requires.
    unsafe { give(context, device as usize + 1) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxSetCurrent(context: usize) -> Result {
    CURRENT.set(context.saturating_sub(1) as i32);
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuCtxGetStreamPriorityRange(least: *mut c_int, greatest: *mut c_int) -> Result {
    // SAFETY: both pointers are valid for one value, as the API requires.
    unsafe { give(least, 0) + give(greatest, 0) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreate(stream: *mut u64, _flags: c_uint) -> Result {
    // SAFETY: the pointer is valid for one value, as the API requires.
    unsafe { give(stream, driver().with(|state| state.machine.stream(CURRENT.get()))) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamCreateWithPriority(stream: *mut u64, flags: c_uint, _priority: c_int) -> Result {
    // SAFETY: the same contract holds for the same pointer.
    unsafe { cuStreamCreate(stream, flags) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamSynchronize(stream: u64) -> Result {
    let device = driver().with(|state| state.machine.device_of(stream));
    let is_idle = |state: &State| state.machine.is_idle(stream);
    driver().wait_for_device("cuStreamSynchronize", device, is_idle, |machine| machine.saw_idle(stream))
}

/// Returns success without destroying the CUDA stream, because its queued operations must still be executed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamDestroy_v2(_stream: u64) -> Result {
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuStreamWaitEvent(stream: u64, event: u64, _flags: c_uint) -> Result {
    driver().with(|state| state.machine.wait(stream, event));
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventCreate(event: *mut u64, _flags: c_uint) -> Result {
    // SAFETY: the pointer is valid for one value, as the API requires.
    unsafe { give(event, driver().with(|state| state.machine.event())) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventRecord(event: u64, stream: u64) -> Result {
    driver().with(|state| state.machine.record(event, stream));
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventSynchronize(event: u64) -> Result {
    let device = driver().with(|state| state.machine.device_of_event(event));
    let is_done = |state: &State| state.machine.is_done(event);
    driver().wait_for_device("cuEventSynchronize", device, is_done, |machine| machine.saw_done(event))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime(ms: *mut f32, start: u64, end: u64) -> Result {
    match driver().with(|state| state.machine.elapsed(start, end)) {
        // SAFETY: the pointer is valid for one value, as the API requires.
        Some(kernels) => unsafe { give(ms, kernels as f32 * KERNEL_MS) },
        None => INVALID_VALUE,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventElapsedTime_v2(ms: *mut f32, start: u64, end: u64) -> Result {
    // SAFETY: the same contract holds for the same pointer.
    unsafe { cuEventElapsedTime(ms, start, end) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuEventDestroy_v2(event: u64) -> Result {
    driver().with(|state| state.machine.forget_event(event));
    SUCCESS
}

fn allocate(state: &mut State, device: i32, bytes: u64) -> Option<u64> {
    if state.ledger.used(device) + bytes > driver().settings.memory {
        return None;
    }
    let address = if driver().settings.computes {
        memory::allocate(bytes as usize, ALIGNMENT as usize)?
    } else {
        let address = state.address + ALIGNMENT;
        state.address = address + bytes.next_multiple_of(ALIGNMENT);
        address
    };
    state.allocations.insert(address, (device, bytes));
    state.ledger.allocate(device, bytes);
    Some(address)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAlloc_v2(pointer: *mut u64, bytes: usize) -> Result {
    match driver().with(|state| allocate(state, CURRENT.get(), bytes as u64)) {
        // SAFETY: the pointer is valid for one value, as the API requires.
        Some(address) => unsafe { give(pointer, address) },
        None => OUT_OF_MEMORY,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocAsync(pointer: *mut u64, bytes: usize, _stream: u64) -> Result {
    // SAFETY: the same contract holds for the same pointer.
    unsafe { cuMemAlloc_v2(pointer, bytes) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFree_v2(pointer: u64) -> Result {
    driver().with(|state| match state.allocations.remove(&pointer) {
        Some((device, bytes)) => {
            state.ledger.free(device, bytes);
            state.machine.race_detector.forget(pointer, bytes);
            SUCCESS
        }
        None => INVALID_VALUE,
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeAsync(pointer: u64, _stream: u64) -> Result {
    // SAFETY: the same contract holds for the same address.
    unsafe { cuMemFree_v2(pointer) }
}

/// Allocates pinned host memory, which is ordinary process memory here. It is never freed, because a stream may still
/// use it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemAllocHost_v2(pointer: *mut *mut c_void, bytes: usize) -> Result {
    let words: &'static mut [u128] = Vec::leak(vec![0; bytes.div_ceil(16)]);
    driver().with(|state| state.pinned.push((words.as_ptr() as u64, bytes as u64)));
    // SAFETY: the pointer is valid for one value, as the API requires.
    unsafe { give(pointer, words.as_mut_ptr().cast()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemFreeHost(_pointer: *mut c_void) -> Result {
    SUCCESS
}

/// A copy of rows of bytes between two addresses. A pitch is the number of bytes between the starts of consecutive
/// rows.
#[derive(Clone, Copy)]
struct Rows {
    from: u64,
    from_pitch: usize,
    to: u64,
    to_pitch: usize,
    width: usize,
    height: usize,
}

impl Rows {
    fn one(from: u64, to: u64, bytes: usize) -> Self {
        Self { from, from_pitch: bytes, to, to_pitch: bytes, width: bytes, height: 1 }
    }

    /// Returns the number of bytes that the rows span on one side of the copy, from the start of the first row to the
    /// end of the last row. The starts of consecutive rows are `pitch` bytes apart.
    fn extent(&self, pitch: usize) -> u64 {
        (pitch * self.height.saturating_sub(1) + self.width) as u64
    }

    /// Returns the function that copies the rows when the stream executes the copy. Returns `None` if the emulation
    /// does not store the contents of device memory. As in CUDA, the call that queues the copy already reads a source
    /// in pageable (not pinned) host memory.
    fn effect(self, state: &State) -> Option<Effect> {
        if !driver().settings.computes {
            return None;
        }
        let within = |begin: u64, bytes: u64| (begin..begin + bytes).contains(&self.from);
        let is_kept = state.pinned.iter().any(|(begin, bytes)| within(*begin, *bytes))
            || state.allocations.iter().any(|(begin, (_, bytes))| within(*begin, *bytes));
        let mut staged = Vec::new();
        if !is_kept {
            staged = vec![0_u8; self.extent(self.from_pitch) as usize];
            memory::copy(staged.as_mut_ptr() as u64, self.from, staged.len());
        }
        Some(Box::new(move || {
            let from = if staged.is_empty() { self.from } else { staged.as_ptr() as u64 };
            for row in 0..self.height {
                memory::copy(self.to + (row * self.to_pitch) as u64, from + (row * self.from_pitch) as u64, self.width);
            }
            Ok(())
        }))
    }
}

/// Queues a copy of rows of bytes, between the host and a device, on a CUDA stream.
fn copied(rows: Rows, to_device: bool, stream: u64) -> Result {
    let (address, pitch) = if to_device { (rows.to, rows.to_pitch) } else { (rows.from, rows.from_pitch) };
    let bytes = rows.extent(pitch);
    driver().with(|state| {
        let Some(device) = state.machine.device_of(stream) else { return INVALID_HANDLE };
        if let Some(error) = state.error_of(Some(device)) {
            return error;
        }
        let ledger = &mut state.ledger;
        let [copies, total] = if to_device { &mut ledger.to_device } else { &mut ledger.to_host };
        *copies += 1;
        *total += bytes;
        let effect = rows.effect(state);
        state.machine.add_with(stream, Work::Copy(vec![Access { address, bytes, writes: to_device }]), effect);
        SUCCESS
    })
}

/// Fills the target of a device-to-host copy with a fixed value if the setting `computes` is off, because the emulation
/// then does not store the contents of device memory.
unsafe fn fill(host: *mut c_void, bytes: usize) {
    if driver().settings.computes {
        return;
    }
    for at in 0..bytes {
        // SAFETY: the caller has room for this many bytes.
        unsafe { host.cast::<u8>().add(at).write(READ[at % 4]) };
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyHtoDAsync_v2(to: u64, from: *const c_void, bytes: usize, stream: u64) -> Result {
    copied(Rows::one(from as u64, to, bytes), true, stream)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: u64, bytes: usize, stream: u64) -> Result {
    // SAFETY: the caller has room for the bytes that it copies.
    unsafe { fill(to, bytes) };
    copied(Rows::one(from, to as u64, bytes), false, stream)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: u64) -> Result {
    let access = |address, writes| Access { address, bytes: bytes as u64, writes };
    driver().with(|state| {
        let effect = Rows::one(from, to, bytes).effect(state);
        state.machine.add_with(stream, Work::Copy(vec![access(from, false), access(to, true)]), effect);
    });
    SUCCESS
}

/// The C structure `CUDA_MEMCPY2D`, which describes a copy of rows between host and device memory.
#[repr(C)]
pub struct Copy2d {
    from_x: usize,
    from_y: usize,
    from_kind: c_uint,
    from_host: *const c_void,
    from_device: u64,
    from_array: usize,
    from_pitch: usize,
    to_x: usize,
    to_y: usize,
    to_kind: c_uint,
    to_host: *mut c_void,
    to_device: u64,
    to_array: usize,
    to_pitch: usize,
    width: usize,
    height: usize,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuMemcpy2DAsync_v2(copy: *const Copy2d, stream: u64) -> Result {
    const HOST: c_uint = 1;
    // SAFETY: the structure has the layout of the API, and the caller's pointer is valid.
    let copy = unsafe { &*copy };
    let to_device = copy.to_kind != HOST;
    if (copy.from_kind == HOST) != to_device || [copy.from_x, copy.from_y, copy.to_x, copy.to_y] != [0; 4] {
        return INVALID_VALUE;
    }
    let rows = Rows {
        from: if to_device { copy.from_host as u64 } else { copy.from_device },
        from_pitch: copy.from_pitch,
        to: if to_device { copy.to_device } else { copy.to_host as u64 },
        to_pitch: copy.to_pitch,
        width: copy.width,
        height: copy.height,
    };
    if to_device {
        return copied(rows, true, stream);
    }
    for row in 0..copy.height {
        // SAFETY: the caller has room for rows of this width and pitch.
        unsafe { fill(copy.to_host.byte_add(row * copy.to_pitch), copy.width) };
    }
    copied(rows, false, stream)
}

/// Loads a CUDA module with one kernel from PTX. The module's handle is the number of its only kernel.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleLoadData(module: *mut usize, image: *const c_char) -> Result {
    // SAFETY: the image is PTX, which is text that ends with 0.
    let text = unsafe { CStr::from_ptr(image) }.to_string_lossy();
    let Some(entry) = Entry::read(&text) else { return INVALID_VALUE };
    let name = &entry.name;
    if let Some(folder) = &driver().settings.kernels {
        let written = std::fs::create_dir_all(folder)
            .and_then(|()| std::fs::write(folder.join(format!("{name}.ptx")), text.as_bytes()));
        if let Err(error) = written {
            eprintln!("{}: {error}", folder.display());
        }
    }
    let number = driver().with(|state| {
        state.ledger.kernels.push(name.clone());
        let program = driver().settings.computes.then(|| Arc::new(Program::compile(&entry)));
        state.functions.push(Function { name: name.clone(), buffers: ptx::buffers(&entry), program });
        state.functions.len()
    });
    // SAFETY: the pointer is valid for one value, as the API requires.
    unsafe { give(module, number) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleGetFunction(function: *mut usize, module: usize, _name: *const c_char) -> Result {
    // SAFETY: the pointer is valid for one value, as the API requires.
    unsafe { give(function, module) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuModuleUnload(_module: usize) -> Result {
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuFuncSetAttribute(_function: usize, _attribute: c_uint, _value: c_int) -> Result {
    SUCCESS
}

/// Returns the function that runs a kernel on the CPU when its stream executes the launch. The kernel may access only
/// memory that was allocated on its device when the launch was queued.
unsafe fn running(
    program: &Arc<std::result::Result<Program, String>>,
    mut launch: Launch,
    arguments: *const *const u64,
    state: &State,
    device: i32,
) -> Effect {
    if let Ok(program) = program.as_ref() {
        let end = program.parameters.iter().map(|(begin, bytes)| begin + bytes).max().unwrap_or(0);
        launch.parameters = vec![0; end];
        for (index, (begin, bytes)) in program.parameters.iter().enumerate() {
            // SAFETY: the caller gives a pointer to each parameter, which has the declared length.
            let argument = unsafe { std::slice::from_raw_parts((*arguments.add(index)).cast::<u8>(), *bytes) };
            launch.parameters[*begin..][..*bytes].copy_from_slice(argument);
        }
    }
    let memory = state.allocations.iter().filter(|(_, (of, _))| *of == device);
    let memory = Ranges::of(memory.map(|(begin, (_, bytes))| (*begin, *bytes)));
    let (program, accessed) = (Arc::clone(program), Arc::clone(&state.ledger.accessed));
    Box::new(move || {
        let program = program.as_ref().as_ref().map_err(String::clone)?;
        kernel::run(program, &launch, &memory)?;
        let mut accessed = accessed.lock().expect("no thread panics with it");
        *accessed.entry(program.name.clone()).or_default() += memory.accessed();
        Ok(())
    })
}

#[unsafe(no_mangle)]
#[allow(clippy::too_many_arguments)]
pub unsafe extern "C" fn cuLaunchKernel(
    function: usize,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared: c_uint,
    stream: u64,
    arguments: *const *const u64,
    _extra: *mut *mut c_void,
) -> Result {
    driver().with(|state| {
        state.ledger.launched += 1;
        let Some(device) = state.machine.device_of(stream) else { return INVALID_HANDLE };
        if let Some((launch, error)) = driver().settings.fault
            && state.ledger.launched == launch
        {
            state.failed = Some((device, error));
        }
        if let Some(error) = state.error_of(Some(device)) {
            return error;
        }
        let (grid, block) = ([grid_x, grid_y, grid_z], [block_x, block_y, block_z]);
        if !fits(grid, GRID)
            || !fits(block, BLOCK)
            || block.iter().product::<c_uint>() > MOST_THREADS
            || shared > MOST_SHARED
        {
            return INVALID_VALUE;
        }
        let ledger = &mut state.ledger;
        let Function { name, buffers, program } = &state.functions[function - 1];
        *ledger.launches.entry((name.clone(), device)).or_default() += 1;
        if driver().settings.launches.is_some() {
            let uses = buffers.iter().flatten().map(|writes| if *writes { 'w' } else { 'r' });
            let uses: String = uses.collect();
            ledger.order.push(format!("{device} {name} {grid_x}x{grid_y}x{grid_z} {uses}"));
        }
        let uses = buffers.iter().enumerate().filter_map(|(index, buffer)| {
            buffer.map(|writes| {
                // SAFETY: the caller gives a pointer to each parameter, and the parameter of a buffer is an address.
                let address = unsafe { **arguments.add(index) };
                Access { address, bytes: 1, writes }
            })
        });
        let uses = uses.collect();
        let launch = Launch {
            grid: [grid_x, grid_y, grid_z],
            block: [block_x, block_y, block_z],
            shared: shared as usize,
            parameters: Vec::new(),
        };
        // SAFETY: the caller gives a pointer to each parameter.
        let effect = program.as_ref().map(|program| unsafe { running(program, launch, arguments, state, device) });
        state.machine.add_with(stream, Work::Launch(function, uses), effect);
        SUCCESS
    })
}

/// Writes a tensor map descriptor of 128 zero bytes, because the emulation runs no kernel that reads such a descriptor.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuTensorMapEncodeTiled(descriptor: *mut [u8; 128]) -> Result {
    // SAFETY: the pointer is valid for one value. In the C convention the caller cleans up the other arguments.
    unsafe { give(descriptor, [0; 128]) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorName(error: Result, name: *mut *const c_char) -> Result {
    let text = match error {
        OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
        100 => c"CUDA_ERROR_NO_DEVICE",
        INVALID_DEVICE => c"CUDA_ERROR_INVALID_DEVICE",
        700 => c"CUDA_ERROR_ILLEGAL_ADDRESS",
        803 => c"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
        _ => c"CUDA_ERROR_UNKNOWN",
    };
    // SAFETY: the pointer is valid for one value, as the API requires.
    unsafe { give(name, text.as_ptr()) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn cuGetErrorString(error: Result, text: *mut *const c_char) -> Result {
    // SAFETY: the same contract holds for the same pointer.
    unsafe { cuGetErrorName(error, text) }
}
