//! Finds where the threads of a warp reconverge after a branch: at immediate post-dominators (Fung et al., 2007), which
//! are found with the algorithm of Cooper, Harvey and Kennedy (2001).

/// An instruction's successors: where a thread can continue after it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Next {
    /// Whether a thread can continue with the next instruction.
    pub on: bool,
    /// The index of the instruction to which this instruction can branch; `None` if it is not a branch.
    pub to: Option<usize>,
    /// Whether the instruction can end the thread. If so, the end of the kernel is one of its successors.
    pub ends: bool,
}

impl Next {
    fn all(&self, at: usize, end: usize) -> impl Iterator<Item = usize> {
        let on = self.on.then_some((at + 1).min(end));
        on.into_iter().chain(self.to).chain(self.ends.then_some(end))
    }
}

/// Returns the index of every instruction's immediate post-dominator: the first instruction through which all paths
/// from it to the end of the kernel pass. The end of the kernel counts as an instruction after the last one.
pub fn reconvergence_points(steps: &[Next]) -> Vec<usize> {
    let end = steps.len();
    let mut before = vec![Vec::new(); end + 1];
    for (at, step) in steps.iter().enumerate() {
        step.all(at, end).for_each(|next| before[next].push(at));
    }
    let order = backwards(&before);
    let mut rank = vec![usize::MAX; end + 1];
    order.iter().enumerate().for_each(|(index, at)| rank[*at] = index);
    let mut met = vec![None; end + 1];
    met[end] = Some(end);
    let common = |met: &[Option<usize>], mut one: usize, mut other: usize| {
        while one != other {
            let later = if rank[one] > rank[other] { &mut one } else { &mut other };
            *later = met[*later].expect("an instruction of a lower rank has been visited");
        }
        one
    };
    loop {
        let mut changed = false;
        for at in order.iter().copied().filter(|at| *at != end) {
            let known = steps[at].all(at, end).filter(|next| met[*next].is_some());
            let found = known.reduce(|one, other| common(&met, one, other));
            changed |= met[at] != found;
            met[at] = found;
        }
        if !changed {
            return met[..end].iter().map(|met| met.unwrap_or(end)).collect();
        }
    }
}

/// Returns the indices of the instructions from which the end of the kernel can be reached, in reverse postorder of a
/// depth-first search backwards from the end. `before` has the predecessors of each instruction.
fn backwards(before: &[Vec<usize>]) -> Vec<usize> {
    let end = before.len() - 1;
    let mut seen = vec![false; before.len()];
    let mut order = Vec::new();
    let mut path = vec![(end, 0)];
    seen[end] = true;
    while let Some((at, child)) = path.last_mut() {
        match before[*at].get(*child) {
            Some(next) => {
                *child += 1;
                if !std::mem::replace(&mut seen[*next], true) {
                    path.push((*next, 0));
                }
            }
            None => {
                order.push(*at);
                path.pop();
            }
        }
    }
    order.reverse();
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    fn on() -> Next {
        Next { on: true, ..Next::default() }
    }

    fn branch_if(to: usize) -> Next {
        Next { on: true, to: Some(to), ends: false }
    }

    fn branch(to: usize) -> Next {
        Next { on: false, to: Some(to), ends: false }
    }

    fn end() -> Next {
        Next { ends: true, ..Next::default() }
    }

    #[test]
    fn two_branches_reconverge_after_both() {
        assert_eq!(reconvergence_points(&[branch_if(3), on(), branch(4), on(), end()]), [4, 2, 4, 4, 5]);
    }

    /// Tests a loop of instructions 1 to 3 in which some lanes of a warp skip instruction 2: all lanes reconverge
    /// before the next round.
    #[test]
    fn a_branch_in_a_loop_reconverges_within_the_loop() {
        let steps = [on(), branch_if(3), on(), branch_if(1), end()];
        assert_eq!(reconvergence_points(&steps), [1, 3, 3, 4, 5]);
    }

    #[test]
    fn lanes_that_may_return_reconverge_at_the_end() {
        let returns = Next { on: true, to: None, ends: true };
        assert_eq!(reconvergence_points(&[returns, on(), end()]), [3, 2, 3]);
    }
}
