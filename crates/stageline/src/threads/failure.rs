//! The failure of a stage's work on a worker thread: a panic, or an error of the user's code.

/// The type of errors that a user's stage may return: a box that holds any error which can be sent between threads.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The failure of a stage on a worker thread: a panic or an error of the user's code.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The user's code of the stage panicked; the value is the panic's message.
    #[error("it panicked: {0}")]
    Panic(String),
    /// The user's code of the stage returned an error; the value is the error.
    #[error(transparent)]
    Error(BoxError),
}

impl Failure {
    /// Converts the payload of a caught panic of a stage to a failure with the panic's message.
    pub(crate) fn of_panic(payload: Box<dyn std::any::Any + Send>) -> Self {
        let text = payload.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        // Dropping the payload would run the user's code, which could panic again.
        std::mem::forget(payload);
        Self::Panic(text.unwrap_or_else(|| "a panic without a message".to_owned()))
    }
}
