//! The failure of a stage's work on a worker thread: a panic, or an error of the user's code.

/// The error type of a user's stage: a box with any error that can be sent between threads.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The failure of a stage on a worker thread: a panic or an error of the user's code.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// A failure because the user's code of a stage panicked. The value is the panic's message.
    #[error("it panicked: {0}")]
    Panic(String),
    /// A failure because the user's code of a stage returned an error. The value is this error.
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
