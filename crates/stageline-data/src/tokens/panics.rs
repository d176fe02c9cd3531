//! Converts panics of the tokenizer and template libraries to errors, because these libraries may panic on invalid
//! files ([`caught`]).

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Once;
use std::thread;

thread_local! {
    /// True while this thread runs [`caught`]. A panic is then returned as an error, and not printed.
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Runs `call`, which calls the library named `library`, and catches its panics. Returns the result of `call`, or the
/// message of its panic, which is not printed.
///
/// The first call replaces the program's panic hook. The new hook forwards all panics outside of `caught` to the old
/// hook.
pub(crate) fn caught<T>(library: &str, call: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    // The panic hook cannot be changed on a panicking thread.
    if !thread::panicking() {
        HOOK.call_once(|| {
            let printing = take_hook();
            set_hook(Box::new(move |panic| {
                if !IS_CAUGHT.get() {
                    printing(panic);
                }
            }));
        });
    }
    let outer = IS_CAUGHT.replace(true);
    let result = catch_unwind(AssertUnwindSafe(call));
    IS_CAUGHT.set(outer);
    result.map_err(|panic| format!("the library {library} panicked: {}", message(&*panic)))
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("there is no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_its_message_and_a_result_is_itself() {
        assert_eq!(caught("tokenizers", || 3), Ok(3));
        type Call = Box<dyn FnOnce()>;
        let number = 4;
        let calls: [(Call, &str); 3] = [
            (Box::new(|| panic!("no such token")), "no such token"),
            (Box::new(move || panic!("no token {number}")), "no token 4"),
            (Box::new(|| std::panic::panic_any(5)), "there is no message"),
        ];
        for (call, message) in calls {
            assert_eq!(caught("tokenizers", call), Err(format!("the library tokenizers panicked: {message}")));
        }
        assert!(!IS_CAUGHT.get());
    }
}
