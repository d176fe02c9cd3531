//! Tensors that one session of a program gives to another session of the same program, in the memory of this server
//! ([`HandedOver`]).
//!
//! A session is a client's exchange of requests with a device. burn's server executes the requests of each session in
//! order, on a thread that belongs to the session. So the thread of the session that takes a tensor can wait for the
//! session that gives it. The end of a thread is the end of its session.

use std::any::Any;
use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::Arc;

use burn_ir::{BackendIr, CustomOpIr, HandleContainer, HandleKind, TensorIr};
use parking_lot::{Condvar, Mutex};

type Device<B> = burn::backend::tensor::Device<B>;
type Tensors<B> = HandleContainer<<B as BackendIr>::Handle>;

/// The name of a session (a queue of requests to one device): two random numbers of the client's program, and the
/// number of the session in this program.
type SessionName = [u64; 3];

/// The sessions (queues of requests to a device) of a server that give tensors to other sessions, with the tensors that
/// are not yet taken.
pub(super) struct HandedOver<B: BackendIr>(Mutex<HashMap<SessionName, Arc<Giver<B>>>>);

/// A session (a queue of requests to one device) that gives tensors to other sessions of the same program.
struct Giver<B: BackendIr> {
    given: Mutex<Given<B>>,
    changed: Condvar,
}

/// The tensors that a session has given and that no other session has taken yet, by their numbers; `None` after the end
/// of the session.
type Given<B> = Option<HashMap<u64, HandleKind<B>>>;

/// A guard that belongs to a thread, and ends the thread's session when the thread ends. The tensors that the session
/// has given and nobody has taken are freed. Sessions that wait for further tensors from it end too.
struct EndsWithThread<B: BackendIr> {
    sessions: Arc<HandedOver<B>>,
    name: SessionName,
    giver: Arc<Giver<B>>,
}

thread_local! {
    /// The sessions (a client's queues of requests) that end with this thread.
    static OF_THIS_THREAD: RefCell<Vec<Box<dyn Any>>> = const { RefCell::new(Vec::new()) };
}

impl<B: BackendIr> HandedOver<B> {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self(Mutex::default()))
    }

    /// Registers the session (a queue of requests to one device) that this thread executes. Does nothing if it is
    /// registered already: a program that opens a device more than once has one session with it. `asked` is the request
    /// of the client, with the session's name.
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

    /// Returns the session that gives the tensor, by the session's name in a client's request. Panics if this session
    /// has not joined or has ended.
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

    /// Ends the session, and returns the tensors that no other session has taken.
    fn end(&self) -> Given<B> {
        let left = self.given.lock().take();
        self.changed.notify_all();
        left
    }
}

impl<B: BackendIr> Drop for EndsWithThread<B> {
    fn drop(&mut self) {
        let mut sessions = self.sessions.0.lock();
        // A client may have opened the session again under the same name.
        if sessions.get(&self.name).is_some_and(|giver| Arc::ptr_eq(giver, &self.giver)) {
            sessions.remove(&self.name);
        }
        drop(sessions);
        // The tensors are freed on another thread: a GPU's may need thread-locals that this thread no longer has.
        if let Some(left) = self.giver.end().filter(|left| !left.is_empty()) {
            // Without a thread they are freed here. A panic here would end the whole server.
            let _ = std::thread::Builder::new().spawn(move || drop(left));
        }
    }
}

/// Returns the name of the giving session in a client's request.
fn session_of(asked: &CustomOpIr) -> SessionName {
    std::array::from_fn(|index| asked.scalars[index].elem())
}

/// Returns the number of the given tensor in a client's request.
fn number_of(asked: &CustomOpIr) -> u64 {
    asked.scalars[size_of::<SessionName>() / size_of::<u64>()].elem()
}

/// Returns burn's handle of a session's tensor (of floats, integers or booleans), from which another session can
/// register the tensor.
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
