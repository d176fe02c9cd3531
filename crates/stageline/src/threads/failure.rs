//! How work on a thread failed: by a panic, or by an error.

/// Any error of a stage's own.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How a stage failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// It panicked, with this message.
    #[error("it panicked: {0}")]
    Panic(String),
    /// It returned this error.
    #[error(transparent)]
    Error(BoxError),
}

impl Failure {
    /// The failure of a caught panic.
    pub(crate) fn of_panic(payload: Box<dyn std::any::Any + Send>) -> Self {
        let text = payload.downcast_ref::<&str>().map(ToString::to_string);
        let text = text.or_else(|| payload.downcast_ref::<String>().cloned());
        // Dropping it runs the user's code, which could panic again.
        std::mem::forget(payload);
        Self::Panic(text.unwrap_or_else(|| "a panic without a message".to_owned()))
    }
}
