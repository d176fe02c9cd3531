//! Records the messages of the events that the library logs, for tests that subscribe to them ([`Messages`]).

use std::fmt::Debug;
use std::sync::Mutex;

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// The messages of logged events, in the order of logging.
pub struct Messages(Mutex<Vec<String>>);

impl Messages {
    pub const fn new() -> Self {
        Self(Mutex::new(Vec::new()))
    }

    pub fn add(&self, event: &Event) {
        let mut message = Message::default();
        event.record(&mut message);
        self.0.lock().unwrap().push(message.0);
    }

    pub fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl<S: Subscriber> Layer<S> for &'static Messages {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        self.add(event);
    }
}

/// A visitor of a logged event's fields that stores the text of the field `message`.
#[derive(Default)]
struct Message(String);

impl Visit for Message {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}
