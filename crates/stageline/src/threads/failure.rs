//! The failure of work on a thread, most often of a stage on a worker thread: a panic or an error.

/// The boxed error type of a user's stage: any error that can be sent between threads.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The failure of work on a thread, such as a stage's forward pass or a measurement of the network: a panic or an
/// error.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The work on the thread panicked, for example in the user's code of a stage or in a library. The value is the
    /// panic's message.
    #[error("it panicked: {0}")]
    Panic(String),
    /// The work on the thread returned an error, for example from the user's code of a stage. The value is this error.
    #[error(transparent)]
    Error(BoxError),
}

impl Failure {
    pub(crate) fn of_panic(payload: Box<dyn std::any::Any + Send>) -> Self {
        let text = payload.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        // Dropping the payload would run the user's code, which could panic again.
        std::mem::forget(payload);
        Self::Panic(text.unwrap_or_else(|| "a panic without a message".to_owned()))
    }
}
