//! Tests the answer of `stageline advise` to how many micro-batches (M) a step should have.

use std::fs;

use crate::logs::{LOG, by_hand, log_of_chunks, log_of_equal, log_of_four, noisy, with_noise, write};
use crate::{error, json, text};

/// Returns the numbers in the table row that begins with `name`. `advice` is the text that `stageline advise` prints.
fn row(advice: &str, name: &str) -> Vec<f64> {
    let row = advice.lines().find(|line| line.trim_start().starts_with(&format!("{name} "))).unwrap();
    row.split_whitespace().filter_map(|column| column.trim_end_matches('%').parse().ok()).collect()
}

/// Tests the table of `stageline advise` for a run with a gradient noise scale of 40 tokens. A batch of M micro-batches
/// has B = 10 M tokens. A training needs a number of steps proportional to 1 + 40 / B to reach the loss of the run.
/// Each step takes (M + 1) x 3 s.
#[test]
fn the_table_has_the_time_to_the_loss_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let log = write(folder.path(), "run.jsonl", &noisy(40));
    let advice = text(&format!("advise --from {log} --most-stages 2"));
    assert!(advice.contains("by its noise scale (median 40 tokens, at its end 40 tokens):\n"), "{advice}");
    for m in [1.0_f64, 2.0, 4.0, 16.0] {
        let steps = 5.0 * (1.0 + 40.0 / (10.0 * m)) / (1.0 + 40.0 / 20.0);
        let step = 3.0 * (m + 1.0);
        let [number, batch, milliseconds, rate, bubble, found, tokens, time] = row(&advice, &m.to_string())[..] else {
            panic!("{advice}");
        };
        assert_eq!((number, batch, milliseconds), (m, 10.0 * m, 1e3 * step));
        assert!((bubble - 100.0 / (m + 1.0)).abs() < 0.051 && (rate - 10.0 * m / step).abs() < 0.51, "{advice}");
        assert!((found - steps).abs() < 0.51 && (tokens - steps * batch).abs() < 0.51, "{advice}");
        assert!((time - steps * step).abs() < 0.051, "{advice}");
    }
    assert!(row(&advice, "256")[0] == 256.0 && !advice.contains("\n  512 "), "{advice}");
}

#[test]
fn a_run_without_tokens_is_counted_in_samples() {
    let folder = tempfile::tempdir().unwrap();
    let log = noisy(40).replace(r#""tokens_per_micro_batch""#, r#""unit":"samples","tokens_per_micro_batch""#);
    let log = write(folder.path(), "run.jsonl", &log);
    let advice = text(&format!("advise --from {log}"));
    assert!(advice.contains("by its noise scale (median 40 samples, at its end 40 samples):\n"), "{advice}");
    assert!(advice.contains(" samples/s ") && !advice.contains("token"), "{advice}");
    let predicted = text(&format!("predict --from {log}"));
    assert!(predicted.contains(" samples a second\n"), "{predicted}");
    assert_eq!(json(&format!("predict --from {log} --json"))["unit"], "samples");
    let page = folder.path().join("run.html");
    text(&format!("page --from {log} --html {}", page.display()));
    let page = fs::read_to_string(page).unwrap();
    assert!(page.contains("samples a second") && !page.contains("token"), "{page}");
}

#[test]
fn one_recommendation_has_its_reason() {
    let folder = tempfile::tempdir().unwrap();
    let advice = |scale: u32, flags: &str| {
        let log = write(folder.path(), "run.jsonl", &noisy(scale));
        let advice = text(&format!("advise --from {log} {flags}"));
        let mut lines = advice.lines().skip_while(|line| !line.starts_with("recommendation: "));
        let recommended = [lines.next(), lines.next()].map(|line| line.unwrap_or_else(|| panic!("{advice}")));
        assert!(!lines.any(|line| line.starts_with("recommendation: ")), "{advice}");
        recommended.map(str::to_owned)
    };
    // With so much noise only the bubble counts: the step takes 3 (M + 1) s.
    let large = advice(1_000_000_000, "--most-stages 2");
    let times = (3.0 / 2.0) / (257.0 / 256.0);
    let expected = format!(
        "reason: it is {times:.1} times faster to the same loss than M = 2, because its bubble is 0% instead of 33%."
    );
    assert_eq!(large, ["recommendation: M = 256".to_owned(), expected]);
    let small = advice(1, "--most-stages 2");
    let log = write(folder.path(), "run.jsonl", &noisy(1));
    let flags = "\nas flags of a training: --stages 2 --micro-batches 1 --schedule zb-h1 --cut 0,1\n";
    let warning = "first log a short run of this schedule: ";
    let advised = text(&format!("advise --from {log} --most-stages 2"));
    assert!(advised.contains(&format!("{flags}{warning}")), "{advised}");
    let [settings, reason] = small;
    assert_eq!(settings, "recommendation: the schedule zb-h1 with M = 1");
    assert!(reason.contains(" faster to the same loss than 1f1b with M = 1, because its bubble is "), "{reason}");
}

/// Tests that the flags of a recommendation are on one line without other text, so that a user can copy them. Advice
/// that has no flag is on another line.
#[test]
fn recommended_flags_can_be_copied() {
    let folder = tempfile::tempdir().unwrap();
    let flags = |log: &str| {
        let larger = log.replace(r#""tokens_per_micro_batch":10"#, r#""tokens_per_micro_batch":20"#);
        let larger = larger.replace(r#""forward":1,"#, r#""forward":1.2,"#);
        let log = write(folder.path(), "run.jsonl", log);
        let other = write(folder.path(), "larger.jsonl", &larger);
        let advice = text(&format!("advise --from {log} --other-size {other} --schedule 1f1b --most-stages 2"));
        let flags = advice.lines().find_map(|line| line.strip_prefix("as flags of a training: ")).unwrap().to_owned();
        (flags, advice)
    };
    let noisy = noisy(1_000_000_000);
    let sized = noisy.replace(r#""configuration":{"seed":1}"#, r#""configuration":{"micro_batch_size":3}"#);
    let (found, advice) = flags(&sized);
    assert!(
        advice.contains("recommendation: micro-batches of 4 times the rows with M = 64\nreason: it is "),
        "{advice}"
    );
    assert_eq!(found, "--stages 2 --micro-batches 64 --micro-batch-size 12 --schedule 1f1b --cut 0,1");
    let (found, advice) = flags(&noisy);
    assert_eq!(found, "--stages 2 --micro-batches 64 --schedule 1f1b --cut 0,1");
    assert!(advice.contains("also make micro-batches 4 times as large\n"), "{advice}");
}

/// Tests the flags for a number of workers and devices that the run did not have, which its other settings would
/// contradict.
#[test]
fn settings_of_the_run_that_contradict_the_flags_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let log = write(folder.path(), "run.jsonl", LOG);
    let refused = error(&format!("advise --from {log} --most-stages 1"));
    assert!(refused.contains("a run of P = 2; also give --stages, at most 1"), "{refused}");
    // Without a recommendation, the partition belongs to the named schedule.
    let chunked = write(folder.path(), "chunked.jsonl", &log_of_four(""));
    let advice = text(&format!("advise --from {chunked} --stages 2 --schedule zb-v"));
    assert!(advice.contains("as flags of a training: --stages 2 --schedule zb-v --chunks 2 --cut "), "{advice}");
    let devices = r#""configuration":{"device":"cuda:0,cuda:1"}"#;
    let two = noisy(1_000_000_000).replace(r#""configuration":{"seed":1}"#, devices);
    let two = write(folder.path(), "two.jsonl", &two);
    let found = |workers: usize| text(&format!("advise --from {two} --stages {workers} --most-stages {workers}"));
    assert!(found(1).contains("the run has 2 devices: also give --device with 1 of them"), "{}", found(1));
    assert!(!found(2).contains("also give --device"));
    let more = log_of_chunks()
        .replace(r#""configuration":{"chunks":4}"#, r#""configuration":{"chunks":4,"device":"cuda:0,cuda:1"}"#);
    let more = write(folder.path(), "more.jsonl", &more);
    let advice = text(&format!("advise --from {more} --stages 4 --schedule 1f1b"));
    assert!(
        advice.contains("the run has 2 devices, and 4 workers would share them: also give --device with 4\n"),
        "{advice}"
    );
}

/// Tests that a partition that moves layers between devices of different kinds or speeds is not given without a warning,
/// because the log has the times of a layer only on the device that ran it.
#[test]
fn a_partition_over_unequal_devices_comes_with_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let advice = |log: &str, with: &str, flags: &str| {
        let settings = format!(r#""configuration":{{"seed":1{with}}}"#);
        let log = log
            .replace(r#""configuration":{"chunks":4}"#, &settings)
            .replace(r#""configuration":{"seed":1}"#, &settings);
        text(&format!("advise --from {} {flags}", write(folder.path(), "run.jsonl", &log)))
    };
    let moved = |with: &str| advice(&log_of_chunks(), with, "--stages 2 --schedule 1f1b");
    let mixed = moved(r#","device":"cpu,wgpu:0""#);
    assert!(mixed.contains("the devices of the run (cpu, wgpu:0) are not equally fast"), "{mixed}");
    assert!(!mixed.contains("--speeds"), "{mixed}");
    // `predict` marks the same partition, and names it as a flag.
    let log = folder.path().join("run.jsonl");
    let predict = format!("predict --from {} --stages 2 --schedule 1f1b", log.display());
    let predicted = text(&predict);
    let marked = "not comparable the devices of the run (cpu, wgpu:0) are not equally fast";
    assert!(predicted.contains(marked) && predicted.contains("\n--cut 0,"), "{predicted}");
    assert_eq!(json(&format!("{predict} --json"))["unequal_devices"], true);
    for speeds in [r#""1,2""#, "[1.0,2.0]", r#""measured""#] {
        let found = moved(&format!(r#","device":"cpu,cpu","speeds":{speeds}"#));
        assert!(found.contains("(cpu, cpu) are not equally fast"), "{found}");
        assert!(found.contains("leave --speeds out beside --cut\n"), "{found}");
    }
    for equal in [r#","device":"cuda:0,cuda:1""#, r#","device":"cuda:0,""#, r#","device":"cpu,cpu","speeds":"1,1""#] {
        assert!(!moved(equal).contains("not equally fast"), "{equal}");
    }
    // The partition of the run moves no layer.
    assert!(!advice(&noisy(1_000_000_000), r#","device":"cpu,wgpu:0""#, "").contains("not equally fast"));
}

/// Tests predictions for another number of workers from the log of a run whose workers shared a GPU.
#[test]
fn other_numbers_of_workers_on_a_shared_gpu_are_not_comparable() {
    let folder = tempfile::tempdir().unwrap();
    let log = log_of_chunks().replace(r#""configuration":{"chunks":4}"#, r#""configuration":{"device":"cuda:0"}"#);
    let log = write(folder.path(), "run.jsonl", &log);
    let marked = |stages: usize| {
        let predicted = text(&format!("predict --from {log} --stages {stages} --schedule 1f1b"));
        predicted.contains("not comparable workers of the log share a device")
    };
    assert_eq!([1, 2, 4].map(marked), [true, false, true]);
    let advice = text(&format!("advise --from {log} --stages 4 --schedule 1f1b"));
    assert!(advice.contains("not comparable workers of the log share a device"), "{advice}");
    assert!(!advice.contains("also give --device"), "{advice}");
}

/// Tests that the flags of a recommended schedule without chunks set their number to 1 if the run had another one. A
/// training takes settings without a flag from the run, and refuses 4 chunks with this schedule.
#[test]
fn the_flags_of_a_schedule_without_chunks_replace_those_of_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let flags = |log: &str| {
        let log = write(folder.path(), "run.jsonl", log);
        let advice = text(&format!("advise --from {log} --schedule zb-h1 --most-stages 2"));
        advice.lines().find_map(|line| line.strip_prefix("as flags of a training: ")).unwrap().to_owned()
    };
    // With so much noise M is large, and no schedule is much faster than another.
    let of_chunks = flags(&with_noise(&log_of_chunks(), 1_000_000_000));
    assert!(of_chunks.contains(" --schedule zb-h1 --chunks 1 --cut 0,4"), "{of_chunks}");
    let without = flags(&noisy(1_000_000_000));
    assert!(without.contains(" --schedule zb-h1 --cut 0,1"), "{without}");
}

/// Tests the advice about the learning rate if the recommended batch has 128 times the tokens of the run's batch. Under
/// Adam, the learning rate grows with the square root of the batch size (Malladi et al., 2022, arXiv:2205.10287).
#[test]
fn another_batch_needs_another_learning_rate() {
    let folder = tempfile::tempdir().unwrap();
    let advice = |settings: &str| {
        let settings = format!(r#""configuration":{{{settings}}}"#);
        let log = noisy(1_000_000_000).replace(r#""configuration":{"seed":1}"#, &settings);
        let log = write(folder.path(), "run.jsonl", &log);
        text(&format!("advise --from {log} --most-stages 2"))
    };
    for settings in ["", r#""optimizer":"sgd""#, r#""optimizer":"adamw""#, r#""optimizer":"adafactor""#] {
        let advice = advice(settings);
        assert!(advice.contains("\nthe batch has 128.00 times the tokens of the run's, "), "{advice}");
        let adam = settings.contains("ada");
        assert_eq!(
            advice.contains("tune it again, under Adam at first 11.31 times that of the run\n"),
            adam,
            "{advice}"
        );
        assert_eq!(advice.contains("; take the recommended M as a lower bound\n"), adam, "{advice}");
        assert_eq!(advice.contains("Adam"), adam, "{advice}");
    }
}

/// Tests that the text of `stageline advise` has only one line with the flags of a training, in the recommendation at
/// the beginning. The network links between workers are slow, so the recommended training has one worker with both
/// layers of the model.
#[test]
fn the_recommendation_has_the_only_flags() {
    let folder = tempfile::tempdir().unwrap();
    let crossing = noisy(40).replace("\"send_activation\":0", "\"send_activation\":0,\"output_bytes\":2e9");
    let log = write(folder.path(), "run.jsonl", &crossing);
    let advice = text(&format!("advise --from {log} --schedule 1f1b --bandwidth 0.1"));
    let (recommendation, tables) = advice.split_once("\nto the loss of this run, ").unwrap();
    assert!(recommendation.starts_with("recommendation: ") && !tables.contains("as flags of a training: "), "{advice}");
    assert_eq!(recommendation.matches("as flags of a training: ").count(), 1, "{advice}");
    assert!(
        recommendation.contains("\nas flags of a training: --stages 1 ") && recommendation.contains(" --cut 0\n"),
        "{advice}"
    );
    assert!(tables.contains("\nstage 0: front to back\n") && !tables.contains("\nstage 1: "), "{advice}");
}

/// Tests that no number of micro-batches is recommended for a run whose loss rises from 2 to 11. The advice compares
/// how soon trainings reach the loss of the run, which is no goal if the loss rises.
#[test]
fn a_run_whose_loss_rises_gets_no_recommendation() {
    let folder = tempfile::tempdir().unwrap();
    let noisy = noisy(40);
    let lines: Vec<_> = noisy.lines().collect();
    let step = |step: usize| {
        let line = lines[1].replace(r#""step":0"#, &format!(r#""step":{step}"#));
        line.replace(r#""loss":2.0"#, &format!(r#""loss":{}"#, 2 + step))
    };
    let rising: Vec<_> = [lines[0].to_owned()].into_iter().chain((0..10).map(step)).collect();
    let log = write(folder.path(), "run.jsonl", &(rising.join("\n") + "\n"));
    let advice = text(&format!("advise --from {log}"));
    let reason = "no other setting is compared: the loss of the run rises, from a mean of 4.0000 in the first half of its steps to \
                  9.0000 in the second, ";
    assert!(advice.contains("by throughput alone:\n") && advice.contains(reason), "{advice}");
    assert!(!advice.contains("recommendation:"), "{advice}");
}

#[test]
fn settings_that_cannot_be_compared_have_a_reason() {
    let folder = tempfile::tempdir().unwrap();
    let log = write(folder.path(), "run.jsonl", &noisy(40));
    let advice = text(&format!("advise --from {log}"));
    let missing =
        "not compared: 2 x the rows; 4 x the rows: the costs of larger micro-batches are not measured; log a run";
    assert!(advice.contains(missing), "{advice}");
    let unknown = error(&format!("advise --from {log} --memory 1"));
    assert!(unknown.contains("does not say how much memory its workers used"), "{unknown}");
    // Micro-batches of 20 tokens take 1.5 times as long as those of 10.
    let larger = noisy(40)
        .replace(r#""tokens_per_micro_batch":10"#, r#""tokens_per_micro_batch":20"#)
        .replace(r#""forward":1,"backward":2"#, r#""forward":1.5,"backward":3"#)
        .replace(r#""step_seconds":9.0"#, r#""step_seconds":13.5"#);
    let other = write(folder.path(), "larger.jsonl", &larger);
    let compared = text(&format!("advise --from {log} --other-size {other}"));
    assert!(!compared.contains("the costs of larger micro-batches are not measured"), "{compared}");
    assert!(row(&compared, "2 x the rows, M = 1").starts_with(&[2.0, 1.0, 20.0, 9000.0]), "{compared}");
}

#[test]
fn without_noise_the_table_has_throughput_and_the_text_a_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let unmeasured = write(folder.path(), "run.jsonl", LOG);
    let advice = text(&format!("advise --from {unmeasured}"));
    assert_eq!(row(&advice, "4"), [4.0, 40.0, 15000.0, 3.0, 20.0]);
    assert!(
        advice.contains("no M is recommended, and no other setting is compared: the log has no gradient noise; log a run with --noise-every 10"),
        "{advice}"
    );
    assert!(!advice.contains("recommendation:"), "{advice}");
    // A run with one micro-batch cannot measure the noise.
    let one = LOG
        .replace(r"0F0,0F1,0B0,0B1\n1F0,1B0,1F1,1B1\n", r"0F0,0B0\n1F0,1B0\n")
        .replace("\"weight\":20", "\"weight\":10");
    let one = write(folder.path(), "one.jsonl", &one.replace("\"step_seconds\":9.0", "\"step_seconds\":6.0"));
    let advice = text(&format!("advise --from {one}"));
    assert!(advice.contains("by throughput alone:\n"), "{advice}");
    assert!(
        advice.contains(
            "no M is recommended, and no other setting is compared: a run with M = 1 cannot measure the noise"
        ),
        "{advice}"
    );
    assert_eq!(row(&advice, "2"), [2.0, 20.0, 9000.0, 2.0, 33.3]);
}

#[test]
fn with_hosts_the_best_partition_has_the_table_too() {
    let folder = tempfile::tempdir().unwrap();
    let log =
        write(folder.path(), "run.jsonl", &log_of_four(r#""links":[null,{"latency":0.25,"bandwidth":1e9},null],"#));
    let advice = text(&format!("advise --from {log} --hosts 1,1"));
    // Two micro-batches take 20.5 s over the link between the hosts.
    assert!(row(&advice, "2").starts_with(&[2.0, 20.0, 20500.0]), "{advice}");
    assert!(
        advice.contains("no M is recommended, and no other setting is compared: the log has no gradient noise"),
        "{advice}"
    );
}

/// Tests the advice and the plans for a model that the user has cut into stages by hand. No command may propose other
/// stages or the flag `--cut`, because a training of such a model refuses them.
#[test]
fn a_model_that_is_cut_by_hand_keeps_its_stages_and_gets_no_cut() {
    let folder = tempfile::tempdir().unwrap();
    let log = write(folder.path(), "run.jsonl", &by_hand(&noisy(1_000_000_000)));
    let advice = text(&format!("advise --from {log}"));
    assert!(!advice.contains("--cut") && !advice.contains("P = 1, ") && !advice.contains(", V = "), "{advice}");
    assert!(advice.contains("other numbers of workers and of chunks, because the model is cut by hand\n"), "{advice}");
    assert!(advice.contains("\nas flags of a training: --stages 2 --micro-batches 256 --schedule "), "{advice}");
    assert_eq!(advice.matches("as flags of a training: ").count(), 1, "{advice}");
    assert!(advice.contains("(use a larger M), "), "{advice}");
    for other in ["--stages 1", "--schedule interleaved"] {
        let refused = error(&format!("advise --from {log} {other}"));
        assert!(refused.contains("cut by hand into 2 stages") && refused.contains("leave --stages and"), "{refused}");
    }

    let four = write(folder.path(), "four.jsonl", &by_hand(&log_of_four("")));
    // Four workers have a stage each, and two workers have two.
    for workers in [4, 2] {
        let search = format!("search --from {four} --stages {workers} --micro-batches 8");
        let found = json(&format!("{search} --json"));
        assert_eq!((found["stages"].as_u64(), found.get("cut")), (Some(workers), None));
        let printed = text(&search);
        assert!(printed.contains(&format!("\ntraining       --stages {workers} --micro-batches 8\n")), "{printed}");
    }
    let csv = folder.path().join("plan.csv");
    text(&format!("search --from {four} --stages 2 --micro-batches 1 --csv {}", csv.display()));
    assert!(text(&format!("check {}", csv.display())).contains(": 2 workers, 4 stages, 1 micro-batches,"));
    let refused = error(&format!("search --from {four} --stages 3 --micro-batches 8"));
    assert!(refused.contains("cut by hand into 4 stages, which 3 workers do not share evenly"), "{refused}");

    // A worker without any wait runs 6 forwards of a second and 6 backwards of two for each of 8 micro-batches.
    let six = write(folder.path(), "six.jsonl", &by_hand(&log_of_equal(6, "")));
    let found = json(&format!("search --from {six} --stages 1 --micro-batches 8 --json"));
    assert_eq!((found["stages"].as_u64(), found["step_ms"].as_f64()), (Some(1), Some(8.0 * 6.0 * 3e3)));
}

/// Tests that `stageline advise` prints the host's memory for batches and optimizer states, because its tables do not
/// count this memory. In the test, two workers keep optimizer states on the host.
#[test]
fn memory_of_the_host_that_no_table_counts_is_printed() {
    let folder = tempfile::tempdir().unwrap();
    let worker = r#"{"parameters":1,"optimizer":0,"optimizer_on_host":2000000,"gradients":1,"activations":1,"other":0,"peak":3}"#;
    let on_host = format!(r#""batch_bytes":3000000,"memory":[{worker},{worker}],"tokens_per_micro_batch""#);
    for log in [LOG.to_owned(), noisy(40)] {
        let silent = write(folder.path(), "silent.jsonl", &log);
        assert!(!text(&format!("advise --from {silent}")).contains("of the host's memory"));
        let counted = log.replace(r#""tokens_per_micro_batch""#, &on_host);
        let counted = write(folder.path(), "run.jsonl", &counted);
        let advice = text(&format!("advise --from {counted}"));
        let expected =
            "3.0 MB of the host's memory for batches and 4.0 MB for optimizer states on the host, which neither";
        assert!(advice.contains(expected), "{advice}");
    }
}
