//! Tests that a killed writer leaves complete checkpoints only, and that the next writer resumes from the latest one.

use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{self, Child, Command, Stdio};
use std::{env, fs, hint, thread};

use stageline_checkpoint::{Saved, WritePoint};

use crate::toy;

const DIR: &str = "STAGELINE_TEST_DIR";
const POINT: &str = "STAGELINE_TEST_POINT";
const OCCURRENCE: &str = "STAGELINE_TEST_OCCURRENCE";
const SIGKILL: i32 = 9;
/// The number of checkpoint writers that a test kills at each fault-injection point of a save, such as the point just
/// before a rename. Writer n is killed when it reaches the point for the n-th time.
const OCCURRENCES: usize = 5;
/// The number of checkpoint writers that two tests kill in total. One test kills writers at every point of a save, the
/// other at random times.
const KILLS: usize = 200;

/// Writes checkpoints until its process is killed, and prints the step of each published checkpoint. The steps continue
/// after the latest checkpoint in the folder. This test does nothing by itself: other tests start it in a new process.
#[test]
#[ignore = "is started by other tests"]
fn child_writer() {
    let Ok(dir) = env::var(DIR) else { return };
    let dir = Path::new(&dir);
    let (wanted, occurrence) = (env::var(POINT).unwrap(), env::var(OCCURRENCE).unwrap().parse::<usize>().unwrap());
    let mut store = toy::store(dir, 2);
    let first = Saved::open(dir).map_or(0, |saved| saved.manifest().progress.steps);
    let mut seen = 0;
    for steps in first + 1..first + 10_000 {
        let mut at = |point: WritePoint| {
            seen += usize::from(format!("{point:?}") == wanted);
            if seen == occurrence && occurrence > 0 {
                kill_self();
            }
        };
        store.save_observed(&toy::checkpoint(steps), &mut at).unwrap();
        println!("\npublished {steps}");
    }
    panic!("the writer was not killed");
}

fn kill_self() -> ! {
    Command::new("sh").args(["-c", &format!("kill -9 {}", process::id())]).status().unwrap();
    loop {
        thread::park(); // waits for the signal of `kill`
    }
}

/// Starts a process that writes checkpoints. The process kills itself when it reaches the fault-injection point `point`
/// of a save for the `occurrence`-th time. If `occurrence` is 0, the process never kills itself.
fn start(dir: &Path, point: &str, occurrence: usize) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--exact", "kills::child_writer", "--ignored", "--nocapture"])
        .env(DIR, dir)
        .env(POINT, point)
        .env(OCCURRENCE, occurrence.to_string())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// The moment at which [`watch`] kills a process that writes checkpoints: after a number of published checkpoints, and
/// then a pause of a random length.
struct Kill {
    /// The number of checkpoints that the process publishes before it is killed.
    published: usize,
    /// The length of the pause after the last of these checkpoints, in iterations of an empty loop.
    pause: u64,
}

/// Waits until a process that writes checkpoints has ended. Returns the step of the last checkpoint that it published;
/// `None` if it published none.
///
/// `kill` says when this function kills the process. With `None`, the process kills itself.
fn watch(mut child: Child, kill: Option<Kill>) -> Option<u64> {
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut last = None;
    let published = lines.map_while(Result::ok).filter_map(|line| line.strip_prefix("published ")?.parse().ok());
    for (count, steps) in published.enumerate() {
        last = Some(steps);
        if let Some(Kill { published, pause }) = kill
            && count + 1 == published
        {
            (0..pause).for_each(|i| _ = hint::black_box(i));
            child.kill().unwrap();
        }
    }
    assert_eq!(child.wait().unwrap().signal(), Some(SIGKILL), "the child ends by the kill and in no other way");
    last
}

/// Asserts that a killed writer left complete checkpoints only, and that the latest has at least the step `least`.
/// Returns the step of the latest checkpoint.
fn check(dir: &Path, least: u64) -> u64 {
    let mut checkpoints: Vec<_> = toy::names(dir).into_iter().filter(|name| name.contains("-step-")).collect();
    checkpoints.retain(|name| !name.starts_with('.'));
    for name in &checkpoints {
        let checkpoint = toy::read(&dir.join(name)).unwrap();
        assert_eq!(checkpoint, toy::checkpoint(checkpoint.progress.steps), "{name}");
    }
    let latest = toy::read(dir).unwrap();
    assert!(latest.progress.steps >= least, "{} is older than {least}", latest.progress.steps);
    drop(toy::store(dir, 2));
    checkpoints.insert(0, ".lock".to_owned());
    assert_eq!(toy::names(dir), checkpoints, "the next writer removes the leftovers, and no checkpoint");
    latest.progress.steps
}

/// Asserts that the next save of a checkpoint removes the old checkpoints that killed writers left.
fn check_pruned(dir: &Path, latest: u64) {
    toy::store(dir, 2).save(&toy::checkpoint(latest + 1)).unwrap();
    let names = toy::names(dir);
    assert_eq!(names.len(), 3, "{names:?}");
    assert!(names[2].ends_with(&format!("-step-{}", latest + 1)), "{names:?}");
}

/// Returns the fault-injection points at which tests kill a writer, each as the `Debug` form of a [`WritePoint`]. They
/// are the points of a save that also removes an old checkpoint.
fn points() -> Vec<String> {
    let dir = toy::quick_folder();
    let mut store = toy::store(dir.path(), 2);
    let mut points = Vec::new();
    for steps in 0..3 {
        points.clear();
        store.save_observed(&toy::checkpoint(steps), &mut |point| points.push(format!("{point:?}"))).unwrap();
    }
    points
}

#[test]
fn a_writer_killed_at_every_point_leaves_complete_checkpoints() {
    let dir = toy::quick_folder();
    toy::store(dir.path(), 2).save(&toy::checkpoint(1)).unwrap();
    let (mut latest, mut kills) = (1, 0);
    for point in points() {
        for occurrence in 1..=OCCURRENCES {
            let published = watch(start(dir.path(), &point, occurrence), None);
            latest = check(dir.path(), published.unwrap_or(latest).max(latest));
            kills += 1;
        }
    }
    check_pruned(dir.path(), latest);
    assert_eq!(kills, points().len() * OCCURRENCES);
    println!("{kills} kills at points were survived");
}

#[test]
fn a_writer_killed_at_any_time_leaves_complete_checkpoints() {
    let dir = toy::quick_folder();
    toy::store(dir.path(), 2).save(&toy::checkpoint(1)).unwrap();
    let kills = KILLS.checked_sub(points().len() * OCCURRENCES).filter(|&kills| kills > 50).unwrap();
    let (mut latest, mut random) = (1, 1u64);
    for _ in 0..kills {
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let kill = Kill { published: 1 + (random >> 62) as usize, pause: (random >> 40) % 1_000_000 };
        let published = watch(start(dir.path(), "none", 0), Some(kill)).unwrap();
        assert!(published > latest, "the writer continues from the latest");
        latest = check(dir.path(), published);
    }
    check_pruned(dir.path(), latest);
    println!("{kills} kills at any time were survived");
}

#[test]
fn a_writer_killed_before_its_first_checkpoint_leaves_none() {
    for point in points().into_iter().take_while(|point| point != "SyncFolder") {
        let dir = toy::quick_folder();
        assert_eq!(watch(start(dir.path(), &point, 1), None), None);
        let error = toy::read(dir.path()).unwrap_err().to_string();
        assert!(error.starts_with("no checkpoint in "), "{error}");
        assert!(fs::read_dir(dir.path()).unwrap().count() <= 2);
        toy::store(dir.path(), 2).save(&toy::checkpoint(5)).unwrap();
        assert_eq!(toy::names(dir.path()), [".lock", "000001-step-5"]);
    }
}
