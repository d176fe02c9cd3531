//! The failure of work on a thread: a panic or an error.

/// The error type of a user's stage, which may be any error.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// The failure of a stage: a panic or an error.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// The stage panicked with this message.
    #[error("it panicked: {0}")]
    Panic(String),
    /// The stage returned this error.
    #[error(transparent)]
    Error(BoxError),
}

impl Failure {
    /// Returns the failure for the payload of a caught panic.
    pub(crate) fn of_panic(payload: Box<dyn std::any::Any + Send>) -> Self {
        let text = payload.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        // Dropping the payload would run the user's code, which could panic again.
        std::mem::forget(payload);
        Self::Panic(text.unwrap_or_else(|| "a panic without a message".to_owned()))
    }
}
