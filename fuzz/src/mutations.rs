//! Runs a fuzz target on its seeds and on mutations of them, for tests without a fuzzer.

use std::fs;
use std::panic::catch_unwind;
use std::path::Path;

/// The largest length in bytes of mutated fuzz inputs. Longer inputs are truncated.
const LIMIT: usize = 4_096;

/// The bytes that separate pieces of a fuzz input. Mutations exchange these pieces.
const BORDERS: &[u8] = b", |\n";

/// Returns the seeds (example inputs) of a fuzz target: the contents of all files in a folder, in the order of their
/// names.
pub fn seeds(folder: &str) -> Vec<Vec<u8>> {
    let entries = fs::read_dir(Path::new(folder)).expect("the seeds can be listed");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("the seeds can be listed").path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).expect("seeds can be read")).collect()
}

/// Runs a fuzz target on every seed (example input), and then on `tries` mutated inputs. A mutated input is a random
/// seed with one to four random changes, such as an inserted word of `words`. The mutations are the same in every run.
pub fn run(seeds: &[Vec<u8>], words: &[&str], tries: usize, target: fn(&[u8])) {
    for seed in seeds {
        run_one(seed, target);
    }
    let mut dice = Dice(1);
    for _ in 0..tries {
        let mut input = seeds[dice.below(seeds.len())].clone();
        for _ in 0..=dice.below(4) {
            mutate(&mut input, seeds, words, &mut dice);
        }
        input.truncate(LIMIT);
        run_one(&input, target);
    }
}

/// Runs a fuzz target on one input, and prints the input if the fuzz target panics.
fn run_one(input: &[u8], target: fn(&[u8])) {
    assert!(catch_unwind(|| target(input)).is_ok(), "on the input b\"{}\"", input.escape_ascii());
}

/// Changes a fuzz input in one of eight random ways, such as inserting a byte or exchanging two pieces.
fn mutate(input: &mut Vec<u8>, seeds: &[Vec<u8>], words: &[&str], dice: &mut Dice) {
    let at = dice.below(input.len() + 1);
    let end = input.len().min(at + dice.below(8));
    match dice.below(12) {
        0 => input.truncate(at),
        1 => drop(input.drain(at..end)),
        2 => input.extend_from_within(at..end),
        3 => input.insert(at, dice.below(256) as u8),
        4 => drop(input.splice(at..end, words[dice.below(words.len())].bytes())),
        5 => {
            let other = &seeds[dice.below(seeds.len())];
            input.truncate(at);
            input.extend_from_slice(&other[dice.below(other.len() + 1)..]);
        }
        6 => {
            if let Some(byte) = input.get_mut(at) {
                *byte ^= 1 << dice.below(8);
            }
        }
        // An exchange is the most frequent change, because only an exchange keeps most of a plan valid.
        _ => exchange(input, dice),
    }
}

/// Exchanges two random pieces of a fuzz input.
fn exchange(input: &mut Vec<u8>, dice: &mut Dice) {
    let mut pieces: Vec<&[u8]> = input.split_inclusive(|byte| BORDERS.contains(byte)).collect();
    if !pieces.is_empty() {
        let (a, b) = (dice.below(pieces.len()), dice.below(pieces.len()));
        pieces.swap(a, b);
        *input = pieces.concat();
    }
}

/// A random number generator (SplitMix64) for mutations of fuzz inputs.
struct Dice(u64);

impl Dice {
    /// Returns a random whole number from 0 to `bound` - 1.
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % bound as u64) as usize
    }
}
