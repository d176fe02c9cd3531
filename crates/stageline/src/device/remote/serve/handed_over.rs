//! Tensors that one session of a client program gives to another session of the same program, inside this server's
//! memory ([`HandedOver`]).
//!
//! A session is a client's queue of requests to one device. burn's server executes each session's requests in order, on
//! a thread of its own, so a session that takes a tensor can block until another session gives it. A session ends when
//! its thread ends.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use burn_ir::{BackendIr, CustomOpIr, HandleContainer, HandleKind, TensorIr};
use parking_lot::{Condvar, Mutex};

type Device<B> = burn::backend::tensor::Device<B>;
type Tensors<B> = HandleContainer<<B as BackendIr>::Handle>;

/// The name of a session (a queue of requests to one device): two random numbers that identify the client's program,
/// and the session's number in that program.
type SessionName = [u64; 3];

/// A server's registry of sessions (queues of requests to one device) that give tensors to other sessions, with the
/// tensors that no session has taken yet.
pub(super) struct HandedOver<B: BackendIr>(Mutex<HashMap<SessionName, Arc<Giver<B>>>>);

/// A session (a queue of requests to one device) that gives tensors to other sessions of the same program.
struct Giver<B: BackendIr> {
    given: Mutex<Given<B>>,
    changed: Condvar,
}

/// The tensors that a session has given and that no other session has taken yet, by tensor number; `None` after the
/// session has ended.
type Given<B> = Option<HashMap<u64, HandleKind<B>>>;

/// A guard that ends a session (a queue of requests to one device) when the session's thread ends. It frees the tensors
/// that the session has given and no other session has taken, and ends sessions that wait for further tensors from it.
struct EndsWithThread<B: BackendIr> {
    sessions: Arc<HandedOver<B>>,
    name: SessionName,
    giver: Arc<Giver<B>>,
}

thread_local! {
    /// The sessions (a client's queues of requests to one device) that this thread executes, and that end with it.
    static OF_THIS_THREAD: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

impl<B: BackendIr> HandedOver<B> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::default()))
    }

    /// Registers the session (a queue of requests to one device) that this thread executes. Does nothing if the session
    /// is registered already: a program that opens a device more than once has one session with it. `asked` is the
    /// client's request, which contains the session's name.
    pub(super) fn join(self: &Arc<Self>, asked: &CustomOpIr) {
        let name = session_of(asked);
        let is_this = |known: &EndsWithThread<B>| known.name == name && Arc::ptr_eq(&known.sessions, self);
        OF_THIS_THREAD.with_borrow_mut(|all| {
            if all.iter().any(|known| known.downcast_ref().is_some_and(is_this)) {
                return;
            }
            let giver = Arc::new(Giver::new());
            let before = self.0.lock().insert(name, Arc::clone(&giver));
            all.push(Box::new(EndsWithThread { sessions: Arc::clone(self), name, giver }));
            if let Some(before) = before {
                drop(before.end());
            }
        });
    }

    /// Makes a tensor of this thread's session available to the other sessions of the same program. `asked` is the
    /// client's request, with the names of the session and the tensor.
    ///
    /// # Panics
    /// Panics if the session that the request names has not joined or has ended. The panic ends this thread's session.
    pub(super) fn give(&self, tensors: &mut Tensors<B>, asked: &CustomOpIr) {
        self.giver(asked).give(number_of(asked), handle::<B>(tensors, &asked.inputs[0]));
    }

    /// Waits until another session of the same program gives a tensor, and moves this tensor to `device`. `asked` is
    /// the client's request, with the names of the giving session and the tensor.
    ///
    /// # Panics
    /// Panics if the giving session has not joined, or ends without giving the tensor. The panic ends this thread's
    /// session.
    pub(super) fn take(&self, tensors: &mut Tensors<B>, asked: &CustomOpIr, device: &Device<B>) {
        let id = &asked.outputs[0].id;
        match self.giver(asked).take(number_of(asked)) {
            HandleKind::Float(taken) => tensors.register_float_tensor::<B>(id, B::float_to_device(taken, device)),
            HandleKind::Int(taken) => tensors.register_int_tensor::<B>(id, B::int_to_device(taken, device)),
            HandleKind::Bool(taken) => tensors.register_bool_tensor::<B>(id, B::bool_to_device(taken, device)),
            HandleKind::Quantized(_) => unreachable!("`handle` makes no quantized handle"),
        }
    }

    /// Finds the session that gives the requested tensor, by the session's name in the request `asked`. Panics if this
    /// session has not joined or has ended.
    fn giver(&self, asked: &CustomOpIr) -> Arc<Giver<B>> {
        self.0.lock().get(&session_of(asked)).cloned().expect("the session that gives the tensor has not ended")
    }
}

impl<B: BackendIr> Giver<B> {
    fn new() -> Self {
        Self { given: Mutex::new(Some(HashMap::new())), changed: Condvar::new() }
    }

    fn give(&self, number: u64, tensor: HandleKind<B>) {
        if let Some(given) = &mut *self.given.lock() {
            given.insert(number, tensor);
        }
        self.changed.notify_all();
    }

    fn take(&self, number: u64) -> HandleKind<B> {
        let mut given = self.given.lock();
        loop {
            let tensors = given.as_mut().expect("the session that gives the tensor has not ended");
            if let Some(tensor) = tensors.remove(&number) {
                return tensor;
            }
            self.changed.wait(&mut given);
        }
    }

    /// Ends the giving session, which wakes the sessions that wait for its tensors. Returns the tensors that no session
    /// has taken.
    fn end(&self) -> Given<B> {
        let left = self.given.lock().take();
        self.changed.notify_all();
        left
    }
}

impl<B: BackendIr> Drop for EndsWithThread<B> {
    fn drop(&mut self) {
        let mut sessions = self.sessions.0.lock();
        // A client may have opened the session again under the same name. The new session stays registered.
        if sessions.get(&self.name).is_some_and(|giver| Arc::ptr_eq(giver, &self.giver)) {
            sessions.remove(&self.name);
        }
        drop(sessions);
        // The tensors are freed on another thread, because freeing a GPU's tensors may need thread-locals that this
        // thread no longer has.
        if let Some(left) = self.giver.end().filter(|left| !left.is_empty()) {
            // If no thread can be started, the tensors are freed here. The error is ignored, because a panic here would
            // end the whole server.
            let _ = std::thread::Builder::new().spawn(move || drop(left));
        }
    }
}

/// Reads the giving session's name from a client's request.
fn session_of(asked: &CustomOpIr) -> SessionName {
    std::array::from_fn(|index| asked.scalars[index].elem())
}

/// Reads the number of the given or taken tensor from a client's request.
fn number_of(asked: &CustomOpIr) -> u64 {
    asked.scalars[size_of::<SessionName>() / size_of::<u64>()].elem()
}

/// Returns burn's handle of a session's tensor (of floats, integers or booleans), which another session can register as
/// its own tensor.
fn handle<B: BackendIr>(tensors: &mut Tensors<B>, tensor: &TensorIr) -> HandleKind<B> {
    let dtype = tensor.dtype;
    if dtype.is_float() {
        HandleKind::Float(tensors.get_float_tensor::<B>(tensor))
    } else if dtype.is_bool() {
        HandleKind::Bool(tensors.get_bool_tensor::<B>(tensor))
    } else {
        HandleKind::Int(tensors.get_int_tensor::<B>(tensor))
    }
}

#[cfg(all(test, feature = "flex"))]
mod tests {
    use std::sync::mpsc::channel;
    use std::{slice, thread};

    use burn::backend::Flex;
    use burn::backend::ops::FloatTensorOps;
    use burn::tensor::{DType, Shape, TensorData};
    use burn_ir::{ScalarIr, TensorId, TensorStatus};

    use super::*;

    /// Returns a request that names a session of a program and a tensor. The tensor is both an input and an output of
    /// the request.
    fn request(program: u64, session: u64, number: u64) -> CustomOpIr {
        let (id, shape, dtype) = (TensorId::new(0), Shape::new([1]), DType::F32);
        let tensor = TensorIr { id, shape, dtype, status: TensorStatus::ReadWrite };
        let scalars = [program, program, session, number].map(ScalarIr::UInt).to_vec();
        CustomOpIr::with_scalars("", slice::from_ref(&tensor), slice::from_ref(&tensor), scalars)
    }

    /// Gives a tensor with one value, by the given request, as the session that this thread belongs to.
    fn give(sessions: &HandedOver<Flex>, asked: &CustomOpIr, value: f32) {
        let mut tensors = Tensors::<Flex>::new();
        let tensor = Flex::float_from_data(TensorData::from([value]), &Default::default());
        tensors.register_float_tensor::<Flex>(&asked.inputs[0].id, tensor);
        sessions.give(&mut tensors, asked);
    }

    /// Takes the tensor that the given request names, and returns its value.
    fn take(sessions: &HandedOver<Flex>, asked: &CustomOpIr) -> f32 {
        let mut tensors = Tensors::<Flex>::new();
        sessions.take(&mut tensors, asked, &Default::default());
        let tensor = tensors.get_float_tensor::<Flex>(&asked.outputs[0]);
        burn::tensor::Tensor::<1>::from_primitive::<Flex>(tensor).into_scalar()
    }

    #[test]
    fn tensors_of_two_programs_with_the_same_numbers_are_not_mixed_up() {
        let sessions = HandedOver::<Flex>::new();
        thread::scope(|scope| {
            for program in [1, 2] {
                let sessions = &sessions;
                sessions.join(&request(program, 0, 0));
                let taken = scope.spawn(move || [1, 0].map(|number| take(sessions, &request(program, 0, number))));
                for number in [0, 1] {
                    give(sessions, &request(program, 0, number), (10 * program + number) as f32);
                }
                let first = 10.0 * program as f32;
                assert_eq!(taken.join().unwrap(), [first + 1.0, first]);
            }
        });
    }

    /// Starts a session on a thread of its own, which gives one tensor of the value 1 by the request `asked`. Returns
    /// when the tensor is given. The session ends when the returned function is called.
    fn session(sessions: &Arc<HandedOver<Flex>>, asked: CustomOpIr) -> impl FnOnce() {
        let (sessions, (given, is_given), (end, ends)) = (Arc::clone(sessions), channel(), channel::<()>());
        let thread = thread::spawn(move || {
            sessions.join(&asked);
            give(&sessions, &asked, 1.0);
            given.send(()).unwrap();
            ends.recv().unwrap();
        });
        is_given.recv().unwrap();
        move || {
            end.send(()).unwrap();
            thread.join().unwrap();
        }
    }

    #[test]
    fn a_session_that_joins_again_keeps_its_tensors() {
        let sessions = HandedOver::<Flex>::new();
        sessions.join(&request(1, 0, 0));
        give(&sessions, &request(1, 0, 0), 1.0);
        sessions.join(&request(1, 0, 0));
        assert_eq!(take(&sessions, &request(1, 0, 0)), 1.0);
    }

    #[test]
    fn the_end_of_a_session_ends_those_that_wait_for_its_tensors() {
        let sessions = HandedOver::<Flex>::new();
        let end = session(&sessions, request(1, 0, 0));
        assert_eq!(take(&sessions, &request(1, 0, 0)), 1.0);
        let waits = thread::spawn({
            let sessions = Arc::clone(&sessions);
            move || take(&sessions, &request(1, 0, 1))
        });
        end();
        assert!(waits.join().is_err(), "the tensor can no longer come");
    }

    #[test]
    fn a_session_that_is_opened_again_outlives_the_one_before() {
        let sessions = HandedOver::<Flex>::new();
        let [end_first, end_second] = [0, 1].map(|number| session(&sessions, request(1, 0, number)));
        end_first();
        assert_eq!(take(&sessions, &request(1, 0, 1)), 1.0);
        end_second();
        assert!(sessions.0.lock().is_empty());
    }
}
