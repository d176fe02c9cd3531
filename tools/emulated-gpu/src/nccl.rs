//! The functions of `libnccl` that burn's backend calls, as specified by NVIDIA's NCCL API.
#![allow(non_snake_case)]

use std::ffi::{c_char, c_int, c_uint};

use crate::driver::{CURRENT, driver};
use crate::machine::{Ends, Work};

/// The result of an NCCL call: 0 for success, or an error number.
pub type Result = c_int;

const SUCCESS: Result = 0;
const INVALID_ARGUMENT: Result = 4;
const INVALID_USAGE: Result = 5;

/// The C structure `ncclUniqueId`, which identifies a communicator: ranks that pass the same value join the same one.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct UniqueId {
    group: u64,
    rest: [u8; 120],
}

/// The structure to which an `ncclComm_t` points: one rank of a communicator, with its device.
pub struct Member {
    group: u64,
    rank: c_int,
    device: i32,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetVersion(version: *mut c_int) -> Result {
    // SAFETY: the pointer is valid for one number, as the API requires.
    unsafe { version.write(22_500) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetUniqueId(id: *mut UniqueId) -> Result {
    let group = driver().with(|state| {
        let group = state.groups.len() as u64 + 1;
        state.groups.insert(group, Default::default());
        group
    });
    // SAFETY: the pointer is valid for one id, as the API requires.
    unsafe { id.write(UniqueId { group, rest: [0; 120] }) };
    SUCCESS
}

/// Joins an NCCL communicator as one rank, and waits until all ranks have joined.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommInitRank(
    communicator: *mut *mut Member,
    ranks: c_int,
    id: UniqueId,
    rank: c_int,
) -> Result {
    let (group, device) = (id.group, CURRENT.get());
    driver().with(|state| state.groups.entry(group).or_default().insert(rank, device));
    driver().wait_for_hosts("ncclCommInitRank", |state| state.groups[&group].len() as c_int == ranks);
    // SAFETY: the pointer is valid for one pointer, as the API requires.
    unsafe { communicator.write(Box::into_raw(Box::new(Member { group, rank, device }))) };
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclCommDestroy(_communicator: *mut Member) -> Result {
    SUCCESS
}

/// Returns the element size, in bytes, of a dtype, given by its NCCL number (`ncclDataType_t`).
fn width(kind: c_uint) -> Option<u64> {
    Some(match kind {
        0 | 1 | 10 | 11 => 1,
        6 | 9 => 2,
        2 | 3 | 7 => 4,
        4 | 5 | 8 => 8,
        _ => return None,
    })
}

/// The two sides of a transfer between two NCCL ranks: its send and its receive.
#[derive(Clone, Copy)]
enum Operation {
    Send,
    Receive,
}

/// The buffer that an NCCL send reads or a receive fills: its address, its number of elements, and the NCCL number of
/// their dtype.
struct Content {
    buffer: u64,
    count: usize,
    kind: c_uint,
}

/// Queues a send to another NCCL rank, or a receive from it, on a CUDA stream.
fn post(operation: Operation, content: &Content, member: &Member, peer: c_int, stream: u64) -> Result {
    let Some(width) = width(content.kind) else { return INVALID_ARGUMENT };
    let (from, to) = match operation {
        Operation::Send => (member.rank, peer),
        Operation::Receive => (peer, member.rank),
    };
    let ends = Ends { group: member.group, from, to, bytes: content.count as u64 * width };
    let (work, at) = match operation {
        Operation::Send => (Work::Send(ends, content.buffer), 0),
        Operation::Receive => (Work::Receive(ends, content.buffer), 1),
    };
    let nth = driver().with(|state| {
        let [from, to] = [from, to].map(|rank| state.groups[&member.group][&rank]);
        state.ledger.transfers.entry(member.device).or_default().push(format!("{from}>{to}"));
        state.machine.add(stream, work);
        let posted = &mut state.posted.entry(ends).or_default()[at];
        *posted += 1;
        *posted
    });
    if driver().settings.hosts_wait_for_peers {
        driver().wait_for_hosts("a transfer", |state| state.posted[&ends][1 - at] >= nth);
    }
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclSend(
    buffer: u64,
    count: usize,
    kind: c_uint,
    peer: c_int,
    communicator: *mut Member,
    stream: u64,
) -> Result {
    // SAFETY: a communicator from `ncclCommInitRank`, which is never freed.
    let member = unsafe { &*communicator };
    post(Operation::Send, &Content { buffer, count, kind }, member, peer, stream)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclRecv(
    buffer: u64,
    count: usize,
    kind: c_uint,
    peer: c_int,
    communicator: *mut Member,
    stream: u64,
) -> Result {
    // SAFETY: a communicator from `ncclCommInitRank`, which is never freed.
    let member = unsafe { &*communicator };
    post(Operation::Receive, &Content { buffer, count, kind }, member, peer, stream)
}

/// Always returns an error: NCCL's all-reduce is not emulated, because Stageline's replicas do not sum gradients with
/// NCCL.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclAllReduce() -> Result {
    INVALID_USAGE
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn ncclGetErrorString(_error: Result) -> *const c_char {
    c"an NCCL error".as_ptr()
}
