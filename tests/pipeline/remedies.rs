//! Tests of the remedies that the GPT example's error messages suggest: each message is provoked, and a run with the
//! suggested remedy must work.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;
use stageline::checkpoint::Saved;

use crate::runs::{Place, hash, reseal, sha256, wait_for_lines};

/// Returns the last line of the error message of a run.
fn last(said: &str) -> &str {
    said.trim_end().lines().next_back().unwrap().trim()
}

#[test]
fn every_refused_flag_works_as_its_message_suggests() {
    let place = Place::new();
    for (name, text) in [
        ("slip.toml", "micro_batchs = 8\n"),
        ("mended.toml", "micro_batches = 8\n"),
        ("strange.toml", "colour = \"red\"\n"),
        ("broken.toml", "width = \n"),
        ("nothing", ""),
    ] {
        fs::write(place.path(name), text).unwrap();
    }
    fs::write(place.path("long.toml"), " ".repeat((1 << 20) + 1)).unwrap();
    for (flags, expected, mended) in [
        (
            "--config @slip.toml",
            "there is no setting `micro_batchs`; did you mean `micro_batches`?",
            "--config @mended.toml",
        ),
        ("--set widht=8", "there is no setting `widht`; did you mean `width`?", "--set width=8"),
        ("--set width", "give a name, `=`, and a value: --set micro_batches=16", "--set micro_batches=16"),
        ("--set resume=latest", "`resume` is for the command line only: give it as a flag", ""),
        (
            "--config @strange.toml",
            "there is no setting `colour`; --help lists all flags, which are settings with `_` for `-`",
            "--config @mended.toml",
        ),
        ("--config @broken.toml", "TOML parse error at line 1, column 9", "--config @mended.toml"),
        (
            "--config @long.toml",
            "it is longer than 1048576 bytes; give a TOML file of settings",
            "--config @mended.toml",
        ),
        ("--config @absent.toml", "it cannot be read; give the path of a TOML file", "--config @mended.toml"),
        ("--set width=wide", "invalid value 'wide' for '--width <WIDTH>'", "--set width=8"),
        ("--watchdog -1", "invalid value '-1' for '--watchdog <SECONDS>'", "--watchdog 1"),
        ("--keep 0", "invalid value '0' for '--keep <KEEP>'", "--keep 1"),
        ("--stages 5", "Error: 4 layers cannot be cut into 5 stages; ask for 1 to 4 stages", "--stages 4"),
        ("--stages 0", "Error: --stages 0: give 1 to 65536", "--stages 1"),
        ("--micro-batches 0", "Error: --micro-batches 0: give 1 to 65536", "--micro-batches 1"),
        ("--micro-batches 65537", "Error: --micro-batches 65537: give 1 to 65536", "--micro-batches 8"),
        ("--replicas 0", "Error: --replicas 0: give 1 to 1024", "--replicas 2"),
        (
            "--micro-batches 4 --gradient-groups 3",
            "Error: --gradient-groups 3: give a number that divides --micro-batches 4",
            "--micro-batches 4 --gradient-groups 2",
        ),
        (
            "--replicas 2 --gradient-groups 4",
            "Error: --gradient-groups 4: 2 replicas sum gradients in 2 groups; give --gradient-groups 2, which gives other bits",
            "--replicas 2",
        ),
        ("--every 0", "Error: --every 0: give 1 or more", "--every 1"),
        (
            "--stop-after 1",
            "Error: --stop-after: give --checkpoint a folder, or the trained steps are lost",
            "--stop-after 1 --checkpoint @new",
        ),
        ("--learning-rate 0", "Error: --learning-rate 0: give a number above 0 and at most 1", "--learning-rate 1e-3"),
        ("--clip -1", "Error: --clip -1: give 0 or more", "--clip 0"),
        ("--cores-per-stage 0", "Error: --cores-per-stage 0: give 1 to 1024", "--cores-per-stage 1"),
        ("--read-ahead 0", "Error: --read-ahead 0: give 1 to 1024", "--read-ahead 1"),
        ("--schedule-steps 0", "Error: --schedule-steps 0: give 1 or more", "--schedule-steps 1"),
        ("--clip nan", "Error: --clip NaN: give 0 or more", "--clip 0"),
        ("--log @no/log", "cannot write @no/log; give a path in an existing folder that is writable", "--log @log"),
        (
            "--trace @no/trace",
            "cannot write @no/trace; give a path in an existing folder that is writable",
            "--trace @trace",
        ),
        ("--verify 1 --resume @text", "--resume", "--verify 1"),
        ("--memory 0", "Error: --memory 0: give a number of GB above 0", "--memory 1"),
        (
            "--device gpu",
            "`gpu` is no device; write `cpu`, or a GPU's interface (cuda, rocm, wgpu, vulkan or metal) and its index",
            "--device cpu",
        ),
        (
            "--device cpu,cpu,cpu",
            "Error: --device: 3 devices for 2 workers; name at most 2, or raise --stages or --replicas",
            "--device cpu,cpu",
        ),
        (
            "--data @nothing",
            "Error: nothing to read at @nothing: found no non-empty file; give another path",
            "--data @text",
        ),
        (
            "--data @absent",
            "Error: @absent does not exist; give the path of a text file, or of a folder of them",
            "--data @text",
        ),
        ("--resume latest", "Error: --resume latest: give --checkpoint the folder to look in", ""),
        (
            "--resume @absent",
            "@absent does not exist; give the path of a checkpoint, or of a folder of checkpoints",
            "",
        ),
    ] {
        let said = place.refused(&format!("--steps 1 {flags}"));
        assert!(said.contains(expected), "{flags}: {said}");
        assert!(said.len() < 700, "{flags}: a message, and not a page: {said}");
        place.said(&format!("--steps 1 {mended}"));
    }
}

#[test]
fn an_error_has_no_backtrace_even_if_backtraces_are_on() {
    let place = Place::new();
    let output = place.command("--micro-batches 0").env("RUST_BACKTRACE", "1").output().unwrap();
    assert_eq!(place.shown(&output), "Error: --micro-batches 0: give 1 to 65536\n");
}

#[test]
fn a_channel_capacity_that_is_too_small_names_one_that_works() {
    let place = Place::new();
    let flags = "--steps 1 --layers 4 --stages 2 --schedule interleaved --micro-batches 4";
    let said = place.refused(&format!("{flags} --channel-capacity 0"));
    let enough = said
        .split("raise the channel capacity to ")
        .nth(1)
        .and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
    let enough = enough.unwrap_or_else(|| panic!("{said}"));
    place.said(&format!("{flags} --channel-capacity {enough}"));
}

#[test]
fn the_flags_that_a_memory_error_suggests_make_the_run_fit() {
    let place = Place::new();
    // Each stage has one core, because every kernel thread has a buffer as large as an L2 cache, and the memory limits
    // below leave room for few buffers.
    let flags = "--steps 1 --layers 4 --width 32 --context 64 --stages 2 --micro-batches 8 --micro-batch-size 4 --cores-per-stage 1";
    let (mut taken, mut refused) = (0, 0);
    for (schedule, memory) in [("gpipe", 0.0204), ("gpipe", 0.0104), ("1f1b", 0.0064), ("1f1b", 0.0039)] {
        let said = place.refused(&format!("{flags} --schedule {schedule} --memory {memory}"));
        assert!(
            said.starts_with("Error: about ") && said.contains(" of memory are needed on the host, which has "),
            "{said}"
        );
        assert!(said.contains("\nremedies, the cheapest first:\n"), "{said}");
        for remedy in said.lines().filter(|line| line.starts_with("  --")) {
            let (levers, figure) = remedy.trim().split_once(": ").unwrap();
            let flags = format!("{flags} --schedule {schedule} --memory {memory} {levers}");
            let needs: f64 = figure.split(' ').nth(1).unwrap().parse().unwrap();
            if figure.ends_with(", fits") {
                assert!(!place.said(&flags).is_empty());
                taken += 1;
            } else if figure.ends_with(" MB, does not fit") && needs > 1.1e3 * memory {
                place.refused(&flags);
                refused += 1;
            }
        }
    }
    assert!(taken >= 4 && refused >= 2, "{taken} remedies were taken, and {refused} do not help");
    // The parameters are counted before they exist, and memory is estimated before a micro-batch that does not fit is
    // tried.
    let said = place.refused("--steps 1 --width 4096 --memory 1");
    assert_eq!(
        last(&said),
        "Error: 404930560 parameters and their optimizer states need at least 9.718 GB, and there are 1.000 GB: lower \
         --width or --layers, or try --optimizer adafactor"
    );
    let said = place
        .refused("--steps 1 --micro-batch-size 60000 --micro-batches 1 --context 64 --memory 0.63 --cores-per-stage 1");
    let fits = |line: &str| line.starts_with("  --micro-batch-size ") && line.ends_with(", fits");
    assert!(said.lines().any(fits), "{said}");
}

/// A simulated description of the processor's caches: a folder of files that replaces `/sys/devices/system/cpu` for a
/// run.
#[cfg(target_os = "linux")]
struct Caches(tempfile::TempDir);

#[cfg(target_os = "linux")]
impl Caches {
    /// Creates the description of a processor with one core, whose L2 cache has the given number of bytes.
    fn with_l2(bytes: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        for (index, (level, size)) in [(1, 32 << 10), (2, bytes), (3, 32 << 20)].into_iter().enumerate() {
            let cache = folder.path().join(format!("cpu0/cache/index{index}"));
            fs::create_dir_all(&cache).unwrap();
            for (name, text) in [
                ("level", level.to_string()),
                ("type", "Unified".to_owned()),
                ("size", format!("{}K", size >> 10)),
                ("shared_cpu_list", "0".to_owned()),
                ("ways_of_associativity", "8".to_owned()),
                ("coherency_line_size", "64".to_owned()),
            ] {
                fs::write(cache.join(name), text).unwrap();
            }
        }
        Self(folder)
    }

    /// Returns a command that runs `command` in a mount namespace of its own. There the machine appears to have the
    /// processor caches of this simulated description.
    fn around(&self, command: &Command) -> Command {
        let mut around = Command::new("unshare");
        around.args(["--map-root-user", "--mount", "sh", "-c"]);
        around.arg(r#"mount --bind "$0" /sys/devices/system/cpu && exec "$@""#).arg(self.0.path());
        around.env("RUST_BACKTRACE", "0").arg(command.get_program()).args(command.get_args());
        around
    }

    /// Whether the user who runs the test may mount files in a mount namespace.
    fn can_be_mounted(&self) -> bool {
        self.around(&Command::new("true")).output().is_ok_and(|output| output.status.success())
    }
}

/// Tests the error for too little memory, which suggests flags and says how much memory a run with them needs. That
/// number is within 12% of the memory estimate of such a run. The test uses the caches of this machine, and a simulated
/// L2 cache of 2 MiB: each kernel thread has a buffer as large as the L2 cache.
#[cfg(target_os = "linux")]
#[test]
fn suggested_flags_need_the_memory_that_their_message_says() {
    let place = Place::new();
    let mut machines = vec![None];
    let large = Caches::with_l2(2 << 20);
    if large.can_be_mounted() {
        machines.push(Some(large));
    } else {
        println!("with this machine's caches only: this user may not mount files");
    }
    let base =
        "--steps 1 --layers 4 --width 32 --context 64 --micro-batches 8 --micro-batch-size 4 --cores-per-stage 1";
    let mut compared = 0;
    for machine in &machines {
        let run = |flags: &str| {
            let command = place.command(flags);
            machine.as_ref().map_or(command, |caches| caches.around(&place.command(flags))).output().unwrap()
        };
        for flags in [if machine.is_some() { "--stages 4" } else { "--stages 2 --schedule zb-h1" }] {
            let flags = format!("{base} {flags}");
            let output = run(&format!("{flags} --memory 0.0027"));
            assert!(!output.status.success());
            let said = place.shown(&output);
            for remedy in said.lines().filter(|line| line.starts_with("  --")) {
                let (levers, figure) = remedy.trim().split_once(": ").unwrap();
                let needs: f64 = figure.split(' ').nth(1).unwrap().parse().unwrap();
                assert!(figure.contains(" MB, "), "{figure}");
                let log = place.path("estimate.jsonl");
                fs::remove_file(&log).ok();
                let output = run(&format!("{flags} {levers} --memory 1 --log @estimate.jsonl"));
                assert!(output.status.success(), "{}", place.shown(&output));
                let run: Value =
                    serde_json::from_str(fs::read_to_string(&log).unwrap().lines().next().unwrap()).unwrap();
                let peaks = run["memory"].as_array().unwrap().iter().map(|worker| worker["peak"].as_f64().unwrap());
                let estimated = 1e-6 * (peaks.sum::<f64>() + run["batch_bytes"].as_f64().unwrap());
                let ratio = needs / estimated;
                assert!((0.88..1.12).contains(&ratio), "{flags} {levers}: {needs}, and estimated are {estimated}");
                compared += 1;
            }
        }
    }
    assert!(compared >= 4 * machines.len(), "{compared} remedies of {} machines were compared", machines.len());
}

/// Tests that the suggestions in error messages leave out flags that the run cannot use: settings that a resumed run
/// must keep, values that the run already has, and values out of range.
#[test]
fn suggested_flags_are_ones_that_the_run_can_change() {
    let place = Place::new();
    let flags = "--steps 2 --layers 4 --width 32 --context 64";
    place.said(&format!("{flags} --stop-after 1 --checkpoint @kept"));
    let fresh = place.refused(&format!("{flags} --memory 0.0032"));
    assert!(fresh.contains("--optimizer adafactor"), "{fresh}");
    let resumed = place.refused(&format!("{flags} --resume latest --checkpoint @kept --memory 0.0032"));
    assert!(!resumed.contains("adafactor") && resumed.contains("--recompute full"), "{resumed}");
    let lean = place.refused(&format!("{flags} --optimizer adafactor --memory 0.0032"));
    assert!(!lean.contains("--optimizer"), "{lean}");
    let many = place.refused(&format!("{flags} --micro-batches 40000 --micro-batch-size 4 --memory 0.0001"));
    assert!(!many.contains("--micro-batch-size"), "{many}");
}

#[cfg(unix)]
mod files {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// Returns the command of a run for a user who has no right to read and write every file, even if the test itself
    /// runs as root.
    fn unprivileged(place: &Place, flags: &str) -> Command {
        let command = place.command(flags);
        let is_root = Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n");
        if !is_root {
            return command;
        }
        let program = place.path("program");
        // Another process copies the program. If this process did, a process that another test starts meanwhile would
        // inherit the file, open for writing, and such a file cannot be executed.
        let copied = Command::new("cp").arg(command.get_program()).arg(&program).status().unwrap();
        assert!(copied.success());
        fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o755)).unwrap();
        let mut other = Command::new("setpriv");
        other.args(["--reuid", "65534", "--regid", "65534", "--clear-groups"]).arg(program).args(command.get_args());
        other.env("RUST_BACKTRACE", "0");
        other
    }

    /// Asserts that a run of the GPT example ended with exit status 1, and returns its stderr.
    fn refusal(place: &Place, output: &Output) -> String {
        let said = place.shown(output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        said
    }

    #[test]
    fn missing_permissions_are_named_and_the_run_works_once_they_are_granted() {
        let place = Place::new();
        let folder = place.path("locked");
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o555)).unwrap();
        let flags = "--steps 2 --every 1 --checkpoint @locked";
        let said = refusal(&place, &unprivileged(&place, flags).output().unwrap());
        assert!(
            said.starts_with(
                "Error: --checkpoint: cannot open @locked/.lock; free space on its disk, or make the folder writable; "
            ),
            "{said}"
        );
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o777)).unwrap();
        let output = unprivileged(&place, flags).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));

        let text = place.path("text");
        fs::set_permissions(&text, fs::Permissions::from_mode(0o000)).unwrap();
        let said = refusal(&place, &unprivileged(&place, "--steps 1").output().unwrap());
        assert!(
            said.starts_with("Error: cannot read @text; make it readable, or move it out of the corpus: "),
            "{said}"
        );
        fs::set_permissions(&text, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(unprivileged(&place, "--steps 1").output().unwrap().status.success());
    }

    /// Tests a run that ends because the disk is full. A limit on the size of files (16 blocks of 512 or 1024 bytes)
    /// imitates the full disk. The resumed run ends with the same bits as an undisturbed run.
    #[test]
    fn a_run_that_a_full_disk_ended_resumes_to_the_same_bits() {
        let place = Place::new();
        let flags = "--steps 6 --every 1 --width 32";
        let whole = place.said(flags);
        place.said(&format!("{flags} --stop-after 2 --checkpoint @kept"));
        let resume = format!("{flags} --resume latest --checkpoint @kept");
        let command = place.command(&resume);
        let mut limited = Command::new("sh");
        limited.args(["-c", r#"trap '' XFSZ; ulimit -f 16 && exec "$0" "$@""#]).arg(command.get_program());
        let output = limited.args(command.get_args()).env("RUST_BACKTRACE", "0").output().unwrap();
        let said = refusal(&place, &output);
        assert!(
            said.contains("cannot write @kept/")
                && said.contains(
                    "; free space on its disk, or make the folder writable; earlier checkpoints are untouched"
                ),
            "{said}"
        );
        assert_eq!(Saved::open(&place.path("kept")).unwrap().manifest().progress.steps, 2);
        assert_eq!(hash(&place.said(&resume)), hash(&whole));
    }

    /// Tests a training text that is cut short while a run reads it: the run ends with an error, and resumes once the
    /// text is restored.
    #[test]
    fn a_run_that_a_shrinking_text_ended_resumes_once_the_text_is_restored() {
        let place = Place::new();
        let flags = "--steps 12 --schedule-steps 400 --every 1 --micro-batches 8 --micro-batch-size 4 --context 64";
        let whole = place.said(flags);
        let text = place.path("text");
        let (bytes, modified) = (fs::read(&text).unwrap(), fs::metadata(&text).unwrap().modified().unwrap());
        let mut child = place.command(&format!("{flags} --steps 1000000 --checkpoint @kept --log @log.jsonl"));
        let mut child = child.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::piped()).spawn().unwrap();
        wait_for_lines(&place.path("log.jsonl"), 3, &mut child);
        fs::OpenOptions::new().write(true).open(&text).unwrap().set_len(1000).unwrap();
        let said = refusal(&place, &child.wait_with_output().unwrap());
        assert!(
            said.contains(&format!("Error: @text had {} bytes when the corpus was opened, and has 1000 now; put it back as it was, with its modification time", bytes.len())),
            "{said}"
        );
        fs::write(&text, bytes).unwrap();
        fs::OpenOptions::new().write(true).open(&text).unwrap().set_modified(modified).unwrap();
        let steps = Saved::open(&place.path("kept")).unwrap().manifest().progress.steps;
        let rest = place.said(&format!("{flags} --resume latest --checkpoint @kept --steps {}", steps.max(12)));
        if steps <= 12 {
            assert_eq!(hash(&rest), hash(&whole));
        }
    }
}

/// Tests that a checkpoint with a NaN is rejected although its hashes and its seal are valid. The error names an older
/// checkpoint, which can be resumed.
#[test]
fn a_checkpoint_with_a_nan_is_refused_and_the_older_one_it_names_resumes() {
    let place = Place::new();
    let whole = place.said("--steps 4");
    place.said("--steps 4 --every 1 --stop-after 2 --checkpoint @kept");
    let newest: PathBuf = Saved::open(&place.path("kept")).unwrap().path().to_owned();
    let name = "blocks.0.safetensors";
    let mut bytes = fs::read(newest.join(name)).unwrap();
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&f32::NAN.to_le_bytes());
    fs::write(newest.join(name), &bytes).unwrap();
    reseal(&newest, |manifest| {
        let entry = manifest["files"].as_array_mut().unwrap().iter_mut().find(|entry| entry["name"] == name).unwrap();
        entry["sha256"] = sha256(&bytes).into();
    });

    let said = place.refused("--resume latest --checkpoint @kept");
    assert!(said.contains("blocks.0.safetensors") && said.contains("NaN"), "{said}");
    let older = said.split("resume from an older checkpoint, such as ").nth(1).unwrap().lines().next().unwrap();
    assert_eq!(hash(&place.said(&format!("--resume {older} --checkpoint @kept"))), hash(&whole));
}
