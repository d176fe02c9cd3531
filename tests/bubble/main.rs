//! Tests of the bubble bench: its CSV, JSON and HTML files agree with each other and with theory, on small pipelines.

use std::fs;

use clap::Parser;
use serde_json::Value;
use stageline_workspace::bubble::{flags, measure, report};

use crate::flags::Flags;

/// Counts allocated bytes, for the peak memory of each worker.
#[global_allocator]
static ALLOCATOR: stageline::CountingAllocator = stageline::CountingAllocator::new();

/// The number of workers in every case.
const P: usize = 2;

/// Measures with these flags, and returns the CSV file's lines, the JSON file's points and the HTML page.
fn files(flags: &str) -> (Vec<Vec<String>>, Vec<Value>, String) {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mut arguments = vec!["bubble".to_owned()];
    arguments.extend(flags.split_whitespace().map(str::to_owned));
    for name in ["csv", "json", "html"] {
        arguments.push(format!("--{name}={}", path(name).display()));
    }
    let flags = Flags::parse_from(arguments);
    let points: Vec<_> = flags.cases().unwrap().iter().map(|case| measure::measure(&flags, case).unwrap()).collect();
    report::write(&flags, &points).unwrap();
    let [csv, json, html] = ["csv", "json", "html"].map(|name| fs::read_to_string(path(name)).unwrap());
    let lines = csv.lines().map(|line| line.split(',').map(str::to_owned).collect()).collect();
    (lines, serde_json::from_str(&json).unwrap(), html)
}

/// Runs the bench under 1F1B and GPipe with M = 1 and 4, and asserts its figures against theory and its three files
/// against each other.
fn check(flags: &str, samples_per_micro_batch: f64) {
    let (lines, points, html) = files(flags);
    let cases: Vec<_> = ["1f1b", "gpipe"].into_iter().flat_map(|name| [1, 4].map(|m| (name, m))).collect();
    assert_eq!((points.len(), lines.len()), (cases.len(), 1 + cases.len()));
    for ((point, line), (schedule, micro_batches)) in points.iter().zip(&lines[1..]).zip(cases) {
        let figure = |name: &str| point[name].as_f64().unwrap_or_else(|| panic!("{name} of {point}"));
        assert_eq!((&point["schedule"], figure("micro_batches")), (&schedule.into(), micro_batches as f64));
        // With equal stages and free transfers, P - 1 of M + P - 1 slots are idle (Huang et al., 2019,
        // arXiv:1811.06965).
        let (p, m) = (P as f64, micro_batches as f64);
        assert!((figure("bubble_ideal") - (p - 1.0) / (m + p - 1.0)).abs() < 1e-9, "{point}");
        assert!((figure("throughput") * figure("step_seconds") / (m * samples_per_micro_batch) - 1.0).abs() < 1e-9);
        // GPipe keeps all M micro-batches live on the first stage, and 1F1B at most P (Narayanan et al., 2021).
        assert_eq!(figure("peak_live"), if schedule == "gpipe" { m } else { m.min(p) });
        assert!((0.0..1.0).contains(&figure("bubble")) && (0.0..1.0).contains(&figure("bubble_simulated")));
        let causes = point["idle_by_cause"].as_array().unwrap();
        let names: Vec<_> = causes.iter().map(|cause| cause[0].as_str().unwrap()).collect();
        assert_eq!(names, ["fill", "drain", "imbalance", "transfer", "flush", "asking", "other"]);
        assert!(figure("peak_bytes") > 0.0);
        assert_eq!(point["clock"], "host clock");
        // The CSV file and the page have the same figures.
        for (column, text) in lines[0].iter().zip(line) {
            match point[column].as_str() {
                Some(expected) => assert_eq!(text, expected, "{column}"),
                None if point[column].is_null() => panic!("{column} is not in the JSON file"),
                None => {
                    let (found, expected): (f64, _) = (text.parse().unwrap(), figure(column));
                    // The JSON parser may round the last bit differently.
                    assert!((found - expected).abs() <= 1e-12 * expected.abs(), "{column}: {found}, {expected}");
                }
            }
        }
        let cells = [format!("{:.4}", figure("bubble")), format!("{:.2}", 1e3 * figure("step_seconds"))];
        assert!(cells.iter().all(|cell| html.contains(&format!(">{cell}</td>"))), "{cells:?}");
    }
    // With one measured step, the idle time by cause and the bubble belong to the same step, so the causes add up to
    // it.
    for point in &points {
        let causes: f64 =
            point["idle_by_cause"].as_array().unwrap().iter().map(|cause| cause[1].as_f64().unwrap()).sum();
        assert!((causes - point["bubble"].as_f64().unwrap()).abs() < 1e-6, "{causes} in {point}");
    }
    for title in ["Bubble", "Throughput", "Live micro-batches", "Memory", "Idle time by cause, P = 2"] {
        assert_eq!(html.matches(&format!(">{title}</text>")).count(), 2, "{title}: one for each schedule");
    }
    assert!(html.contains("share of the total stage time, host clock"));
}

#[test]
fn paced_stages_write_csv_json_and_html() {
    check(
        "--kind paced --stages 2 --micro-batches 1,4 --schedules 1f1b,gpipe --rounds 1 --forward-ms 1 --backward-ms 2",
        1.0,
    );
}

#[test]
fn a_gpt_on_the_cpu_writes_csv_json_and_html() {
    let size = "--layers 2 --width 16 --context 8 --micro-batch-size 3";
    check(&format!("--kind cpu --stages 2 --micro-batches 1,4 --schedules 1f1b,gpipe --rounds 1 {size}"), 3.0 * 8.0);
}

#[test]
fn flags_out_of_range_are_errors_that_name_the_flag() {
    for (flags, expected) in [
        ("--rounds 0", "--rounds 0: measure at least 1 step"),
        ("--forward-ms -1", "--forward-ms -1: give 0 to 60000"),
        ("--schedules nothing", "nothing"),
    ] {
        let arguments = ["bubble".to_owned()].into_iter().chain(flags.split(' ').map(str::to_owned));
        let error = match Flags::try_parse_from(arguments)
            .map_err(anyhow::Error::from)
            .and_then(|flags| flags.cases().map(drop))
        {
            Ok(()) => panic!("{flags}: accepted"),
            Err(error) => error.to_string(),
        };
        assert!(error.contains(expected), "{flags}: {error}");
    }
}
