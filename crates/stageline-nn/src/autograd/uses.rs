//! Finds the parameters that a forward pass uses exactly once. Each of them has a single gradient per micro-batch,
//! which can be added to the stage's running sum immediately.

use std::cell::RefCell;
use std::collections::HashSet;

use burn::module::ParamId;

use crate::forward::thread_scope::collecting;

thread_local! {
    /// Ids of the parameters that layers have used so far in this thread's forward pass, one entry per use; `None`
    /// outside [`finding_single_uses`].
    static USES: RefCell<Option<Vec<ParamId>>> = const { RefCell::new(None) };
}

/// Records that a layer's forward pass uses the parameter `id`. Does nothing outside [`finding_single_uses`].
pub fn note_use(id: ParamId) {
    USES.with_borrow_mut(|uses| uses.iter_mut().for_each(|uses| uses.push(id)));
}

/// Runs `forward`. Returns its result, and the ids of the parameters that it used exactly once, in a single call of one
/// of this crate's layers. Such a parameter's gradient can be added to the stage's running sum immediately. Uses by
/// other operations, such as a custom layer's, are not counted.
pub fn finding_single_uses<R>(forward: impl FnOnce() -> R) -> (R, HashSet<ParamId>) {
    let (result, uses) = collecting(&USES, Vec::new(), forward);
    let (mut single, mut several) = (HashSet::with_capacity(uses.len()), Vec::new());
    for id in uses {
        if !single.insert(id) {
            several.push(id);
        }
    }
    single.retain(|id| !several.contains(id));
    (result, single)
}
