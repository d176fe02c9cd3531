//! Finds tensor names that are similar to a missing one, to suggest them in the error message.

/// The maximum number of similar tensor names that the error message for a missing tensor suggests.
const MOST: usize = 3;
/// The maximum length, in bytes, of tensor names that are compared with a missing name. Longer names are never
/// suggested, because their edit distance would take too long to compute.
const LONGEST: usize = 200;
/// The maximum number of tensor names that are compared with a missing name to find similar ones.
const COMPARED: usize = 20_000;

/// Returns the names in `names` that are most similar to the missing tensor name `wanted`: at most three, in ascending
/// order of edit distance. A name whose edit distance is more than half of `wanted`'s length in bytes is left out. The
/// result is empty if `wanted` is longer than 200 bytes.
pub(crate) fn similar<'a>(wanted: &str, names: impl Iterator<Item = &'a str>) -> Vec<String> {
    if wanted.len() > LONGEST {
        return Vec::new();
    }
    let distance = |name: &'a str| (strsim::levenshtein(wanted, name), name);
    let short = names.filter(|name| name.len() <= LONGEST).take(COMPARED);
    let mut near: Vec<_> = short.map(distance).filter(|&(distance, _)| distance <= wanted.len() / 2).collect();
    near.sort_unstable();
    near.into_iter().take(MOST).map(|(_, name)| name.to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_three_names_are_suggested_in_order() {
        let names = ["h.0.weight", "h.1.weight", "h.10.weight", "h.2.weight", "lm_head.bias"];
        assert_eq!(similar("h.1.weigth", names.into_iter()), ["h.1.weight", "h.0.weight", "h.10.weight"]);
        assert_eq!(similar("h.1.weight.x", names.into_iter())[0], "h.1.weight");
    }

    #[test]
    fn unlike_and_overlong_names_are_not_suggested() {
        assert!(similar("wte", ["lm_head.bias"].into_iter()).is_empty());
        let long = "x".repeat(1 << 20);
        assert!(similar(&long, [long.as_str()].into_iter()).is_empty());
    }
}
