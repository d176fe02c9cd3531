//! Where threads that a branch parts come together: at its immediate post-dominator (Fung et al., 2007), found as by Cooper, Harvey
//! and Kennedy (2001).

/// Where an instruction goes on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Next {
    /// To the one behind it,
    pub on: bool,
    /// to that one,
    pub to: Option<usize>,
    /// or to the kernel's end.
    pub ends: bool,
}

impl Next {
    fn all(&self, at: usize, end: usize) -> impl Iterator<Item = usize> {
        let on = self.on.then_some((at + 1).min(end));
        on.into_iter().chain(self.to).chain(self.ends.then_some(end))
    }
}

/// Of every instruction, which is the first that all ways from it to the end come by; the end is behind the last.
pub fn meeting_points(steps: &[Next]) -> Vec<usize> {
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
            *later = met[*later].expect("who has a rank below has been seen");
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

/// All from which the end can be reached, each before most that lead to it: the reverse of a postorder.
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

    fn perhaps(to: usize) -> Next {
        Next { on: true, to: Some(to), ends: false }
    }

    fn always(to: usize) -> Next {
        Next { on: false, to: Some(to), ends: false }
    }

    fn end() -> Next {
        Next { ends: true, ..Next::default() }
    }

    #[test]
    fn two_ways_meet_behind_both() {
        assert_eq!(meeting_points(&[perhaps(3), on(), always(4), on(), end()]), [4, 2, 4, 4, 5]);
    }

    /// 0 leaves the loop of 1 to 3, whose part 2 is for some; and those come together before the next round.
    #[test]
    fn a_part_of_a_loop_meets_within_it() {
        let steps = [on(), perhaps(3), on(), perhaps(1), end()];
        assert_eq!(meeting_points(&steps), [1, 3, 3, 4, 5]);
    }

    #[test]
    fn who_may_end_meets_the_others_at_the_end() {
        let leaves = Next { on: true, to: None, ends: true };
        assert_eq!(meeting_points(&[leaves, on(), end()]), [3, 2, 3]);
    }
}
